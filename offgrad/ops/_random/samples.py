"""New tensors of random numbers."""

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from offgrad import memory
from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import is_differentiable, wrap
from offgrad.memory.meta import MetaArray, is_shape_only
from offgrad.ops._core.dims import integer, is_integer, shape_of
from offgrad.ops._core.dtypes import check_tensor, default_dtype
from offgrad.ops._core.factories import factory, new_shape
from offgrad.ops._core.memory_formats import empty_in_order, order_of
from offgrad.ops._random.generators import Generator, default_generator

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
]


def _sample(
    shape: tuple[int, ...], dtype: Any, method: str, generator: Generator | None, where: str
) -> Array:
    kind = default_dtype() if dtype is None else dtype
    if not is_differentiable(kind):
        raise NotImplementedError(
            f"{where}: a floating point or complex dtype is needed, got {kind.name}"
        )
    out = memory.empty(shape, kind)
    if type(out) is MetaArray:
        return out
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
        sample = draw(shape, dtype=np.float32)
        if method == "random":  # rounded to the nearest, some would be 1
            steps = np.float32(largest_integer(kind))
            sample = np.floor(sample * steps) / steps
        out[...] = sample.astype(kind)
    return out


@factory
def rand(
    *args: Any,
    size: Any = None,
    dtype: Any = None,
    generator: Generator | None = None,
    names: Any = None,
) -> "Tensor":
    """Return numbers uniform on [0, 1); sizes come one by one, or as a tuple."""
    return wrap(_sample(new_shape(args, size, "rand"), dtype, "random", generator, "rand"))


@factory
def randn(
    *args: Any,
    size: Any = None,
    dtype: Any = None,
    generator: Generator | None = None,
    names: Any = None,
) -> "Tensor":
    """Return normal numbers of mean 0 and variance 1; sizes come one by one, or as a tuple."""
    shape = new_shape(args, size, "randn")
    return wrap(_sample(shape, dtype, "standard_normal", generator, "randn"))


def _like(input: "Tensor", sample: Array, memory_format: Any, where: str) -> "Tensor":
    """Return a sample in the order in memory of `input`."""
    order = order_of(input._array, memory_format, where)
    if order is None:
        return wrap(sample)
    out = empty_in_order(sample.shape, sample.dtype, order)
    np.copyto(out, sample)
    return wrap(out)


@factory
def rand_like(
    input: "Tensor",
    *,
    dtype: Any = None,
    generator: Generator | None = None,
    memory_format: Any = None,
) -> "Tensor":
    """Return `rand` of the shape, the dtype and the order in memory of `input`."""
    like = check_tensor(input, "rand_like")._array
    sample = _sample(like.shape, dtype or like.dtype, "random", generator, "rand_like")
    return _like(input, sample, memory_format, "rand_like")


@factory
def randn_like(
    input: "Tensor",
    *,
    dtype: Any = None,
    generator: Generator | None = None,
    memory_format: Any = None,
) -> "Tensor":
    """Return `randn` of the shape, the dtype and the order in memory of `input`."""
    like = check_tensor(input, "randn_like")._array
    sample = _sample(like.shape, dtype or like.dtype, "standard_normal", generator, "randn_like")
    return _like(input, sample, memory_format, "randn_like")


def _integers(
    low: Any, high: Any, shape: tuple[int, ...], dtype: Any, generator: Any, where: str
) -> Array:
    low, high = integer(low, where, "low"), integer(high, where, "high")
    if high <= low:
        raise RuntimeError(
            f"{where}: random_ expects 'from' to be less than 'to', but got low (from) {low} and "
            f"high (to) {high}"
        )
    check_range(low, high - 1, np.dtype(dtype), where)
    if is_shape_only():
        return memory.empty(shape, dtype)
    stream = (generator or default_generator).stream(int(np.prod(shape)))
    return np.asarray(stream.integers(low, high, shape)).astype(dtype)


def largest_integer(dtype: np.dtype[Any]) -> int:
    """Return the largest integer up to which a dtype holds all."""
    if dtype.kind == "b":
        return 1
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).max)
    digits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
    return int(2 ** digits.get(dtype.name, 24))


def check_range(low: int, high: int, dtype: np.dtype[Any], where: str) -> None:
    """Raise RuntimeError unless numbers from `low` to `high` are in the range of a dtype.

    As in PyTorch, floating point numbers may be rounded.
    """
    limits: Any
    if dtype.kind == "b":
        lowest, highest = 0, 1
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        lowest, highest = int(limits.min), int(limits.max)
    else:
        # int() of its bfloat16 overflows.
        limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        lowest, highest = int(float(limits.min)), int(float(limits.max))
    if low < lowest or high > highest:
        raise RuntimeError(
            f"{where}: numbers from {low} to {high} are out of bounds for {dtype.name}"
        )


@factory
def randint(
    *bounds: Any,
    low: Any = None,
    high: Any = None,
    size: Any = None,
    dtype: Any = None,
    generator: Generator | None = None,
) -> "Tensor":
    """Return integers from `low` to below `high`, of shape `size`.

    Called as ``randint(high, size)`` or ``randint(low, high, size)``; all have names, too.

    Raises:
        TypeError: if `size` is not a tuple of integers, or a bound is missing.
        RuntimeError: unless `low` is below `high`.
    """
    given = list(bounds)
    if size is None and given and not is_integer(given[-1]):
        size = given.pop()
    if not isinstance(size, (tuple, list)):
        raise TypeError(f"randint: size must be a tuple of integers, got {size!r}")
    if high is None and given:
        high = given.pop()
    if low is None:
        low = given.pop() if given else 0
    if high is None or given:
        raise TypeError(f"randint takes high and size, or low, high and size, got {bounds}")
    shape = shape_of((size,), "randint")
    kind = np.dtype(np.int64) if dtype is None else dtype
    return wrap(_integers(low, high, shape, kind, generator, "randint"))


@factory
def randint_like(
    input: "Tensor",
    *bounds: Any,
    low: Any = None,
    high: Any = None,
    dtype: Any = None,
    generator: Generator | None = None,
    memory_format: Any = None,
) -> "Tensor":
    """Return integers from `low` (0 if left out) to below `high`, in the form of `input`."""
    like = check_tensor(input, "randint_like")._array
    given = list(bounds)
    if high is None and given:
        high = given.pop()
    if low is None:
        low = given.pop() if given else 0
    if high is None or given:
        raise TypeError(f"randint_like takes high, or low and high, got {bounds}")
    sample = _integers(low, high, like.shape, dtype or like.dtype, generator, "randint_like")
    return _like(input, sample, memory_format, "randint_like")


@factory
def randperm(n: int, *, dtype: Any = None, generator: Generator | None = None) -> "Tensor":
    """Return the integers 0 to ``n - 1`` in random order, int64 by default."""
    n = integer(n, "randperm", "n")
    if n < 0:
        raise RuntimeError(f"randperm: Trying to create tensor with negative dimension {n}")
    if dtype is not None and n - 1 > largest_integer(dtype):
        raise RuntimeError(f"randperm: {dtype.name} does not hold all integers below {n}")
    order = (generator or default_generator).stream(n).permutation(n)
    return wrap(order if dtype is None else order.astype(dtype))
