"""Softmax within a tile of attention scores, and its gradient, in place."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offgrad.kernels._arrays import Array
from offgrad.kernels._attention_loops import softmax_tile_backward_loop, softmax_tile_loop
from offgrad.kernels._dropout import keep_rule
from offgrad.kernels._fastmath import random_bits, stream_key
from offgrad.kernels._jit import uses_numba

_HIGH_HALF = np.uint64(32)
_MASK64 = 2**64 - 1


@dataclass(frozen=True)
class Dropout:
    """The rule for dropped probabilities: each has its position in a random stream."""

    key: np.uint64
    offset: int
    threshold: np.uint64
    scale: float

    @staticmethod
    @functools.lru_cache(maxsize=64)
    def of(p: float, seed: int, offset: int) -> Dropout:
        """The rule for probability `p`, as `kernels.dropout` applies it."""
        return Dropout(stream_key(seed), offset, *keep_rule(p))


def softmax_tile(
    scores: Array,
    lse: Array,
    inverse: Array,
    first: int,
    causal: bool,
    dropout: Dropout,
    position: int,
    stride: int,
) -> None:
    """Turn scores into softmax's numerators, in place; write log-sum-exps and inverse sums.

    Args:
        scores: [R, N] floats, rows first to first + R - 1 against keys 0 to N - 1.
        lse: [R], written: log-sum-exp of each row, +inf for one without a visible key.
        inverse: [R], written: factors of the numerators, dropout's included.
        first: Number of the first row.
        causal: Row t sees keys 0 to t.
        dropout: The rule for numerators that become 0; the sums include them.
        position: Position of the first score in dropout's stream.
        stride: Distance in the stream between the first scores of neighbouring rows.
    """
    if not uses_numba(scores, lse, inverse):
        _softmax_tile_numpy(scores, lse, inverse, first, causal, dropout, position, stride)
        return
    start = np.uint64((dropout.offset + position) & _MASK64)
    scale = scores.dtype.type(dropout.scale)
    rule = (dropout.key, start, np.uint64(stride), dropout.threshold, scale)
    softmax_tile_loop(scores, scores.shape[1], lse, inverse, first, causal, *rule)


def softmax_tile_backward(
    p: Array,
    ds: Array,
    lse: Array,
    delta: Array,
    first: int,
    causal: bool,
    dropout: Dropout,
    position: int,
    stride: int,
) -> None:
    """Turn scores into probabilities after dropout, and their gradient into the scores', in place.

    Args:
        p: [R, N], scores as in the forward; overwritten by the probabilities multiplied with v.
        ds: [R, N], gradient of those probabilities; overwritten by that of the scores.
        lse: [R], the forward's.
        delta: [R], sum of gradient times probability over the row.
        first, causal, dropout, position, stride: As in `softmax_tile`.
    """
    if not uses_numba(p, ds, lse, delta):
        _softmax_tile_backward_numpy(p, ds, lse, delta, first, causal, dropout, position, stride)
        return
    start = np.uint64((dropout.offset + position) & _MASK64)
    rule = (dropout.key, start, np.uint64(stride), dropout.threshold, p.dtype.type(dropout.scale))
    softmax_tile_backward_loop(p, ds, p.shape[1], lse, delta, first, causal, *rule)


@np.errstate(all="ignore")
def _softmax_tile_numpy(
    scores: Array,
    lse: Array,
    inverse: Array,
    first: int,
    causal: bool,
    dropout: Dropout,
    position: int,
    stride: int,
) -> None:
    if causal:
        scores[_future(scores.shape, first)] = -np.inf
    highest = scores.max(axis=1, initial=-np.inf)
    empty = highest == -np.inf
    np.exp(scores - np.where(empty, 0, highest)[:, None], out=scores)
    total = scores.sum(axis=1)
    lse[...] = np.where(empty, np.inf, highest + np.log(total))
    inverse[...] = np.where(empty, 0, dropout.scale / total)
    scores[~_keep_mask(scores.shape, dropout, position, stride)] = 0


@np.errstate(all="ignore")
def _softmax_tile_backward_numpy(
    p: Array,
    ds: Array,
    lse: Array,
    delta: Array,
    first: int,
    causal: bool,
    dropout: Dropout,
    position: int,
    stride: int,
) -> None:
    np.exp(p - lse[:, None], out=p)
    if causal:
        future = _future(p.shape, first)
        p[future] = 0
        ds[future] = 0
    factor = np.where(_keep_mask(p.shape, dropout, position, stride), dropout.scale, 0).astype(
        p.dtype
    )
    ds[...] = p * (np.where(factor == 0, 0, ds * factor) - delta[:, None])
    p *= factor


def _future(shape: tuple[int, ...], first: int) -> npt.NDArray[np.bool_]:
    rows, keys = shape
    future: npt.NDArray[np.bool_] = np.arange(keys) > np.arange(first, first + rows)[:, None]
    return future


def _keep_mask(
    shape: tuple[int, ...], dropout: Dropout, position: int, stride: int
) -> npt.NDArray[np.bool_]:
    if dropout.threshold == 0:
        return np.ones(shape, dtype=np.bool_)
    rows, keys = (np.arange(count, dtype=np.uint64) for count in shape)
    start = np.uint64((dropout.offset + position) & _MASK64)
    counters = rows[:, None] * np.uint64(stride) + keys + start
    keep: npt.NDArray[np.bool_] = (
        random_bits(dropout.key, counters) >> _HIGH_HALF >= dropout.threshold
    )
    return keep
