"""A training step on this machine: the arrays that it saves, and how fast it makes them."""

import time
from typing import Any, NamedTuple

import numpy as np
from offgrad_storage import Handle, PoolStore

import offgrad
from offgrad import memory
from offgrad.cli.bench_storage.loops import Array
from offgrad.cli.compare.gpt import GPT, GPTConfig
from offgrad.optim import AdamW

_SIZES = GPTConfig(layers=2, width=256, heads=4, context=256, dropout=0.1)
_BATCH = 8
_STEPS = 3


class Workload(NamedTuple):
    """A step of a GPT.

    Attributes:
        arrays: what a session writes, in this order.
        forward_seconds: of the fastest step, with all saved tensors kept in memory.
        backward_seconds: the same; backward pass and update.
    """

    arrays: list[Array]
    forward_seconds: float
    backward_seconds: float

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(each.nbytes for each in self.arrays)

    @property
    def nbytes_per_second(self) -> float:
        """Bytes saved per second of a step."""
        return self.nbytes / (self.forward_seconds + self.backward_seconds)

    def carried(self, put: float, get: float) -> float:
        """Return the bytes per second of such steps that a store takes without a stall.

        What the forward pass saves is written while it runs, and read back while the rest does.

        Args:
            put: bytes per second that the store writes.
            get: bytes per second that it reads.
        """
        seconds = self.forward_seconds + self.backward_seconds
        return min(put * self.forward_seconds, get * self.backward_seconds) / seconds


class _Recorder(PoolStore):
    """Remembers the arrays that are put."""

    def __init__(self) -> None:
        super().__init__(allocate=memory.empty, hold=memory.empty)
        self.arrays: list[Array] = []

    def put(self, array: Any, **options: Any) -> Handle:
        # In tensor memory, as what a step saves: stores write it without a copy.
        self.arrays.append(memory.copy(np.asarray(array)))
        return super().put(array, **options)


def measure_workload() -> Workload:
    """Train a small GPT for a few steps; the first compiles kernels."""
    offgrad.manual_seed(0)
    model = GPT(_SIZES)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    tokens = offgrad.randint(0, 256, (_BATCH, _SIZES.context + 1))
    times: list[tuple[float, float]] = []
    with _Recorder() as recorder:
        for policy in (recorder, *["keep"] * _STEPS):
            began = time.perf_counter()
            with offgrad.offload(policy):
                loss = model.loss(tokens[:, :-1], tokens[:, 1:])
            forward_end = time.perf_counter()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append((forward_end - began, time.perf_counter() - forward_end))
        forward, backward = min(times[1:], key=sum)
        return Workload(recorder.arrays, forward, backward)
