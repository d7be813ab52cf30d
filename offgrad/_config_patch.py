"""``patch`` of a module of settings: other values in a block, or during a function."""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def patcher(module: ModuleType) -> Callable[..., Any]:
    """Return the function ``patch`` for the settings of a module."""

    @contextmanager
    def patch(arg1: Any = None, arg2: Any = None, **kwargs: Any) -> Iterator[None]:
        """Set settings during a block or a function: a name and a value, a dict, or keywords."""
        given = {arg1: arg2} if isinstance(arg1, str) else dict(arg1 or {})
        before = [(*_place(module, name), value) for name, value in (given | kwargs).items()]
        values = [getattr(owner, name, None) for owner, name, _ in before]
        for owner, name, value in before:
            setattr(owner, name, value)
        try:
            yield
        finally:
            for (owner, name, _), value in zip(before, values, strict=True):
                setattr(owner, name, value)

    return patch


def _place(module: ModuleType, path: str) -> tuple[Any, str]:
    """Return the object that holds a setting, as ``triton.cudagraphs``, and its name there."""
    owner, _, name = path.rpartition(".")
    return (operator.attrgetter(owner)(module) if owner else module), name
