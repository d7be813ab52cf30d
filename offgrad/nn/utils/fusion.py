"""Fusion of a convolution or linear layer with the batch norm after it, for evaluation."""

import copy
from typing import Any, TypeVar

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.nn.modules.module import Module
from offgrad.nn.parameter import Parameter

__all__ = [
    "fuse_conv_bn_eval",
    "fuse_conv_bn_weights",
    "fuse_linear_bn_eval",
    "fuse_linear_bn_weights",
]

M = TypeVar("M", bound=Module)


def fuse_conv_bn_eval(conv: M, bn: Any, transpose: bool = False) -> M:
    """Return a convolution that does what `conv` and then `bn` do; both in evaluation mode.

    Args:
        conv: the convolution.
        bn: a batch norm with running statistics.
        transpose: whether `conv` is transposed.
    """
    _check_modes(conv, bn)
    fused: Any = copy.deepcopy(conv)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        fused.weight,
        fused.bias,
        bn.running_mean,
        bn.running_var,
        bn.eps,
        bn.weight,
        bn.bias,
        transpose,
    )
    return fused  # type: ignore[no-any-return]


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """Return weight and bias of the fused convolution.

    Args:
        conv_w: the weight of the convolution.
        conv_b: its bias.
        bn_rm: the running mean.
        bn_rv: the running variance.
        bn_eps: added to the variance.
        bn_w: the weight of the batch norm.
        bn_b: its bias.
        transpose: whether the convolution is transposed.
    """
    factor, shift = _factor_and_shift(bn_rm, bn_rv, bn_eps, bn_w, bn_b)
    shape = [1] * conv_w.ndim
    shape[1 if transpose else 0] = -1
    weight = (conv_w * factor.reshape(shape)).to(conv_w._array.dtype)
    return _parameters(conv_w, conv_b, weight, factor, shift)


def fuse_linear_bn_eval(linear: M, bn: Any) -> M:
    """Return a linear layer that does what `linear` and then `bn` do; both in evaluation mode.

    Args:
        linear: the layer.
        bn: a batch norm with running statistics, for as many features as `linear` gives, or one.
    """
    _check_modes(linear, bn)
    fused: Any = copy.deepcopy(linear)
    if fused.out_features != bn.num_features and bn.num_features != 1:
        raise AssertionError(
            f"bn.num_features must be linear.out_features={fused.out_features} or 1, got "
            f"{bn.num_features}"
        )
    fused.weight, fused.bias = fuse_linear_bn_weights(
        fused.weight, fused.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
    )
    return fused  # type: ignore[no-any-return]


def fuse_linear_bn_weights(
    linear_w: Tensor,
    linear_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:
    """Return weight and bias of the fused linear layer.

    Args:
        linear_w: the weight of the linear layer.
        linear_b: its bias.
        bn_rm: the running mean.
        bn_rv: the running variance.
        bn_eps: added to the variance.
        bn_w: the weight of the batch norm.
        bn_b: its bias.
    """
    factor, shift = _factor_and_shift(bn_rm, bn_rv, bn_eps, bn_w, bn_b)
    weight = (linear_w * factor.unsqueeze(-1)).to(linear_w._array.dtype)
    return _parameters(linear_w, linear_b, weight, factor, shift)


def _factor_and_shift(
    mean: Tensor, variance: Tensor, eps: float, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return what a batch norm in evaluation multiplies by, and then adds."""
    factor = ops.rsqrt(variance + eps)
    if weight is not None:
        factor = factor * weight
    shift = -mean * factor
    return factor, shift if bias is None else shift + bias


def _parameters(
    old_weight: Tensor, old_bias: Tensor | None, weight: Tensor, factor: Tensor, shift: Tensor
) -> tuple[Parameter, Parameter]:
    bias = shift if old_bias is None else old_bias * factor + shift
    bias = bias.to((old_weight if old_bias is None else old_bias)._array.dtype)
    trains_bias = old_weight.requires_grad if old_bias is None else old_bias.requires_grad
    return (
        Parameter(weight.detach(), old_weight.requires_grad),
        Parameter(bias.detach(), trains_bias),
    )


def _check_modes(layer: Module, bn: Module) -> None:
    if layer.training or bn.training:
        raise AssertionError("Fusion only for eval! Call eval() of both modules first")
