"""Memory formats of convolution weights: accepted, without effect."""

from typing import Any, TypeVar

__all__ = ["convert_conv2d_weight_memory_format", "convert_conv3d_weight_memory_format"]

M = TypeVar("M")


def convert_conv2d_weight_memory_format(module: M, memory_format: Any) -> M:
    """Return the module as it is: all tensors are contiguous.

    Args:
        module: any module.
        memory_format: the format; it has no effect.
    """
    return module


def convert_conv3d_weight_memory_format(module: M, memory_format: Any) -> M:
    """Return the module as it is: all tensors are contiguous.

    Args:
        module: any module.
        memory_format: the format; it has no effect.
    """
    return module
