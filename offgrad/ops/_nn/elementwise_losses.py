"""Losses of pairs of elements: regression, and probabilities against targets."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels
from offgrad._warning import warn_program
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.dtypes import (
    category,
    check_broadcastable,
    check_tensor,
    common_dtype,
    real_floating,
    shape_error,
)
from offgrad.ops._elementwise.comparison import compare, where
from offgrad.ops._elementwise.exponential import (
    exp,
    log,
)
from offgrad.ops._nn.classification_losses import check_reduction, reduce
from offgrad.ops._nn.pair_losses import (
    BinaryCrossEntropy,
    BinaryCrossEntropyWithLogits,
    HuberLoss,
    MseLoss,
    PairLoss,
    SmoothL1Loss,
    SoftMarginLoss,
)
from offgrad.ops._nn.smooth_activations import logsigmoid
from offgrad.ops._shape.permuting import broadcast_tensors

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "gaussian_nll_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "poisson_nll_loss",
    "smooth_l1_loss",
    "soft_margin_loss",
]


def _broadcast(input: "Tensor", target: "Tensor", where: str) -> "tuple[Tensor, Tensor]":
    """Return both in the same shape and dtype; warn if the shapes differed."""
    a, b = check_tensor(input, where), check_tensor(target, where)
    if a._array.dtype != b._array.dtype:
        dtype = common_dtype(a, b)
        a, b = a.to(dtype), b.to(dtype)
    if a._array.shape == b._array.shape:
        return a, b
    warn_program(
        f"{where}: Using a target size ({_size(b)}) that is different to the input size "
        f"({_size(a)}): they are broadcast, which is rarely meant. Please ensure they have the "
        "same size"
    )
    check_broadcastable(where, a, b)
    a, b = broadcast_tensors(a, b)
    return a, b


def _size(tensor: "Tensor") -> str:
    return f"torch.Size({list(tensor._array.shape)})"


def _pair(
    op: type[PairLoss],
    input: "Tensor",
    target: "Tensor",
    reduction: str,
    where: str,
    **options: Any,
) -> "Tensor":
    number = check_reduction(reduction, where)
    a, b = _broadcast(input, target, where)
    return op.apply(real_floating(a, where), b, reduction=number, **options)


def _weighted(losses: "Tensor", weight: "Tensor", reduction: str, where: str) -> "Tensor":
    """Return losses times a weight of their shape, reduced; means are over the weights' sum."""
    check_reduction(reduction, where)
    if check_tensor(weight, where)._array.shape != losses._array.shape:
        raise ValueError(
            f"{where}: weights must have the shape of the losses, got a {describe(weight)} for "
            f"losses of shape {list(losses._array.shape)}"
        )
    weighted = losses * weight
    return weighted.sum() / weight.sum() if reduction == "mean" else reduce(weighted, reduction)


@full_precision
def mse_loss(
    input: "Tensor", target: "Tensor", reduction: str = "mean", weight: "Tensor | None" = None
) -> "Tensor":
    """Return the squared differences, times a weight of their shape, or their mean or sum."""
    if weight is not None:
        losses = _pair(MseLoss, input, target, "none", "mse_loss")
        return _weighted(losses, weight, reduction, "mse_loss")
    return _pair(MseLoss, input, target, reduction, "mse_loss")


@full_precision
def l1_loss(
    input: "Tensor", target: "Tensor", reduction: str = "mean", weight: "Tensor | None" = None
) -> "Tensor":
    """Return the absolute differences, times a weight of their shape, or their mean or sum."""
    check_reduction(reduction, "l1_loss")
    a, b = _broadcast(input, target, "l1_loss")
    losses = (a - b).abs()
    return (
        reduce(losses, reduction)
        if weight is None
        else _weighted(losses, weight, reduction, "l1_loss")
    )


@full_precision
def smooth_l1_loss(
    input: "Tensor", target: "Tensor", reduction: str = "mean", beta: float = 1.0
) -> "Tensor":
    """Return ``|d| - beta / 2``; where ``|d| < beta`` ``d**2 / (2 * beta)``, d the difference.

    Raises:
        RuntimeError: if `beta` is negative.
    """
    if beta < 0:
        raise RuntimeError(f"smooth_l1_loss: beta must not be negative, got {beta}")
    if not beta:
        return l1_loss(input, target, reduction)
    return _pair(SmoothL1Loss, input, target, reduction, "smooth_l1_loss", beta=float(beta))


