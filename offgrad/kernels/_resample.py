"""Weighted sums along axes: each output is a sum of a few inputs, its taps, times weights.

Average pooling, interpolation and padding by copies are such sums along one axis after another,
and so are their gradients: the transposed taps. Two axes at a time run in one loop over planes,
whose intermediate row or plane stays in a core's cache.
"""

from __future__ import annotations

from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from offgrad import memory
from offgrad.kernels._arrays import Array
from offgrad.kernels._halves import as_float
from offgrad.kernels._jit import inlined, jit, uses_numba
from offgrad.kernels._parallel import parallel_for

_GATHER_COST = 3
"""What an addition with an index costs, against one of adjacent numbers."""


class Taps:
    """Which inputs each output along an axis is the sum of, and by what weights.

    Attributes:
        size: the number of inputs.
        index: [K, outputs] the inputs, int64; K is the largest number of taps.
        weight: [K, outputs] their weights, float64; unused taps have weight 0.
        divisor: [outputs] what each sum is divided by; None for 1.
    """

    def __init__(
        self, size: int, index: ArrayLike, weight: ArrayLike, divisor: Array | None = None
    ) -> None:
        self.size = size
        self.index = np.ascontiguousarray(index, np.int64)
        self.weight = np.ascontiguousarray(weight, np.float64)
        self.divisor = divisor
        self._weights: dict[np.dtype[np.generic], Array] = {}

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return int(self.index.shape[1])

    @cached_property
    def counts(self) -> Array:
        """[outputs] the number of taps of each, the last with a weight."""
        used = self.weight != 0
        places = np.arange(1, len(used) + 1)[:, None]
        return np.asarray((used * places).max(0, initial=0), np.int64)

    @cached_property
    def total(self) -> int:
        """The number of all taps."""
        return int(self.counts.sum())

    @cached_property
    def transposed(self) -> Taps:
        """The taps of the gradient."""
        weight = self.weight if self.divisor is None else self.weight / self.divisor
        outputs = np.broadcast_to(np.arange(self.outputs), weight.shape)
        used = weight.T != 0
        inputs, sources, weights = self.index.T[used], outputs.T[used], weight.T[used]
        order = np.argsort(inputs, kind="stable")
        inputs = inputs[order]
        counts = np.bincount(inputs, minlength=self.size)
        taps = np.arange(len(inputs)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = int(counts.max(initial=1)), self.size
        index_, weight_ = np.zeros(shape, np.int64), np.zeros(shape)
        index_[taps, inputs], weight_[taps, inputs] = sources[order], weights[order]
        result = Taps(self.outputs, index_, weight_)
        result.__dict__["transposed"] = self
        return result

    @cached_property
    def margins(self) -> tuple[Array, Array] | None:
        """The outputs around those that `layout` says are copied, and copied ones equal to them.

        None if there are other sums than these copies.
        """
        first, last = self.layout[2:]
        if first == last or self.divisor is not None or self.total != self.outputs:
            return None
        if not (self.weight[0] == 1).all():
            return None
        margin = np.concatenate([np.arange(first), np.arange(last, self.outputs)])
        equal = self.index[0, margin] - self.index[0, first] + first
        return (margin, equal) if ((equal >= first) & (equal < last)).all() else None

    @cached_property
    def layout(self) -> tuple[bool, int, int, int]:
        """What loops along a row do: whether most taps are used, `_stride`, `_copied`."""
        if not self.outputs:
            return True, 0, 0, 0
        return self.index.size <= 2 * self.total, _stride(self), *_copied(self)

    def weights(self, dtype: np.dtype[np.generic]) -> Array:
        """Return the weights in `dtype`."""
        found = self._weights.get(dtype)
        if found is None:
            found = self._weights[dtype] = self.weight.astype(dtype)
        return found

    def divisors(self, dtype: np.dtype[np.generic]) -> Array:
        """Return the divisors in `dtype`."""
        return (np.ones(self.outputs) if self.divisor is None else self.divisor).astype(dtype)


def resample(x: Array, taps: tuple[Taps | None, ...], out: Array) -> None:
    """Write the weighted sums along the last axes of `x` into `out`.

    Args:
        x: [..., one size per entry of `taps`], C-contiguous.
        taps: of each of the last axes, None where it stays as it is.
        out: C-contiguous, of x's dtype.
    """
    ndim = len(taps)
    shape, sizes = out.shape[: out.ndim - ndim], list(x.shape[x.ndim - ndim :])
    steps = _steps(taps)
    if not steps:
        out[...] = x
        return
    if all(each is None or each.margins is not None for each in taps):
        _copy_with_margins(x, taps, out)
        return
    for number, (axes, chosen) in enumerate(steps):
        target = out
        for axis, each in zip(axes, chosen, strict=True):
            sizes[axis] = sizes[axis] if each is None else each.outputs
        if number < len(steps) - 1:
            # Means of integers are rounded once.
            dtype = np.float64 if x.dtype.kind in "iu" else as_float(x[:0]).dtype
            target = memory.empty((*shape, *sizes), dtype)
        _along_two(x, axes, chosen, target, x.ndim - ndim)
        x = target


def _copy_with_margins(x: Array, taps: tuple[Taps | None, ...], out: Array) -> None:
    """Copy all of `x` that is kept, then what is around it from there, one axis after another."""
    source: list[Any] = []
    target: list[Any] = []
    for each in taps:
        first, last = (0, None) if each is None else each.layout[2:]
        start = 0 if each is None else int(each.index[0, first])
        stop = None if last is None else start + last - first
        source.append(slice(start, stop))
        target.append(slice(first, last))
    out[(..., *target)] = x[(..., *source)]
    for axis in reversed(range(len(taps))):
        each = taps[axis]
        if each is None or each.margins is None:
            continue
        after = (slice(None),) * (len(taps) - 1 - axis)
        for margin, equal in zip(*each.margins, strict=True):
            before: tuple[Any, ...] = (..., *target[:axis])
            out[(*before, margin, *after)] = out[(*before, equal, *after)]


_Step = tuple[tuple[int, int], tuple[Taps | None, Taps | None]]


def _steps(taps: tuple[Taps | None, ...]) -> list[_Step]:
    """Return pairs of adjacent axes in the order of work, and the taps of each."""
    last = taps[-1]
    if len(taps) == 1:
        return [] if last is None else [((0, 0), (None, last))]
    rows = taps[-2]
    axes = len(taps) - 2, len(taps) - 1
    steps: list[_Step] = [] if rows is last is None else [(axes, (rows, last))]
    if len(taps) == 3 and taps[0] is not None:
        grows = taps[0].outputs > taps[0].size
        # The axis first that makes the intermediate result smaller.
        steps.insert(1 if grows else 0, ((0, 1), (taps[0], None)))
    return steps


def _along_two(
    x: Array, axes: tuple[int, int], taps: tuple[Taps | None, Taps | None], out: Array, before: int
) -> None:
    """Work along two adjacent axes; alike, along one of them, the axes after it taken as one."""
    rows, columns = taps
    high, low = axes[0] + before, axes[1] + before
    if high == low:  # there is one axis
        shape = (prod(x.shape[:high]), 1, x.shape[high])
        target = out.reshape(shape[0], 1, out.shape[high])
    else:
        shape = (prod(x.shape[:high]), x.shape[high], prod(x.shape[low:]))
        target = out.reshape(shape[0], out.shape[high], prod(out.shape[low:]))
    source = x.reshape(shape)
    if not uses_numba(x, out):
        _resample_numpy(source, rows, columns, target)
        return
    _resample_numba(source, rows, columns, target)


def _resample_numpy(x: Array, rows: Taps | None, columns: Taps | None, out: Array) -> None:
    x = as_float(x)
    for axis, taps in ((1, rows), (2, columns)):
        if taps is None:
            continue
        total: Array | None = None
        weights = taps.weights(x.real.dtype)
        for index, weight in zip(taps.index, weights, strict=True):
            weight = weight if axis == 2 else weight[:, None]
            with np.errstate(all="ignore"):
                part = np.where(weight == 0, 0, np.take(x, index, axis) * weight)
            total = part if total is None else total + part
        assert total is not None
        if taps.divisor is not None:
            divisor = taps.divisors(x.real.dtype)
            total = total / (divisor if axis == 2 else divisor[:, None])
        x = total
    out[...] = x


def _resample_numba(x: Array, rows: Taps | None, columns: Taps | None, out: Array) -> None:
    dtype = x.dtype
    none = np.empty((0, 0), np.int64), np.empty((0, 0), dtype), np.empty(0, np.int64)
    r = none if rows is None else (rows.index, rows.weights(dtype), rows.counts)
    c: tuple[Any, ...] = (
        none if columns is None else (columns.index, columns.weights(dtype), columns.counts)
    )
    has_divisor = any(each is not None and each.divisor is not None for each in (rows, columns))
    ones = np.empty(0, dtype)
    above = below = ones
    if has_divisor:
        above = np.ones(out.shape[1], dtype) if rows is None else rows.divisors(dtype)
        below = np.ones(out.shape[2], dtype) if columns is None else columns.divisors(dtype)
    height, width = x.shape[1:]
    row_taps = out.shape[1] if rows is None else rows.total
    column_taps = out.shape[2] if columns is None else columns.total
    rows_first = row_taps * width + _GATHER_COST * out.shape[1] * column_taps
    columns_first = _GATHER_COST * height * column_taps + row_taps * out.shape[2]
    even, stride, first, last = (True, 0, 0, 0) if columns is None else columns.layout
    is_rows_first = rows_first < columns_first
    layout = even, stride, first, last
    arguments: tuple[Any, ...] = (x, out, *r, *c, above, below, is_rows_first, *layout)
    parallel_for(
        partial(_resample_loop, *arguments), len(x), min(rows_first, columns_first), merge=True
    )


def _stride(taps: Taps) -> int:
    """Return the distance of the inputs of adjacent outputs if it is 1 or 2 for all, else 0."""
    steps = np.diff(taps.index, axis=1)
    for stride in (1, 2):
        if taps.index.shape[1] > 1 and (steps == stride).all() and (taps.weight != 0).all():
            return stride
    return 0


def _copied(taps: Taps) -> tuple[int, int]:
    """Return the range of outputs that are adjacent inputs, as those that a padding surrounds.

    It is empty unless it has half of the outputs.
    """
    is_copy = (taps.counts == 1) & (taps.weight[0] == 1)
    ends = ~is_copy[1:] | ~is_copy[:-1] | (np.diff(taps.index[0]) != 1)
    borders = np.concatenate([[0], np.flatnonzero(ends) + 1, [taps.outputs]])
    longest = int(np.argmax(np.diff(borders)))
    first, last = int(borders[longest]), int(borders[longest + 1])
    is_long = 2 * (last - first) >= taps.outputs and bool(is_copy[first])
    return (first, last) if is_long else (0, 0)


@inlined
def _sum_rows(source: Any, index: Any, weight: Any, count: int, o: int, out: Any) -> None:
    """Write the weighted sum of rows of `source` into `out`."""
    if count == 0:
        for i in range(out.size):
            out[i] = 0
    for k in range(count):
        row = source[index[k, o]]
        w = weight[k, o]
        if k == 0:
            for i in range(out.size):
                out[i] = row[i] * w
        else:
            for i in range(out.size):
                out[i] += row[i] * w


@inlined
def _sum_within_row(
    row: Any,
    index: Any,
    weight: Any,
    counts: Any,
    even: bool,
    stride: int,
    first: int,
    last: int,
    out: Any,
) -> None:
    """Write weighted sums of the elements of `row` into `out`."""
    zero = row.dtype.type(0)
    if last > first:
        copied = out[first:last]
        part = row[index[0, first] :]
        for o in range(copied.size):
            copied[o] = part[o]
        for o in range(out.size - copied.size):
            if o >= first:
                o += copied.size
            total = zero
            for k in range(counts[o]):
                total += row[index[k, o]] * weight[k, o]
            out[o] = total
    elif stride > 0:
        for k in range(index.shape[0]):
            part = row[index[k, 0] :]
            w = weight[k]
            if stride == 1:
                if k == 0:
                    for o in range(out.size):
                        out[o] = part[o] * w[o]
                else:
                    for o in range(out.size):
                        out[o] += part[o] * w[o]
            elif k == 0:
                for o in range(out.size):
                    out[o] = part[2 * o] * w[o]
            else:
                for o in range(out.size):
                    out[o] += part[2 * o] * w[o]
    elif even:
        for k in range(index.shape[0]):
            at = index[k]
            w = weight[k]
            if k == 0:
                for o in range(out.size):
                    product = row[np.uintp(at[o])] * w[o]
                    out[o] = product if w[o] != zero else zero
            else:
                for o in range(out.size):
                    product = row[np.uintp(at[o])] * w[o]
                    out[o] += product if w[o] != zero else zero
    else:
        for o in range(out.size):
            total = zero
            for k in range(counts[o]):
                total += row[index[k, o]] * weight[k, o]
            out[o] = total


@jit
def _resample_loop(
    x: Any,
    out: Any,
    row_index: Any,
    row_weight: Any,
    row_counts: Any,
    index: Any,
    weight: Any,
    counts: Any,
    above: Any,
    below: Any,
    rows_first: bool,
    even: bool,
    stride: int,
    first: int,
    last: int,
    start: int,
    stop: int,
) -> None:
    height, width = x.shape[1], x.shape[2]
    has_rows, has_columns = row_counts.size > 0, counts.size > 0
    wide = np.empty(width, x.dtype)
    narrow = np.empty((height if has_rows and has_columns else 1, out.shape[2]), x.dtype)
    for p in range(start, stop):
        source = x[p]
        target = out[p]
        if has_rows and has_columns and not rows_first:
            for h in range(height):
                _sum_within_row(
                    source[h], index, weight, counts, even, stride, first, last, narrow[h]
                )
        for h in range(target.shape[0]):
            row = target[h]
            if not has_rows:
                _sum_within_row(source[h], index, weight, counts, even, stride, first, last, row)
            elif not has_columns:
                _sum_rows(source, row_index, row_weight, row_counts[h], h, row)
            elif rows_first:
                _sum_rows(source, row_index, row_weight, row_counts[h], h, wide)
                _sum_within_row(wide, index, weight, counts, even, stride, first, last, row)
            else:
                _sum_rows(narrow, row_index, row_weight, row_counts[h], h, row)
            if above.size > 0:
                d = above[h]
                for o in range(row.size):
                    row[o] /= d * below[o]
