"""Passes end with the frame that holds them; memory that dies is counted until it is free."""

import gc
import threading
from typing import Any
from weakref import ref

import pytest

import offgrad
from offgrad import memory
from offgrad.memory import Storage
from offgrad.policies import Budget, Offload
from offgrad.session.cached_storage import CachedStorage, StoreWrite
from offgrad.session.saved_array import SavedArray
from offgrad.session.states import Evicting, InMemory, Recomputed, Stored
from tests.session.backends import MemoryBackend, RecordingStore, memory_store
from tests.session.bound import KIB64, budget
from tests.session.graphs import bits, normal
from tests.session.helpers import alive, everything, in_threads, unary_chain, wait_until


def packed(loss: Any) -> list[Any]:
    """Return what a session packed for the graph of `loss`, in the order of use."""
    found, node = [], loss.grad_fn
    while node is not None:
        found += [each.packed[1] for each in node.saves() if each.packed is not None]
        node = node.next_functions[0][0] if node.next_functions else None
    return found


def test_a_pass_whose_end_is_never_called_ends_with_its_frame(store: RecordingStore) -> None:
    """As after an interrupt between `plan` and the engine's note of the function it returns."""
    x = normal(1, 128, 128)
    session = everything(store, prefetch_nbytes=2 * KIB64)
    with session:
        loss = unary_chain(x, 6)
    store.flush()
    held = alive()
    finish = session.plan(packed(loss))
    assert store.all("prefetch") == [5, 4]
    assert sum(session.held_by_purpose().values()) == 2 * KIB64
    del finish
    assert not session._passes.live()
    with session:  # the next use gives the buffers back
        x.tanh()
    assert session._passes._running == []
    assert sum(session.held_by_purpose().values()) == 0
    store.flush()
    assert alive() <= held
    loss.backward()
    z = normal(1, 128, 128)
    unary_chain(z, 6).backward()
    assert bits(x.grad) == bits(z.grad)


def test_a_budget_forgets_the_order_of_a_pass_that_died() -> None:
    x = normal(1, 128, 128)
    with memory_store(MemoryBackend()) as store:
        session = budget(3 * KIB64, store)
        with session:
            loss = unary_chain(x, 6)
        finish = session.plan(packed(loss))
        (of_session,) = session._budgets
        assert of_session._passes == 1
        del finish
        loss.backward()
        assert of_session._passes == 0
        assert not of_session._order._planned


@pytest.mark.parametrize("dies", ["at once", "in a cycle"])
def test_room_is_counted_as_free_after_its_memory(dies: str) -> None:
    """Never before: another thread may take the room at once."""
    with memory_store(MemoryBackend()) as store:
        session = budget(4 * KIB64, store)
        with session:
            loss: Any = normal(1, 128, 128).tanh().sum()
        (of_session,) = session._budgets
        (room,) = of_session._rooms.values()
        cached = room.cached()
        assert cached is not None
        storage = ref(cached.storage)
        seen: list[bool] = []

        class Freed:
            """Stands for the queue of freed rooms: looks at the memory when the room dies."""

            def append(self, _: Any) -> None:
                seen.append(storage() is None)

        watcher = ref(cached.token, Freed().append)
        del cached
        if dies == "in a cycle":
            cycle = [loss]
            cycle.append(cycle)
            del cycle
        del loss
        gc.collect()
        assert seen == [True]
        assert watcher() is None
        assert of_session.held_nbytes == 0


def test_a_write_of_a_dead_array_is_pending_until_its_memory_is_free() -> None:
    data = memory.empty((128, 128))
    storage = Storage(data)
    write = StoreWrite()
    source = write.source(data)
    assert source.base is not None
    assert write.is_pending
    died = ref(storage)
    del data, storage
    assert write.is_pending
    del source
    assert died() is None
    assert not write.is_pending


def test_a_saved_array_refuses_an_illegal_transition() -> None:
    session: Any = offgrad.offload("keep")
    saved = SavedArray(memory.empty((4,)), ("", "", ""), session._ledger, True)
    cached: CachedStorage = object.__new__(CachedStorage)
    handle: Any = object()
    saved.enter(InMemory(cached))
    for state in (InMemory(cached), Stored(handle), None):
        with pytest.raises(RuntimeError, match="InMemory cannot enter"):
            saved.enter(state)
    saved.enter(Evicting(cached, None))
    saved.enter(Evicting(cached, Stored(handle)))
    saved.enter(Stored(handle))
    recomputation: Any = object()
    with pytest.raises(RuntimeError, match="Stored cannot enter Recomputed"):
        saved.enter(Recomputed(recomputation))


@pytest.mark.usefixtures("eager_switching")
@pytest.mark.parametrize("policy", ["budget", "disk"])
def test_graphs_that_die_in_other_threads(policy: str, named_stores: str) -> None:
    """Threads with one budget, whose graphs are dropped at any moment."""
    policies = {"budget": Budget(3 * KIB64, "pool"), "disk": Offload("disk", min_nbytes=0)}
    session: Any = offgrad.offload(policies[policy], directory=named_stores)
    dropped: list[Any] = []
    stop = threading.Event()

    def drop() -> None:
        while not stop.is_set() or dropped:
            if dropped:
                dropped.pop()

    def work(seed: int) -> None:
        try:
            for step in range(60):
                with session:
                    dropped.append(unary_chain(normal(seed + step, 128, 128), 6))
        finally:
            stop.set()

    in_threads(lambda: work(0), lambda: work(100), drop, drop)
    dropped.clear()
    if policy == "budget":
        (of_session,) = session._budgets
        wait_until(lambda: not of_session.held_nbytes, "the budget holds memory")


def test_a_thread_that_waits_for_a_write_does_not_block_the_session() -> None:
    """Another thread saves, and reads, while a save waits for room."""
    backend = MemoryBackend()
    x, y = normal(1, 128, 128), normal(2, 128, 128)
    with memory_store(backend) as store:
        session = budget(2 * KIB64, store)
        with session:
            early = unary_chain(y, 1)
        backend.gate.clear()
        waiting = threading.Thread(target=lambda: _save(session, x))
        waiting.start()
        (of_session,) = session._budgets
        wait_until(lambda: of_session.is_evicting, "nothing is evicted")
        done: list[Any] = []

        def use() -> None:
            done.append(session.ledger.saves)
            early.backward()

        other = threading.Thread(target=use)
        other.start()
        other.join(30)
        was_blocked = other.is_alive()
        backend.gate.set()
        waiting.join(60)
        other.join(60)
        assert not was_blocked, "the session is locked while it waits for a write"
        assert done
    z = normal(2, 128, 128)
    unary_chain(z, 1).backward()
    assert bits(y.grad) == bits(z.grad)


def _save(session: Any, x: Any) -> None:
    with session:
        unary_chain(x, 4)
