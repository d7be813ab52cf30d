"""Errors for names that offgrad lacks, and PyTorch may have; modules imported at first use."""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from offgrad_storage import _imports

PYTORCH = "2.13"
"""The version of PyTorch whose names are listed."""

_NEAR = 0.75  # of difflib: from 0 to 1


@functools.cache
def pytorch_names() -> dict[str, frozenset[str]]:
    """Return the public names of PyTorch's modules and classes, by their full names."""
    from pathlib import Path  # takes 5 ms

    found: dict[str, set[str]] = {}
    names: set[str] = set()
    text = Path(__file__).with_name("_pytorch_names.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("["):
            names = found.setdefault(line.strip("[]"), set())
        elif line and not line.startswith("#"):
            names.add(line)
    return {namespace: frozenset(names) for namespace, names in found.items()}


def owner_of(namespace: str) -> Any:
    """Return offgrad's counterpart of PyTorch's module or class; None if there is none."""
    found: Any = sys.modules["offgrad"]
    for part in namespace.split(".")[1:]:
        try:
            found = getattr(found, part)
        except (AttributeError, ImportError):
            return None
    return found


class _NoAttribute(AttributeError):
    """An AttributeError whose message is made when it is read: most are caught unread."""

    def __init__(self, where: str, name: str) -> None:
        super().__init__(where, name)

    def __str__(self) -> str:
        where, name = self.args
        start = f"{where} has no attribute {name!r}"
        namespace = "torch" + where.removeprefix("offgrad") if where != "Tensor" else "torch.Tensor"
        if name.startswith("_"):
            return f"{start}; if PyTorch has, it is internal there, and not supported"
        listed = pytorch_names().get(namespace)
        if listed is None:
            return f"{start}; if PyTorch has, it is not supported yet"
        near = _nearest(where, namespace, name)
        hint = f"; the nearest that exists is {near}" if near else ""
        if name in listed:
            return f"{start}: {namespace}.{name} of PyTorch is not supported yet{hint}"
        return f"{start}, and PyTorch {PYTORCH} has no {namespace}.{name}{hint}"


# Tracebacks show the class's name.
_NoAttribute.__module__, _NoAttribute.__name__ = "builtins", "AttributeError"
_NoAttribute.__qualname__ = "AttributeError"


def _nearest(where: str, namespace: str, name: str) -> str:
    """Return the full name of what is called the same elsewhere, or similarly here."""
    import difflib

    for other in ("torch", "torch.nn.functional", "torch.linalg", "torch.special", "torch.Tensor"):
        owner = owner_of(other)
        if other != namespace and owner is not None and name in dir(owner):
            return f"{other.replace('torch', 'offgrad', 1)}.{name}"
    owner = owner_of(namespace)
    here = [each for each in dir(owner) if not each.startswith("_")]
    close = difflib.get_close_matches(name, here, 1, _NEAR)
    return f"{namespace.replace('torch', 'offgrad', 1)}.{close[0]}" if close else ""


def no_attribute(where: str, name: str) -> AttributeError:
    """Return the error for a missing attribute, which PyTorch may have."""
    return _NoAttribute(where, name)


def missing(
    where: str, modules: tuple[str, ...] = (), names: dict[str, str] | None = None
) -> Callable[[str], Any]:
    """Return a module's ``__getattr__``, which raises `no_attribute` for missing names.

    Args:
        where: the full name of the module.
        modules: names of submodules, which it imports when a program asks for them.
        names: submodules of further names, likewise; or other modules, by their full names.
    """

    namespace, lazy = vars(sys.modules[where]), _imports.origins.get(where, {})
    namespace["__dir__"] = lambda: sorted({*namespace, *lazy, *modules, *(names or ())})

    def find(name: str) -> Any:
        if name in lazy:
            return _imports.load(where, name)
        if name in modules:
            return importlib.import_module(f"{where}.{name}")
        if names is not None and name in names:
            module = names[name]
            full = module if module.startswith("offgrad") else f"{where}.{module}"
            return getattr(importlib.import_module(full), name)
        raise no_attribute(where, name)

    return find
