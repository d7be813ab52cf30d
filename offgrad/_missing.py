"""What PyTorch has and offgrad lacks says so."""

from collections.abc import Callable
from typing import NoReturn


def no_attribute(where: str, name: str) -> AttributeError:
    """Return the error that tells PyTorch users what they met."""
    return AttributeError(
        f"{where} has no attribute {name!r}; if PyTorch has, it is not supported yet"
    )


def missing(where: str) -> Callable[[str], NoReturn]:
    """Return the ``__getattr__`` of a module whose missing attributes PyTorch may have."""

    def raise_(name: str) -> NoReturn:
        raise no_attribute(where, name)

    return raise_
