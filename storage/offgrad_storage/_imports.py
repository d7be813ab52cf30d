"""Imports of a package that run when a program first asks for a name of theirs.

A package that would import many modules, of which a program needs few, writes the imports as

    if TYPE_CHECKING or not lazy(__name__):
        from package.disk import DiskStore
        from package.pool import PoolStore

Type checkers and other tools read ordinary imports. At run time `lazy` reads them from the source
of the package instead of running them, and gives it a ``__getattr__`` and a ``__dir__`` (PEP 562):
``package.DiskStore`` and ``from package import DiskStore`` import ``package.disk`` at their first
use, and keep the class in the package. Where there is no source, as in a frozen program, or where
the environment variable OFFGRAD_IMPORTS is "eager", the imports run at once.

Not for modules that register something at their import in an order that matters.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident
from importlib import import_module
from typing import Any

from offgrad_storage.interrupts import masked

_ONLY_AST = 0x400  # `ast.PyCF_ONLY_AST`
_MARK = "lazy(__name__):\n"
_MAX_WAIT_SECONDS = 10.0
_POLL_SECONDS = 0.0005

Origin = tuple[str, str | None]
"""A module, and a name in it; None for the module itself."""

origins: dict[str, dict[str, Origin]] = {}
"""By package and name, where the name comes from."""
_importing: list[int] = []  # the thread of each import that runs


def lazy(package: str) -> bool:
    """Let the imports below the call in a package's source run when their names are asked for.

    Returns False if they have to run now.
    """
    if os.environ.get("OFFGRAD_IMPORTS") == "eager":
        return False
    module = sys.modules[package]
    loader: Any = module.__spec__ and module.__spec__.loader
    try:
        source = loader.get_source(package)
    except (AttributeError, ImportError):  # of a loader that has no sources, or has not found this
        source = None
    if source is None:
        return False
    own = origins[package] = _read(package, source)

    def find(name: str) -> Any:
        if name in own:
            return load(package, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    vars(module).update(__getattr__=find, __dir__=lambda: sorted({*vars(module), *own}))
    return True


def load(package: str, name: str) -> Any:
    """Import what a name of a package stands for, and keep it in the package."""
    module, attribute = origins[package][name]
    with masked:  # Ctrl-C does not split an import
        _importing.append(get_ident())
        try:
            found: Any = import_module(module)
        finally:
            _importing.remove(get_ident())
    if attribute is not None:
        found = getattr(found, attribute)
    setattr(sys.modules[package], name, found)
    return found


def _read(package: str, source: str) -> dict[str, Origin]:
    """Return where the names come from that the source of a package imports below the call."""
    lines = source.partition(_MARK)[2].splitlines()
    end = next((i for i, line in enumerate(lines) if line[:1].strip()), len(lines))
    block: Any = compile("\n".join(["if True:", *lines[:end]]), package, "exec", _ONLY_AST)
    found: dict[str, Origin] = {}
    for each in block.body[0].body:
        for alias in each.names:
            submodule = f"{package}.{alias.name}"
            origin = (submodule, None) if each.module == package else (each.module, alias.name)
            found[alias.asname or alias.name] = origin
    return found


def _before_fork() -> None:
    """Wait for imports of other threads: a child would wait for ever for the locks they hold."""
    deadline = time.monotonic() + _MAX_WAIT_SECONDS
    while any(each != get_ident() for each in tuple(_importing)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _forget_other_threads() -> None:
    _importing[:] = [each for each in _importing if each == get_ident()]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_forget_other_threads)
