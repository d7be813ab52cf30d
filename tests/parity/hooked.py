"""Small modules to register hooks on, and hooks that record their arguments."""

from collections.abc import Callable
from typing import Any

from tests.parity.conftest import constant


class BoomError(Exception):
    """Raised by hooks and forwards of tests."""


def boom(*args: Any) -> Any:
    """Raise: a hook of any kind."""
    raise BoomError


def module(lib: Any, forward: Callable[..., Any]) -> Any:
    """Return a module with this forward."""

    class Doing(lib.nn.Module):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return forward(*args, **kwargs)

    return Doing()


def scale(lib: Any) -> Any:
    """Return a module of one operation: x * by."""

    class Scale(lib.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, by: Any = 2) -> Any:
            return x * by

    return Scale()


def note(seen: list[Any], name: Any) -> Callable[..., None]:
    """Return a hook that notes its name."""
    return lambda *_: seen.append(name)


def parts(lib: Any, weight: float = 1, buffer: float = 2) -> Any:
    """Return a module with a parameter and buffers of one number."""
    module = lib.nn.Module()
    module.weight = lib.nn.Parameter(constant(lib, weight))
    module.register_buffer("running", constant(lib, buffer))
    module.register_buffer("scratch", constant(lib, 0), persistent=False)
    return module


def tree(lib: Any) -> Any:
    """Return three modules: the outermost has child, which has leaf."""
    model = parts(lib)
    model.child = parts(lib)
    model.child.leaf = parts(lib)
    return model


KEYS = [
    "weight",
    "running",
    "child.weight",
    "child.running",
    "child.leaf.weight",
    "child.leaf.running",
]


def state(lib: Any, **values: float) -> dict[str, Any]:
    """Return a state without metadata, of the names with __ for a dot."""
    return {name.replace("__", "."): constant(lib, value) for name, value in values.items()}


def numbers(state_dict: Any) -> dict[str, Any]:
    """Return the values of a state."""
    return {name: value.item() for name, value in state_dict.items()}


class Counter:
    """A callable object that counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *args: Any) -> None:
        self.count += 1

    def method(self, *args: Any) -> None:
        """Count as well."""
        self.count += 1

    @staticmethod
    def nothing(*args: Any) -> None:
        """Do nothing."""


class Every:
    """`nn.modules.module`: registers hooks of all modules, and removes those that were left."""

    def __init__(self, lib: Any) -> None:
        self._module = lib.nn.modules.module
        self._handles: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def register(*args: Any, **options: Any) -> Any:
            handle = getattr(self._module, name)(*args, **options)
            self._handles.append(handle)
            return handle

        return register

    def close(self) -> None:
        """Remove all hooks."""
        for each in self._handles:
            each.remove()
