"""Dropout by a counter-based generator: the seed replaces the mask."""

from typing import TYPE_CHECKING, Any

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.ops._core.dtypes import real_floating
from offgrad.ops._random.generators import default_generator

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["dropout"]


class Dropout(Op):
    """x with elements dropped at random and the rest scaled; keeps the seed instead of the mask."""

    is_recomputable = True

    torch_name = "NativeDropoutBackward0"

    def forward(self, x: Array, p: float, seed: int, offset: int) -> Array:
        """Return x / (1 - p) where kept, else 0; seed, offset and position decide the mask."""
        self.options = {"p": p, "seed": seed, "offset": offset}
        out = memory.empty(x.shape, x.dtype)
        kernels.dropout(memory.contiguous(x), out, p, seed, offset)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Drop the same elements of the gradient."""
        return Dropout.apply(grad, **self.options)


def dropout(input: "Tensor", p: float = 0.5, train: bool = True) -> "Tensor":
    """Return `input` with each element zeroed with probability `p`, the rest over ``1 - p``.

    Raises:
        ValueError: if `p` is not from 0 to 1.
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not train or p == 0.0:
        return input
    x = real_floating(input, "dropout")
    seed, offset = default_generator.advance(x._array.size)
    return Dropout.apply(x, p=p, seed=seed, offset=offset)
