"""Losses of samples with several classes each."""

from typing import TYPE_CHECKING

import numpy as np

from offgrad.autograd.tensor_base import describe, metadata, wrap
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.dtypes import check_tensor, real_floating
from offgrad.ops._nn.classification_losses import check_reduction, reduce
from offgrad.ops._nn.smooth_activations import logsigmoid

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["multilabel_margin_loss", "multilabel_soft_margin_loss"]


@full_precision
def multilabel_margin_loss(input: "Tensor", target: "Tensor", reduction: str = "mean") -> "Tensor":
    """Return the sum of ``max(0, 1 - score of a target class + score of another class)`` over both,
    divided by the number of classes.

    Args:
        input: scores [N, C] or [C].
        target: classes of the same shape; those from the first -1 on do not count.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        RuntimeError: if the shapes differ or a target is not a class.
    """
    name = "multilabel_margin_loss"
    check_reduction(reduction, name)
    x = real_floating(input, name)
    array = check_tensor(target, name)._array
    if array.shape != x._array.shape or array.ndim not in (0, 1, 2) or array.dtype.kind not in "iu":
        raise RuntimeError(
            f"{name}: inconsistent target size or dtype: integers of the shape of the scores are "
            f"needed, got a {describe(target)} for a {describe(x)}"
        )
    scores = x.reshape(-1, x._array.shape[-1] if x._array.ndim else 1)
    classes = array.reshape(scores.shape)
    count = classes.shape[1]
    counted = np.cumprod(classes != -1, axis=1).astype(bool)
    classes = np.where(counted, classes, 0)
    if classes.size and not target.is_meta and not (classes.min() >= 0 and classes.max() < count):
        raise RuntimeError(f"{name}: targets must be from 0 to {count - 1}, or -1 to end them")
    others = np.ones(classes.shape, bool)
    rows, columns = np.nonzero(counted)
    others[rows, classes[rows, columns]] = False
    pairs = wrap(counted[:, :, None] & others[:, None, :])
    at_targets = scores.gather(1, wrap(classes.astype(np.int64)))
    shortfalls = 1 - at_targets.unsqueeze(2) + scores.unsqueeze(1)
    shortfalls = shortfalls.masked_fill(~((shortfalls > 0) & pairs), 0)  # also where it is NaN
    losses = shortfalls.sum((1, 2)) / max(count, 1)
    return reduce(losses if x._array.ndim == 2 else losses.squeeze(0), reduction)


def multilabel_soft_margin_loss(
    input: "Tensor", target: "Tensor", weight: "Tensor | None" = None, reduction: str = "mean"
) -> "Tensor":
    """Return the mean over classes of the binary cross-entropies of sigmoids, times a weight.

    Args:
        input: logits [..., C].
        target: of the same shape, 0 or 1.
        weight: a factor for each class [C].
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
    """
    check_reduction(reduction, "multilabel_soft_margin_loss")
    x = real_floating(input, "multilabel_soft_margin_loss")
    losses = -(target * logsigmoid(x) + (1 - target) * logsigmoid(-x))
    if weight is not None:
        losses = losses * weight
    return reduce(losses.sum(-1) / metadata(x).shape[-1], reduction)
