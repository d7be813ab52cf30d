"""Normalisation in `offgrad.nn.functional`: other orders of arguments, and more checks."""

from math import prod
from typing import TYPE_CHECKING

from offgrad import ops

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def batch_norm(
    input: "Tensor",
    running_mean: "Tensor | None",
    running_var: "Tensor | None",
    weight: "Tensor | None" = None,
    bias: "Tensor | None" = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> "Tensor":
    """Return `input` with mean 0 and variance 1 in each channel, times weight, plus bias.

    Args:
        input: shape [N, C, ...].
        running_mean: shape [C], updated in place in training, used otherwise.
        running_var: as `running_mean`.
        weight: shape [C], or None for 1.
        bias: shape [C], or None for 0.
        training: whether to use the statistics of `input`.
        momentum: the part of the new statistics in the running ones.
        eps: added to variances.

    Raises:
        ValueError: in training, for channels of one element, whose variance is 0, or `eps` of 0.
        RuntimeError: if shapes or dtypes do not fit, or statistics are missing.
    """
    size = input.shape
    if training and len(size) > 1 and size[0] * prod(size[2:]) == 1:
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {size}; call "
            "eval(), or pass more samples"
        )
    parameters = weight, bias, running_mean, running_var
    if eps <= 0 and (training or eps < 0):
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    return ops.batch_norm(input, *parameters, training, momentum, eps)


def instance_norm(
    input: "Tensor",
    running_mean: "Tensor | None" = None,
    running_var: "Tensor | None" = None,
    weight: "Tensor | None" = None,
    bias: "Tensor | None" = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> "Tensor":
    """Return `input` with mean 0 and variance 1 in each channel of each sample.

    Args:
        input: shape [N, C, ...].
        running_mean: shape [C], updated in place if `use_input_stats`, used otherwise.
        running_var: as `running_mean`.
        weight: shape [C], or None for 1.
        bias: shape [C], or None for 0.
        use_input_stats: whether to use the statistics of `input`.
        momentum: the part of the new statistics in the running ones.
        eps: added to variances.

    Raises:
        ValueError: for channels of one element, whose variance is 0.
        RuntimeError: if shapes or dtypes do not fit, or statistics are missing.
    """
    size = input.shape
    if use_input_stats and prod(size[2:]) == 1:
        raise ValueError(f"Expected more than 1 spatial element in training, got input size {size}")
    parameters = weight, bias, running_mean, running_var
    return ops.instance_norm(input, *parameters, use_input_stats, momentum, eps)


def group_norm(
    input: "Tensor",
    num_groups: int,
    weight: "Tensor | None" = None,
    bias: "Tensor | None" = None,
    eps: float = 1e-5,
) -> "Tensor":
    """Return `input` with mean 0 and variance 1 in each group of channels of each sample.

    Args:
        input: shape [N, C, ...].
        num_groups: a divisor of C.
        weight: shape [C], or None for 1.
        bias: shape [C], or None for 0.
        eps: added to variances.

    Raises:
        ValueError: for groups of one element, whose variance is 0.
        RuntimeError: if shapes or dtypes do not fit.
    """
    size = input.shape
    if len(size) > 1 and num_groups > 0 and size[0] * size[1] // num_groups * prod(size[2:]) == 1:
        raise ValueError(
            f"Expected more than 1 value per channel in training, got input size {list(size)}"
        )
    return ops.group_norm(input, num_groups, weight, bias, eps)
