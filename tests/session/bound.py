"""A budget is a bound: the most memory of each op, against that of a run which holds nothing."""

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
"""A budget that is never spent."""


class ShapeStore(RecordingStore):
    """Logs the shapes of what is put, so that a test can tell what made way."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def put(self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None) -> Handle:
        """Log it, once it is put."""
        handle = super().put(array, attributes=attributes)
        self.shapes.append(np.shape(array))
        return handle


def budget(nbytes: int, store: Any, **options: Any) -> offgrad.session.OffloadSession:
    """Return a session under a budget."""
    return offgrad.offload(Budget(nbytes, store), **options)


class Peaks:
    """The most bytes allocated above those at the start, of each phase in turn."""

    def __init__(self) -> None:
        self.base = memory.allocated()
        self.most = [0]

    def next(self, _: Any = None) -> None:
        """Begin the next phase. As a hook, it leaves the gradient as it is."""
        self.most.append(memory.allocated() - self.base)

    def __call__(self, nbytes: int) -> None:
        """Take note of a change; what other threads free, they may report a phase too late."""
        if threading.current_thread() is threading.main_thread():
            self.most[-1] = max(self.most[-1], nbytes - self.base)


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


def away() -> AbstractContextManager[Any]:
    """Hold no tensor memory for backward at all: what is saved goes to bytes objects."""

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
    """Return the peak of each phase of forward and backward, and loss and gradients."""
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
    return peaks.most, found


def check_bound(
    program: Program,
    leaves: list[Any],
    session: AbstractContextManager[Any],
    nbytes: int,
    backwards: int = 1,
) -> None:
    """Assert that under `session` no phase takes more than `nbytes` above what it needs itself."""
    before = alive()
    gc.disable()  # what it frees is no part of either run
    try:
        needed, expected = measure(program, leaves, away(), backwards)
        most, found = measure(program, leaves, session, backwards)
    finally:
        gc.enable()
    assert found == expected
    assert len(most) == len(needed)
    over = {
        phase: (mine - least, nbytes)
        for phase, (mine, least) in enumerate(zip(most, needed, strict=True))
        if mine - least > nbytes
    }
    wait_until(lambda: alive() <= before, "memory is held")  # by I/O threads, for a moment
    assert not over, f"bytes held by phase, and allowed: {over}; needed: {needed}; most: {most}"
