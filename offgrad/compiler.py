"""``torch.compiler``: nothing is compiled; functions run as they are."""

import contextlib as _contextlib
from typing import Any as _Any

from offgrad._compiled import compile as compile
from offgrad._missing import missing as _missing


def is_compiling() -> bool:
    """Return False."""
    return False


is_dynamo_compiling = is_exporting = is_compiling


def reset() -> None:
    """Do nothing: nothing is compiled."""


def cudagraph_mark_step_begin() -> None:
    """Do nothing: nothing is compiled."""


def list_backends(exclude_tags: _Any = ()) -> list[str]:
    """Return no backends."""
    return []


def disable(fn: _Any = None, recursive: bool = True, **kwargs: _Any) -> _Any:
    """Return the function; also a decorator with arguments."""
    return fn if fn is not None else lambda function: function


def allow_in_graph(fn: _Any) -> _Any:
    """Return the function."""
    return fn


assume_constant_result = nested_compile_region = allow_in_graph


def set_stance(*args: _Any, **kwargs: _Any) -> _contextlib.nullcontext[None]:
    """Return a context without effect."""
    return _contextlib.nullcontext()


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.compiler")
