"""Losses of classification: cross-entropy."""

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd import grad_mode
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.broadcasting import wide_dtype
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.dtypes import (
    category,
    check_tensor,
    real_floating,
    shape_error,
)
from offgrad.ops._nn import plane_losses
from offgrad.ops._nn.probabilities import log_softmax, softmax

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["cross_entropy"]

REDUCTIONS = ("none", "mean", "sum")
"""PyTorch's names; the indices are the numbers in its nodes."""


def check_reduction(reduction: str, where: str) -> int:
    """Return the number of a reduction.

    Raises:
        ValueError: unless it is mean, sum or none.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"{where}: {reduction} is not a valid value for reduction, which is 'mean', 'sum' or "
            "'none'"
        )
    return REDUCTIONS.index(reduction)


def reduce(losses: "Tensor", reduction: str) -> "Tensor":
    """Return the mean or the sum of the losses, or the losses themselves."""
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def rows_of(x: Array) -> Array:
    """Return [C], [N, C] or [N, C, d1, ...] as contiguous rows [rows, C]."""
    if x.ndim > 2:
        x = np.moveaxis(x, 1, -1)
    return memory.contiguous(x).reshape(prod(x.shape[:-1]), x.shape[-1])


def from_rows(rows: Array, shape: tuple[int, ...]) -> Array:
    """Return rows in the original shape: the inverse of `rows_of`."""
    if len(shape) < 3:
        return rows.reshape(shape)
    return memory.contiguous(np.moveaxis(rows.reshape(shape[0], *shape[2:], shape[1]), -1, 1))


class Classification(Op):
    """A loss for each row of classes, perhaps reduced over the rows."""

    reduction: int
    total: float
    shape: tuple[int, ...]

    def reduced(self, losses: Array, x: Array, target: Array) -> Array:
        """Return the losses in the targets' shape, their sum, or the sum over the total weight."""
        if self.reduction == 0:
            return losses.reshape(target.shape)
        dtype = wide_dtype(x.dtype)
        total = losses.sum(dtype=dtype, keepdims=True).reshape(())
        if self.reduction == 1:
            total = total / dtype.type(self.total)
        return np.asarray(total, x.dtype)

    def row_gradients(self, grad: Array, rows: int) -> Array:
        """Return the gradient of each row's loss."""
        if self.reduction == 0:
            return memory.contiguous(grad).reshape(rows)
        return np.full(rows, grad / grad.dtype.type(self.total if self.reduction == 1 else 1))

    @property
    def _saved_total_weight(self) -> "Tensor":
        """The divisor of a mean."""
        return wrap(np.asarray(self.total, self.dtype))

    dtype: Any


def named(cls: Any, x: "Tensor") -> Any:
    # PyTorch's node name depends on dimensions after that of classes.
    return cls if x._array.ndim < 3 else cls.named("NllLoss2DBackward0")


class CrossEntropy(Classification):
    """-log softmax(logits) at the targets; keeps logits, targets and log-sum-exps.

    PyTorch records a log-softmax and a loss of this name; here one operation does both.
    """

    torch_name = "NllLossBackward0"

    def forward(
        self,
        logits: Array,
        target: Array,
        weight: Array | None,
        ignore_index: int,
        label_smoothing: float,
        reduction: int,
    ) -> Array:
        """Return the losses, or their mean or sum."""
        self.options: dict[str, Any] = {
            "ignore_index": ignore_index,
            "label_smoothing": label_smoothing,
        }
        classes = target.reshape(-1)
        losses: Any
        lse: Any
        if plane_losses.has_planes(logits) and not label_smoothing:
            losses, lse = plane_losses.cross_entropy(logits, target, weight, ignore_index)
        else:
            rows = rows_of(logits)
            losses = memory.empty(rows.shape[0], logits.dtype)
            lse = memory.empty(rows.shape[0], wide_dtype(logits.dtype))
            kernels.cross_entropy(rows, classes, losses, lse, weight, **self.options)
        self.shape, self.dtype = logits.shape, logits.dtype
        self.reduction, self.ignore_index = reduction, ignore_index
        self.total = kernels.cross_entropy_total_weight(classes, weight, ignore_index)
        self.save(self=logits, target=target, weight=weight, lse=lse)
        return self.reduced(losses, logits, target)

    def backward(self, grad: "Tensor") -> Any:
        """softmax(logits) minus the targets, in one kernel."""
        weight = self.saved("weight") if "weight" in self._saved else None
        result = CrossEntropyBackward.apply(
            grad,
            self.saved("self"),
            self.saved("target"),
            weight,
            lse=self.saved("lse")._array,
            options=self.options,
            reduction=self.reduction,
            total=self.total,
        )
        return result, None, None


