"""The loss of sequences whose alignment with their labels is not known."""

from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.gradients import grad as gradients
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.ops._core.autocast import full_precision
from offgrad.ops._core.derivatives import differentiate
from offgrad.ops._core.dtypes import real_floating
from offgrad.ops._elementwise.comparison import where
from offgrad.ops._elementwise.exponential import exp
from offgrad.ops._nn.classification_losses import check_reduction
from offgrad.ops._reduction.statistics import logsumexp
from offgrad.ops._shape.joining import cat, stack

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["ctc_loss"]

_LOW = -1e30
"""The logarithm of no probability, where that of 0 would make derivatives NaN."""


class CtcLoss(Op):
    """Negative log-likelihoods of labels (Graves et al., 2006); keeps the log-probabilities, the
    losses, and the log-probabilities of the beginnings of paths.

    As in PyTorch the gradient is that of the logits whose log-softmax is given.
    """

    def forward(
        self, log_probs: Array, targets: "kernels.CtcTargets", zero_infinity: bool
    ) -> Array:
        """Return the losses [N] of log-probabilities [T, N, C]."""
        self.targets, self.zero_infinity = targets, zero_infinity
        frames, count = log_probs.shape[:2]
        width = 2 * int(targets.lengths.max(initial=0)) + 1
        losses = memory.empty(count, log_probs.dtype)
        alpha = memory.empty((count, frames, width), log_probs.dtype)
        kernels.ctc_loss(memory.contiguous(log_probs), targets, losses, alpha)
        self.save(log_probs=log_probs, result0=losses, result1=alpha)
        if zero_infinity and np.isinf(losses).any():
            return np.where(np.isinf(losses), losses.dtype.type(0), losses)
        return losses

    def backward(self, grad: "Tensor") -> Any:
        """Return the gradient, in one kernel."""
        return CtcLossBackward.apply(
            grad,
            self.saved("log_probs"),
            losses=self.saved("result0")._array,
            alpha=self.saved("result1")._array,
            targets=self.targets,
            zero_infinity=self.zero_infinity,
        )


