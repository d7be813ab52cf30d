"""A budget is a bound: the peak memory of each op, against a run that keeps no saved tensors."""

import gc
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from offgrad_storage import Handle

import offgrad
from offgrad import memory
from offgrad.autograd.graph import saved_tensors_hooks
from offgrad.policies import Budget
from tests.session.backends import RecordingStore
from tests.session.graphs import Bits, bits
from tests.session.helpers import alive, wait_until

KIB64 = 128 * 128 * 4
"""Bytes of a [128, 128] tensor: from this size on, every array is counted when it is made."""


MANY = 1 << 40
"""A budget that is never used up."""


class ShapeStore(RecordingStore):
    """Logs the shapes of the arrays put, so that a test can tell which arrays were evicted."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def put(self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None) -> Handle:
        """Put `array`, then log its shape."""
        handle = super().put(array, attributes=attributes)
        self.shapes.append(np.shape(array))
        return handle


def budget(nbytes: int, store: Any, **options: Any) -> offgrad.session.OffloadSession:
    """Return a session under a budget."""
    return offgrad.offload(Budget(nbytes, store), **options)


class Peaks:
    """The peak of the allocated bytes above those at the start, for each phase in turn."""

    def __init__(self) -> None:
        self.base = memory.allocated()
        self.max_nbytes = [0]

    def next(self, _: Any = None) -> None:
        """Begin the next phase. As a hook, it leaves the gradient as it is."""
        self.max_nbytes.append(memory.allocated() - self.base)

    def __call__(self, nbytes: int) -> None:
        """Record a change of the allocated bytes; those of other threads may come a phase late."""
        if threading.current_thread() is threading.main_thread():
            self.max_nbytes[-1] = max(self.max_nbytes[-1], nbytes - self.base)


Program = Callable[[Peaks], Any]
"""Returns a scalar; begins a phase after each op and, by hooks, with each gradient."""


def chain(x: Any, count: int) -> Program:
    """Return a program that saves `count` results of `x`'s shape."""

    def program(peaks: Peaks) -> Any:
        y = x
        for _ in range(count):
            y = y.tanh()
            y.register_hook(peaks.next)
            peaks.next()
        return y.sum()

    return program


def as_bytes() -> AbstractContextManager[Any]:
    """Keep no tensor memory for backward: saved tensors become bytes objects."""

    def pack(tensor: Any) -> Any:
        array = tensor.detach().numpy()
        return array.tobytes(), array.dtype, array.shape

    def unpack(packed: Any) -> Any:
        data, dtype, shape = packed
        return offgrad.tensor(np.frombuffer(data, dtype).reshape(shape))

    return saved_tensors_hooks(pack, unpack)


def measure(
    program: Program, leaves: list[Any], session: AbstractContextManager[Any], backwards: int = 1
) -> tuple[list[int], Bits]:
    """Return the peak of each phase of forward and backward, and loss and gradients.

    It ends when all memory of the run is freed. An I/O thread may hold a dropped array until its
    write ends; freed in the middle of the next run, the array would be missing from its peaks.
    """
    for each in leaves:
        each.grad = None
    peaks = Peaks()
    with memory.observe(peaks):
        with session:
            loss = program(peaks)
        for index in range(backwards):
            peaks.next()
            loss.backward(retain_graph=index < backwards - 1)
        peaks.next()
    found = bits(loss, *(each.grad for each in leaves))
    for each in leaves:
        each.grad = None
    del loss
    base = peaks.base
    wait_until(lambda: memory.allocated() <= base or alive() <= base, "memory is held")
    return peaks.max_nbytes, found


def check_bound(
    program: Program,
    leaves: list[Any],
    session: AbstractContextManager[Any],
    nbytes: int,
    backwards: int = 1,
) -> None:
    """Assert that no phase under `session` takes more than `nbytes` above its own need."""
    gc.collect()
    gc.disable()  # its collections would change the peaks of either run
    try:
        needed, expected = measure(program, leaves, as_bytes(), backwards)
        peaks, found = measure(program, leaves, session, backwards)
    finally:
        gc.enable()
    assert found == expected
    assert len(peaks) == len(needed)
    over = {
        phase: (peak - need, nbytes)
        for phase, (peak, need) in enumerate(zip(peaks, needed, strict=True))
        if peak - need > nbytes
    }
    assert not over, f"bytes held by phase, and allowed: {over}; needed: {needed}; peaks: {peaks}"
