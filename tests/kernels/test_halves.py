"""Conversions of 16-bit floats: NumPy's bits, and kernels that compute in float32."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from offgrad import kernels
from offgrad.kernels._chunks import by_loop
from offgrad.kernels._halves import FEW, as_float, convert, in_float32
from offgrad.kernels._rectifiers import _lerp_loop

HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
EVERY = np.arange(1 << 16, dtype=np.uint16)


def _bits(array: Any) -> Any:
    return array.view(f"u{array.itemsize}")


def _singles() -> Any:
    """Return float32 numbers around each float16 and bfloat16, halfway between two included."""
    with np.errstate(all="ignore"):
        ends = [_bits(EVERY.view(each).astype(np.float32)) for each in HALVES]
    near = [end + np.uint32(offset) for end in ends for offset in (0, 1, 0xFFF, 0x1000, 0x1001)]
    near += [end + np.uint32(offset) for end in ends for offset in (0x7FFF, 0x8000, 0x8001)]
    random = np.random.default_rng(0).integers(0, 1 << 32, 200_000, np.uint32)
    return np.concatenate([*near, random]).view(np.float32)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_half_as_float32(dtype: Any) -> None:
    halves, singles = EVERY.view(dtype), np.empty(EVERY.size, np.float32)
    convert(halves, singles)
    np.testing.assert_array_equal(_bits(singles), _bits(halves.astype(np.float32)))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_float32_is_rounded_as_numpy_rounds(dtype: Any) -> None:
    singles = _singles()
    halves = np.empty(singles.size, dtype)
    convert(singles, halves)
    with np.errstate(all="ignore"):
        expected = singles.astype(dtype)
    is_nan = np.isnan(singles)
    np.testing.assert_array_equal(_bits(halves)[~is_nan], _bits(expected)[~is_nan])
    assert np.isnan(halves[is_nan].astype(np.float32)).all()
    assert (np.signbit(halves[is_nan]) == np.signbit(expected[is_nan])).all()


ORDERS: dict[str, Callable[[Any], Any]] = {
    "C": lambda x: x,
    "transposed": lambda x: x.transpose(2, 0, 1),
    "a slice": lambda x: x[:, 1::2],
    "parts of rows": lambda x: x.reshape(4, 3, 1, 400)[:, :, :, 8:208].swapaxes(1, 2),
    "heads": lambda x: x.reshape(10, 6, 2, 40)[:, 1::2].reshape(10, 3, 2, 40).swapaxes(1, 2),
    "columns of parts": lambda x: x.reshape(120, 40)[:, 8:32].reshape(12, 10, 24),
    "turned": lambda x: x[::-1],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "small": lambda x: x[:2, :2, :2],
    "empty": lambda x: x[:0],
    "a number": lambda x: x[0, 0, 0],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_any_memory_order(dtype: Any, order: str, rng: np.random.Generator) -> None:
    array = np.asarray(ORDERS[order](rng.normal(size=(12, 10, 40)).astype(dtype)))
    result = as_float(array)
    np.testing.assert_array_equal(result, array.astype(np.float32))
    assert result.dtype == np.float32
    if order == "transposed":
        assert result.strides == tuple(2 * each for each in array.strides)
    back = np.empty(array.shape, dtype)
    convert(result, back)
    expected = np.array(array, order="C")
    np.testing.assert_array_equal(_bits(back), _bits(expected))


def test_other_arrays_stay_themselves() -> None:
    for dtype in (np.float32, np.float64, np.int16, np.bool_, np.complex64):
        array = np.ones(3, dtype)
        assert as_float(array) is array
    small = np.ones(3, ml_dtypes.float8_e5m2)
    assert as_float(small).dtype == np.float32


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_kernels_get_float32_and_results_are_rounded_once(dtype: Any) -> None:
    seen = []

    @in_float32("out", "more")
    def kernel(x: Any, out: Any, scale: float, more: Any = None) -> None:
        seen.extend([x.dtype, out.dtype, scale])
        out[...] = x * np.float32(scale)
        if more is not None:
            more[...] = out

    x = np.linspace(0, 3, 2 * FEW).astype(dtype)
    out, more = np.empty(x.shape, dtype), np.empty(x.shape, dtype)
    kernel(x, out, 1.7, more=more)
    assert seen == [np.float32, np.float32, 1.7]
    expected = (x.astype(np.float32) * np.float32(1.7)).astype(dtype)
    np.testing.assert_array_equal(_bits(out), _bits(expected))
    np.testing.assert_array_equal(_bits(more), _bits(expected))
    doubles = np.ones(3)
    kernel(doubles, doubles, 2.0)
    assert seen[3:] == [np.float64, np.float64, 2.0]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_bits_depend_on_no_threads(dtype: Any, rng: np.random.Generator) -> None:
    array = rng.normal(size=600_000).astype(dtype)
    before, results = kernels.get_num_threads(), []
    try:
        for threads in (1, 3):
            kernels.set_num_threads(threads)
            back = np.empty(array.shape, dtype)
            convert(as_float(array), back)
            results.append(back.tobytes())
    finally:
        kernels.set_num_threads(before)
    assert results == [array.tobytes()] * 2


@pytest.mark.parametrize("function", [np.add, np.subtract, np.multiply, np.divide, np.maximum])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_functions_of_many_round_once(function: Any, dtype: Any, rng: np.random.Generator) -> None:
    size = 70_000
    a, b = (rng.normal(size=size).astype(dtype) for _ in range(2))
    a[:6] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7]
    others = [b, b[:1], np.asarray(b[0]), np.asarray(np.float32(0.3)), b[:size].astype(np.float32)]
    others += [np.ones(size, np.int8), np.asarray(0.3, np.float32)]
    for other in others:
        for left, right in ((a, other), (other, a)):
            out = np.empty(size, dtype)
            kernels.elementwise(function, out, left, right)
            with np.errstate(all="ignore"):
                expected = function(*[each.astype(np.float32) for each in (left, right)]).astype(
                    dtype
                )
            np.testing.assert_array_equal(out.astype(np.float32), expected.astype(np.float32))
            signs = np.signbit(out.astype(np.float32)) == np.signbit(expected.astype(np.float32))
            assert (signs | np.isnan(out.astype(np.float32))).all()


@pytest.mark.parametrize("size", [1025, 2048, 300_001])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_loops_compute_in_float32_and_round_once(
    dtype: Any, size: int, rng: np.random.Generator
) -> None:
    """One to three inputs, with and without numbers, on one thread and on three."""
    arrays = [rng.normal(size=size).astype(dtype) for _ in range(3)]
    arrays[0][:3] = np.array([np.nan, np.inf, -np.inf]).astype(dtype)
    calls: list[tuple[Callable[..., None], int, tuple[Any, ...]]] = [
        (kernels.silu, 1, ()),
        (kernels.gelu, 1, ("tanh",)),
        (kernels.softplus, 1, (2.0, 20.0)),
        (kernels.gelu_backward, 2, ()),
        (kernels.softplus_backward, 2, (2.0, 20.0)),
        (lambda *each: by_loop(_lerp_loop, each[-1], *each[:-1]), 3, ()),
    ]
    threads = kernels.get_num_threads()
    try:
        for kernel, inputs, numbers in calls:
            given = arrays[:inputs]
            expected = np.empty(size, np.float32)
            kernel(*[each.astype(np.float32) for each in given], expected, *numbers)
            for count in (1, 3):
                kernels.set_num_threads(count)
                out = np.empty(size, dtype)
                kernel(*given, out, *numbers)
                with np.errstate(all="ignore"):
                    np.testing.assert_array_equal(_bits(out), _bits(expected.astype(dtype)))
    finally:
        kernels.set_num_threads(threads)