class CtcLossBackward(Op):
    """The gradient of the logits; keeps the incoming gradient and the log-probabilities."""

    def forward(
        self,
        grad: Array,
        log_probs: Array,
        losses: Array,
        alpha: Array,
        targets: "kernels.CtcTargets",
        zero_infinity: bool,
    ) -> Array:
        """Return the gradient [T, N, C]."""
        self.targets = targets
        self.counted = ~np.isinf(losses) if zero_infinity else np.ones(losses.shape, bool)
        self.save(grad_output=grad, log_probs=log_probs)
        out = memory.empty(log_probs.shape, log_probs.dtype)
        grad = np.where(self.counted, grad, grad.dtype.type(0))
        probs = memory.contiguous(log_probs)
        kernels.ctc_loss_backward(grad, probs, targets, losses, alpha, out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Differentiate the probabilities plus the derivatives of the losses."""
        frames = np.arange(self.saved("log_probs").shape[0])[:, None] < self.targets.frames
        mask = wrap(np.asarray(frames & self.counted, grad._array.dtype)).unsqueeze(-1)

        def reference(g: "Tensor", log_probs: "Tensor") -> "Tensor":
            counted = g * wrap(np.asarray(self.counted, g._array.dtype))
            parts = [
                _losses(log_probs, self.targets, n) * counted[n] for n in range(counted.shape[0])
            ]
            slopes = log_probs.new_zeros(log_probs.shape)
            if parts:
                total = sum(parts[1:], parts[0])
                found: Any = gradients([total], [log_probs], create_graph=True)
                slopes = found[0]
            return exp(log_probs) * g.unsqueeze(-1) * mask + slopes

        inputs = self.saved("grad_output"), self.saved("log_probs")
        return differentiate(reference, inputs, (grad,), self.needs_input_grad)


def _losses(log_probs: "Tensor", targets: "kernels.CtcTargets", n: int) -> "Tensor":
    """Return a sample's loss, in differentiable operations."""
    classes, skips = kernels.ctc_states(targets, n)
    count, size = int(targets.frames[n]), classes.size
    probs = log_probs[:, n, wrap(classes)]
    low = log_probs.new_full((2,), _LOW)
    row = where(wrap(np.arange(size) < 2), probs[0], low[0])
    for t in range(1, count):
        padded = cat([low, row])
        two = where(wrap(skips), padded[:size], low[0])
        row = logsumexp(stack([row, padded[1 : size + 1], two]), 0) + probs[t]
    return -logsumexp(row[-2:], 0)


def _lengths(lengths: Any, name: str, count: int) -> Array:
    if isinstance(lengths, TensorBase):
        lengths = lengths._array
    array = np.asarray(lengths, None if np.size(lengths) else np.int64).reshape(-1)
    if array.dtype.kind not in "iu":
        raise RuntimeError(f"ctc_loss: {name} must be integral, got {array.dtype.name}")
    if array.size != count:
        raise RuntimeError(
            f"ctc_loss: {name} must be of size batch_size, {count}, got {array.size}"
        )
    if (array < 0).any():
        raise RuntimeError(f"ctc_loss: {name} must not be negative, got {array.tolist()}")
    return array.astype(np.int64)


def _targets(
    log_probs: "Tensor", targets: "Tensor", input_lengths: Any, target_lengths: Any, blank: int
) -> "kernels.CtcTargets":
    frames, count, classes = log_probs._array.shape
    if not 0 <= blank < classes:
        raise RuntimeError(
            f"ctc_loss: blank must be in label range, 0 to {classes - 1}, got {blank}"
        )
    if targets._array.dtype.kind not in "iu" or targets._array.ndim not in (1, 2):
        raise RuntimeError(
            "ctc_loss: targets must be integral, of shape [N, S] or all labels in one dimension, "
            f"got a {describe(targets)}"
        )
    used = _lengths(input_lengths, "input_lengths", count)
    lengths = _lengths(target_lengths, "target_lengths", count)
    if used.size and used.max() > frames:
        raise RuntimeError(f"ctc_loss: an input length must be at most {frames}, got {used.max()}")
    labels = np.ascontiguousarray(targets._array, np.int64)
    if labels.ndim == 1:
        starts = np.cumsum(lengths) - lengths
        fits = int(lengths.sum()) == labels.size
    else:
        starts = np.arange(count) * labels.shape[1]
        fits = labels.shape[0] == count and lengths.max(initial=0) <= labels.shape[1]
    if not fits:
        raise RuntimeError(
            f"ctc_loss: Expected targets that fit the target_lengths {lengths.tolist()}, got a "
            f"{describe(targets)}"
        )
    return kernels.CtcTargets(labels.reshape(-1), starts, lengths, used, blank)


@full_precision
def ctc_loss(
    log_probs: "Tensor",
    targets: "Tensor",
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> "Tensor":
    """Return the negative log-likelihood of labels whose alignment is not known.

    Args:
        log_probs: the log-softmax over classes of T frames, [T, N, C] or [T, C].
        targets: labels other than the blank, [N, S], or those of all samples in one dimension.
        input_lengths: the number of frames of each sample, [N].
        target_lengths: the number of labels of each sample, [N].
        blank: the class of the blank.
        reduction: ``"mean"`` (of losses over the numbers of labels), ``"sum"`` or ``"none"``.
        zero_infinity: make losses of targets that are too long, and their gradients, 0.

    Raises:
        RuntimeError: if shapes, lengths or classes do not fit.
    """
    check_reduction(reduction, "ctc_loss")
    x = real_floating(log_probs, "ctc_loss")
    if x._array.ndim not in (2, 3):
        raise RuntimeError(f"ctc_loss: log_probs must be [T, N, C] or [T, C], got a {describe(x)}")
    if not x._array.size:
        raise RuntimeError(f"ctc_loss: log_probs tensor must not be empty, got a {describe(x)}")
    is_single = x._array.ndim == 2
    batch = x.unsqueeze(1) if is_single else x
    found = _targets(batch, targets, input_lengths, target_lengths, blank)
    inside = [found.labels[a : a + b] for a, b in zip(found.starts, found.lengths, strict=True)]
    if any(((each < 0) | (each >= batch._array.shape[2])).any() for each in inside):
        raise RuntimeError(
            f"ctc_loss: labels must be from 0 to {batch._array.shape[2] - 1}, got others"
        )
    losses: Tensor = CtcLoss.apply(batch, targets=found, zero_infinity=zero_infinity)
    if reduction == "mean":
        return (losses / losses.new_tensor(np.maximum(found.lengths, 1))).mean()
    if reduction == "sum":
        return losses.sum()
    return losses.squeeze(0) if is_single else losses