@full_precision
def huber_loss(
    input: "Tensor",
    target: "Tensor",
    reduction: str = "mean",
    delta: float = 1.0,
    weight: "Tensor | None" = None,
) -> "Tensor":
    """Return half the squared differences; beyond `delta` linear with the slope `delta`.

    They are multiplied by a weight of their shape, if given, before the reduction.

    Raises:
        RuntimeError: if `delta` is not positive.
    """
    if delta <= 0:
        raise RuntimeError(f"huber_loss: delta must be positive, got {delta}")
    if weight is not None:
        check_reduction(reduction, "huber_loss")
        losses = _pair(HuberLoss, input, target, "none", "huber_loss", delta=float(delta))
        weighted = _weighted(losses, weight, "none", "huber_loss")
        return reduce(weighted, reduction)
    return _pair(HuberLoss, input, target, reduction, "huber_loss", delta=float(delta))


@full_precision
def soft_margin_loss(input: "Tensor", target: "Tensor", reduction: str = "mean") -> "Tensor":
    """Return ``log(1 + exp(-target * input))`` for targets -1 and 1, which may broadcast.

    Raises:
        RuntimeError: if the targets do not broadcast to the shape of the input.
    """
    shape = check_tensor(input, "soft_margin_loss")._array.shape
    if check_tensor(target, "soft_margin_loss")._array.shape != shape:
        target = target.expand(shape)
    return _pair(SoftMarginLoss, input, target, reduction, "soft_margin_loss")


@full_precision
def binary_cross_entropy(
    input: "Tensor", target: "Tensor", weight: "Tensor | None" = None, reduction: str = "mean"
) -> "Tensor":
    """Return the binary cross-entropy between probabilities and targets, times a weight.

    Raises:
        ValueError: if the shapes differ.
        RuntimeError: if a probability is not from 0 to 1.
    """
    x = real_floating(input, "binary_cross_entropy")
    number = check_reduction(reduction, "binary_cross_entropy")
    if check_tensor(target, "binary_cross_entropy")._array.shape != x._array.shape:
        raise ValueError(
            f"binary_cross_entropy: Using a target size ({_size(target)}) that is different to the "
            f"input size ({_size(x)}). Please ensure they have the same size, as by reshape"
        )
    if target._array.dtype != x._array.dtype:
        raise shape_error("binary_cross_entropy", "dtypes must be equal", x, target)
    if not kernels.are_probabilities(x._array):
        raise RuntimeError(
            "binary_cross_entropy: all elements of input should be between 0 and 1, got a "
            f"{describe(x)} with others; pass logits to binary_cross_entropy_with_logits"
        )
    if weight is None:
        return BinaryCrossEntropy.apply(x, target, reduction=number)
    losses: Tensor = BinaryCrossEntropy.apply(x, target, reduction=0)
    return reduce(losses * weight.expand(x.shape), reduction)


@full_precision
def binary_cross_entropy_with_logits(
    input: "Tensor",
    target: "Tensor",
    weight: "Tensor | None" = None,
    reduction: str = "mean",
    pos_weight: "Tensor | None" = None,
) -> "Tensor":
    """Return the binary cross-entropy between sigmoid(`input`) and targets, without overflow.

    Args:
        input: logits.
        target: of the same shape.
        weight: a factor of each loss.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        pos_weight: a factor of the part of positive targets.

    Raises:
        ValueError: if the shapes differ.
    """
    name = "binary_cross_entropy_with_logits"
    number = check_reduction(reduction, name)
    x = real_floating(input, name)
    if check_tensor(target, name)._array.shape != x._array.shape:
        raise ValueError(
            f"{name}: Target size ({_size(target)}) must be the same as input size ({_size(x)})"
        )
    if category(target._array.dtype) != 2:
        raise RuntimeError(
            f"{name}: targets must be floating point, got a {describe(target)}; convert with "
            ".float()"
        )
    target = target.to(x._array.dtype)
    if weight is None and pos_weight is None:
        return BinaryCrossEntropyWithLogits.apply(x, target, reduction=number)
    if pos_weight is None:
        losses: Tensor = BinaryCrossEntropyWithLogits.apply(x, target, reduction=0)
    else:
        losses = (1 - target) * x - ((pos_weight - 1) * target + 1) * logsigmoid(x)
    return reduce(losses if weight is None else losses * weight, reduction)


