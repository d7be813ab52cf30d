"""Functions of straight pieces: rectifiers, with gradients that `_piecewise` lacks; sign, lerp.

Compiled loops in float32. Arrays broadcast to `out`, which is C-contiguous; 16-bit floats are
computed in float32. NaN stays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._chunks import CHUNK, by_loop, elementwise, elementwise_flat, keep_where
from offgrad.kernels._jit import Kernel, jit
from offgrad.kernels._piecewise import _is_compiled, _numbers


def relu(x: Array, out: Array) -> None:
    """Write max(x, 0) into `out`."""
    _run(_relu_loop, lambda x, out: np.maximum(x, x.dtype.type(0), out=out), out, x)


def relu_backward(grad: Array, result: Array, out: Array) -> None:
    """Write `grad` into `out` where the result of `relu` is not 0, else 0."""
    _run(
        _relu_backward_loop,
        lambda grad, result, out: np.copyto(out, np.where(result != 0, grad, grad.dtype.type(0))),
        out,
        grad,
        result,
    )


def clip(x: Array, out: Array, low: Any, high: Any) -> None:
    """Write x, limited to numbers of its dtype, into `out`; `high` where that is below `low`.

    All elements are NaN if one of the numbers is.
    """
    if low != low or high != high:
        out.fill(np.nan)
    elif out.size > CHUNK and out.dtype == np.float32 and _is_compiled(out):
        by_loop(_clip_loop, out, x, numbers=(np.float32(low), np.float32(high)))
    else:
        elementwise(lambda x, out: np.clip(x, low, high, out=out), out, x)


def hardsigmoid(x: Array, out: Array) -> None:
    """Write (x + 3) / 6, limited to 0 and 1, into `out`."""
    _run(_hardsigmoid_loop, lambda x, out: np.copyto(out, np.clip(x + 3, 0, 6) / 6), out, x)


def hardswish(x: Array, out: Array) -> None:
    """Write x hardsigmoid(x) into `out`."""
    _run(_hardswish_loop, lambda x, out: np.copyto(out, x * np.clip(x + 3, 0, 6) / 6), out, x)


def hardswish_backward(grad: Array, x: Array, out: Array) -> None:
    """Write `grad` times the derivative of hardswish at `x` into `out`; at NaN it is NaN."""

    def with_numpy(grad: Array, x: Array, out: Array) -> None:
        slope = np.where(x >= 3, 1, x / 3 + 0.5)
        np.multiply(grad, slope, out=out)
        keep_where(out, lambda start, stop: ~(x[start:stop] <= -3), out)

    _run(_hardswish_backward_loop, with_numpy, out, grad, x)


def shrink(x: Array, out: Array, width: float, moved: float) -> None:
    """Write 0 into `out` where |x| <= width, else x moved towards 0 by `moved`."""
    numbers = _numbers(x.dtype, width, moved)

    def with_numpy(x: Array, out: Array) -> None:
        out[...] = np.where(np.abs(x) <= numbers[0], 0, x - np.copysign(numbers[1], x))

    _run(_shrink_loop, with_numpy, out, x, numbers=numbers)


def threshold(x: Array, out: Array, bound: float, value: float) -> None:
    """Write x into `out` where it exceeds `bound`, else `value`."""
    numbers = _numbers(x.dtype, bound, value)

    def with_numpy(x: Array, out: Array) -> None:
        out[...] = np.where(x <= numbers[0], numbers[1], x)

    _run(_threshold_loop, with_numpy, out, x, numbers=numbers)


def sign(x: Array, out: Array) -> None:
    """Write -1, 0 or 1 into `out`: the sign of real x; 0 for NaN."""

    def with_numpy(x: Array, out: Array) -> None:
        np.sign(x, out=out)
        np.copyto(out, 0, where=np.isnan(x))

    _run_many(_sign_loop, with_numpy, out, x)


def angle(x: Array, out: Array) -> None:
    """Write pi where x is negative, else 0, into `out`."""

    def with_numpy(x: Array, out: Array) -> None:
        np.multiply(x < 0, x.dtype.type(np.pi), out=out)
        np.copyto(out, x, where=np.isnan(x))

    _run_many(_angle_loop, with_numpy, out, x)


def lerp(start: Array, end: Array, weight: Any, out: Array) -> None:
    """Write start + weight (end - start) into `out`, from the nearer end: exact at both.

    The weight is an array, or one of NumPy's numbers.
    """
    if isinstance(weight, np.generic):
        _lerp_by(start, end, weight, out)
        return

    def with_numpy(start: Array, end: Array, weight: Array, out: Array) -> None:
        near_start = np.abs(weight) < 0.5
        np.subtract(end, start, out=out)
        np.multiply(out, np.where(near_start, weight, weight - 1), out=out)
        np.add(out, np.where(near_start, start, end), out=out)

    _run_many(_lerp_loop, with_numpy, out, start, end, weight)


def _lerp_by(start: Array, end: Array, weight: Any, out: Array) -> None:
    is_near = bool(abs(weight) < 0.5)
    factor = weight if is_near else weight - type(weight)(1)

    def with_numpy(start: Array, end: Array, out: Array) -> None:
        np.subtract(end, start, out=out)
        np.multiply(out, factor, out=out)
        np.add(out, start if is_near else end, out=out)

    _run_many(_lerp_by_loop, with_numpy, out, start, end, numbers=(factor, is_near))


def _run_many(
    loop: Kernel[..., None],
    with_numpy: Any,
    out: Array,
    *arrays: Array,
    numbers: tuple[Any, ...] = (),
) -> None:
    """As `_run`, but few elements are not worth the compilation of a loop."""
    if out.size > CHUNK and out.dtype == np.float32 and _is_compiled(out):
        by_loop(loop, out, *arrays, numbers=numbers)
    else:
        elementwise(with_numpy, out, *arrays)


def _run(
    loop: Kernel[..., None],
    with_numpy: Any,
    out: Array,
    *arrays: Array,
    numbers: tuple[Any, ...] = (),
) -> None:
    if _is_compiled(out):
        by_loop(loop, out, *arrays, numbers=numbers)
    else:
        elementwise_flat(with_numpy, out, *arrays)


@jit
def _clip_loop(x: Any, out: Any, low: Any, high: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        a = x[i]
        a = low if a < low else a
        out[i] = high if a > high else a


@jit
def _relu_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    zero = x.dtype.type(0)
    for i in range(x.size):
        a = x[i]
        out[i] = a if (a > zero) | (a != a) else zero


@jit
def _relu_backward_loop(grad: Any, result: Any, out: Any, start: int, stop: int) -> None:
    grad, result, out = grad[start:stop], result[start:stop], out[start:stop]
    zero = grad.dtype.type(0)
    for i in range(grad.size):
        out[i] = grad[i] if result[i] != zero else zero


@jit
def _hardsigmoid_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    number = x.dtype.type
    for i in range(x.size):
        a = x[i]
        inside = (a + number(3)) * number(1 / 6)
        high = number(1) if a >= number(3) else inside
        out[i] = number(0) if a <= number(-3) else high


@jit
def _hardswish_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    number = x.dtype.type
    for i in range(x.size):
        a = x[i]
        factor = a + number(3)
        factor = number(6) if factor > number(6) else factor
        # A product, so that -inf gives NaN as in PyTorch.
        out[i] = a * (number(0) if factor < number(0) else factor) * number(1 / 6)


@jit
def _hardswish_backward_loop(grad: Any, x: Any, out: Any, start: int, stop: int) -> None:
    grad, x, out = grad[start:stop], x[start:stop], out[start:stop]
    number = x.dtype.type
    for i in range(x.size):
        a = x[i]
        inside = a * number(1 / 3) + number(0.5)
        product = grad[i] * (number(1) if a >= number(3) else inside)
        out[i] = number(0) if a <= number(-3) else product


@jit
def _shrink_loop(x: Any, out: Any, width: Any, moved: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    zero = x.dtype.type(0)
    for i in range(x.size):
        a = x[i]
        far = a - moved if a > zero else a + moved
        out[i] = zero if abs(a) <= width else far


@jit
def _threshold_loop(x: Any, out: Any, bound: Any, value: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    for i in range(x.size):
        a = x[i]
        out[i] = value if a <= bound else a


@jit
def _sign_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    one = x.dtype.type(1)
    zero = x.dtype.type(0)
    for i in range(x.size):
        out[i] = one if x[i] > zero else (-one if x[i] < zero else zero)


@jit
def _angle_loop(x: Any, out: Any, start: int, stop: int) -> None:
    x, out = x[start:stop], out[start:stop]
    number = x.dtype.type
    for i in range(x.size):
        a = x[i]
        turned = number(np.pi) if a < number(0) else number(0)
        out[i] = turned if a == a else a


@jit
def _lerp_loop(first: Any, end: Any, weight: Any, out: Any, start: int, stop: int) -> None:
    first, end, weight, out = (
        first[start:stop],
        end[start:stop],
        weight[start:stop],
        out[start:stop],
    )
    number = first.dtype.type
    for i in range(first.size):
        a = first[i]
        b = end[i]
        near = abs(weight[i]) < number(0.5)
        # Selections of what is computed anyway: LLVM would branch to compute one side.
        factor = weight[i] - (number(0) if near else number(1))
        distance = b - a
        out[i] = (a if near else b) + distance * factor


@jit
def _lerp_by_loop(
    first: Any, end: Any, out: Any, factor: Any, is_near: bool, start: int, stop: int
) -> None:
    first, end, out = first[start:stop], end[start:stop], out[start:stop]
    for i in range(first.size):
        a, b = first[i], end[i]
        out[i] = (a if is_near else b) + (b - a) * factor
