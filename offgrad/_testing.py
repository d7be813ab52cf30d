"""`assert_close` and `make_tensor` of `offgrad.testing`."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from offgrad import ops
from offgrad._tensor.tensor import Tensor

# Relative and absolute tolerances by the name of the dtype; 0 for all others.
_TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
}

_NUMBERS = (bool, int, float, complex)

Message = str | Callable[[str], str] | None


class _Options(NamedTuple):
    rtol: float | None
    atol: float | None
    equal_nan: bool
    check_dtype: bool
    check_stride: bool
    allow_subclasses: bool


class _Mismatch(Exception):
    """The description of a difference."""


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: Message = None,
) -> None:
    """Raise unless two values are close: ``|actual - expected| <= atol + rtol * |expected|``.

    Args:
        actual: a tensor, an array, a number, None, or sequences and mappings of these.
        expected: the same.
        allow_subclasses: whether the types may differ, if both are tensors.
        rtol: the relative tolerance; by default it depends on the dtype, and is 0 for integers.
        atol: the absolute tolerance; likewise.
        equal_nan: whether NaN is close to NaN.
        check_device: accepted.
        check_dtype: whether the dtypes must be the same.
        check_layout: accepted.
        check_stride: whether the strides must be the same.
        msg: the message instead of the description of the difference, or a function of it.

    Raises:
        AssertionError: they are not close.
        TypeError: the types cannot be compared.
        ValueError: only one of the tolerances is given.
    """
    if (rtol is None) != (atol is None):
        name = "rtol" if rtol is None else "atol"
        raise ValueError(
            f"Both 'rtol' and 'atol' must be either specified or omitted, but got no {name}"
        )
    options = _Options(rtol, atol, equal_nan, check_dtype, check_stride, allow_subclasses)
    try:
        _compare(actual, expected, options, ())
    except _Mismatch as difference:
        text = str(difference)
        if msg is not None:
            text = msg(text) if callable(msg) else msg
        raise AssertionError(text) from None


def _compare(actual: Any, expected: Any, options: _Options, place: tuple[Any, ...]) -> None:
    sequences = isinstance(actual, Sequence) and isinstance(expected, Sequence)
    if sequences and not isinstance(actual, str) and not isinstance(expected, str):
        if len(actual) != len(expected):
            raise _mismatch(
                f"The length of the sequences mismatch: {len(actual)} != {len(expected)}", place
            )
        for index, pair in enumerate(zip(actual, expected, strict=True)):
            _compare(*pair, options, (*place, index))
    elif isinstance(actual, Mapping) and isinstance(expected, Mapping):
        missing, further = expected.keys() - actual.keys(), actual.keys() - expected.keys()
        if missing or further:
            raise _mismatch(
                "The keys of the mappings do not match:\n"
                f"Missing keys in the actual mapping: {sorted(missing, key=str)}\n"
                f"Additional keys in the actual mapping: {sorted(further, key=str)}",
                place,
            )
        for key in sorted(expected, key=str):
            _compare(actual[key], expected[key], options, (*place, key))
    elif actual is None or expected is None:
        if actual is not expected:
            raise _mismatch(f"None mismatch: {actual} is not {expected}", place)
    elif isinstance(actual, _NUMBERS) and isinstance(expected, _NUMBERS):
        _compare_numbers(actual, expected, options, place)
    elif _comparable(actual, expected, options):
        _compare_arrays(actual, expected, options, place)
    else:
        raise TypeError(
            f"assert_close cannot compare {type(actual).__name__} with {type(expected).__name__}; "
            "make tensors of both"
        )


def _mismatch(text: str, place: tuple[Any, ...]) -> _Mismatch:
    where = "".join(f"[{each!r}]" for each in place)
    return _Mismatch(f"{text}\n\nThe failure occurred for item {where}" if place else text)


def _comparable(actual: Any, expected: Any, options: _Options) -> bool:
    if isinstance(actual, Tensor) and isinstance(expected, Tensor):
        return options.allow_subclasses or type(actual) is type(expected)
    arrays = (np.ndarray, np.generic)
    return isinstance(actual, arrays) and isinstance(expected, arrays)


def _tolerances(options: _Options, *dtypes: np.dtype[Any]) -> tuple[float, float]:
    if options.rtol is not None and options.atol is not None:
        return options.rtol, options.atol
    pairs = [_TOLERANCES.get(dtype.name, (0.0, 0.0)) for dtype in dtypes]
    return max(pair[0] for pair in pairs), max(pair[1] for pair in pairs)


def _allowed(tolerance: float) -> str:
    return f" (up to {tolerance} allowed)" if tolerance else ""


def _compare_numbers(actual: Any, expected: Any, options: _Options, place: tuple[Any, ...]) -> None:
    if options.check_dtype and type(actual) is not type(expected):
        raise _mismatch(f"The (d)types do not match: {type(actual)} != {type(expected)}.", place)
    rtol, atol = _tolerances(options, np.asarray(actual).dtype, np.asarray(expected).dtype)
    nan = options.equal_nan and actual != actual and expected != expected
    difference = abs(actual - expected)
    if actual == expected or nan or difference <= atol + rtol * abs(expected):
        return
    relative = difference / abs(expected) if expected else math.inf
    kind = "close" if rtol or atol else "equal"
    raise _mismatch(
        f"Scalars are not {kind}!\n\nExpected {expected} but got {actual}.\n"
        f"Absolute difference: {difference}{_allowed(atol)}\n"
        f"Relative difference: {relative}{_allowed(rtol)}",
        place,
    )


def _compare_arrays(actual: Any, expected: Any, options: _Options, place: tuple[Any, ...]) -> None:
    a = actual._array if isinstance(actual, Tensor) else np.asarray(actual)
    b = expected._array if isinstance(expected, Tensor) else np.asarray(expected)
    checks: list[tuple[str, Any, Any]] = [("shape", a.shape, b.shape)]
    if options.check_dtype:
        checks.append(("dtype", a.dtype, b.dtype))
    if options.check_stride:
        checks.append(("stride()", a.strides, b.strides))
    for name, one, other in checks:
        if one != other:
            text = f"The values for attribute {name!r} do not match: {one} != {other}."
            raise _mismatch(text, place)
    rtol, atol = _tolerances(options, a.dtype, b.dtype)
    a, b = _widened(a), _widened(b)
    with np.errstate(all="ignore"):
        difference = np.abs(a - b)
        size = np.abs(b)
        close = (a == b) | (np.isfinite(difference) & (difference <= atol + rtol * size))
        if options.equal_nan:
            close |= (a != a) & (b != b)
        if close.all():
            return
        relative = np.where(close, 0, difference / size)
    difference = np.where(close, 0, difference)
    is_scalar = not close.ndim and (not rtol and not atol)
    text = f"{'Scalars' if is_scalar else 'Tensor-likes'} are not "
    text += "close!\n\n" if rtol or atol else "equal!\n\n"
    if is_scalar:
        text += f"Expected {b.item()} but got {a.item()}.\n"
    else:
        count = close.size - np.count_nonzero(close)
        text += f"Mismatched elements: {count} / {close.size} ({100 * count / close.size:.1f}%)\n"
    lines = [
        f"Greatest {name} difference: {_greatest(values, close)}{_allowed(tolerance)}"
        for name, values, tolerance in (
            ("absolute", difference, atol),
            ("relative", relative, rtol),
        )
    ]
    raise _mismatch(text + "\n".join(lines), place)


def _widened(array: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers in a dtype in which differences do not overflow."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    if array.dtype.kind in "biu":
        exact = array.dtype.kind == "b" or array.dtype.itemsize < 8
        return array.astype(np.int64 if exact else np.longdouble)
    return array.astype(np.float64)


def _greatest(values: NDArray[Any], close: NDArray[np.bool_]) -> str:
    # NaN, of a difference with NaN, is the greatest.
    ranks = np.where(close, -1.0, np.nan_to_num(values.astype(np.float64), nan=np.inf))
    index = np.unravel_index(int(np.argmax(ranks)), close.shape)
    place = f" at index {tuple(int(each) for each in index)}" if close.ndim else ""
    return f"{values[index]}{place}"


def make_tensor(
    *shape: Any,
    dtype: Any,
    device: Any = "cpu",
    low: float | None = None,
    high: float | None = None,
    requires_grad: bool = False,
    noncontiguous: bool = False,
    exclude_zero: bool = False,
    memory_format: Any = None,
) -> Tensor:
    """Return random numbers, uniform from `low` to below `high`: -9 to 9 (10 for integers).

    Args:
        shape: integers, or a tuple of them.
        dtype: of the result.
        device: the CPU.
        low: the least number.
        high: the bound.
        requires_grad: whether the result requires grad.
        noncontiguous: whether its elements lie apart in memory.
        exclude_zero: whether zeros become the least positive number, or 1.
        memory_format: accepted.
    """
    sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
    kind: Any = np.dtype(dtype)
    count = (*sizes[:-1], 2 * sizes[-1]) if noncontiguous and sizes else sizes
    if kind.kind == "b":
        numbers = ops.randint(0, 2, count).to(dtype)
    elif kind.kind in "iu":
        least = 0 if kind.kind == "u" else -9
        first, bound = least if low is None else low, 10 if high is None else high
        numbers = ops.randint(math.ceil(first), math.ceil(bound), count).to(dtype)
    else:
        first, bound = -9.0 if low is None else low, 9.0 if high is None else high
        if kind.kind == "c":
            parts = ops.rand((*count, 2), dtype=np.float64) * (bound - first) + first
            numbers = ops.view_as_complex(parts).to(dtype)
        else:
            numbers = (ops.rand(count, dtype=np.float64) * (bound - first) + first).to(dtype)
    if exclude_zero:
        tiny = np.finfo(kind).tiny if kind.kind in "fc" else 1
        numbers = ops.where(numbers == 0, ops.full((), tiny, dtype=dtype), numbers)
    if noncontiguous and sizes:
        numbers = numbers[..., ::2]
    return numbers.requires_grad_(requires_grad)
