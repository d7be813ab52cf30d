"""Ranges of numbers, and the identity matrix."""

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.op import Array
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.dims import integer
from offgrad.ops._core.dtypes import category, common_dtype, default_dtype
from offgrad.ops._core.factories import factory
from offgrad.ops._creation.constants import number

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["arange", "eye", "linspace", "logspace", "range"]


@factory
def arange(start: Any = None, end: Any = None, step: Any = 1, *, dtype: Any = None) -> "Tensor":
    """Return the numbers from `start` (0 if left out) to below `end` by `step`.

    Args:
        start: a number, or a tensor without dimensions, as `end` and `step`.
        end: the bound, which is left out of the result.
        step: the distance.
        dtype: by default int64 if all three are integers, else the default dtype.

    Raises:
        RuntimeError: if the numbers are complex or not finite, or `step` does not lead to `end`.
        NotImplementedError: for bool and complex dtypes.
        TypeError: without an end.
    """
    if end is None:
        start, end = 0, start
    if end is None:
        raise TypeError("arange needs an end: arange(end), arange(start, end) or with a step")
    start, end, step, kind = _bounds("arange", 0 if start is None else start, end, step, dtype)
    if category(kind) == 1:
        return wrap(_integers(start, end, step, kind).astype(kind, copy=False))
    return wrap(_converted(np.arange(start, end, step), kind))


def _integers(start: Any, end: Any, step: Any, kind: Any) -> Array:
    """Return whole numbers from bounds that may have fractions, as many as PyTorch gives."""
    first, stride = int(start), int(step)
    if kind == np.int64:  # the only dtype whose count drops the fractions before
        return np.arange(*_leading("arange", first, int(end), stride))
    count = math.ceil((end - start) / step)
    return np.arange(count) * stride + first


def _converted(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Return the numbers as `dtype`, infinite beyond its range."""
    with np.errstate(over="ignore"):
        return numbers.astype(dtype)


def _bounds(where: str, start: Any, end: Any, step: Any, dtype: Any) -> tuple[Any, Any, Any, Any]:
    """Return the checked numbers of a range, and its dtype."""
    start, end, step = (number(each, where) for each in (start, end, step))
    if any(isinstance(each, (complex, np.complexfloating)) for each in (start, end, step)):
        raise RuntimeError(f"{where}: real numbers are needed, got {start}, {end} and {step}")
    if dtype is None:
        integral = all(isinstance(each, (int, np.integer)) for each in (start, end, step))
        dtype = np.dtype(np.int64) if integral else default_dtype()
    if category(dtype) in (0, 3):
        raise NotImplementedError(f"{where} is not defined for {dtype.name}")
    if not np.isfinite([start, end, step]).all():
        raise RuntimeError(
            f"{where}: unsupported range: finite numbers are needed, got {start}, {end} and {step}"
        )
    return *_leading(where, start, end, step), dtype


_ZERO_STEP = "step must be nonzero"


def _leading(where: str, start: Any, end: Any, step: Any) -> tuple[Any, Any, Any]:
    """Return the numbers of a range, whose step must lead from its start to its end."""
    if not step or (end - start) / step < 0:
        problem = "upper bound and lower bound inconsistent with step sign" if step else _ZERO_STEP
        raise RuntimeError(f"{where}: {problem}, got start {start}, end {end}, step {step}")
    return start, end, step


@factory
def range(start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None) -> "Tensor":
    """Return the numbers from `start` to `end`, which is part of the result, by `step`.

    PyTorch deprecates it in favour of `arange`, which leaves out the end.
    """
    warnings.warn(
        "range is deprecated: unlike Python's it contains the end; use arange",
        UserWarning,
        stacklevel=3,
    )
    if end is None:
        start, end = 0, start
    kind = default_dtype() if dtype is None else dtype
    start, end, step, kind = _bounds("range", start, end, step, kind)
    if category(kind) == 1:
        start, end, step = _leading("range", int(start), int(end), int(step))
    count = int((end - start) / step) + 1
    return wrap((start + np.arange(count) * step).astype(kind))


@factory
def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None) -> "Tensor":
    """Return `steps` evenly spaced numbers from `start` to `end`, both included.

    Bounds of integers lose their fractions, and then the numbers do.

    Raises:
        RuntimeError: if `steps` is negative, a bound is a tensor with dimensions, or complex bounds
            do not fit into the dtype.
    """
    start, end, steps, kind = _interval("linspace", start, end, steps, dtype)
    return wrap(_converted(_spaced(start, end, steps), kind))


@factory
def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None
) -> "Tensor":
    """Return `base` to the powers that `linspace` gives.

    Raises:
        RuntimeError: as `linspace`.
    """
    start, end, steps, kind = _interval("logspace", start, end, steps, dtype)
    if category(kind) < 3 and base < 0:
        raise RuntimeError(f"logspace: the base must not be negative, got {base}")
    return wrap(np.power(np.asarray(base, np.float64), _spaced(start, end, steps)).astype(kind))


def _spaced(start: Any, end: Any, steps: int) -> Array:
    """Return evenly spaced numbers, in float64 or complex128, the second half from the end on."""
    offsets = np.linspace(0, end - start, steps)
    numbers: Array = start + offsets
    half = max(steps // 2, 1)
    numbers[half:] = end - offsets[: max(steps - half, 0)][::-1]
    return numbers


def _interval(
    where: str, start: Any, end: Any, steps: Any, dtype: Any
) -> tuple[Any, Any, int, Any]:
    """Return the checked bounds and number of steps, and the dtype."""
    steps = integer(steps, where, "steps")
    if steps < 0:
        raise RuntimeError(f"{where}: number of steps must be non-negative, got {steps}")
    for each in (start, end):
        if isinstance(each, TensorBase) and each._array.ndim:
            raise RuntimeError(
                f"{where} only supports 0-dimensional start and end tensors, got a {describe(each)}"
            )
    start, end = number(start, where), number(end, where)
    inferred = common_dtype(start, end, 0.0)
    kind = inferred if dtype is None else dtype
    if category(inferred) == 3 != category(kind):
        raise RuntimeError(f"{where}: complex bounds do not fit into {kind.name}")
    if category(kind) == 1:
        start, end = int(start), int(end)
    return start, end, steps, kind


@factory
def eye(n: int, m: int | None = None, *, dtype: Any = None) -> "Tensor":
    """Return the matrix [n, m] with ones on the diagonal; `m` defaults to `n`."""
    rows, columns = (integer(each, "eye", "n") for each in (n, n if m is None else m))
    if rows < 0 or columns < 0:
        name, size = ("n", rows) if rows < 0 else ("m", columns)
        raise RuntimeError(f"eye: {name} must be greater or equal to 0, got {size}")
    return wrap(np.eye(rows, columns, dtype=dtype or default_dtype()))
