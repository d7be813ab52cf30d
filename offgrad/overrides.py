"""``torch.overrides``: classes that replace what functions do with their objects, and modes."""

import functools as _functools
from collections.abc import Callable as _Callable
from collections.abc import Iterable as _Iterable
from collections.abc import Iterator as _Iterator
from contextlib import contextmanager as _contextmanager
from inspect import signature as _signature
from typing import Any as _Any

from offgrad._missing import missing as _missing
from offgrad._tensor import overrides as _overrides
from offgrad._tensor.tensor import Tensor as _Tensor
from offgrad.autograd.override_state import state as _state


def has_torch_function(relevant_args: _Iterable[_Any]) -> bool:
    """Return whether a class among those of the arguments overrides functions, or a mode does."""
    return bool(_state.modes) or (
        _state.enabled and any(_overrides.is_overriding(type(each)) for each in relevant_args)
    )


def has_torch_function_unary(argument: _Any) -> bool:
    """Return whether the class of the argument overrides functions, or a mode does."""
    return has_torch_function((argument,))


def has_torch_function_variadic(*arguments: _Any) -> bool:
    """Return whether a class among those of the arguments overrides functions, or a mode does."""
    return has_torch_function(arguments)


def handle_torch_function(
    public_api: _Callable[..., _Any], relevant_args: _Iterable[_Any], *args: _Any, **kwargs: _Any
) -> _Any:
    """Return what the ``__torch_function__`` of a mode or an argument does for a call.

    Args:
        public_api: the function that was called.
        relevant_args: the arguments whose classes may answer, subclasses before others.
        args: of the call.
        kwargs: of the call.

    Raises:
        TypeError: if all return NotImplemented.
    """
    return _overrides.handle(public_api, _overrides.overriding(relevant_args), args, kwargs)


def wrap_torch_function(dispatcher: _Callable[..., _Any]) -> _Callable[..., _Any]:
    """Return a decorator that makes a function overridable.

    Args:
        dispatcher: takes the function's arguments and returns those whose classes may answer.
    """

    def decorate(function: _Callable[..., _Any]) -> _Callable[..., _Any]:
        @_functools.wraps(function)
        def wrapped(*args: _Any, **kwargs: _Any) -> _Any:
            relevant = dispatcher(*args, **kwargs)
            if has_torch_function(relevant):
                return handle_torch_function(wrapped, relevant, *args, **kwargs)
            return function(*args, **kwargs)

        return wrapped

    return decorate


def is_tensor_like(inp: _Any) -> bool:
    """Return whether `inp` is a tensor, or of a class with ``__torch_function__``."""
    return isinstance(inp, _Tensor) or hasattr(type(inp), "__torch_function__")


def get_overridable_functions() -> dict[_Any, list[_Callable[..., _Any]]]:
    """Return the functions that call ``__torch_function__``, by the module or class they are in."""
    found: dict[_Any, list[_Callable[..., _Any]]] = {}
    for owner, _, function in _overrides.overridable():
        found.setdefault(owner, []).append(function)
    return found


def get_ignored_functions() -> set[_Callable[..., _Any]]:
    """Return public functions that call no ``__torch_function__``."""
    return {each for each in _overrides.others() if callable(each)}


def get_testing_overrides() -> dict[_Callable[..., _Any], _Callable[..., _Any]]:
    """Return, for each overridable function, one of the same arguments that returns -1."""
    return {function: _returning(function) for _, _, function in _overrides.overridable()}


def _returning(function: _Callable[..., _Any]) -> _Callable[..., int]:
    def dummy(*args: _Any, **kwargs: _Any) -> int:
        return -1

    dummy.__signature__ = _signature(function)  # type: ignore[attr-defined]
    return dummy


def resolve_name(f: _Callable[..., _Any]) -> str | None:
    """Return the full name of an overridable function, as ``"torch.add"``; None for others."""
    for owner, name, function in _overrides.overridable():
        if function is f:
            path = "torch.Tensor" if owner is _Tensor else owner.__name__
            return f"{path.replace('offgrad', 'torch', 1)}.{name}"
    return None


def is_tensor_method_or_property(func: _Callable[..., _Any]) -> bool:
    """Return whether a function is a method of tensors, or the getter of a property."""
    return getattr(func, "__name__", "") == "__get__" or any(
        function is func for owner, _, function in _overrides.overridable() if owner is _Tensor
    )


@_contextmanager
def enable_reentrant_dispatch() -> "_Iterator[None]":
    """Let functions call ``__torch_function__`` in the block, also inside one."""
    outer = _state.enabled
    _state.enabled = True
    try:
        yield
    finally:
        _state.enabled = outer


class TorchFunctionMode:
    """A block in which all overridable functions call a method of this object.

    A subclass defines ``__torch_function__(self, func, types, args=(), kwargs=None)``, in which the
    mode is off.
    """

    def __torch_function__(
        self, func: _Any, types: _Any, args: _Any = (), kwargs: _Any = None
    ) -> _Any:
        """Return the result of a call; for subclasses to define."""
        raise NotImplementedError(f"{type(self).__name__} defines no __torch_function__")

    def __enter__(self) -> "TorchFunctionMode":
        _overrides.install()
        _state.modes = (*_state.modes, self)
        return self

    def __exit__(self, *_: object) -> None:
        _state.modes = _state.modes[:-1]


class BaseTorchFunctionMode(TorchFunctionMode):
    """A mode that changes nothing."""

    def __torch_function__(
        self, func: _Any, types: _Any, args: _Any = (), kwargs: _Any = None
    ) -> _Any:
        """Call the function."""
        return func(*args, **(kwargs or {}))


__all__ = [name for name in globals() if not name.startswith("_")]

__getattr__ = _missing("offgrad.overrides")
