"""``torch.autograd.profiler``: marks in programs for profilers, which have no effect."""

from contextlib import ContextDecorator as _ContextDecorator
from typing import Any as _Any

from offgrad._missing import missing as _missing

__all__ = ["record_function"]


class record_function(_ContextDecorator):
    """A block, or a function, with a name. offgrad records no times of blocks.

    Args:
        name: the name.
        args: further text.
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        self.args = args

    def __enter__(self) -> "record_function":
        return self

    def __exit__(self, *error: _Any) -> None:
        pass


__getattr__ = _missing("offgrad.autograd.profiler")
