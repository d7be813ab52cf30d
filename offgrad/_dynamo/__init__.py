"""``torch._dynamo``: settings are accepted; nothing is compiled."""

from typing import Any

from offgrad._dynamo import config, eval_frame
from offgrad._dynamo.eval_frame import OptimizedModule
from offgrad.compiler import allow_in_graph, disable, is_compiling, reset

__all__ = [
    "OptimizedModule",
    "allow_in_graph",
    "config",
    "disable",
    "eval_frame",
    "is_compiling",
    "optimize",
    "reset",
]


def optimize(*args: Any, **kwargs: Any) -> Any:
    """Return a decorator that returns its function."""
    return lambda function: function


def graph_break(msg: str = "") -> None:
    """Do nothing: nothing is compiled."""


def mark_dynamic(t: Any, index: Any, **kwargs: Any) -> None:
    """Do nothing: nothing is compiled."""