class CrossEntropyBackward(Classification):
    """The gradient of the logits; keeps the incoming gradient, logits and targets."""

    def forward(
        self,
        grad: Array,
        logits: Array,
        target: Array,
        weight: Array | None,
        lse: Array,
        options: dict[str, Any],
        reduction: int,
        total: float,
    ) -> Array:
        """Return the gradient, of the shape of the logits."""
        self.options, self.reduction, self.total = options, reduction, total
        self.save(grad=grad, self=logits, target=target, weight=weight)
        spread = self.row_gradients(grad, target.size)
        if plane_losses.has_planes(logits) and not options["label_smoothing"]:
            return plane_losses.cross_entropy_backward(
                spread, logits, target, weight, lse, options["ignore_index"]
            )
        rows = rows_of(logits)
        out = memory.empty(rows.shape, rows.dtype)
        kernels.cross_entropy_backward(
            spread, rows, target.reshape(-1), lse, out, weight, **options
        )
        return from_rows(out, logits.shape)

    def backward(self, grad: "Tensor") -> Any:
        """Differentiate the formula: softmax times a factor, minus a constant."""
        logits, target = self.saved("self"), self.saved("target")._array
        dim = 1 if logits.ndim > 1 else 0
        classes = logits.shape[dim]
        weight = np.ones(classes)
        if "weight" in self._saved:
            weight = self.saved("weight")._array.astype(np.float64)
        smoothing = self.options["label_smoothing"]
        counted = target != self.options["ignore_index"]
        class_index = np.expand_dims(np.where(counted, target, 0), dim)
        spread = smoothing / classes * weight
        at_target = (1 - smoothing) * weight[class_index]
        subtracted = np.zeros(logits.shape)
        subtracted += spread.reshape(-1, *(1,) * (logits.ndim - dim - 1))
        shares = np.take_along_axis(subtracted, class_index, dim) + at_target
        np.put_along_axis(subtracted, class_index, shares, dim)
        mask = np.expand_dims(counted, dim)
        # Targets that do not count add 0, even where there are no others.
        with np.errstate(all="ignore"):
            scale = 1 / np.float64(self.total) if self.reduction == 1 else 1.0
            factor, constant = (
                wrap(np.where(mask, each * scale, 0).astype(logits._array.dtype))
                for each in (at_target + spread.sum(), subtracted)
            )

        def reference(g: "Tensor", x: "Tensor") -> "Tensor":
            each = g.unsqueeze(dim) if self.reduction == 0 else g
            return each * (softmax(x, dim) * factor - constant)

        result = differentiate(
            reference, (self.saved("grad"), logits), (grad,), self.needs_input_grad[:2]
        )
        return *result, None, None


