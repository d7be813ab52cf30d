"""Tensor, and the operations as its methods."""

from offgrad._tensor.tensor import Tensor

__all__ = ["Tensor"]
