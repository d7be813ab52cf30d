"""``torch.jit``: nothing is compiled. `script` and `trace` return what they are given.

Saved TorchScript programs cannot be loaded or run.
"""

import contextlib as _contextlib
import typing as _typing
from collections.abc import Callable as _Callable
from collections.abc import Iterator as _Iterator
from typing import Any as _Any
from typing import Final as Final
from typing import NamedTuple as _NamedTuple

from offgrad import _refused
from offgrad._missing import missing as _missing
from offgrad.futures import Future as Future
from offgrad.nn import Module as _Module

globals().update(
    _refused.functions(
        "offgrad.jit",
        "load save export_opnames",
        "there is no TorchScript in offgrad; save state_dict() with offgrad.save",
    )
)


class ScriptModule(_Module):
    """A module like any other; nothing else is an instance of it."""


class ScriptFunction:
    """Nothing is an instance of it."""


class Attribute(_NamedTuple):
    """A value and its type."""

    value: _Any
    type: _Any


def script(obj: _Any, *args: _Any, **kwargs: _Any) -> _Any:
    """Return `obj`, a module, function or class."""
    return obj


def trace(func: _Any, example_inputs: _Any = None, *args: _Any, **kwargs: _Any) -> _Any:
    """Return `func`, a module or function."""
    return func


def trace_module(mod: _Any, inputs: _Any, *args: _Any, **kwargs: _Any) -> _Any:
    """Return the module."""
    return mod


def is_scripting() -> bool:
    """Return False."""
    return False


def is_tracing() -> bool:
    """Return False."""
    return False


def _decorator(function: _Any) -> _Any:
    return function


script_method = unused = export = interface = script_if_tracing = _decorator
_overload = _overload_method = _script_if_tracing = _decorator


def ignore(drop: _Any = False, **kwargs: _Any) -> _Any:
    """Return the function; also a decorator with arguments."""
    return drop if callable(drop) else _decorator


def annotate(the_type: _Any, the_value: _Any) -> _Any:
    """Return the value."""
    return the_value


def isinstance(obj: _Any, target_type: _Any) -> bool:
    """Return whether `obj` is an instance of a class, or of the class of a generic type."""
    kinds = target_type if type(target_type) is tuple else (target_type,)
    kinds = tuple(_typing.get_origin(kind) or kind for kind in kinds)
    return issubclass(type(obj), kinds)


def fork(func: _Callable[..., _Any], *args: _Any, **kwargs: _Any) -> Future:
    """Call the function at once; return its result for `wait`."""
    future = Future()
    future.set_result(func(*args, **kwargs))
    return future


def wait(future: Future) -> _Any:
    """Return the result of `fork`."""
    return future.wait()


def freeze(mod: _Any, *args: _Any, **kwargs: _Any) -> _Any:
    """Return the module."""
    return mod


optimize_for_inference = freeze


def set_fusion_strategy(strategy: _Any) -> list[_Any]:
    """Do nothing: no fusions are made at run time."""
    return []


def enable_onednn_fusion(enabled: bool) -> None:
    """Do nothing: no fusions are made at run time."""


def onednn_fusion_enabled() -> bool:
    """Return False."""
    return False


@_contextlib.contextmanager
def strict_fusion() -> _Iterator[None]:
    """Run a block."""
    yield


@_contextlib.contextmanager
def optimized_execution(should_optimize: bool) -> _Iterator[None]:
    """Run a block."""
    yield


__all__ = [name for name in globals() if not name.startswith("_") and name != "isinstance"] + [
    "isinstance"
]

__getattr__ = _missing("offgrad.jit")
