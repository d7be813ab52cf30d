"""``torch.fx``: nothing is traced; marks for tracing have no effect."""

from typing import Any as _Any

from offgrad import _refused
from offgrad._missing import missing as _missing

_WHY = "offgrad traces no programs"

globals().update(_refused.functions("offgrad.fx", "replace_pattern symbolic_trace", _WHY))
globals().update(_refused.classes("offgrad.fx", "Graph GraphModule Interpreter Node Tracer", _WHY))


def wrap(fn_or_name: _Any) -> _Any:
    """Return the function or name."""
    return fn_or_name


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.fx")
