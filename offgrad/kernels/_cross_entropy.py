"""Cross-entropy of class indices, one loss per row, without storing probabilities.

With p = softmax(x), class weights w (1 if none), label smoothing s and C classes, the loss of a row
with target t is torch's

    (1 - s) * w[t] * -log p[t]  +  s / C * sum over c of w[c] * -log p[c]

and 0 for a row whose target is `ignore_index`. The caller reduces; the divisor of torch's
mean is `cross_entropy_total_weight`. Backward needs the logits and each row's log-sum-exp.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from offgrad.kernels._along_dim import are_within
from offgrad.kernels._arrays import (
    SUM_BLOCK,
    Array,
    flat,
    rows,
    same_shape,
)
from offgrad.kernels._fastmath import exp, log_share, row_max
from offgrad.kernels._halves import as_float, in_float32
from offgrad.kernels._jit import jit, uses_numba
from offgrad.kernels._parallel import parallel_for


@in_float32("losses", "lse")
def cross_entropy(
    logits: Array,
    target: Array,
    losses: Array,
    lse: Array,
    weight: Array | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> None:
    """Write each row's loss into `losses` and log(sum(exp(logits))) into `lse`.

    Args:
        logits: [N, C] floats.
        target: [N] integers, classes 0 to C - 1 or `ignore_index`.
        losses: [N], written.
        lse: [N], written; an argument of `cross_entropy_backward`.
        weight: [C] factors of the classes, of the logits' dtype, or None.
        ignore_index: Target of rows to ignore.
        label_smoothing: Between 0 and 1.

    Raises IndexError for a target out of range, and ValueError if shapes do not fit.
    """
    _check(logits, target, weight, ignore_index, label_smoothing)
    same_shape(target=target, losses=losses, lse=lse)
    if not uses_numba(logits, losses, lse):
        _cross_entropy_numpy(logits, target, losses, lse, weight, ignore_index, label_smoothing)
        return
    x, t, w = rows(logits), flat(target), _weight_or_ones(weight, logits, label_smoothing)
    weighted, smooth = weight is not None, label_smoothing > 0
    smoothing = logits.dtype.type(label_smoothing)
    parallel_for(
        partial(
            _cross_entropy_loop, x, t, losses, lse, w, weighted, ignore_index, smooth, smoothing
        ),
        x.shape[0],
        x.shape[1],
        merge=True,
    )


@in_float32("out")
def cross_entropy_backward(
    grad_losses: Array,
    logits: Array,
    target: Array,
    lse: Array,
    out: Array,
    weight: Array | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> None:
    """Write the logits' gradient [N, C] into `out`, from the losses' gradient `grad_losses` [N].

    The other arguments are the forward's; targets out of range raise IndexError here as well.
    """
    _check(logits, target, weight, ignore_index, label_smoothing)
    same_shape(target=target, grad_losses=grad_losses, lse=lse)
    same_shape(logits=logits, out=out)
    if not uses_numba(logits, grad_losses, lse, out):
        _cross_entropy_backward_numpy(
            grad_losses, logits, target, lse, out, weight, ignore_index, label_smoothing
        )
        return
    g, x, t, d = flat(grad_losses), rows(logits), flat(target), rows(out)
    w = _weight_or_ones(weight, logits, label_smoothing)
    weighted, smooth = weight is not None, label_smoothing > 0
    smoothing, total = logits.dtype.type(label_smoothing), w.sum(dtype=w.dtype)
    parallel_for(
        partial(
            _cross_entropy_backward_loop,
            g,
            x,
            t,
            lse,
            d,
            w,
            weighted,
            total,
            ignore_index,
            smooth,
            smoothing,
        ),
        x.shape[0],
        x.shape[1],
        merge=True,
    )


def cross_entropy_total_weight(
    target: Array, weight: Array | None = None, ignore_index: int = -100
) -> float:
    """The divisor of torch's mean: the sum of the targets' weights, or the number not ignored."""
    counted = target != ignore_index
    if weight is None:
        return float(np.count_nonzero(counted))
    return float(as_float(weight)[target[counted]].sum())


def _check(
    logits: Array, target: Array, weight: Array | None, ignore_index: int, label_smoothing: float
) -> None:
    if logits.ndim != 2 or target.shape != logits.shape[:1]:
        raise ValueError(
            "cross_entropy takes logits [N, C] and targets [N], got shapes "
            f"{logits.shape} and {target.shape}: flatten the leading dimensions"
        )
    classes = logits.shape[1]
    if target.dtype.kind not in "iu":
        raise ValueError(
            f"cross_entropy's targets must be class indices, integers; got {target.dtype}"
        )
    if weight is not None and weight.shape != (classes,):
        raise ValueError(
            f"cross_entropy's weight must have one element per class ({classes}), got "
            f"{weight.shape}"
        )
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing must be between 0 and 1, got {label_smoothing}")
    if are_within(target, 0, classes):
        return
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if wrong.any():
        row = int(wrong.argmax())
        raise IndexError(
            f"cross_entropy: Target {int(target[row])} is out of bounds in row {row}: with "
            f"{classes} classes it is 0 to {classes - 1}, or ignore_index ({ignore_index})"
        )


def _weight_or_ones(weight: Array | None, logits: Array, label_smoothing: float) -> Array:
    if weight is not None:
        return np.ascontiguousarray(weight, dtype=logits.dtype)
    return np.ones(logits.shape[1] if label_smoothing > 0 else 0, dtype=logits.dtype)


@np.errstate(all="ignore")
def _cross_entropy_numpy(
    logits: Array,
    target: Array,
    losses: Array,
    lse: Array,
    weight: Array | None,
    ignore_index: int,
    label_smoothing: float,
) -> None:
    if logits.size == 0:
        losses[...] = 0
        lse[...] = -np.inf
        return
    counted = target != ignore_index
    at = np.arange(len(logits)), np.where(counted, target, 0)
    highest = logits.max(axis=1, keepdims=True)
    log_total = np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))
    log_p = (logits - highest) - log_total
    w = np.ones(logits.shape[1], logits.dtype) if weight is None else weight
    loss = -(1 - label_smoothing) * w[at[1]] * log_p[at]
    if label_smoothing > 0:
        loss = loss - label_smoothing / logits.shape[1] * (w * log_p).sum(axis=1)
    losses[...] = np.where(counted, loss, 0)
    lse[...] = (highest + log_total)[:, 0]


@np.errstate(all="ignore")
def _cross_entropy_backward_numpy(
    grad_losses: Array,
    logits: Array,
    target: Array,
    lse: Array,
    out: Array,
    weight: Array | None,
    ignore_index: int,
    label_smoothing: float,
) -> None:
    if logits.size == 0:
        return
    counted = target != ignore_index
    at = np.arange(len(logits)), np.where(counted, target, 0)
    w = np.ones(logits.shape[1], logits.dtype) if weight is None else weight
    p = np.exp(logits - lse[:, None])
    share = (1 - label_smoothing) * w[at[1]]
    gradient = p * share[:, None]
    gradient[at] -= share
    if label_smoothing > 0:
        gradient += label_smoothing / logits.shape[1] * (w.sum() * p - w)
    out[...] = np.where(counted[:, None], gradient * grad_losses[:, None], 0)


@jit
def _cross_entropy_loop(
    logits: Any,
    target: Any,
    losses: Any,
    lse: Any,
    weight: Any,
    weighted: bool,
    ignore_index: int,
    smooth: bool,
    smoothing: Any,
    start: int,
    stop: int,
) -> None:
    number = logits.dtype.type
    zero, one = number(0), number(1)
    for i in range(start, stop):
        row = logits[i]
        highest = row_max(row)
        total = 0.0
        for first in range(0, row.size, SUM_BLOCK):
            block = row[first : first + SUM_BLOCK]
            part = number(0)
            for j in range(block.size):
                part += exp(block[j] - highest)
            total += part
        log_total = number(np.log(total))
        lse[i] = highest + log_total
        t = target[i]
        if t == ignore_index:
            losses[i] = zero
            continue
        loss = -log_share(row[t], highest, log_total)
        if weighted:
            loss *= weight[t]
        if smooth:
            spread = 0.0
            for first in range(0, row.size, SUM_BLOCK):
                block = row[first : first + SUM_BLOCK]
                factors = weight[first : first + SUM_BLOCK]
                part = zero
                for j in range(block.size):
                    part += factors[j] * log_share(block[j], highest, log_total)
                spread -= part
            loss = (one - smoothing) * loss + smoothing * number(spread / row.size)
        losses[i] = loss


@jit
def _cross_entropy_backward_loop(
    grad_losses: Any,
    logits: Any,
    target: Any,
    lse: Any,
    out: Any,
    weight: Any,
    weighted: bool,
    total_weight: Any,
    ignore_index: int,
    smooth: bool,
    smoothing: Any,
    start: int,
    stop: int,
) -> None:
    number = logits.dtype.type
    zero, one = number(0), number(1)
    for i in range(start, stop):
        row = logits[i]
        d = out[i]
        t = target[i]
        if t == ignore_index:
            for j in range(row.size):
                d[j] = zero
            continue
        norm = number(lse[i])
        g = number(grad_losses[i])
        share = g * (one - smoothing)
        if weighted:
            share *= weight[t]
        if smooth:
            each = g * smoothing / number(row.size)
            factor = share + each * total_weight
            for j in range(row.size):
                d[j] = factor * exp(row[j] - norm) - each * weight[j]
        else:
            for j in range(row.size):
                d[j] = share * exp(row[j] - norm)
        d[t] -= share
