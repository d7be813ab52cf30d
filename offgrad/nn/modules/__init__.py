"""PyTorch's names of the places where modules and the hooks of all modules are."""

from offgrad.nn.modules import module
from offgrad.nn.modules.module import Module

__all__ = ["Module", "module"]
