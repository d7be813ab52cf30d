"""The negative log-likelihood of classes."""

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.dtypes import check_tensor, real_floating
from offgrad.ops._nn import plane_losses
from offgrad.ops._nn.classification_losses import (
    Classification,
    check_classes,
    check_reduction,
    from_rows,
    named,
    rows_of,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["nll_loss"]


class NllLoss(Classification):
    """Minus the log-probabilities at the targets, weighted; keeps the targets and the weight."""

    def forward(
        self,
        x: Array,
        target: Array,
        weight: Array | None,
        ignore_index: int,
        reduction: int,
    ) -> Array:
        """Return the losses, or their mean or sum."""
        self.shape, self.dtype = x.shape, x.dtype
        self.reduction, self.ignore_index = reduction, ignore_index
        classes = target.reshape(-1)
        self.total = kernels.cross_entropy_total_weight(classes, weight, ignore_index)
        self.save(target=target, weight=weight)
        scale, at = _scale_and_classes(classes, weight, ignore_index, x.dtype)
        # No product: an ignored -inf would give NaN.
        picked = scale
        if plane_losses.has_planes(x):
            by_sample = at.reshape(x.shape[0], prod(x.shape[2:]))
            picked = plane_losses.picked(plane_losses.planes_of(x), by_sample).reshape(-1)
        elif at.size:
            picked = rows_of(x)[np.arange(at.size), at]
        return self.reduced(np.where(classes == ignore_index, 0, -picked * scale), x, target)

    def backward(self, grad: "Tensor") -> Any:
        result = NllLossBackward.apply(
            grad,
            self.saved("target"),
            self.saved("weight") if "weight" in self._saved else None,
            shape=self.shape,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            total=self.total,
        )
        return result, None, None


class NllLossBackward(Classification):
    """Zeros with minus the weighted gradient at the targets; keeps the targets and the weight."""

    def forward(
        self,
        grad: Array,
        target: Array,
        weight: Array | None,
        shape: tuple[int, ...],
        ignore_index: int,
        reduction: int,
        total: float,
    ) -> Array:
        """Return the gradient of the log-probabilities."""
        self.shape, self.dtype = shape, grad.dtype
        self.reduction, self.ignore_index, self.total = reduction, ignore_index, total
        self.save(target=target, weight=weight)
        classes = target.reshape(-1)
        scale, at = _scale_and_classes(classes, weight, ignore_index, grad.dtype)
        shares = -self.row_gradients(grad, at.size) * scale
        shares = np.where(classes == ignore_index, shares.dtype.type(0), shares)
        if len(shape) > 2:
            return plane_losses.likelihood_backward(shares, shape, target, ignore_index)
        out = memory.zeros((at.size, shape[-1]), grad.dtype)
        out[np.arange(at.size), at] = shares
        return from_rows(out, shape)

    def backward(self, grad: "Tensor") -> Any:
        """Apply the loss, which is linear."""
        weight = self.saved("weight") if "weight" in self._saved else None
        options = {"ignore_index": self.ignore_index, "reduction": self.reduction}
        loss = named(NllLoss, grad).apply(grad, self.saved("target"), weight, **options)
        return loss, None, None


def _scale_and_classes(
    target: Array, weight: Array | None, ignore_index: int, dtype: Any
) -> tuple[Array, Array]:
    """Return the factor and the class of each row, both 0 for ignored rows."""
    counted = target != ignore_index
    at = np.where(counted, target, 0)
    scale = counted.astype(dtype)
    return (scale if weight is None else scale * weight[at]), at


@full_precision
def nll_loss(
    input: "Tensor",
    target: "Tensor",
    weight: "Tensor | None" = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> "Tensor":
    """Return minus the log-probabilities at the classes `target`.

    Args:
        input: log-probabilities [C], [N, C] or [N, C, d1, ...].
        target: classes as integers of shape [], [N] or [N, d1, ...].
        weight: a factor for each class, shape [C].
        ignore_index: the target of rows without a loss, left out of the mean.
        reduction: ``"mean"`` (over the targets' weights), ``"sum"`` or ``"none"``.

    Raises:
        RuntimeError, ValueError: if the shapes do not fit.
        IndexError: if a target is not a class.
    """
    number = check_reduction(reduction, "nll_loss")
    x = real_floating(input, "nll_loss")
    check_tensor(target, "nll_loss")
    if not x._array.ndim:
        raise ValueError("nll_loss: Expected 1 or more dimensions of log-probabilities, got 0")
    classes, factors = check_classes("nll_loss", x, target, weight)
    count = x._array.shape[1 if x._array.ndim > 1 else 0]
    class_indices: Any = np.empty(0)
    if not classes.is_meta:
        class_indices = classes._array[classes._array != ignore_index]
    if class_indices.size and not (class_indices.min() >= 0 and class_indices.max() < count):
        outside = class_indices[(class_indices < 0) | (class_indices >= count)]
        raise IndexError(
            f"nll_loss: Target {outside[0]} is out of bounds: targets must be "
            f"from 0 to {count - 1}, or ignore_index ({ignore_index})"
        )
    loss: Tensor = named(NllLoss, x).apply(
        x, classes, factors, ignore_index=ignore_index, reduction=number
    )
    return loss
