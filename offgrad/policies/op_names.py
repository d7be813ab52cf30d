"""The spellings of operations in rules: as nodes, functions and modules, in any case."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Protocol

from offgrad.policies.patterns import matches


class OpNames(Protocol):
    """The names that the library's operations have."""

    @property
    def nodes(self) -> Iterable[str]:
        """The names of all nodes, those of user-defined Functions so far included."""

    @property
    def recorded_by(self) -> Mapping[str, Iterable[str]]:
        """By operation, as `operation` names it, the functions and modules that record it."""

    @property
    def functions(self) -> Iterable[str]:
        """All functions and modules, those included that only call others."""

    @property
    def slots(self) -> Iterable[str]:
        """The slots of saved tensors, but for numbers, and ``index_`` with a number."""


_provided: list[OpNames] = []


def provide(names: OpNames) -> None:
    """Set the library's names, which layers above this one know."""
    _provided[:] = [names]


def op_names() -> OpNames:
    """Return the library's names."""
    if not _provided:
        import_module("offgrad.session.op_names")  # provides them
    return _provided[0]


def operation(node: str) -> str:
    """Return the name of a node's operation: ``"Gelu"`` of ``"GeluBackward0"``."""
    return re.sub(r"Backward\d*$", "", node)


def simplified(name: str) -> str:
    """Return the name without case and underscores, so that LayerNorm equals layer_norm."""
    return name.replace("_", "").lower()


def spellings(node: str) -> list[str]:
    """Return the name of a node, of its operation, and of functions and modules that record it."""
    name = operation(node)
    return [node, name, *op_names().recorded_by.get(name, ())]


# Called for every save, with few different names.
@lru_cache(maxsize=4096)
def match_op(patterns: tuple[str, ...], node: str) -> bool:
    """Return whether a pattern matches one of the spellings of a node."""
    names = [simplified(each) for each in spellings(node)]
    return any(matches(simplified(pattern), name) for pattern in patterns for name in names)


def is_known_op(pattern: str) -> bool:
    """Return whether a pattern matches an operation of the library, or of a Function so far.

    Nodes that share a class get their names at first use, so the name of a node of any function is
    known.
    """
    names = op_names()
    wanted = simplified(operation(pattern))
    return any(match_op((pattern,), each) for each in names.nodes) or any(
        matches(wanted, simplified(each)) for each in (*known_ops(), *names.functions)
    )


def known_ops() -> list[str]:
    """Return the names of operations, and of functions and modules that record them."""
    names = op_names()
    found = {operation(each) for each in names.nodes} | set(names.recorded_by)
    return sorted(found.union(*names.recorded_by.values()))


def is_known_slot(pattern: str) -> bool:
    """Return whether a pattern matches a slot of the library, or of a Function: a number."""
    numbers = [str(each) for each in range(100)]
    indices = [f"index_{each}" for each in numbers]
    return any(matches(pattern, each) for each in (*op_names().slots, *numbers, *indices))
