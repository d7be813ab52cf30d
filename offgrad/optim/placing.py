"""Paging of optimizer state, however the optimizer has made it."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from offgrad_storage import StoreError

from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import metadata
from offgrad.memory import POOL_THRESHOLD

_STATE = "optimizer state"
_OTHERS = ("parameters", "gradients", "buffers")


def place_states(state: Mapping[Any, Any], params: Iterable[Any] | None = None) -> None:
    """Page the tensors in the state of parameters, if a policy says so, each of them once.

    `Optimizer.new_state` does that at once; this is for state that a program's own optimizer makes,
    or that is older than the policy. It raises no error of a store, since the step is done: the
    tensor stays in memory, and the next that needs its room raises it.

    Args:
        state: of an optimizer.
        params: those to look at; None for all.
    """
    for param in state if params is None else params:
        placer = param._storage.placer if isinstance(param, Tensor) else None
        if placer is None or param not in state:
            continue
        for tensor in _tensors(state[param]):
            storage = tensor._storage
            if (
                storage.placed_by is not placer
                and storage.nbytes >= POOL_THRESHOLD
                and storage.role not in _OTHERS
            ):
                storage.role = _STATE
                storage.placed_by = placer
                with suppress(StoreError, MemoryError):
                    placer(tensor, _STATE)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested dicts, lists and tuples."""
    if isinstance(value, Tensor):
        if type(metadata(value)) is np.ndarray:  # neither sparse nor meta
            yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
