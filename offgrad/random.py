"""``torch.random``: the state of the default generator."""

import contextlib as _contextlib
import os as _os
from collections.abc import Iterator as _Iterator
from typing import Any as _Any

from offgrad._missing import missing as _missing
from offgrad.ops import default_generator, get_rng_state, manual_seed, set_rng_state

__all__ = [
    "default_generator",
    "fork_rng",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "seed",
    "set_rng_state",
]


def initial_seed() -> int:
    """Return the seed of the default generator."""
    return default_generator.initial_seed()


def seed() -> int:
    """Seed the default generator with a number from the system; return it."""
    number = int.from_bytes(_os.urandom(8), "little")
    manual_seed(number)
    return number


@_contextlib.contextmanager
def fork_rng(
    devices: _Any = None,
    enabled: bool = True,
    _caller: str = "fork_rng",
    _devices_kw: str = "devices",
    device_type: _Any = None,
) -> _Iterator[None]:
    """Put the state of the default generator back at the end of a block, if `enabled`."""
    state = get_rng_state()
    try:
        yield
    finally:
        if enabled:
            set_rng_state(state)


__getattr__ = _missing("offgrad.random")
