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
    index, shares, _ = _taps(x, grid, sampling, has_slopes=False)
    planes = _planes(x)
    body: Any = _values_loop if uses_numba(planes, shares, out) else _values_numpy
    count, channels, places = out.shape
    loop = partial(body, planes, index, shares, out)
    parallel_for(loop, count * channels, places * shares.shape[2])


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
    index, shares, slopes = _taps(x, grid, sampling, dgrid is not None)
    count, channels, places = grad.shape
    taps = shares.shape[2]
    if dx is not None:
        planes = _planes(dx)
        is_compiled = uses_numba(grad, shares, planes)
        body: Any = _spread_loop if is_compiled else _spread_numpy
        loop = partial(body, grad, index, shares, planes)
        parallel_for(loop, count * channels, places * taps)
    if dgrid is not None:
        planes = _planes(x)
        is_compiled = uses_numba(grad, planes, slopes, dgrid)
        body = _slopes_loop if is_compiled else _slopes_numpy
        loop = partial(body, grad, planes, index, slopes, dgrid)
        parallel_for(loop, count * places, channels * taps)


def _planes(x: Array) -> Array:
    return x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])


def _taps(
    x: Array, grid: Array, sampling: Sampling, has_slopes: bool
) -> tuple[Array, Array, Array]:
    """Return what each place takes from the elements around it, T of them.

    The elements' index in a plane [N, P, T], -1 outside; their shares [N, P, T]; and, if asked for,
    the derivatives of these by the grid [N, P, T, 2].
    """
    along = _TAPS[sampling.mode]
    index = np.empty((*grid.shape[:2], along * along), np.int64)
    shares = np.empty(index.shape, x.dtype)
    slopes = np.empty((*index.shape, 2 if has_slopes else 0), x.dtype)
    if uses_numba(grid, shares):
        padding = _PADDINGS.index(sampling.padding)
        height, width = x.shape[2:]
        sizes = partial(_taps_loop, grid, height, width, along)
        loop = partial(sizes, padding, sampling.align_corners, index, shares, slopes)
        parallel_for(loop, grid.shape[0] * grid.shape[1], 40 + 5 * along * along)
    else:
        _taps_numpy(x, grid, sampling, index, shares, slopes)
    return index, shares, slopes


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
    slopes: Any,
    start: int,
    stop: int,
) -> None:
    places = grid.shape[1]
    number = grid.dtype.type
    one, two = number(1), number(2)
    elements = np.empty((2, 4), np.int64)
    weights, rises = np.empty((2, 4), grid.dtype), np.empty((2, 4), grid.dtype)
    for item in range(start, stop):
        image, place = item // places, item % places
        for axis in range(2):
            size, at = number(width if axis == 0 else height), grid[image, place, axis]
            last = size - one
            if align_corners:
                at, slope = (at + one) / two * last, last / two
                low, span = number(0), last
            else:
                at, slope = ((at + one) * size - one) / two, size / two
                low, span = -one / two, size
            if along == 4:  # the elements are moved inside, not the place
                first = np.floor(at)
                cubes, bends = _cubic(at - first), _cubic_slopes(at - first)
                for tap in range(4):
                    moved, _ = _moved(first + number(tap - 1), slope, low, span, last, padding)
                    elements[axis, tap] = _element(moved, last)
                    weights[axis, tap], rises[axis, tap] = cubes[tap], bends[tap] * slope
            elif along == 2:
                at, slope = _moved(at, slope, low, span, last, padding)
                first = np.floor(at)
                elements[axis, 0] = _element(first, last)
                elements[axis, 1] = _element(first + one, last)
                weights[axis, 0], weights[axis, 1] = one - (at - first), at - first
                rises[axis, 0], rises[axis, 1] = -slope, slope
            else:
                at, _ = _moved(at, slope, low, span, last, padding)
                elements[axis, 0] = _element(np.rint(at), last)
                weights[axis, 0], rises[axis, 0] = one, number(0)
        for down in range(along):
            row = elements[1, down]
            for across in range(along):
                column, tap = elements[0, across], down * along + across
                is_inside = row >= 0 and column >= 0
                index[image, place, tap] = row * width + column if is_inside else -1
                shares[image, place, tap] = weights[0, across] * weights[1, down]
                if slopes.shape[3]:
                    slopes[image, place, tap, 0] = rises[0, across] * weights[1, down]
                    slopes[image, place, tap, 1] = rises[1, down] * weights[0, across]


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
def _taps_numpy(
    x: Array, grid: Array, sampling: Sampling, index: Array, shares: Array, slopes: Array
) -> None:
    height, width = x.shape[2:]
    columns, across, rising = _axis(grid[..., 0], width, sampling)
    rows, down, sinking = _axis(grid[..., 1], height, sampling)
    along = len(rows)
    for tap in range(along * along):
        i, j = divmod(tap, along)
        is_inside = (rows[i] >= 0) & (columns[j] >= 0)
        index[..., tap] = np.where(is_inside, rows[i] * width + columns[j], -1)
        shares[..., tap] = across[j] * down[i]
        if slopes.size:
            slopes[..., tap, 0] = rising[j] * down[i]
            slopes[..., tap, 1] = sinking[i] * across[j]


