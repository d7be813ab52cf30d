"""Weighted sums along the last dimensions: what average pooling, interpolation, padding share."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.kernels import Taps

__all__: list[str] = []


class Resample(Op):
    """Sums of a few elements along each of the last dimensions, times weights; keeps nothing.

    The gradient is the same operation with the transposed taps.
    """

    is_recomputable = True

    def forward(self, x: Array, taps: "tuple[Taps | None, ...]") -> Array:
        """Return x with other sizes in the dimensions of `taps`; None keeps one as it is."""
        self.taps = taps
        before = x.ndim - len(taps)
        sizes = [
            size if each is None else each.outputs
            for size, each in zip(x.shape[before:], taps, strict=True)
        ]
        out = memory.empty((*x.shape[:before], *sizes), x.dtype)
        kernels.resample(memory.contiguous(x), taps, out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        transposed = tuple([None if each is None else each.transposed for each in self.taps])
        return type(self).named(_other_direction(self.name())).apply(grad, taps=transposed)


def _other_direction(name: str) -> str:
    """Return the name of the gradient's node; of a gradient's, that of the operation."""
    if name.endswith("BackwardBackward0"):
        return name.replace("BackwardBackward0", "Backward0")
    return name.replace("Backward0", "BackwardBackward0")


def resampled(x: "Tensor", taps: "tuple[Taps | None, ...]", name: str) -> "Tensor":
    """Return `x` summed along its last dimensions; `name` is that of the node, less its suffix."""
    return Resample.named(name + "Backward0").apply(x, taps=taps)


def spread(starts: Array, counts: Array) -> tuple[Array, Array]:
    """Return the elements of windows as [largest count, windows], and which of them count."""
    within = np.arange(int(counts.max(initial=1)))[:, None]
    inside = within < counts
    return np.where(inside, starts + within, starts), inside
