"""All rules of batched tensors."""

import threading

from offgrad import ops
from offgrad._tensor import overrides
from offgrad.func._batching import (
    composed,
    dimensions,
    elementwise,
    indexing,
    layers,
    products,
    randomness,
    shapes,
)
from offgrad.func._batching.dispatch import public

_WITHIN = ("cat", "complex", "polar", "stack", "where")
"""Functions with rules that derivatives call, without the argument `out` of the public ones."""

_MODULES = (elementwise, dimensions, shapes, products, indexing, layers, composed, randomness)

_lock = threading.Lock()
_installed: list[bool] = []


def install() -> None:
    """Let functions ask for batched tensors from now on."""
    if _installed:
        return
    with _lock:
        if not _installed:
            overrides.install()
            for name in _WITHIN:
                overrides.redirect(getattr(ops, name), public(name))
            for module in _MODULES:
                module.install()
            _installed.append(True)
