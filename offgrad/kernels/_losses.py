"""Losses of pairs of elements, summed or one by one, and their derivatives.

A loss is a `PairLoss`. Squared, Huber's and similar losses are one family with a compiled loop;
the cross-entropies are elementary functions over pieces that stay in a core's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np

from offgrad.kernels._arrays import SUM_BLOCK, Array
from offgrad.kernels._chunks import CHUNK, by_loop, in_chunks, scratch
from offgrad.kernels._elementary import elementary
from offgrad.kernels._fastmath import exp_of_negative, log1p_of_share
from offgrad.kernels._jit import inlined, jit, uses_numba
from offgrad.kernels._parallel import BLOCK, block_items, parallel_for
from offgrad.kernels._special import FEW
from offgrad.memory.meta import MetaArray


class PairLoss:
    """A function of x and target, and its derivative by x, on pieces of equal length."""

    def value(self, x: Array, target: Array, out: Array) -> None:
        """Write the losses into `out`."""
        raise NotImplementedError

    def slope(self, x: Array, target: Array, out: Array) -> None:
        """Write the derivatives by x into `out`."""
        raise NotImplementedError

    def total(self, x: Array, target: Array) -> float:
        """The sum of the losses; the order of additions depends on the size alone."""
        a, t = x.reshape(-1), target.reshape(-1)
        if a.size <= CHUNK:
            losses = np.empty_like(a)
            with np.errstate(all="ignore"):
                self.value(a, t, losses)
                return float(losses.sum())
        sums = np.zeros(-(-a.size // CHUNK), np.float64)

        def add(start: int, stop: int) -> None:
            losses = scratch(0, stop - start, a.dtype)
            self.value(a[start:stop], t[start:stop], losses)
            sums[start // CHUNK] = losses.sum()

        in_chunks(add, a.size)
        return float(sums.sum())

    def values(self, x: Array, target: Array, out: Array) -> None:
        """Write the losses of C-contiguous arrays of equal shape into `out`."""
        a, t, o = (each.reshape(-1) for each in (x, target, out))
        in_chunks(lambda i, j: self.value(a[i:j], t[i:j], o[i:j]), a.size)

    def slopes(self, x: Array, target: Array, scale: Any, out: Array) -> None:
        """Write the derivatives by x times `scale`, a number or an array, into `out`."""
        a, t, o = (each.reshape(-1) for each in (x, target, out))
        is_array = np.ndim(scale) > 0
        factors = scale.reshape(-1) if is_array else scale

        def write(i: int, j: int) -> None:
            self.slope(a[i:j], t[i:j], o[i:j])
            np.multiply(o[i:j], factors[i:j] if is_array else factors, out=o[i:j])

        in_chunks(write, a.size)


@dataclass(frozen=True)
class HuberFamily(PairLoss):
    """square * d^2 for d = x - target nearer than `bound`, else line * (|d| - shift)."""

    bound: float
    square: float
    line: float
    shift: float

    def value(self, x: Array, target: Array, out: Array) -> None:
        number = x.dtype.type
        if self.bound == inf:
            np.subtract(x, target, out=out)
            np.multiply(out, out, out=out)
            np.multiply(out, number(self.square), out=out)
            return
        distance = np.abs(x - target)
        far = (distance - number(self.shift)) * number(self.line)
        near = distance * distance * number(self.square)
        out[...] = np.where(distance < number(self.bound), near, far)

    def slope(self, x: Array, target: Array, out: Array) -> None:
        number = x.dtype.type
        if self.bound == inf:
            np.subtract(x, target, out=out)
            np.multiply(out, number(2 * self.square), out=out)
            return
        d = x - target
        near = d * number(2 * self.square)
        out[...] = np.where(np.abs(d) < number(self.bound), near, np.sign(d) * number(self.line))

    def _numbers(self, x: Array) -> tuple[Any, Any, Any, Any]:
        number = x.dtype.type
        return number(self.bound), number(self.square), number(self.line), number(self.shift)

    def total(self, x: Array, target: Array) -> float:
        if x.size <= BLOCK or not uses_numba(x, target):
            return super().total(x, target)
        a, t, numbers = x.reshape(-1), target.reshape(-1), self._numbers(x)
        step = block_items(1)
        sums = np.zeros(-(-a.size // step), np.float64)
        parallel_for(partial(_total_loop, a, t, *numbers, sums, step), a.size)
        return float(sums.sum())

    def values(self, x: Array, target: Array, out: Array) -> None:
        if x.size <= BLOCK or not uses_numba(x, target, out):
            super().values(x, target, out)
        else:
            by_loop(_values_loop, out, x, target, numbers=self._numbers(x))

    def slopes(self, x: Array, target: Array, scale: Any, out: Array) -> None:
        if x.size <= BLOCK or not uses_numba(x, target, out):
            super().slopes(x, target, scale, out)
            return
        a, t, o = (each.reshape(-1) for each in (x, target, out))
        number = x.dtype.type
        numbers = number(self.bound), number(2 * self.square), number(self.line)
        if np.ndim(scale):
            by_loop(_scaled_slopes_loop, o, a, t, scale.reshape(-1), numbers=numbers)
        else:
            by_loop(_slopes_loop, o, a, t, numbers=(*numbers, number(scale)))


@dataclass(frozen=True)
class BinaryCrossEntropy(PairLoss):
    """-target log x - (1 - target) log(1 - x), logarithms at least -100."""

    def value(self, x: Array, target: Array, out: Array) -> None:
        low, one = x.dtype.type(-100), x.dtype.type(1)
        other, weight = scratch(1, x.size, x.dtype), scratch(2, x.size, x.dtype)
        np.negative(x, out=out)
        elementary(np.log1p, out, out=other)
        np.maximum(other, low, out=other)
        np.subtract(target, one, out=weight)
        np.multiply(other, weight, out=other)
        elementary(np.log, x, out=out)
        np.maximum(out, low, out=out)
        np.multiply(out, target, out=out)
        np.subtract(other, out, out=out)

    def slope(self, x: Array, target: Array, out: Array) -> None:
        one, least = x.dtype.type(1), x.dtype.type(1e-12)
        spread = scratch(1, x.size, x.dtype)
        np.subtract(one, x, out=spread)
        np.multiply(spread, x, out=spread)
        np.maximum(spread, least, out=spread)
        np.subtract(x, target, out=out)
        np.divide(out, spread, out=out)


@dataclass(frozen=True)
class BinaryCrossEntropyWithLogits(PairLoss):
    """The binary cross-entropy of sigmoid(x): log(1 + e^(-x)) + (1 - target) x.

    An infinite logit on the wrong side of a target of 0 has an infinite loss, not NaN.
    """

    def value(self, x: Array, target: Array, out: Array) -> None:
        if out.size > FEW and uses_numba(x, target, out):
            _logits_values_loop(x, target, out)
            return
        other = scratch(1, x.size, x.dtype)
        np.negative(x, out=other)
        _softplus(other, out)
        np.subtract(x.dtype.type(1), target, out=other)
        np.multiply(other, x, out=other)
        np.add(out, other, out=out)

    def slope(self, x: Array, target: Array, out: Array) -> None:
        if out.size > FEW and uses_numba(x, target, out):
            _logits_slopes_loop(x, target, out)
            return
        one, other = x.dtype.type(1), scratch(1, x.size, x.dtype)
        np.negative(x, out=other)
        elementary(np.exp, other, out=out)
        np.add(out, one, out=out)
        np.divide(one, out, out=out)
        np.subtract(out, target, out=out)


@dataclass(frozen=True)
class SoftMargin(PairLoss):
    """log(1 + e^(-target x))."""

    def value(self, x: Array, target: Array, out: Array) -> None:
        other = scratch(1, x.size, x.dtype)
        np.multiply(x, target, out=other)
        np.negative(other, out=other)
        _softplus(other, out)

    def slope(self, x: Array, target: Array, out: Array) -> None:
        one, other = x.dtype.type(1), scratch(1, x.size, x.dtype)
        np.multiply(x, target, out=other)
        elementary(np.exp, other, out=out)
        np.add(out, one, out=out)
        np.divide(target, out, out=out)
        np.negative(out, out=out)


def _softplus(x: Array, out: Array) -> None:
    """Write log(1 + e^x) into `out`, without overflow; `x` is used up."""
    other = scratch(2, x.size, x.dtype)
    np.abs(x, out=other)
    np.negative(other, out=other)
    # Loops do not vectorise in place.
    elementary(np.exp, other, out=out)
    elementary(np.log1p, out, out=other)
    np.maximum(x, x.dtype.type(0), out=x)
    np.add(other, x, out=out)


def are_probabilities(x: Array) -> bool:
    """Whether all elements are from 0 to 1; NaN is not."""
    if type(x) is MetaArray:
        return True
    if x.size <= BLOCK or not x.flags.c_contiguous:
        return not x.size or bool(x.min() >= 0 and x.max() <= 1)
    flat, found = x.reshape(-1), list[bool]()
    in_chunks(lambda a, b: found.append(are_probabilities(flat[a:b])), flat.size)
    return all(found)


def binary_cross_entropy() -> PairLoss:
    """-target log x - (1 - target) log(1 - x)."""
    return BinaryCrossEntropy()


def binary_cross_entropy_with_logits() -> PairLoss:
    """log(1 + e^(-x)) + (1 - target) x."""
    return BinaryCrossEntropyWithLogits()


def soft_margin() -> PairLoss:
    """log(1 + e^(-target x))."""
    return SoftMargin()


def mse() -> HuberFamily:
    """(x - target)^2."""
    return HuberFamily(inf, 1.0, inf, 0.0)


def smooth_l1(beta: float) -> HuberFamily:
    """d^2 / (2 beta), from |d| = beta on |d| - beta / 2, d = x - target."""
    return HuberFamily(beta, 0.5 / beta, 1.0, beta / 2)


def huber(delta: float) -> HuberFamily:
    """d^2 / 2, from |d| = delta on delta (|d| - delta / 2), d = x - target."""
    return HuberFamily(delta, 0.5, delta, delta / 2)


@jit
def _total_loop(
    x: Any,
    target: Any,
    bound: Any,
    square: Any,
    line: Any,
    shift: Any,
    sums: Any,
    step: int,
    start: int,
    stop: int,
) -> None:
    number = x.dtype.type
    total = 0.0
    for first in range(start, stop, SUM_BLOCK):
        a = x[first : min(first + SUM_BLOCK, stop)]
        t = target[first : min(first + SUM_BLOCK, stop)]
        part = number(0)
        for i in range(a.size):
            distance = abs(a[i] - t[i])
            near = distance * distance * square
            part += near if distance < bound else (distance - shift) * line
        total += part
    sums[start // step] = total


@jit
def _values_loop(
    x: Any,
    target: Any,
    out: Any,
    bound: Any,
    square: Any,
    line: Any,
    shift: Any,
    start: int,
    stop: int,
) -> None:
    x, target, out = x[start:stop], target[start:stop], out[start:stop]
    for i in range(x.size):
        distance = abs(x[i] - target[i])
        near = distance * distance * square
        out[i] = near if distance < bound else (distance - shift) * line


@inlined
def _slope(d: Any, bound: Any, slope: Any, line: Any) -> Any:
    number = type(d)
    # NaN stays NaN.
    sign = number(1) if d > number(0) else (number(-1) if d < number(0) else d)
    return d * slope if abs(d) < bound else sign * line


@jit
def _slopes_loop(
    x: Any,
    target: Any,
    out: Any,
    bound: Any,
    slope: Any,
    line: Any,
    scale: Any,
    start: int,
    stop: int,
) -> None:
    x, target, out = x[start:stop], target[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = _slope(x[i] - target[i], bound, slope, line) * scale


@jit
def _scaled_slopes_loop(
    x: Any,
    target: Any,
    scale: Any,
    out: Any,
    bound: Any,
    slope: Any,
    line: Any,
    start: int,
    stop: int,
) -> None:
    x, target, scale, out = x[start:stop], target[start:stop], scale[start:stop], out[start:stop]
    for i in range(x.size):
        out[i] = _slope(x[i] - target[i], bound, slope, line) * scale[i]


@jit
def _logits_values_loop(x: Any, target: Any, out: Any) -> None:
    number = x.dtype.type
    zero, one = number(0), number(1)
    for i in range(x.size):
        a = x[i]
        logarithm = log1p_of_share(exp_of_negative(-abs(a)))
        negative = -a if a < zero else zero
        out[i] = (logarithm + negative) + (one - target[i]) * a


@jit
def _logits_slopes_loop(x: Any, target: Any, out: Any) -> None:
    number = x.dtype.type
    zero, one = number(0), number(1)
    for i in range(x.size):
        a = x[i]
        e = exp_of_negative(-abs(a))
        out[i] = (e if a < zero else one) / (one + e) - target[i]