def check_classes(
    where: str, input: "Tensor", target: "Tensor", weight: "Tensor | None"
) -> "tuple[Tensor, Tensor | None]":
    """Return the targets as contiguous int64 and the weight contiguous; check that they fit."""
    if target._array.dtype not in (np.int64, np.uint8):
        raise RuntimeError(
            f"{where}: expected target dtype to be Long or Byte, got a {describe(target)}; convert "
            "with .long()"
        )
    shape = input._array.shape
    class_dim = 0 if len(shape) == 1 else 1
    expected = shape[:class_dim] + shape[class_dim + 1 :]
    if target._array.shape == (1,) and len(shape) == 1:
        target = target.reshape(())
    if target._array.shape != expected:
        # As in PyTorch, the class of the error depends on the dimension that differs.
        batch = target._array.shape[:1] != expected[:1]
        if batch and len(shape) > 1 and target._array.ndim:
            where += (
                f": Expected input batch_size ({shape[0]}) to match target batch_size "
                f"({len(target._array)})"
            )
        elif where == "cross_entropy" and target._array.shape == shape:
            where += (
                ": Expected floating point type for target with class probabilities, got "
                f"{target._array.dtype.name}"
            )
        elif len(shape) <= 2 < len(target._array.shape) + len(shape):
            where += ": 0D or 1D target tensor expected, multi-target not supported"
        raise (ValueError if batch else RuntimeError)(
            f"{where}: Expected target size {list(expected)}, the input's without its dimension of "
            f"classes, got {list(target._array.shape)} for a {describe(input)}"
        )
    if weight is not None and weight._array.shape != (shape[class_dim],):
        raise RuntimeError(
            f"{where}: weight tensor should be defined either for all {shape[class_dim]} classes "
            f"or no classes, got a {describe(weight)}"
        )
    if weight is not None and grad_mode.state.grad_enabled and weight.requires_grad:
        raise RuntimeError(
            f"The function '{where}' is not differentiable with respect to argument 'weight'. This "
            f"input cannot have requires_grad True, got a {describe(weight)}; detach() it"
        )
    if weight is not None and weight._array.dtype != input._array.dtype:
        raise shape_error(where, "the weight must have the dtype of the input", weight, input)
    if target._array.dtype != np.int64:
        target = target.to(np.int64)
    return target.contiguous(), None if weight is None else weight.contiguous()


@full_precision
def cross_entropy(
    input: "Tensor",
    target: "Tensor",
    weight: "Tensor | None" = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> "Tensor":
    """Return the cross-entropy between logits and targets.

    Args:
        input: logits of shape [C], [N, C] or [N, C, d1, ...].
        target: classes as integers of shape [], [N] or [N, d1, ...], or probabilities of the shape
            of `input`.
        weight: a factor for each class, shape [C].
        ignore_index: the target of rows without a loss, left out of the mean.
        reduction: ``"mean"`` (over the targets' weights), ``"sum"`` or ``"none"``.
        label_smoothing: the part of each target spread evenly over the classes, 0 to 1.

    Raises:
        RuntimeError, ValueError: if the shapes do not fit.
        IndexError: if a target is not a class.
    """
    number = check_reduction(reduction, "cross_entropy")
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(
            f"cross_entropy: label_smoothing must be between 0.0 and 1.0, got {label_smoothing}"
        )
    logits = real_floating(input, "cross_entropy")
    if not logits._array.ndim:
        raise RuntimeError("cross_entropy: logits need a dimension of classes, got a scalar")
    if category(check_tensor(target, "cross_entropy")._array.dtype) >= 2:
        if ignore_index >= 0:
            raise RuntimeError(
                "cross_entropy: ignore_index is not supported for floating point target, got "
                f"{ignore_index} for a {describe(target)}"
            )
        return _soft_cross_entropy(logits, target, weight, reduction, label_smoothing)
    classes, factors = check_classes("cross_entropy", logits, target, weight)
    loss: Tensor = named(CrossEntropy, logits).apply(
        logits,
        classes,
        factors,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=number,
    )
    return loss


def _soft_cross_entropy(
    logits: "Tensor",
    target: "Tensor",
    weight: "Tensor | None",
    reduction: str,
    label_smoothing: float,
) -> "Tensor":
    if target._array.shape != logits._array.shape:
        raise shape_error(
            "cross_entropy", "probabilities must have the shape of the logits", logits, target
        )
    class_dim = 0 if logits._array.ndim == 1 else 1
    classes = logits._array.shape[class_dim]
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / classes
    weighted = target
    if weight is not None:
        shape = [classes if axis == class_dim else 1 for axis in range(logits._array.ndim)]
        weighted = target * weight.reshape(shape)
    losses = -(weighted * log_softmax(logits, class_dim)).sum(class_dim)
    if reduction == "mean":
        return losses.sum() / losses._array.size
    return reduce(losses, reduction)
