"""Cross-entropy and likelihoods of classes that are planes: arrays [N, C, d1, ...].

They are computed where they lie, without a copy to rows of classes.
"""

from math import prod
from typing import Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array
from offgrad.memory.meta import MetaArray
from offgrad.ops._core.broadcasting import wide_dtype


def has_planes(x: Array) -> bool:
    """Return whether the classes of `x` are planes that are long enough for loops along them."""
    return x.ndim > 2 and prod(x.shape[2:]) >= kernels.MIN_LENGTH


def planes_of(x: Array) -> Array:
    """Return [N, C, d1, ...] as contiguous [N, C, L]."""
    return memory.contiguous(x).reshape(*x.shape[:2], prod(x.shape[2:]))


def classes_of(target: Array, ignore_index: int, classes: int, where: str) -> tuple[Array, Array]:
    """Return which targets count, and the class of each, 0 if it does not; both [N, L].

    Raises:
        IndexError: if a target is not a class.
    """
    flat = target.reshape(target.shape[0], prod(target.shape[1:]))
    counted = flat != ignore_index
    at = flat
    if type(flat) is not MetaArray and not counted.all():
        at = memory.copy(flat)
        at[~counted] = 0
    if at.size and type(at) is not MetaArray and not (at.min() >= 0 and at.max() < classes):
        raise IndexError(
            f"{where}: targets must be from 0 to {classes - 1}, or ignore_index ({ignore_index}), "
            f"got {at.min()} to {at.max()}"
        )
    return counted, at


def picked(planes: Array, at: Array) -> Array:
    """Return the numbers of the classes `at` [N, L]."""
    out = memory.empty(at.shape, planes.dtype)
    kernels.gather(planes, at[:, None], 1, out[:, None])
    return out


def cross_entropy(
    logits: Array, target: Array, weight: Array | None, ignore_index: int
) -> tuple[Array, Array]:
    """Return the losses and the logarithms of the sums of exponentials, both [N L]."""
    planes = planes_of(logits)
    counted, at = classes_of(target, ignore_index, logits.shape[1], "cross_entropy")
    lse: Any = memory.empty(at.shape, wide_dtype(logits.dtype))
    kernels.log_sum_exp_planes(planes, lse)
    losses = picked(planes, at)
    np.subtract(lse, losses, out=losses)
    if weight is not None:
        np.multiply(losses, weight[at], out=losses)
    losses[~counted] = 0
    return losses.reshape(-1), lse.reshape(-1)


def cross_entropy_backward(
    grad: Array, logits: Array, target: Array, weight: Array | None, lse: Array, ignore_index: int
) -> Array:
    """Return the gradient of the logits, from that of each loss [N L]."""
    planes = planes_of(logits)
    counted, at = classes_of(target, ignore_index, logits.shape[1], "cross_entropy")
    factor = grad.reshape(at.shape)
    if weight is not None:
        factor = factor * weight[at]
    factor = np.where(counted, factor, factor.dtype.type(0))
    out: Any = memory.empty(planes.shape, planes.dtype)
    kernels.scaled_softmax_planes(planes, lse.reshape(at.shape), factor, out)
    np.put_along_axis(out, at[:, None], (picked(out, at) - factor)[:, None], 1)
    result: Array = out.reshape(logits.shape)
    return result


def likelihood_backward(
    shares: Array, shape: tuple[int, ...], target: Array, ignore_index: int
) -> Array:
    """Return zeros of `shape` with `shares` [N L] at the targets."""
    _, at = classes_of(target, ignore_index, shape[1], "nll_loss")
    out: Any = memory.zeros((*shape[:2], at.shape[1]), shares.dtype)
    np.put_along_axis(out, at[:, None], shares.reshape(at.shape)[:, None], 1)
    result: Array = out.reshape(shape)
    return result
