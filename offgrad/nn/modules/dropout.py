"""Dropout: in training, elements or channels are dropped at random."""

from collections.abc import Callable
from typing import ClassVar

from offgrad._tensor.tensor import Tensor
from offgrad.nn import functional as F
from offgrad.nn.modules.module import Module

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"]


class _DropoutNd(Module):
    """Drop with probability `p` in training; return the input unchanged in evaluation mode."""

    __constants__ = ["p", "inplace"]

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        function = type(self).function
        if self.inplace:
            return function(input, self.p, self.training, inplace=True)
        return function(input, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_DropoutNd):
    """Zero each element with probability `p` and scale the others by ``1 / (1 - p)``."""

    function = staticmethod(F.dropout)


class Dropout1d(_DropoutNd):
    """As `Dropout`, for whole channels of [N, C, L] or [C, L]."""

    function = staticmethod(F.dropout1d)


class Dropout2d(_DropoutNd):
    """As `Dropout`, for whole channels of [N, C, H, W]."""

    function = staticmethod(F.dropout2d)


class Dropout3d(_DropoutNd):
    """As `Dropout`, for whole channels of [N, C, D, H, W] or [C, D, H, W]."""

    function = staticmethod(F.dropout3d)


class AlphaDropout(_DropoutNd):
    """Set elements to the saturation of `SELU`, and keep mean and variance."""

    function = staticmethod(F.alpha_dropout)


class FeatureAlphaDropout(_DropoutNd):
    """As `AlphaDropout`, for whole channels of [N, C, ...]."""

    function = staticmethod(F.feature_alpha_dropout)
