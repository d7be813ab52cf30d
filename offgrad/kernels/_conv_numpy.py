"""Convolutions in NumPy, of any dtype and number of dimensions: the reference of the loops.

The patches that meet each kernel become the columns of a matrix, which the weight multiplies. A
few samples are taken at a time, so that the patches in memory are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from offgrad.kernels._arrays import Array
from offgrad.kernels._blas import single_threaded_blas
from offgrad.kernels._products import matmul

MAX_PATCHES = 1 << 20
"""Elements of the patches in memory at once, over as many samples as fit, one at least."""


class Steps(NamedTuple):
    """How a kernel passes over an array, for each dimension of the space.

    Output p meets input ``p * stride - padding + k * dilation`` at the kernel's element k. Inputs
    beyond the array are zeros, however many: the sizes of input and output need not match.

    Attributes:
        stride: distance of two positions of the kernel.
        padding: distance of the first position before the array.
        dilation: distance of two elements of the kernel.
        groups: channels are convolved within so many groups.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1


def three_dimensional(large: Array, weight: Array, small: Array, steps: Steps) -> Any:
    """Return the sizes of an input, a kernel and an output, and the steps, in three dimensions."""

    def three(values: tuple[int, ...], first: int) -> tuple[int, ...]:
        return (first,) * (3 - len(values)) + tuple(map(int, values))

    if set(weight.shape[2:]) == set(steps.stride) == {1} and not any(steps.padding):
        # Rows and columns do not matter: one long row takes less time.
        row = (1, 1, prod(small.shape[2:]))
        return row, (1, 1, 1), row, (1, 1, 1), (0, 0, 0), (1, 1, 1)
    return (
        three(large.shape[2:], 1),
        three(weight.shape[2:], 1),
        three(small.shape[2:], 1),
        three(steps.stride, 1),
        three(steps.padding, 0),
        three(steps.dilation, 1),
    )


def _multiply(a: Array, b: Array, out: Array) -> None:
    """Write ``a @ b``; small products, too, have the same bits on any number of threads."""
    with single_threaded_blas():
        matmul(a, b, out)


def convolve_numpy(x: Array, weight: Array, out: Array, steps: Steps) -> None:
    """Write the convolution into `out`; arguments as those of `convolve`."""
    groups, kernel, places = steps.groups, weight.shape[2:], out.shape[2:]
    rows = _rows(weight, groups)
    for part in _samples(len(x), x.shape[1] * prod(kernel) * prod(places)):
        patches = columns(x[part], kernel, places, steps)
        patches = patches.reshape(len(patches), groups, rows.shape[2], prod(places))
        result = np.empty((len(patches), groups, rows.shape[1], prod(places)), out.dtype)
        _multiply(rows, patches, result)
        out[part] = result.reshape(out[part].shape)


def convolve_transposed_numpy(x: Array, weight: Array, out: Array, steps: Steps) -> None:
    """Write the transposed convolution into `out`; arguments as those of `convolve_transposed`."""
    groups, kernel, places = steps.groups, weight.shape[2:], x.shape[2:]
    rows = _rows(weight, groups).swapaxes(1, 2)
    for part in _samples(len(x), out.shape[1] * prod(kernel) * prod(places)):
        values = x[part]
        values = values.reshape(len(values), groups, rows.shape[2], prod(places))
        patches = np.empty((len(values), groups, rows.shape[1], prod(places)), out.dtype)
        _multiply(rows, values, patches)
        shape = len(values), out.shape[1], *kernel, *places
        add_columns(patches.reshape(shape), out[part], steps)


def convolve_weight_numpy(small: Array, large: Array, out: Array, steps: Steps) -> None:
    """Write the gradient of a weight into `out`; arguments as those of `convolve_weight`."""
    groups, kernel, places = steps.groups, out.shape[2:], small.shape[2:]
    total = np.zeros((groups, out.shape[0] // groups, prod(out.shape[1:])), out.dtype)
    result = np.empty_like(total)
    for part in _samples(len(small), large.shape[1] * prod(kernel) * prod(places)):
        patches = columns(large[part], kernel, places, steps)
        patches = patches.reshape(len(patches), groups, total.shape[2], prod(places))
        values = small[part].reshape(len(patches), groups, total.shape[1], prod(places))
        for value, patch in zip(values, patches, strict=True):
            _multiply(value, patch.swapaxes(1, 2), result)
            total += result
    out[...] = total.reshape(out.shape)


def columns(x: Array, kernel: tuple[int, ...], places: tuple[int, ...], steps: Steps) -> Array:
    """Return the patches of x [N, C, *S] as a view [N, C, *kernel, *places] of a padded copy."""
    edges = _edges(kernel, places, steps)
    padded = np.zeros((*x.shape[:2], *edges), x.dtype)
    inside, within = _overlap(x.shape[2:], edges, steps)
    padded[_last(within)] = x[_last(inside)]
    own = padded.strides[2:]
    strides = [
        *padded.strides[:2],
        *(step * each for step, each in zip(own, steps.dilation, strict=True)),
        *(step * each for step, each in zip(own, steps.stride, strict=True)),
    ]
    return as_strided(padded, (*x.shape[:2], *kernel, *places), strides, writeable=False)


def add_columns(patches: Array, out: Array, steps: Steps) -> None:
    """Write the sum of patches [N, C, *kernel, *places] at their places into out [N, C, *S]."""
    ndim = out.ndim - 2
    kernel, places = patches.shape[2 : 2 + ndim], patches.shape[2 + ndim :]
    edges = _edges(kernel, places, steps)
    padded = np.zeros((*out.shape[:2], *edges), out.dtype)
    for at in np.ndindex(*kernel):
        first = [k * step for k, step in zip(at, steps.dilation, strict=True)]
        target = [
            slice(start, start + (count - 1) * step + 1 if count else start, step)
            for start, count, step in zip(first, places, steps.stride, strict=True)
        ]
        padded[_last(target)] += patches[(slice(None), slice(None), *at)]
    inside, within = _overlap(out.shape[2:], edges, steps)
    out[...] = 0
    out[_last(inside)] = padded[_last(within)]


def _rows(weight: Array, groups: int) -> Array:
    return weight.reshape(groups, weight.shape[0] // groups, prod(weight.shape[1:]))


def _last(slices: list[slice]) -> tuple[Any, ...]:
    """Return the index that takes slices of the last dimensions."""
    return (..., *slices)


def _samples(count: int, patches: int) -> Iterator[slice]:
    step = max(1, MAX_PATCHES // max(1, patches))
    for start in range(0, count, step):
        yield slice(start, start + step)


def _edges(kernel: tuple[int, ...], places: tuple[int, ...], steps: Steps) -> list[int]:
    """Return the sizes of the space that kernels at all places cover together."""
    return [
        (count - 1) * stride + (size - 1) * dilation + 1 if count and size else 0
        for size, count, stride, dilation in zip(
            kernel, places, steps.stride, steps.dilation, strict=True
        )
    ]


def _overlap(
    space: tuple[int, ...], edges: list[int], steps: Steps
) -> tuple[list[slice], list[slice]]:
    """Return the part of an array that the covered space meets: its slices in either."""
    inside, within = [], []
    for size, edge, padding in zip(space, edges, steps.padding, strict=True):
        first = max(0, -padding)
        last = max(first, min(size, edge - padding))
        inside.append(slice(first, last))
        within.append(slice(first + padding, last + padding))
    return inside, within
