"""After random actions the count is the sum of what lives, and the peak is the highest sum."""

import contextlib
import gc
import os
import random
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from offgrad_storage.testing.helpers import run_in_fork

import offgrad
from offgrad import memory
from offgrad.memory import OutOfMemoryError
from offgrad.policies import Budget
from tests.session.backends import MemoryBackend, memory_store
from tests.session.helpers import alive, everything, in_threads, settle, wait_until

SIZES = [0, 1, 100, 16_383, 16_384, 20_000, 50_000]  # float32: around POOL_THRESHOLD


@pytest.fixture
def _hostile_interpreter() -> Iterator[None]:
    """Collections at each chance, and threads that switch all the time."""
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(1, 1, 1)
    gc.enable()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)


class Model:
    """The tensors of one thread, and their exact bytes and peak."""

    def __init__(self) -> None:
        self.base = memory.allocated()
        self.groups: list[list[Any]] = []  # each has one storage
        self.nbytes = 0
        self.peak = 0

    def grow(self, tensor: Any) -> None:
        self.groups.append([tensor])
        self.nbytes += tensor.nbytes
        self.peak = max(self.peak, self.nbytes)

    def act(self, choose: random.Random) -> None:
        """Do something to a random tensor."""
        action = choose.choice(["make", "make", "view", "drop", "drop", "refuse", "reset", "cycle"])
        if action == "make":
            self.grow(offgrad.empty(choose.choice(SIZES)))
        elif action == "refuse":
            size = choose.choice(SIZES[1:])
            with (
                memory.limit(self.base + self.nbytes + 4 * size - 1),
                pytest.raises(OutOfMemoryError),
            ):
                offgrad.empty(size)
        elif action == "reset":
            memory.reset_peak()
            self.peak = self.nbytes
        elif self.groups:
            index = choose.randrange(len(self.groups))
            group = self.groups[index]
            if action == "view":
                group.append(group[0].view(-1)[: choose.randrange(1, 100)])
            elif action == "cycle":
                group.append(group)
            else:
                del self.groups[index]
                nbytes = group[0]._storage.root.nbytes
                if any(each is group for each in group):
                    del group
                    gc.collect()
                self.nbytes -= nbytes


@pytest.mark.parametrize("seed", range(10))
def test_count_and_peak_of_one_thread(seed: int) -> None:
    choose = random.Random(seed)
    memory.reset_peak()
    model = Model()
    for _ in range(150):
        model.act(choose)
        assert memory.allocated() == model.base + model.nbytes
        assert memory.max_allocated() == model.base + model.peak
    model.groups.clear()
    gc.collect()
    assert memory.allocated() == model.base


@pytest.mark.usefixtures("_hostile_interpreter")
def test_count_of_many_threads_that_hand_tensors_to_each_other() -> None:
    base = alive()
    memory.reset_peak()
    mail: deque[Any] = deque()
    kept: list[list[Any]] = [[] for _ in range(4)]

    def work(seed: int) -> None:
        choose, mine = random.Random(seed), kept[seed]
        for _ in range(120):
            tensor = offgrad.empty(choose.choice(SIZES))
            if choose.random() < 0.3:
                cycle = [tensor]
                cycle.append(cycle)  # type: ignore[arg-type]
            mine.append(tensor)
            if choose.random() < 0.3:
                mail.append(mine.pop())
            if mail and choose.random() < 0.3:
                with contextlib.suppress(IndexError):  # another thread took it
                    mine.append(mail.pop()[:1])
            if len(mine) > 5:
                del mine[choose.randrange(len(mine))]
            assert memory.allocated() >= base + tensor.nbytes

    in_threads(*[lambda seed=seed: work(seed) for seed in range(4)])
    gc.collect()
    storages = {each._storage for group in (*kept, mail) for each in group}
    held = sum(storage.root.nbytes for storage in storages)
    assert memory.allocated() == base + held
    assert memory.max_allocated() >= base + held
    del storages
    kept.clear()
    mail.clear()
    assert memory.allocated() == base


@pytest.mark.usefixtures("_hostile_interpreter")
@pytest.mark.parametrize("kind", ["everything", "budget"])
def test_nothing_is_counted_after_sessions_of_many_threads(kind: str) -> None:
    base = alive()
    with memory_store(MemoryBackend(), threads=2) as store:
        session = (
            everything(store) if kind == "everything" else offgrad.offload(Budget(1 << 18, store))
        )

        def work(seed: int) -> None:
            size = 40 if seed % 2 else 140
            for step in range(6):
                w = offgrad.ones(size, size, requires_grad=True)
                x = offgrad.full((size, size), float(seed + step))
                with session:
                    loss = (x * w).sum() + (x[:, ::2] * w[:, ::2]).sum() + w.exp().sum() * 0
                    if step % 3 == 0:
                        del x
                    elif step % 3 == 1:
                        x.zero_()
                    loss = loss + (w * 2).tanh().sum() * 0
                loss.backward()
                assert w.grad is not None
                assert w.grad[0, 0].item() == 2 * (seed + step)

        in_threads(*[lambda seed=seed: work(seed) for seed in range(4)])
        settle(store)
        wait_until(lambda: alive() <= base, "memory is held")
        assert memory.allocated() == base
        wait_until(lambda: not store.stats().live_handles, "handles are alive")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.usefixtures("_hostile_interpreter")
def test_forked_children_count_on_while_other_threads_allocate() -> None:
    base = alive()
    mine = [offgrad.ones(20_000), offgrad.ones(5)]
    stop = threading.Event()
    codes: list[int] = []

    def allocate() -> None:
        while not stop.is_set():
            offgrad.ones(20_000)
            offgrad.ones(7)

    def use() -> None:
        gc.collect()
        memory.reset_peak()
        held = memory.allocated()  # the tensors of threads that are no more included
        with memory.limit(held + 80_000):
            tensor = offgrad.ones(20_000)
            assert memory.allocated() == held + 80_000
            with pytest.raises(OutOfMemoryError):
                offgrad.ones(1)
        del tensor
        mine.clear()
        assert memory.allocated() == held - 80_020
        assert memory.max_allocated() == held + 80_000

    def fork() -> None:
        try:
            codes.extend(run_in_fork(use) for _ in range(15))
        finally:
            stop.set()

    in_threads(allocate, allocate, fork)
    assert codes == [0] * 15
    mine.clear()
    assert alive() == base
