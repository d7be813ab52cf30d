"""Errors for names that offgrad lacks, and PyTorch may have; modules imported at first use."""

import importlib
from collections.abc import Callable
from typing import Any


def no_attribute(where: str, name: str) -> AttributeError:
    """Return the error for a missing attribute, which PyTorch may have."""
    return AttributeError(
        f"{where} has no attribute {name!r}; if PyTorch has, it is not supported yet"
    )


def missing(where: str, modules: tuple[str, ...] = ()) -> Callable[[str], Any]:
    """Return a module's ``__getattr__``, which raises `no_attribute` for missing names.

    Args:
        where: the full name of the module.
        modules: names of submodules, which it imports when a program asks for them.
    """

    def find(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{where}.{name}")
        raise no_attribute(where, name)

    return find
