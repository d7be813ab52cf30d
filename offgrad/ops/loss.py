"""Losses."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops.convert import category, floating, shape_error
from offgrad.ops.higher_order import differentiate
from offgrad.ops.softmax import log_softmax, softmax

if TYPE_CHECKING:
    from offgrad.tensor import Tensor

_REDUCTIONS = ("mean", "sum", "none")


class CrossEntropy(Op):
    """-log softmax(logits) at the targets, row by row; keeps logits, targets and log-sum-exps."""

    def name(self) -> str:
        """Return PyTorch's name."""
        return "NllLossBackward0"

    def forward(
        self,
        logits: Array,
        target: Array,
        weight: Array | None,
        ignore_index: int,
        label_smoothing: float,
    ) -> Array:
        """Return the losses [rows] of logits [rows, classes]."""
        losses = memory.empty(logits.shape[0], logits.dtype)
        lse = memory.empty(logits.shape[0], logits.dtype)
        self.options: dict[str, Any] = {
            "ignore_index": ignore_index,
            "label_smoothing": label_smoothing,
        }
        kernels.cross_entropy(
            memory.contiguous(logits), target, losses, lse, weight, **self.options
        )
        self.save(self=logits, target=target, weight=weight, lse=lse)
        return losses

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
        )
        return result, None, None


class CrossEntropyBackward(Op):
    """The gradient of the logits; keeps the incoming gradient, logits and targets."""

    def forward(
        self,
        grad: Array,
        logits: Array,
        target: Array,
        weight: Array | None,
        lse: Array,
        options: dict[str, Any],
    ) -> Array:
        """Return the gradient [rows, classes]."""
        self.options = options
        self.save(grad=grad, self=logits, target=target, weight=weight)
        out = memory.empty(logits.shape, logits.dtype)
        kernels.cross_entropy_backward(
            memory.contiguous(grad), memory.contiguous(logits), target, lse, out, weight, **options
        )
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Differentiate the formula: softmax times a constant, minus another."""
        logits, target = self.saved("self"), self.saved("target")._array
        rows, classes = logits.shape
        weight = np.ones(classes, logits.dtype)
        if "weight" in self._saved:
            weight = self.saved("weight")._array
        smoothing = self.options["label_smoothing"]
        kept = target != self.options["ignore_index"]
        classes_of = np.where(kept, target, 0)
        spread = smoothing / classes * weight
        at_target = (1 - smoothing) * weight[classes_of]
        subtracted = np.tile(spread, (rows, 1))
        subtracted[np.arange(rows), classes_of] += at_target
        subtracted *= kept[:, None]
        factor = wrap(((at_target + spread.sum()) * kept)[:, None].astype(logits.dtype))
        constant = wrap(subtracted.astype(logits.dtype))
        found = differentiate(
            lambda g, x: g.unsqueeze(1) * (softmax(x, -1) * factor - constant),
            (self.saved("grad"), logits),
            (grad,),
            self.needs_input_grad[:2],
        )
        return *found, None, None


def check_reduction(reduction: str, where: str) -> None:
    """Raise ValueError unless `reduction` is mean, sum or none."""
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{where}: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


def reduce(losses: "Tensor", reduction: str) -> "Tensor":
    """Return the mean or sum of the losses, or the losses."""
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


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
        ignore_index: the target that contributes nothing, also not to the mean.
        reduction: ``"mean"`` (over the targets' weights), ``"sum"`` or ``"none"``.
        label_smoothing: how much of each target is spread evenly over the classes, 0 to 1.

    Raises:
        RuntimeError: if the shapes do not fit.
        IndexError: if a target is no class.
    """
    check_reduction(reduction, "cross_entropy")
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(
            f"cross_entropy: label_smoothing must be from 0 to 1, got {label_smoothing}"
        )
    logits = floating(input, "cross_entropy")
    if not logits._array.ndim:
        raise RuntimeError("cross_entropy: logits need a dimension of classes, got a scalar")
    class_dim = 0 if logits._array.ndim == 1 else 1
    moved = logits if logits._array.ndim <= 2 else logits.transpose(1, -1)
    if category(target._array.dtype) >= 2:
        return _soft_cross_entropy(logits, target, weight, reduction, label_smoothing, class_dim)
    expected = logits._array.shape[:class_dim] + logits._array.shape[class_dim + 1 :]
    if target._array.shape != expected:
        raise ValueError(
            f"cross_entropy: classes must have shape {list(expected)}, the logits' without their "
            f"dimension of classes, got a {describe(target)} for {describe(logits)}"
        )
    if weight is not None and weight._array.shape != (logits._array.shape[class_dim],):
        raise RuntimeError(
            f"cross_entropy: the weight must have shape [{logits._array.shape[class_dim]}], one "
            "for "
            f"each class, got a {describe(weight)}"
        )
    if logits._array.ndim > 2:
        # [N, C, d1, ..., dk] to [N, d1, ..., dk, C].
        order = [0, *range(2, logits._array.ndim), 1]
        moved = logits.permute(order)
    classes = logits._array.shape[class_dim]
    rows = moved.reshape(-1, classes) if classes else moved.reshape(target._array.size, 0)
    flat = target.reshape(-1).to(np.int64).contiguous()
    weight = None if weight is None else weight.contiguous()
    losses: Tensor = CrossEntropy.apply(
        rows, flat, weight, ignore_index=ignore_index, label_smoothing=label_smoothing
    )
    if reduction == "none":
        return losses.reshape(target.shape)
    total = losses.sum()
    if reduction == "sum":
        return total
    divisor = kernels.cross_entropy_total_weight(
        flat._array, None if weight is None else weight._array, ignore_index
    )
    return total / divisor


