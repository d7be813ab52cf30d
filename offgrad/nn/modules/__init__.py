"""Layers, by family, where PyTorch has them."""

from offgrad.nn.modules import module
from offgrad.nn.modules.module import Module

__all__ = ["Module", "module"]
