"""Connectionist temporal classification: the forward-backward algorithm (Graves et al., 2006).

A target of S labels stands in L = 2 S + 1 states: blanks before, between and after its labels. In
log space, alpha[t, s] is the probability of the first t + 1 frames that end in state s, and beta
that of the frames from t on that begin there. Arrays of states have the dtype of the
log-probabilities.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from offgrad.kernels._arrays import Array
from offgrad.kernels._jit import inlined, jit, uses_numba
from offgrad.kernels._parallel import parallel_for

_EXPENSE = 16
"""A state's work, in elements of an elementwise loop."""


class Targets(NamedTuple):
    """The labels of N samples.

    Attributes:
        labels: int64, of all samples.
        starts: [N] int64, the position of each sample's first label.
        lengths: [N] int64, their numbers.
        frames: [N] int64, the number of each sample's frames.
        blank: the class of the blank.
    """

    labels: Array
    starts: Array
    lengths: Array
    frames: Array
    blank: int


def ctc_loss(log_probs: Array, targets: Targets, losses: Array, alpha: Array) -> None:
    """Write the negative log-likelihoods [N], and alpha [N, T, L].

    Args:
        log_probs: [T, N, C].
        targets: labels from 0 to C - 1, lengths within T and L.
        losses: written; infinity where no path has the labels.
        alpha: L is that of the longest target.
    """
    if not uses_numba(log_probs, losses, alpha):
        _ctc_numpy(log_probs, targets, losses, alpha)
        return
    alpha[...] = -np.inf  # frames and states that a sample does not have, too
    labels, starts, lengths, frames, blank = targets
    parallel_for(
        partial(_ctc_loop, log_probs, labels, starts, lengths, frames, blank, losses, alpha),
        len(losses),
        alpha[0].size * _EXPENSE if len(alpha) else 1,
        merge=True,
    )