def _soft_cross_entropy(
    logits: "Tensor",
    target: "Tensor",
    weight: "Tensor | None",
    reduction: str,
    label_smoothing: float,
    class_dim: int,
) -> "Tensor":
    if target._array.shape != logits._array.shape:
        raise shape_error(
            "cross_entropy", "probabilities must have the shape of the logits", logits, target
        )
    classes = logits._array.shape[class_dim]
    if label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / classes
    weighted = target
    if weight is not None:
        shape = [classes if axis == class_dim else 1 for axis in range(logits._array.ndim)]
        weighted = target * weight.reshape(shape)
    losses = -(weighted * log_softmax(logits, class_dim)).sum(class_dim)
    if reduction == "mean":
        return losses.sum() / max(losses._array.size, 1)
    return reduce(losses, reduction)


def nll_loss(
    input: "Tensor",
    target: "Tensor",
    weight: "Tensor | None" = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> "Tensor":
    """Return minus the log-probabilities `input` [N, C] at the classes `target` [N]."""
    check_reduction(reduction, "nll_loss")
    if input._array.ndim != 2 or target._array.shape != input._array.shape[:1]:
        raise shape_error(
            "nll_loss", "log-probabilities [N, C] and classes [N] are needed", input, target
        )
    kept = target._array != ignore_index
    classes = np.where(kept, target._array, 0)
    factors = (
        np.ones(input._array.shape[1], input._array.dtype) if weight is None else weight._array
    )
    scale = wrap((factors[classes] * kept).astype(input._array.dtype))
    losses = -input.gather(1, wrap(classes[:, None])).squeeze(1) * scale
    if reduction == "mean":
        return losses.sum() / scale.sum()
    return reduce(losses, reduction)


def mse_loss(input: "Tensor", target: "Tensor", reduction: str = "mean") -> "Tensor":
    """Return the squared differences, their mean or their sum; the shapes must be equal."""
    check_reduction(reduction, "mse_loss")
    if input._array.shape != target._array.shape:
        raise RuntimeError(
            f"mse_loss: input and target must have the same shape, got a {describe(input)} and a "
            f"{describe(target)}"
        )
    return reduce((input - target) ** 2, reduction)
