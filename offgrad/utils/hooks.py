"""The handles of hooks."""

from offgrad.autograd.handles import RemovableHandle

__all__ = ["RemovableHandle"]