@full_precision
def kl_div(
    input: "Tensor", target: "Tensor", reduction: str = "mean", log_target: bool = False
) -> "Tensor":
    """Return the Kullback-Leibler divergence ``target * (log(target) - input)``.

    Args:
        input: log-probabilities.
        target: probabilities, or their logarithms with `log_target`.
        reduction: ``"mean"``, ``"sum"``, ``"none"``, or ``"batchmean"``: the sum over the
            first size.
        log_target: whether `target` is logarithmic.
    """
    if reduction != "batchmean":
        check_reduction(reduction, "kl_div")
    for each in (check_tensor(input, "kl_div"), check_tensor(target, "kl_div")):
        if each._array.dtype.kind == "c":
            raise RuntimeError(f"kl_div is defined for real numbers, got a {describe(each)}")
        if category(each._array.dtype) < 2:
            raise RuntimeError(f"kl_div: Integral inputs not supported, got a {describe(each)}")
    check_broadcastable("kl_div", input, target)
    if reduction == "mean":
        warn_program(
            "kl_div: reduction='mean' takes the mean over all elements; 'batchmean', over the "
            "samples, is the divergence"
        )
    if log_target:
        losses = exp(target) * (target - input)
    else:
        # 0 log 0 is 0.
        safe = where(target == 0, target.new_ones(()), target)
        losses = target * log(safe) - target * input
    if reduction == "batchmean":
        batch = input._array.shape[0] if input._array.ndim else 1
        mean: Tensor = losses.sum() / batch
        return mean
    return reduce(losses, reduction)


@full_precision
def poisson_nll_loss(
    input: "Tensor",
    target: "Tensor",
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> "Tensor":
    """Return the negative log-likelihood of counts `target` under Poisson rates.

    Args:
        input: the rates' logarithms, or the rates.
        target: the counts.
        log_input: whether `input` is logarithmic.
        full: add Stirling's approximation of log(target!) where the target exceeds 1.
        eps: added to rates before the logarithm.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
    """
    check_reduction(reduction, "poisson_nll_loss")
    for each in (input, target):
        check_tensor(each, "poisson_nll_loss")
    check_broadcastable("poisson_nll_loss", input, target)
    if log_input:
        losses = exp(input) - target * input
    else:
        losses = input - target * log(input + eps)
    if full:
        large = target > 1
        safe = where(large, target, target.new_ones(()))
        stirling = safe * log(safe) - safe + log(safe * (2 * np.pi)) * 0.5
        losses = losses + where(large, stirling, stirling.new_zeros(()))
    return reduce(losses, reduction)


def _has_a_one_of(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Return whether shapes are equal but for one size, which is 1 in the first."""
    differ = [a for a, b in zip(shape, whole, strict=False) if a != b]
    return len(shape) == len(whole) and differ == [1]


def gaussian_nll_loss(
    input: "Tensor",
    target: "Tensor",
    var: "Tensor | float",
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> "Tensor":
    """Return the negative log-likelihood of `target` under normal distributions.

    Args:
        input: the means.
        target: the observations.
        var: the variances, of the shape of `input`, without its last dimension, or with size 1
            in one of them.
        full: add the constant.
        eps: the lower limit of variances; the gradient ignores it.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ValueError: if a variance is negative or the shapes do not fit.
    """
    check_reduction(reduction, "gaussian_nll_loss")
    shape = real_floating(input, "gaussian_nll_loss")._array.shape
    if isinstance(var, (int, float)):
        var = input.new_full(shape, var)
    if var._array.shape != shape:
        if var._array.shape == shape[:-1]:
            var = var.unsqueeze(-1)
        elif not _has_a_one_of(var._array.shape, shape):
            raise ValueError(
                "gaussian_nll_loss: var is of incorrect size: it must fit the means, got a "
                f"{describe(var)} for a {describe(input)}"
            )
    if compare(np.less, var._array, 0).any():
        raise ValueError(
            "gaussian_nll_loss: var has negative entry/entries; pass variances, such as exp() of "
            "what a model returns"
        )
    # The limit changes values, not gradients.
    increase = np.maximum(var._array, eps) - var._array
    var = var + wrap(increase.astype(var._array.dtype))
    losses = (log(var) + (input - target) ** 2 / var) * 0.5
    if full:
        losses = losses + 0.5 * float(np.log(2 * np.pi))
    return reduce(losses, reduction)
