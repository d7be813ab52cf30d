"""``torch._dynamo``: settings are accepted; nothing is compiled."""

from types import SimpleNamespace
from typing import Any

from offgrad.compiler import allow_in_graph, disable, is_compiling, reset

__all__ = ["allow_in_graph", "config", "disable", "is_compiling", "optimize", "reset"]

config = SimpleNamespace(suppress_errors=False, verbose=False, cache_size_limit=8)


def optimize(*args: Any, **kwargs: Any) -> Any:
    """Return a decorator that returns its function."""
    return lambda function: function


def graph_break(msg: str = "") -> None:
    """Do nothing: nothing is compiled."""


def mark_dynamic(t: Any, index: Any, **kwargs: Any) -> None:
    """Do nothing: nothing is compiled."""
