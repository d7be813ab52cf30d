"""Images sampled at given places, from the elements around each."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._halves import in_float32
from offgrad.kernels._jit import inlined, jit, uses_numba
from offgrad.kernels._parallel import parallel_for

_TAPS = {"nearest": 1, "bilinear": 2, "bicubic": 4}
"""The number of elements along each axis from which a place takes its value."""

_PADDINGS = ("zeros", "border", "reflection")

_BLOCK = 256  # places whose numbers stay in the nearest cache


class Sampling(NamedTuple):
    """How images are sampled.

    Attributes:
        mode: "nearest", "bilinear" or "bicubic".
        padding: of places outside, "zeros", "border" or "reflection".
        align_corners: whether -1 and 1 are the centres of the corner elements.
    """

    mode: str
    padding: str
    align_corners: bool


@in_float32("out")
def grid_sample(x: Array, grid: Array, sampling: Sampling, out: Array) -> None:
    """Write the values of x [N, C, H, W] at `grid` [N, P, 2] into `out` [N, C, P].

    Args:
        x: the images.
        grid: x and y from -1 to 1.
        sampling: how.
        out: the values.
    """
    planes = _planes(x)
    count, channels, places = out.shape
    taps = _TAPS[sampling.mode] ** 2
    if uses_numba(planes, grid, out):
        loop = partial(_values_loop, planes, grid, *_numbers(x, sampling), out)
        parallel_for(loop, count * places, 20 + (3 + channels) * taps)
    else:
        index, shares, _ = _taps_numpy(x, grid, sampling)
        loop = partial(_values_numpy, planes, index, shares, out)
        parallel_for(loop, count * channels, places * taps)


@in_float32("dx", "dgrid")
def grid_sample_backward(
    grad: Array,
    x: Array,
    grid: Array,
    sampling: Sampling,
    dx: Array | None,
    dgrid: Array | None,
) -> None:
    """Write the gradients of x and of `grid`, given that of the values; None is skipped."""
    planes = _planes(x)
    count, channels, places = grad.shape
    taps = _TAPS[sampling.mode] ** 2
    is_compiled = uses_numba(
        grad, planes, grid, *[each for each in (dx, dgrid) if each is not None]
    )
    numbers = _numbers(x, sampling)
    if is_compiled and dx is not None:
        index = np.empty((count, places, taps), np.int64)
        shares = np.empty(index.shape, grid.dtype)
        loop = partial(_taps_loop, grid, *numbers, index, shares)
        parallel_for(loop, count * places, 20 + 3 * taps)
        loop = partial(_spread_loop, grad, index, shares, _planes(dx))
        parallel_for(loop, count * channels, places * taps)
    if is_compiled and dgrid is not None:
        loop = partial(_slopes_loop, grad, planes, grid, *numbers, dgrid)
        parallel_for(loop, count * places, 20 + (6 + channels) * taps)
    if not is_compiled:
        index, shares, slopes = _taps_numpy(x, grid, sampling)
        if dx is not None:
            loop = partial(_spread_numpy, grad, index, shares, _planes(dx))
            parallel_for(loop, count * channels, places * taps)
        if dgrid is not None:
            loop = partial(_slopes_numpy, grad, planes, index, slopes, dgrid)
            parallel_for(loop, count * places, channels * taps)


def _planes(x: Array) -> Array:
    return x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])


def _numbers(x: Array, sampling: Sampling) -> tuple[int, int, int, int, bool]:
    """Return the sizes of an image and how it is sampled as compiled loops take them."""
    mode, padding, align_corners = sampling
    return x.shape[2], x.shape[3], _TAPS[mode], _PADDINGS.index(padding), align_corners


@inlined
def _cubic(share: Any) -> Any:
    """Return the weights of the four elements around a place, `share` after the second.

    Source: R. G. Keys, "Cubic convolution interpolation for digital image processing", 1981, with
    a = -0.75.
    """
    rest = 1 - share
    return (
        -0.75 * share * rest * rest,
        (1.25 * share - 2.25) * share * share + 1,
        (1.25 * rest - 2.25) * rest * rest + 1,
        -0.75 * rest * share * share,
    )


@inlined
def _cubic_slopes(share: Any) -> Any:
    """Return the derivatives of these weights by `share`."""
    rest = 1 - share
    return (
        -0.75 * rest * (rest - 2 * share),
        (3.75 * share - 4.5) * share,
        (4.5 - 3.75 * rest) * rest,
        -0.75 * share * (2 * rest - share),
    )


@inlined
def _moved(at: Any, slope: Any, low: Any, span: Any, last: Any, padding: int) -> Any:
    """Return a position and its slope as `_inside` does; `padding` is a number."""
    zero = slope - slope
    if padding == 2:
        distance = abs(at - low)
        turns = np.floor(distance / span) if span > zero else zero
        rest = distance - turns * span if span > zero else zero
        if not at > low:
            slope = -slope if at < low else zero
        if turns - 2 * np.floor(turns / 2) != zero:
            at, slope = span - rest + low, -slope
        else:
            at = rest + low
    if padding != 0 and not (at > zero and at < last):
        at, slope = (last if at > zero else zero), zero
    return at, slope


@inlined
def _element(at: Any, last: Any) -> Any:
    """Return the number of the element at a whole position, -1 outside."""
    return np.int64(at) if at >= 0 and at <= last else -1


@inlined
def _block_taps(
    grid: Any,
    height: int,
    width: int,
    along: int,
    padding: int,
    align_corners: bool,
    axes: Any,
    elements: Any,
    index: Any,
    shares: Any,
    slopes: Any,
) -> None:
    """Write what each place of `grid` [P, 2] takes from the T elements around it.

    Args:
        grid: places, `_BLOCK` at most.
        height, width, along, padding, align_corners: see `_numbers`.
        axes: memory for weights and their slopes along each axis [2, 2, 4, _BLOCK].
        elements: memory for numbers of elements along each axis [2, 4, _BLOCK].
        index: the elements' index in a plane [T, P], -1 outside.
        shares: their shares [T, P].
        slopes: the derivatives of the shares by the grid [2, T, P], or nothing.
    """
    count = grid.shape[0]
    number = grid.dtype.type
    one, two = number(1), number(2)
    weights, rises = axes[0], axes[1]
    places = np.empty(_BLOCK, grid.dtype)
    for axis in range(2):
        size = number(width if axis == 0 else height)
        last = size - one
        rise = last / two if align_corners else size / two
        low, span = (number(0), last) if align_corners else (-one / two, size)
        to, share, slope = elements[axis], weights[axis], rises[axis]
        for p in range(count):
            at = grid[p, axis]
            places[p] = (
                (at + one) / two * last if align_corners else ((at + one) * size - one) / two
            )
        if along == 4:  # the elements are moved inside, not the place
            for p in range(count):
                begin = np.floor(places[p])
                cubes, bends = _cubic(places[p] - begin), _cubic_slopes(places[p] - begin)
                share[0, p], share[1, p], share[2, p], share[3, p] = cubes
                for tap in range(4):
                    slope[tap, p] = bends[tap] * rise
            for tap in range(4):
                for p in range(count):
                    begin = np.floor(places[p]) + number(tap - 1)
                    moved, _ = _moved(begin, rise, low, span, last, padding)
                    to[tap, p] = _element(moved, last)
        elif along == 2:
            for p in range(count):
                at, turned = _moved(places[p], rise, low, span, last, padding)
                begin = np.floor(at)
                to[0, p], to[1, p] = _element(begin, last), _element(begin + one, last)
                share[0, p], share[1, p] = one - (at - begin), at - begin
                slope[0, p], slope[1, p] = -turned, turned
        else:
            for p in range(count):
                at, _ = _moved(places[p], rise, low, span, last, padding)
                to[0, p] = _element(np.rint(at), last)
                share[0, p], slope[0, p] = one, number(0)
    for down in range(along):
        for across in range(along):
            rows, columns, tap = elements[1, down], elements[0, across], down * along + across
            high, wide = weights[1, down], weights[0, across]
            for p in range(count):
                is_inside = rows[p] >= 0 and columns[p] >= 0
                index[tap, p] = rows[p] * width + columns[p] if is_inside else -1
                shares[tap, p] = wide[p] * high[p]
            if slopes.shape[0]:
                sinking, rising = rises[1, down], rises[0, across]
                for p in range(count):
                    slopes[0, tap, p] = rising[p] * high[p]
                    slopes[1, tap, p] = sinking[p] * wide[p]


@jit
def _taps_loop(
    grid: Any,
    height: int,
    width: int,
    along: int,
    padding: int,
    align_corners: bool,
    index: Any,
    shares: Any,
    start: int,
    stop: int,
) -> None:
    places = grid.shape[1]
    axes, elements = np.empty((2, 2, 4, _BLOCK), grid.dtype), np.empty((2, 4, _BLOCK), np.int64)
    to, share = np.empty((16, _BLOCK), np.int64), np.empty((16, _BLOCK), grid.dtype)
    slopes = np.empty((0, 16, _BLOCK), grid.dtype)
    item = start
    while item < stop:
        image, first = item // places, item % places
        end = min(first + _BLOCK, first + stop - item, places)
        _block_taps(
            grid[image, first:end], height, width, along, padding, align_corners, axes, elements,
            to, share, slopes,
        )  # fmt: skip
        for p in range(end - first):
            for tap in range(along * along):
                index[image, first + p, tap] = to[tap, p]
                shares[image, first + p, tap] = share[tap, p]
        item += end - first


def _inside(
    at: Array, size: int, padding: str, align_corners: bool, slope: Array
) -> tuple[Array, Array]:
    """Return positions, those outside moved to the border or reflected, and their slopes."""
    number = at.dtype.type
    if padding == "reflection":
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if span:
            distance = np.abs(at - number(low))
            slope = slope * np.sign(at - number(low))
            is_odd = np.remainder(np.floor(distance / number(span)), 2) != 0
            extra = np.fmod(distance, number(span))
            at = np.where(is_odd, number(span) - extra, extra) + number(low)
            slope = np.where(is_odd, -slope, slope)
        else:
            at, slope = at * 0, slope * 0
    if padding != "zeros":
        # At the border itself the gradient is 0, as in PyTorch.
        is_within = (at > 0) & (at < size - 1)
        at = np.where(is_within, at, np.clip(np.nan_to_num(at), 0, size - 1))
        slope = np.where(is_within, slope, 0)
    return at, slope


def _axis(place: Array, size: int, sampling: Sampling) -> tuple[Any, Any, Any]:
    """Return for each tap along an axis the element, -1 outside, its weight, and its slope."""
    mode, padding, align_corners = sampling
    if align_corners:
        at, slope = (place + 1) / 2 * (size - 1), np.full_like(place, (size - 1) / 2)
    else:
        at, slope = ((place + 1) * size - 1) / 2, np.full_like(place, size / 2)
    if mode == "bicubic":
        first = np.floor(at)
        moved = [
            _inside(first + tap, size, padding, align_corners, slope)[0] for tap in range(-1, 3)
        ]
        weights = _cubic(at - first)
        slopes = tuple([each * slope for each in _cubic_slopes(at - first)])
    else:
        at, slope = _inside(at, size, padding, align_corners, slope)
        if mode == "nearest":
            moved, weights, slopes = [np.rint(at)], (np.ones_like(at),), (np.zeros_like(at),)
        else:
            first = np.floor(at)
            moved, slopes = [first, first + 1], (-slope, slope)
            weights = 1 - (at - first), at - first
    elements = []
    for each in moved:
        is_inside = (each >= 0) & (each <= size - 1)
        elements.append(np.where(is_inside, np.where(is_inside, each, 0).astype(np.int64), -1))
    return elements, weights, slopes


@np.errstate(all="ignore")
def _taps_numpy(x: Array, grid: Array, sampling: Sampling) -> tuple[Array, Array, Array]:
    """Return index and shares [N, T, P], and slopes [N, 2, T, P], as `_block_taps` writes them."""
    count, places = grid.shape[:2]
    index = np.empty((count, _TAPS[sampling.mode] ** 2, places), np.int64)
    shares = np.empty(index.shape, x.dtype)
    slopes = np.empty((count, 2, *index.shape[1:]), x.dtype)
    height, width = x.shape[2:]
    columns, across, rising = _axis(grid[..., 0], width, sampling)
    rows, down, sinking = _axis(grid[..., 1], height, sampling)
    along = len(rows)
    for tap in range(along * along):
        i, j = divmod(tap, along)
        is_inside = (rows[i] >= 0) & (columns[j] >= 0)
        index[:, tap] = np.where(is_inside, rows[i] * width + columns[j], -1)
        shares[:, tap] = across[j] * down[i]
        slopes[:, 0, tap] = rising[j] * down[i]
        slopes[:, 1, tap] = sinking[i] * across[j]
    return index, shares, slopes


@jit
def _values_loop(
    planes: Any,
    grid: Any,
    height: int,
    width: int,
    along: int,
    padding: int,
    align_corners: bool,
    out: Any,
    start: int,
    stop: int,
) -> None:
    places = grid.shape[1]
    axes, elements = np.empty((2, 2, 4, _BLOCK), grid.dtype), np.empty((2, 4, _BLOCK), np.int64)
    index, shares = np.empty((16, _BLOCK), np.int64), np.empty((16, _BLOCK), grid.dtype)
    slopes = np.empty((0, 16, _BLOCK), grid.dtype)
    zero = planes.dtype.type(0)
    item = start
    while item < stop:
        image, first = item // places, item % places
        end = min(first + _BLOCK, first + stop - item, places)
        _block_taps(
            grid[image, first:end], height, width, along, padding, align_corners, axes, elements,
            index, shares, slopes,
        )  # fmt: skip
        for channel in range(planes.shape[1]):
            plane, to = planes[image, channel], out[image, channel, first:end]
            to[:] = zero
            for tap in range(along * along):
                at, share = index[tap], shares[tap]
                for p in range(end - first):
                    # Outside 0, so that a place that is NaN gives NaN.
                    value = plane[max(at[p], 0)]
                    to[p] += share[p] * (value if at[p] >= 0 else zero)
        item += end - first


@jit
def _spread_loop(grad: Any, index: Any, shares: Any, planes: Any, start: int, stop: int) -> None:
    channels = planes.shape[1]
    for item in range(start, stop):
        image, channel = item // channels, item % channels
        plane, g, at, share = (
            planes[image, channel],
            grad[image, channel],
            index[image],
            shares[image],
        )
        plane[:] = 0
        for place in range(g.size):
            for tap in range(at.shape[1]):
                if at[place, tap] >= 0:
                    plane[at[place, tap]] += share[place, tap] * g[place]


@jit
def _slopes_loop(
    grad: Any,
    planes: Any,
    grid: Any,
    height: int,
    width: int,
    along: int,
    padding: int,
    align_corners: bool,
    dgrid: Any,
    start: int,
    stop: int,
) -> None:
    places = grid.shape[1]
    axes, elements = np.empty((2, 2, 4, _BLOCK), grid.dtype), np.empty((2, 4, _BLOCK), np.int64)
    index, shares = np.empty((16, _BLOCK), np.int64), np.empty((16, _BLOCK), grid.dtype)
    slopes = np.empty((2, 16, _BLOCK), grid.dtype)
    value, sums = np.empty(_BLOCK, grid.dtype), np.empty((2, _BLOCK), grid.dtype)
    zero = planes.dtype.type(0)
    item = start
    while item < stop:
        image, first = item // places, item % places
        end = min(first + _BLOCK, first + stop - item, places)
        _block_taps(
            grid[image, first:end], height, width, along, padding, align_corners, axes, elements,
            index, shares, slopes,
        )  # fmt: skip
        sums[:] = zero
        for tap in range(along * along):
            at, rising, sinking = index[tap], slopes[0, tap], slopes[1, tap]
            value[:] = zero
            for channel in range(planes.shape[1]):
                g, plane = grad[image, channel, first:end], planes[image, channel]
                for p in range(end - first):
                    value[p] += g[p] * plane[max(at[p], 0)]
            for p in range(end - first):
                sums[0, p] += value[p] * rising[p] if at[p] >= 0 else zero
                sums[1, p] += value[p] * sinking[p] if at[p] >= 0 else zero
        for p in range(end - first):
            dgrid[image, first + p, 0], dgrid[image, first + p, 1] = sums[0, p], sums[1, p]
        item += end - first


def _chosen(planes: Array, index: Array) -> Array:
    """Return the elements of planes [C, H W] at indices [T, P]: [C, T, P], 0 outside."""
    return np.where(index >= 0, planes[:, index.clip(0)], 0)


def _values_numpy(
    planes: Array, index: Array, shares: Array, out: Array, start: int, stop: int
) -> None:
    for item in range(start, stop):
        image, channel = divmod(item, planes.shape[1])
        values = _chosen(planes[image, channel : channel + 1], index[image])[0]
        np.sum(values * shares[image], axis=0, out=out[image, channel])


def _spread_numpy(
    grad: Array, index: Array, shares: Array, planes: Array, start: int, stop: int
) -> None:
    for item in range(start, stop):
        image, channel = divmod(item, planes.shape[1])
        plane, at = planes[image, channel], index[image].T
        plane[...] = 0
        parts = shares[image].T * grad[image, channel][:, None]
        np.add.at(plane, at[at >= 0], parts[at >= 0])


def _slopes_numpy(
    grad: Array, planes: Array, index: Array, slopes: Array, dgrid: Array, start: int, stop: int
) -> None:
    places = dgrid.shape[1]
    for image in range(start // places, -(-stop // places)):
        part = slice(max(start - image * places, 0), min(stop - image * places, places))
        at, slope = index[image, :, part], slopes[image, :, :, part]
        values = _chosen(planes[image], at) * grad[image, :, None, part]
        used = np.where(at >= 0, slope, 0)
        dgrid[image, part] = (values.sum(0) * used).sum(1).T
