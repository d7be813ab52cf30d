"""Names that a CPU library cannot serve: each raises one sentence when it is called."""

from collections.abc import Callable
from typing import Any, NoReturn

MARK = "_is_refused"
"""The attribute of refused functions and classes, which do not count as present."""


def functions(
    where: str, names: str, why: str, error: type[Exception] = RuntimeError
) -> dict[str, Callable[..., NoReturn]]:
    """Return functions, by name, that raise `error` with their full name and `why`."""
    return {name: _function(where, name, why, error) for name in names.split()}


def _function(where: str, name: str, why: str, error: type[Exception]) -> Callable[..., NoReturn]:
    def refused(*args: Any, **kwargs: Any) -> NoReturn:
        raise error(f"{where}.{name}: {why}")

    refused.__name__ = refused.__qualname__ = name
    refused.__module__ = where
    refused.__doc__ = f"Raise {error.__name__}: {why}."
    setattr(refused, MARK, True)
    return refused


def classes(
    where: str, names: str, why: str, error: type[Exception] = RuntimeError
) -> dict[str, type[Any]]:
    """Return classes, by name, of which nothing is an instance: to make one raises `error`."""

    def make(name: str) -> type[Any]:
        refused = _function(where, name, why, error)
        content: dict[str, Any] = {MARK: True, "__module__": where}
        content["__new__"] = lambda cls, *args, **kwargs: refused()
        content["__doc__"] = f"Raises {error.__name__}: {why}."
        return type(name, (), content)

    return {name: make(name) for name in names.split()}