@jit
def _values_loop(planes: Any, index: Any, shares: Any, out: Any, start: int, stop: int) -> None:
    channels = planes.shape[1]
    zero = planes.dtype.type(0)
    for item in range(start, stop):
        image, channel = item // channels, item % channels
        plane, to = planes[image, channel], out[image, channel]
        at, share = index[image], shares[image]
        for place in range(to.size):
            total = zero
            for tap in range(at.shape[1]):
                element = at[place, tap]  # outside 0, so that a place that is NaN gives NaN
                total += share[place, tap] * (plane[element] if element >= 0 else zero)
            to[place] = total


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
    grad: Any, planes: Any, index: Any, slopes: Any, dgrid: Any, start: int, stop: int
) -> None:
    places = dgrid.shape[1]
    zero = planes.dtype.type(0)
    for item in range(start, stop):
        image, place = item // places, item % places
        across, down = zero, zero
        for tap in range(index.shape[2]):
            element = index[image, place, tap]
            if element >= 0:
                value = zero
                for channel in range(planes.shape[1]):
                    value += grad[image, channel, place] * planes[image, channel, element]
                across += value * slopes[image, place, tap, 0]
                down += value * slopes[image, place, tap, 1]
        dgrid[image, place, 0], dgrid[image, place, 1] = across, down


def _chosen(planes: Array, index: Array) -> Array:
    """Return the elements of planes [C, H W] at indices [P, T]: [C, P, T], 0 outside."""
    return np.where(index >= 0, planes[:, index.clip(0)], 0)


def _values_numpy(
    planes: Array, index: Array, shares: Array, out: Array, start: int, stop: int
) -> None:
    for item in range(start, stop):
        image, channel = divmod(item, planes.shape[1])
        values = _chosen(planes[image, channel : channel + 1], index[image])[0]
        np.sum(values * shares[image], axis=1, out=out[image, channel])


def _spread_numpy(
    grad: Array, index: Array, shares: Array, planes: Array, start: int, stop: int
) -> None:
    for item in range(start, stop):
        image, channel = divmod(item, planes.shape[1])
        plane, inside = planes[image, channel], index[image] >= 0
        plane[...] = 0
        parts = shares[image] * grad[image, channel][:, None]
        np.add.at(plane, index[image][inside], parts[inside])


def _slopes_numpy(
    grad: Array, planes: Array, index: Array, slopes: Array, dgrid: Array, start: int, stop: int
) -> None:
    places = dgrid.shape[1]
    for image in range(start // places, -(-stop // places)):
        part = slice(max(start - image * places, 0), min(stop - image * places, places))
        at, slope = index[image, part], slopes[image, part]
        values = _chosen(planes[image], at) * grad[image, :, part][..., None]
        used = np.where(at[..., None] >= 0, slope, 0)
        dgrid[image, part] = (values.sum(0)[..., None] * used).sum(1)
