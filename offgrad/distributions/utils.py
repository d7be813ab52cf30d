"""Helpers of distributions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode

__all__ = [
    "broadcast_all",
    "clamp_probs",
    "lazy_property",
    "logits_to_probs",
    "probs_to_logits",
]


def _standard_normal(shape: Any, dtype: Any, device: Any) -> Tensor:
    """Return standard normal numbers; other libraries import it as well."""
    return ops.randn(shape, dtype=dtype, device=device)


def _sum_rightmost(value: Tensor, dim: int) -> Tensor:
    """Return the sum over the last `dim` dimensions."""
    return value.reshape(*value.shape[: value.ndim - dim], -1).sum(-1) if dim else value


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Return numbers and tensors as tensors of one shape.

    Numbers get the dtype of the first tensor, else the default one.

    Raises:
        ValueError: for anything else.
    """
    for each in values:
        if not isinstance(each, (Tensor, int, float, complex, np.number)):
            raise ValueError(
                f"each argument must be a number or a Tensor, got {type(each).__name__}"
            )
    dtypes = [each._array.dtype for each in values if isinstance(each, Tensor)]
    dtype = dtypes[0] if dtypes else ops.get_default_dtype()
    tensors = [
        each if isinstance(each, Tensor) else ops.tensor(each, dtype=dtype) for each in values
    ]
    return tuple(ops.broadcast_tensors(*tensors))


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Return the probabilities of log-odds, or of unnormalised log-probabilities."""
    return logits.sigmoid() if is_binary else ops.softmax(logits, -1)


def clamp_probs(probs: Tensor) -> Tensor:
    """Return probabilities moved off 0 and 1 by the dtype's resolution."""
    eps = float(np.finfo(probs._array.dtype).eps)
    return probs.clamp(eps, 1 - eps)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """Return the log-odds, or log-probabilities, of probabilities."""
    inside = clamp_probs(probs)
    return inside.log() - ops.log1p(-inside) if is_binary else inside.log()


def sum_rightmost(value: Tensor, count: int) -> Tensor:
    """Return the sum over the last `count` dimensions."""
    return value.flatten(value.ndim - count).sum(-1) if count else value


class lazy_property:
    """An attribute that a method computes at first use, with gradients."""

    def __init__(self, wrapped: Callable[[Any], Any]) -> None:
        self.wrapped = wrapped
        self.__doc__ = wrapped.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Tensor:
        if instance is None:
            return self  # type: ignore[return-value]
        value: Tensor = grad_mode.call(True, self.wrapped, instance)
        setattr(instance, self.wrapped.__name__, value)
        return value
