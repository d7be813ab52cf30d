"""``torch.autograd.profiler``: marks in programs for profilers, and PyTorch's first profiler."""

from collections.abc import Callable as _Callable
from contextlib import ContextDecorator as _ContextDecorator
from contextlib import nullcontext as _nullcontext
from importlib import import_module as _import_module
from time import perf_counter as _perf_counter
from typing import Any as _Any

from offgrad._missing import missing as _missing

__all__ = ["profile", "record_function"]

_observers: list[_Callable[[str, float], None]] = []
"""Called at the end of each marked block with its name and the time of its begin."""


def profile(enabled: bool = True, **options: _Any) -> _Any:
    """Return `offgrad.profiler.profile`, whose `Profile` has ``key_averages``.

    Args:
        enabled: False: record nothing.
        **options: of PyTorch's profiler, such as ``record_shapes``: accepted.
    """
    # Of a layer above this one, for those who want it.
    return _import_module("offgrad.profiler").profile(**options) if enabled else _nullcontext()


class record_function(_ContextDecorator):
    """A block, or a function, with a name, under which profiles show its time.

    Args:
        name: the name.
        args: further text.
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        self.args = args
        self._began: list[float] = []

    def __enter__(self) -> "record_function":
        self._began.append(_perf_counter() if _observers else 0.0)
        return self

    def __exit__(self, *error: _Any) -> None:
        began = self._began.pop()
        if began:
            for observer in tuple(_observers):
                observer(self.name, began)


__getattr__ = _missing("offgrad.autograd.profiler")