def ctc_loss_backward(
    grad: Array, log_probs: Array, targets: Targets, losses: Array, alpha: Array, out: Array
) -> None:
    """Write the gradient of the logits [T, N, C] whose log-softmax `log_probs` is.

    Args:
        grad: [N], of each loss; 0 gives zeros.
        log_probs: the forward's.
        targets: the forward's.
        losses: the forward's.
        alpha: the forward's.
        out: written completely.
    """
    if not uses_numba(grad, log_probs, losses, alpha, out):
        _ctc_backward_numpy(grad, log_probs, targets, losses, alpha, out)
        return
    labels, starts, lengths, frames, blank = targets
    out[...] = 0
    beta = np.empty((2, *alpha.shape[::2]), alpha.dtype)
    given = labels, starts, lengths, frames, blank, losses, alpha
    body = partial(_ctc_backward_loop, grad, log_probs, *given, beta, out)
    cost = (alpha[0].size + log_probs.size // len(alpha)) * _EXPENSE if len(alpha) else 1
    parallel_for(body, len(losses), cost, merge=True)


def states(targets: Targets, n: int) -> tuple[Array, Array]:
    """The classes of a sample's states, and which states are reached from the one before the last.

    A label is, unless it repeats the label before.
    """
    start, length = int(targets.starts[n]), int(targets.lengths[n])
    classes = np.full(2 * length + 1, targets.blank, np.int64)
    classes[1::2] = targets.labels[start : start + length]
    skips = np.zeros(classes.size, bool)
    skips[2:] = (classes[2:] != targets.blank) & (classes[2:] != classes[:-2])
    return classes, skips


def _shifted(row: Array, by: int) -> Array:
    result = np.full_like(row, -np.inf)
    result[by:] = row[: row.size - by]
    return result


@np.errstate(all="ignore")
def _ctc_numpy(log_probs: Array, targets: Targets, losses: Array, alpha: Array) -> None:
    alpha[...] = -np.inf
    for n in range(len(losses)):
        classes, skips = states(targets, n)
        count = int(targets.frames[n])
        rows = alpha[n, :, : classes.size]
        if count == 0:
            losses[n] = 0 if classes.size == 1 else np.inf
            continue
        rows[0, :2] = log_probs[0, n, classes[:2]]
        for t in range(1, count):
            before = rows[t - 1]
            paths = np.logaddexp(before, _shifted(before, 1))
            paths = np.logaddexp(paths, np.where(skips, _shifted(before, 2), -np.inf))
            rows[t] = paths + log_probs[t, n, classes]
        losses[n] = -np.logaddexp.reduce(rows[count - 1, -2:])


@np.errstate(all="ignore")
def _ctc_backward_numpy(
    grad: Array, log_probs: Array, targets: Targets, losses: Array, alpha: Array, out: Array
) -> None:
    out[...] = 0
    for n in range(len(losses)):
        classes, skips = states(targets, n)
        count = int(targets.frames[n])
        if not grad[n] or not count:
            continue
        beta = np.full(classes.size, -np.inf, alpha.dtype)
        # The same states, in the other direction.
        skips_back = np.zeros_like(skips)
        skips_back[2:] = skips[2:][::-1]
        for t in reversed(range(count)):
            here = log_probs[t, n, classes]
            if t == count - 1:
                beta[-2:] = here[-2:]
            else:
                back = beta[::-1]
                paths = np.logaddexp(back, _shifted(back, 1))
                paths = np.logaddexp(paths, np.where(skips_back, _shifted(back, 2), -np.inf))
                beta = paths[::-1] + here
            through = np.full(log_probs.shape[2], -np.inf, alpha.dtype)
            np.logaddexp.at(through, classes, alpha[n, t, : classes.size] + beta - here)
            share = np.exp(through + losses[n])
            out[t, n] = (np.exp(log_probs[t, n]) - share) * grad[n]


@inlined
def _log_sum(a: Any, b: Any, c: Any) -> Any:
    """The logarithm of the sum of three exponentials."""
    highest = max(a, max(b, c))
    if highest == -np.inf:
        return highest
    return highest + math.log(math.exp(a - highest) + math.exp(b - highest) + math.exp(c - highest))


@jit
def _ctc_loop(
    log_probs: Any,
    labels: Any,
    starts: Any,
    lengths: Any,
    frames: Any,
    blank: int,
    losses: Any,
    alpha: Any,
    start: int,
    stop: int,
) -> None:
    number = log_probs.dtype.type
    nothing = number(-np.inf)
    for n in range(start, stop):
        first = starts[n]
        count = 2 * lengths[n] + 1
        if frames[n] == 0:
            losses[n] = number(0) if count == 1 else number(np.inf)
            continue
        rows = alpha[n]
        rows[0, :] = nothing
        rows[0, 0] = log_probs[0, n, blank]
        if count > 1:
            rows[0, 1] = log_probs[0, n, labels[first]]
        for t in range(1, frames[n]):
            before = rows[t - 1]
            row = rows[t]
            probs = log_probs[t, n]
            for s in range(count):
                label = labels[first + s // 2] if s % 2 == 1 else blank
                one = before[s - 1] if s > 0 else nothing
                two = nothing
                if s % 2 == 1 and s > 2 and label not in (blank, labels[first + s // 2 - 1]):
                    two = before[s - 2]
                row[s] = number(_log_sum(before[s], one, two)) + probs[label]
        last = rows[frames[n] - 1]
        end = last[count - 2] if count > 1 else nothing
        losses[n] = -number(_log_sum(last[count - 1], end, nothing))


@jit
def _ctc_backward_loop(
    grad: Any,
    log_probs: Any,
    labels: Any,
    starts: Any,
    lengths: Any,
    frames: Any,
    blank: int,
    losses: Any,
    alpha: Any,
    beta: Any,
    out: Any,
    start: int,
    stop: int,
) -> None:
    number = log_probs.dtype.type
    nothing = number(-np.inf)
    for n in range(start, stop):
        first = starts[n]
        count = 2 * lengths[n] + 1
        if grad[n] == 0:
            continue
        for back in range(frames[n]):
            t = frames[n] - 1 - back
            after = beta[(t + 1) % 2, n]
            row = beta[t % 2, n]
            probs = log_probs[t, n]
            slopes = out[t, n]
            slopes[:] = nothing
            for s in range(count):
                label = labels[first + s // 2] if s % 2 == 1 else blank
                if back == 0:
                    row[s] = probs[label] if s >= count - 2 else nothing
                else:
                    one = after[s + 1] if s + 1 < count else nothing
                    two = nothing
                    following = labels[first + s // 2 + 1] if s + 2 < count else blank
                    if s % 2 == 1 and following not in (blank, label):
                        two = after[s + 2]
                    row[s] = number(_log_sum(after[s], one, two)) + probs[label]
                path = alpha[n, t, s] + row[s] - probs[label]
                slopes[label] = number(_log_sum(slopes[label], path, nothing))
            for c in range(slopes.size):
                share = math.exp(slopes[c] + losses[n])
                slopes[c] = (number(math.exp(probs[c])) - number(share)) * grad[n]
