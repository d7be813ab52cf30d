"""``torch.random``: the state of the default generator."""

import contextlib as _contextlib
from collections.abc import Iterator as _Iterator
from typing import Any as _Any

from offgrad._missing import missing as _missing
from offgrad.ops import (
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    seed,
    set_rng_state,
)

__all__ = [
    "default_generator",
    "fork_rng",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "seed",
    "set_rng_state",
]


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
