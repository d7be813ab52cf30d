"""The cross-entropy of a linear layer's outputs."""

from typing import TYPE_CHECKING, Any

from offgrad import ops

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def linear_cross_entropy(
    input: "Tensor",
    linear_weight: "Tensor",
    target: "Tensor",
    *,
    linear_bias: "Tensor | None" = None,
    weight: "Tensor | None" = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> "Tensor":
    """Return the cross-entropy between ``input @ linear_weight.T + linear_bias`` and targets.

    Args:
        input: shape [N, in] or [in].
        linear_weight: shape [C, in] or [C, d1, ..., in].
        target: as for `cross_entropy`, of logits [N, C, d1, ...].
        linear_bias: shape [C] or [C, d1, ...].
        weight: a factor for each class [C].
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        ignore_index: the target of rows without a loss; -100 if None.
        label_smoothing: the part of each target spread evenly over the classes.
        options: ignored.

    Raises:
        RuntimeError, ValueError: as `cross_entropy`; also for an input [in] and weights with d1.
    """
    outputs = linear_weight.shape[:-1]
    if input.dim() == 1 and len(outputs) > 1:
        raise RuntimeError(
            "linear_cross_entropy: an input [N, in] is needed for weights with more dimensions "
            f"than [C, in], got shapes {list(input.shape)} and {list(linear_weight.shape)}"
        )
    bias = linear_bias
    if bias is not None and bias.dim() == 1:
        bias = bias.reshape(-1, *(1,) * (len(outputs) - 1))
    logits = ops.linear(input, linear_weight.reshape(-1, linear_weight.shape[-1]))
    logits = logits.reshape(*input.shape[:-1], *outputs)
    return ops.cross_entropy(
        logits if bias is None else logits + bias,
        target,
        weight,
        -100 if ignore_index is None else ignore_index,
        reduction,
        label_smoothing,
    )
