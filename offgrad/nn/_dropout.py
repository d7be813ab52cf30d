"""Dropout in `offgrad.nn.functional`: by the number of dimensions, and on by default or off."""

import warnings
from typing import TYPE_CHECKING

from offgrad import ops
from offgrad.ops import dropout as _dropout

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def dropout(input: "Tensor", p: float = 0.5, training: bool = True) -> "Tensor":
    """Return `input` with each element zeroed with probability `p`, the rest over ``1 - p``.

    Raises:
        ValueError: unless `p` is from 0 to 1.
    """
    return _dropout(input, p, training)


def dropout1d(input: "Tensor", p: float = 0.5, training: bool = True) -> "Tensor":
    """Zero whole channels of `input`, [N, C, L] or [C, L], with probability `p`.

    Raises:
        ValueError: unless `p` is from 0 to 1.
        RuntimeError: for another number of dimensions.
    """
    if input.dim() not in (2, 3):
        raise RuntimeError(
            f"dropout1d takes [N, C, L] or [C, L], got {input.dim()} dimensions; for another "
            "shape use dropout"
        )
    return _with_samples(input, 3, p, training)


def dropout2d(input: "Tensor", p: float = 0.5, training: bool = True) -> "Tensor":
    """Zero whole channels of `input` [N, C, H, W] with probability `p`; three dimensions are
    [N, C, L].

    Raises:
        ValueError: unless `p` is from 0 to 1.
        RuntimeError: for fewer than 2 dimensions.
    """
    if input.dim() == 3:
        warnings.warn(
            "dropout2d takes an input of 3 dimensions for [N, C, L] and drops channels; use "
            "dropout1d for it",
            UserWarning,
            stacklevel=3,
        )
    elif input.dim() != 4:
        _warn_of_dimensions("dropout2d", input.dim(), "3D or 4D")
    return ops.feature_dropout(input, p, training)


def dropout3d(input: "Tensor", p: float = 0.5, training: bool = True) -> "Tensor":
    """Zero whole channels of `input`, [N, C, D, H, W] or [C, D, H, W], with probability `p`.

    Raises:
        ValueError: unless `p` is from 0 to 1.
        RuntimeError: for fewer than 2 dimensions.
    """
    if input.dim() not in (4, 5):
        _warn_of_dimensions("dropout3d", input.dim(), "4D or 5D")
    return _with_samples(input, 5, p, training)


def _warn_of_dimensions(name: str, ndim: int, meant: str) -> None:
    warnings.warn(
        f"{name}: Received a {ndim}-D input to {name}, which is deprecated: it is made for {meant} "
        "input; use dropout",
        UserWarning,
        stacklevel=4,
    )


def _with_samples(input: "Tensor", ndim: int, p: float, training: bool) -> "Tensor":
    """Run on one sample if the dimension of samples is missing."""
    if input.dim() == ndim - 1:
        return ops.feature_dropout(input.unsqueeze(0), p, training).squeeze(0)
    return ops.feature_dropout(input, p, training)


def alpha_dropout(input: "Tensor", p: float = 0.5, training: bool = False) -> "Tensor":
    """Set elements to the saturation of `selu` with probability `p`, and keep mean and variance.

    Raises:
        ValueError: unless `p` is from 0 to 1.
    """
    return ops.alpha_dropout(input, p, training)


def feature_alpha_dropout(input: "Tensor", p: float = 0.5, training: bool = False) -> "Tensor":
    """Set whole channels of `input` [N, C, ...] as `alpha_dropout` sets elements.

    Raises:
        ValueError: unless `p` is from 0 to 1.
        RuntimeError: for fewer than 2 dimensions.
    """
    return ops.feature_alpha_dropout(input, p, training)
