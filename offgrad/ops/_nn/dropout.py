"""Dropout of whole channels, and dropout that keeps mean and variance."""

from math import sqrt
from typing import TYPE_CHECKING

from offgrad.autograd.tensor_base import describe
from offgrad.ops._core.dtypes import real_floating
from offgrad.ops._core.inplace_forms import inplace_form
from offgrad.ops._random.dropout import dropout

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "alpha_dropout",
    "alpha_dropout_",
    "dropout_",
    "feature_alpha_dropout",
    "feature_alpha_dropout_",
    "feature_dropout",
    "feature_dropout_",
    "native_dropout",
]

_SATURATION = 1.7580993408473766
"""Minus the value that the scaled exponential linear unit approaches."""


def _check_probability(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")


def _channels_of(x: "Tensor") -> "Tensor":
    """Return ones [N, C, 1, ...]."""
    shape = x._array.shape
    if len(shape) < 2:
        raise RuntimeError(
            f"feature dropout: the input must have at least 2 dimensions, got a {describe(x)}"
        )
    return x.new_ones((*shape[:2], *(1,) * (len(shape) - 2)))


def feature_dropout(input: "Tensor", p: float, train: bool) -> "Tensor":
    """Return `input` [N, C, ...], in training with whole channels zeroed with probability `p` and
    the others scaled by ``1 / (1 - p)``.

    Raises:
        ValueError: unless `p` is from 0 to 1.
        RuntimeError: for fewer than 2 dimensions.
    """
    _check_probability(p)
    if not train or p == 0:
        return input
    x = real_floating(input, "feature_dropout")
    return x * dropout(_channels_of(x), p)


def _alpha(x: "Tensor", ones: "Tensor", p: float) -> "Tensor":
    """Return `x` where dropped ones are kept, else the saturation, scaled and shifted."""
    if p == 1:
        return x * 0
    scale = 1 / sqrt((_SATURATION**2 * p + 1) * (1 - p))
    kept = dropout(ones, p) * (1 - p)
    shift = (kept - (1 - p)) * (_SATURATION * scale)
    return x * (kept * scale) + shift


def alpha_dropout(input: "Tensor", p: float, train: bool) -> "Tensor":
    """Return `input`, in training with elements set to the saturation of `selu` with probability
    `p`, and scaled and shifted to keep mean and variance (Klambauer et al., 2017).

    Raises:
        ValueError: unless `p` is from 0 to 1.
    """
    _check_probability(p)
    if not train or p == 0:
        return input
    x = real_floating(input, "alpha_dropout")
    return _alpha(x, x.new_ones(x.shape), p)


def feature_alpha_dropout(input: "Tensor", p: float, train: bool) -> "Tensor":
    """Return `alpha_dropout` that sets whole channels of `input` [N, C, ...].

    Raises:
        ValueError: unless `p` is from 0 to 1.
        RuntimeError: for fewer than 2 dimensions.
    """
    _check_probability(p)
    if not train or p == 0:
        return input
    x = real_floating(input, "feature_alpha_dropout")
    return _alpha(x, _channels_of(x), p)


def native_dropout(input: "Tensor", p: float, train: bool | None) -> "tuple[Tensor, Tensor]":
    """Return `dropout` and the mask of kept elements; None for `train` means True.

    Raises:
        ValueError: unless `p` is from 0 to 1.
    """
    _check_probability(p)
    x = real_floating(input, "native_dropout")
    kept = dropout(x.new_ones(x.shape), p, train is not False)
    return x * kept, kept != 0


alpha_dropout_ = inplace_form(alpha_dropout)
dropout_ = inplace_form(dropout)
feature_alpha_dropout_ = inplace_form(feature_alpha_dropout)
feature_dropout_ = inplace_form(feature_dropout)
