"""Errors for names that offgrad lacks, and PyTorch may have."""

from collections.abc import Callable
from typing import NoReturn


def no_attribute(where: str, name: str) -> AttributeError:
    """Return the error for a missing attribute, which PyTorch may have."""
    return AttributeError(
        f"{where} has no attribute {name!r}; if PyTorch has, it is not supported yet"
    )


def missing(where: str) -> Callable[[str], NoReturn]:
    """Return a module's ``__getattr__``, which raises `no_attribute` for missing names."""

    def raise_(name: str) -> NoReturn:
        raise no_attribute(where, name)

    return raise_
