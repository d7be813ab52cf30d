"""Images sampled at given places, between the four elements around each."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._halves import in_float32
from offgrad.kernels._jit import jit, uses_numba
from offgrad.kernels._parallel import parallel_for

_CORNERS = 4


class _Axis(NamedTuple):
    """Places along an axis of an image.

    Attributes:
        first: the element before each place.
        share: the part of the next element.
        slope: the derivative of the position by the grid.
    """

    first: Array
    share: Array
    slope: Array


@in_float32("out")
def grid_sample(x: Array, grid: Array, padding: str, align_corners: bool, out: Array) -> None:
    """Write the values of x [N, C, H, W] at `grid` [N, P, 2] into `out` [N, C, P].

    Args:
        x: the images.
        grid: x and y from -1 to 1.
        padding: of places outside, "zeros", "border" or "reflection".
        align_corners: whether -1 and 1 are the centres of the corner elements.
        out: the values.
    """
    index, shares, _ = _taps(x, grid, padding, align_corners, has_slopes=False)
    planes = _planes(x)
    body: Any = _values_loop if uses_numba(planes, shares, out) else _values_numpy
    count, channels, places = out.shape
    parallel_for(partial(body, planes, index, shares, out), count * channels, places * _CORNERS)


@in_float32("dx", "dgrid")
def grid_sample_backward(
    grad: Array,
    x: Array,
    grid: Array,
    padding: str,
    align_corners: bool,
    dx: Array | None,
    dgrid: Array | None,
) -> None:
    """Write the gradients of x and of `grid`, given that of the values; None is skipped."""
    index, shares, slopes = _taps(x, grid, padding, align_corners, dgrid is not None)
    count, channels, places = grad.shape
    if dx is not None:
        planes = _planes(dx)
        is_compiled = uses_numba(grad, shares, planes)
        body: Any = _spread_loop if is_compiled else _spread_numpy
        loop = partial(body, grad, index, shares, planes)
        parallel_for(loop, count * channels, places * _CORNERS)
    if dgrid is not None:
        planes = _planes(x)
        is_compiled = uses_numba(grad, planes, slopes, dgrid)
        body = _slopes_loop if is_compiled else _slopes_numpy
        parallel_for(partial(body, grad, planes, index, slopes, dgrid), count, places * channels)


def _planes(x: Array) -> Array:
    return x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])


def _axis(place: Array, size: int, padding: str, align_corners: bool) -> _Axis:
    number = place.dtype.type
    if align_corners:
        at, slope = (place + 1) / 2 * (size - 1), np.full_like(place, (size - 1) / 2)
    else:
        at, slope = ((place + 1) * size - 1) / 2, np.full_like(place, size / 2)
    if padding == "reflection":
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if span:
            distance = np.abs(at - number(low))
            slope *= np.sign(at - number(low))
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
    first = np.floor(at)
    return _Axis(first, at - first, slope)


@np.errstate(all="ignore")
def _taps(
    x: Array, grid: Array, padding: str, align_corners: bool, has_slopes: bool
) -> tuple[Array, Array, Array]:
    """Return what each place takes from its four elements.

    The elements' index in a plane [N, P, 4], -1 outside; their shares [N, P, 4]; and, if asked for,
    the derivatives of these by the grid [N, P, 4, 2].
    """
    height, width = x.shape[2:]
    across = _axis(grid[..., 0], width, padding, align_corners)
    down = _axis(grid[..., 1], height, padding, align_corners)
    index = np.empty((*grid.shape[:2], _CORNERS), np.int64)
    shares = np.empty(index.shape, x.dtype)
    slopes = np.empty((*index.shape, 2 if has_slopes else 0), x.dtype)
    for corner in range(_CORNERS):
        below, right = divmod(corner, 2)
        row, column = down.first + below, across.first + right
        is_inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        flat = np.where(is_inside, row, 0).astype(np.int64) * width
        flat += np.where(is_inside, column, 0).astype(np.int64)
        index[..., corner] = np.where(is_inside, flat, -1)
        vertical = down.share if below else 1 - down.share
        horizontal = across.share if right else 1 - across.share
        shares[..., corner] = horizontal * vertical
        if has_slopes:
            slopes[..., corner, 0] = across.slope * (vertical if right else -vertical)
            slopes[..., corner, 1] = down.slope * (horizontal if below else -horizontal)
    return index, shares, slopes


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
            for corner in range(_CORNERS):
                element = at[place, corner]  # outside 0, so that a place that is NaN gives NaN
                total += share[place, corner] * (plane[element] if element >= 0 else zero)
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
            for corner in range(_CORNERS):
                if at[place, corner] >= 0:
                    plane[at[place, corner]] += share[place, corner] * g[place]


@jit
def _slopes_loop(
    grad: Any, planes: Any, index: Any, slopes: Any, dgrid: Any, start: int, stop: int
) -> None:
    for image in range(start, stop):
        to, at, slope = dgrid[image], index[image], slopes[image]
        to[:] = 0
        for channel in range(planes.shape[1]):
            plane, g = planes[image, channel], grad[image, channel]
            for place in range(g.size):
                for corner in range(_CORNERS):
                    if at[place, corner] >= 0:
                        value = g[place] * plane[at[place, corner]]
                        to[place, 0] += value * slope[place, corner, 0]
                        to[place, 1] += value * slope[place, corner, 1]


def _chosen(planes: Array, index: Array) -> Array:
    """Return the elements of planes [C, H W] at indices [P, 4]: [C, P, 4], 0 outside."""
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
    for image in range(start, stop):
        values = _chosen(planes[image], index[image]) * grad[image][..., None]
        used = np.where(index[image][..., None] >= 0, slopes[image], 0)
        dgrid[image] = (values.sum(0)[..., None] * used).sum(1)
