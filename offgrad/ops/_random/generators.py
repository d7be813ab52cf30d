"""Random tensors and dropout from counter-based generators, whose state is a seed and an offset."""

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from offgrad_storage.interrupts import MaskedLock

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import is_differentiable, wrap
from offgrad.ops._core.device import check_device
from offgrad.ops._core.dims import integer, shape_of
from offgrad.ops._core.dtypes import default_dtype, real_floating
from offgrad.ops._random import replay

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "Generator",
    "default_generator",
    "dropout",
    "get_rng_state",
    "manual_seed",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "randperm",
    "set_rng_state",
]


class Generator:
    """A random generator; its state is a seed and the count of numbers drawn.

    Thread-safe; threads that share a generator draw in order of arrival.
    """

    def __init__(self, seed: int = 0) -> None:
        self._lock = MaskedLock()
        self._seed = int(seed) & (2**64 - 1)
        self._offset = 0

    def manual_seed(self, seed: int) -> "Generator":
        """Restart from `seed`, any integer, reduced to 64 bits; return the generator."""
        self.set_state((int(seed) & (2**64 - 1), 0))
        return self

    def initial_seed(self) -> int:
        """Return the seed."""
        return self._seed

    def get_state(self) -> tuple[int, int]:
        """Return the seed and the offset."""
        with self._lock:
            return self._seed, self._offset

    def set_state(self, state: tuple[int, int]) -> None:
        """Set a state that `get_state` returned."""
        if not replay.is_replaying():
            with self._lock:
                self._seed, self._offset = state

    def advance(self, count: int) -> tuple[int, int]:
        """Take `count` numbers; return the seed and the offset of the first.

        A checkpoint's recomputation gets the numbers of its forward run.
        """
        count = operator.index(count)  # a tensor would make an array of the state
        draw = replay.take(count, lambda: self._draw(count))
        return draw.seed, draw.offset

    def _draw(self, count: int) -> replay.Draw:
        with self._lock:
            seed, offset = self._seed, self._offset
            self._offset = offset + count
        return replay.Draw(seed, offset, count)

    def stream(self, count: int) -> np.random.Generator:
        """Take `count` numbers; return a NumPy generator that yields them."""
        seed, offset = self.advance(count)
        # A step of Philox's counter gives four 64-bit words: room for rejections in each number.
        return np.random.Generator(np.random.Philox(key=seed, counter=offset))


default_generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Seed the default generator and return it."""
    return default_generator.manual_seed(seed)


def get_rng_state() -> tuple[int, int]:
    """Return the state of the default generator."""
    return default_generator.get_state()


def set_rng_state(state: tuple[int, int]) -> None:
    """Set the state of the default generator."""
    default_generator.set_state(state)


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


def dropout(input: "Tensor", p: float = 0.5, training: bool = True) -> "Tensor":
    """Return `input` with each element zeroed with probability `p`, the rest over ``1 - p``.

    Raises:
        ValueError: if `p` is not from 0 to 1.
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0.0:
        return input
    x = real_floating(input, "dropout")
    seed, offset = default_generator.advance(x._array.size)
    return Dropout.apply(x, p=p, seed=seed, offset=offset)


def _float_dtype(dtype: Any, where: str) -> np.dtype[Any]:
    result = default_dtype() if dtype is None else np.dtype(dtype)
    if not is_differentiable(result):
        raise NotImplementedError(
            f"{where}: a floating point or complex dtype is needed, got {result.name}"
        )
    return result


def _sample(
    shape: tuple[int, ...],
    dtype: Any,
    requires_grad: bool,
    method: str,
    generator: Generator | None,
    where: str,
) -> "Tensor":
    kind = _float_dtype(dtype, where)
    out = memory.empty(shape, kind)
    count = out.size * (2 if kind.kind == "c" else 1)
    draw = getattr((generator or default_generator).stream(count), method)
    if kind.kind == "c":
        # Complex normal numbers have variance 1, half of it in each part.
        part = np.dtype(np.float64 if kind == np.complex128 else np.float32)
        scale = part.type(0.5**0.5 if method == "standard_normal" else 1)
        pair = draw((*shape, 2), dtype=part) * scale
        out[...] = pair[..., 0] + 1j * pair[..., 1]
    elif kind in (np.float32, np.float64):
        draw(out=out, dtype=kind)
    else:
        out[...] = draw(shape, dtype=np.float32).astype(kind)
    return wrap(out, requires_grad=requires_grad)


def rand(
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    generator: Generator | None = None,
) -> "Tensor":
    """Return numbers uniform on [0, 1)."""
    check_device(device)
    return _sample(shape_of(size, "rand"), dtype, requires_grad, "random", generator, "rand")


def randn(
    *size: Any,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    generator: Generator | None = None,
) -> "Tensor":
    """Return normal numbers of mean 0 and variance 1."""
    check_device(device)
    shape = shape_of(size, "randn")
    return _sample(shape, dtype, requires_grad, "standard_normal", generator, "randn")


def rand_like(input: "Tensor", *, dtype: Any = None, requires_grad: bool = False) -> "Tensor":
    """Return `rand` of the shape and dtype of `input`."""
    return rand(input.shape, dtype=dtype or input._array.dtype, requires_grad=requires_grad)


def randn_like(input: "Tensor", *, dtype: Any = None, requires_grad: bool = False) -> "Tensor":
    """Return `randn` of the shape and dtype of `input`."""
    return randn(input.shape, dtype=dtype or input._array.dtype, requires_grad=requires_grad)


def randint(
    low: int,
    high: Any = None,
    size: Sequence[int] | None = None,
    *,
    dtype: Any = np.int64,
    device: Any = None,
    generator: Generator | None = None,
) -> "Tensor":
    """Return integers from `low` (0 if left out) to below `high`, of shape `size`."""
    check_device(device)
    if size is None:
        low, high, size = 0, low, high
    if size is None or not isinstance(size, tuple | list):
        raise TypeError(f"randint: size must be a tuple of integers, got {size!r}")
    low, high = integer(low, "randint", "low"), integer(high, "randint", "high")
    if high <= low:
        raise RuntimeError(f"randint: low must be below high, got {low} and {high}")
    shape = shape_of((size,), "randint")
    stream = (generator or default_generator).stream(int(np.prod(shape)))
    return wrap(stream.integers(low, high, shape).astype(dtype))


def randperm(n: int, *, generator: Generator | None = None) -> "Tensor":
    """Return the integers 0 to ``n - 1`` in random order."""
    n = integer(n, "randperm", "n")
    if n < 0:
        raise RuntimeError(f"randperm: n must not be negative, got {n}")
    return wrap((generator or default_generator).stream(n).permutation(n))
