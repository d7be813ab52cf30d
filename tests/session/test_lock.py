"""A session's lock is held briefly: no store is called with it, and no tensor memory allocated.

Stores wait for drives, and allocations for memory. Other threads of the session go on meanwhile.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
from numpy.typing import ArrayLike, NDArray
from offgrad_storage import BackendStore, Entry, Handle

import offgrad
from offgrad import memory
from offgrad.policies import Budget, Last, Offload, Recompute
from tests.session.backends import SECONDS, MemoryBackend, memory_store
from tests.session.graphs import bits, data, gradient, normal
from tests.session.helpers import everything


class WatchedStore(BackendStore):
    """Notes each call that waits, or may, with the lock of a session held.

    Attributes:
        calls: names of the methods called.
        locked: names of those called with the lock held.
    """

    def __init__(self) -> None:
        super().__init__(MemoryBackend(), threads=1, allocate=memory.empty, hold=memory.empty)
        self.session: Any = None
        self.calls: set[str] = set()
        self.locked: set[str] = set()
        self._allocated = 0

    def note(self, call: str) -> None:
        """Note a call."""
        self.calls.add(call)
        if self.session is not None and self.session.lock.is_owned:
            self.locked.add(call)

    def note_memory(self, nbytes: int) -> None:
        """Note an allocation: an observer of tensor memory."""
        if nbytes > self._allocated:
            self.note("allocate")
        self._allocated = nbytes

    def put(self, array: ArrayLike, *, attributes: Mapping[str, object] | None = None) -> Handle:
        """Note it."""
        self.note("put")
        return super().put(array, attributes=attributes)

    def get(self, handle: Handle, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Note it."""
        self.note("get")
        return super().get(handle, out)

    def prefetch(self, handle: Handle, out: NDArray[Any] | None = None) -> None:
        """Note it."""
        self.note("prefetch")
        super().prefetch(handle, out)

    def cancel_prefetch(self, handle: Handle) -> None:
        """Note it."""
        self.note("cancel_prefetch")
        super().cancel_prefetch(handle)

    def plan(self, order: Sequence[Handle]) -> None:
        """Note it."""
        self.note("plan")
        super().plan(order)

    def flush(self) -> None:
        """Note it."""
        self.note("flush")
        super().flush()

    def _wait_captured(self, entry: Entry) -> None:
        self.note("wait_captured")
        super()._wait_captured(entry)

    def _wait_written(self, entry: Entry) -> None:
        self.note("wait_written")
        super()._wait_written(entry)


@pytest.fixture
def watched() -> Iterator[WatchedStore]:
    """A store that notes calls with the lock held."""
    with WatchedStore() as store:
        yield store


def _step(session: Any, seed: int, change: bool = True) -> Any:
    """Save inputs that are held, dropped or changed, with and without gaps; run backward."""
    x, w = normal(seed, 192, 192), normal(seed + 1, 192, 192)
    changed, gaps, dropped = (data(seed + k, 192, 192) for k in (2, 3, 4))
    with session:
        loss = (changed * x + dropped * x).sum() + (gaps[:, ::2] * x[:, ::2]).sum()
        for k in range(4):
            loss = loss + ((x * w)[:, k::3].exp() * 2).sin().tanh().sum()
        if change:
            changed.mul_(2)
        del dropped
        gaps[:, ::2].sin()
        loss = loss + (w * 3).exp().sum()
    return gradient(loss, [x, w])


@pytest.mark.parametrize("limit", [None, "6MiB"])
@pytest.mark.parametrize("policy", ["store", "budget", "last", "recompute"])
def test_no_store_is_called_and_no_memory_allocated_with_the_lock_held(
    policy: str, limit: str | None, watched: WatchedStore
) -> None:
    store = Offload(watched, min_nbytes=0)
    policies = {
        "store": store,
        "budget": Budget(1 << 20, watched),
        "last": Last(2, store),
        "recompute": [Recompute(3, min_nbytes=0), store],
    }
    session = watched.session = offgrad.offload(policies[policy])
    expected = [bits(*_step(nullcontext(), seed, change=False)) for seed in (1, 11)]
    with ExitStack() as stack:
        stack.enter_context(memory.observe(watched.note_memory))
        if limit is not None:
            stack.enter_context(memory.limit(memory.allocated() + memory.parse_nbytes(limit)))
        assert [bits(*_step(session, seed)) for seed in (1, 11)] == expected
        session.reclaim()
    assert watched.calls >= {"put", "get", "prefetch", "plan", "allocate"}
    assert watched.locked == set()


def test_reclaim_cancels_prefetches_without_the_lock(watched: WatchedStore) -> None:
    x = normal(1, 192, 192)
    session = watched.session = everything(watched)
    with session:
        loss = x.exp().sin().tanh().sum()
    x.register_hook(lambda grad: None)
    loss.grad_fn.next_functions[0][0].register_hook(lambda *_: session.reclaim() and None)
    loss.backward()
    assert "cancel_prefetch" in watched.calls
    assert watched.locked == set()


class CallingBackend(MemoryBackend):
    """Calls a function in each write."""

    call: Callable[[], object] = staticmethod(lambda: None)

    def write(self, entry: Entry, array: NDArray[Any]) -> int:
        """Call, then write."""
        self.call()
        return super().write(entry, array)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("then", ["changed", "dropped"])
def test_a_write_may_use_the_session(then: str, gaps: bool) -> None:
    """An I/O thread that waited for the lock would be waited for by its holder."""
    backend = CallingBackend()
    w = normal(2, 64, 64)
    part = (slice(None), slice(None, None, 2 if gaps else 1))
    used: list[bool] = []

    def use() -> None:
        thread = threading.Thread(target=lambda: session.ledger, daemon=True)
        thread.start()
        thread.join(SECONDS / 10)
        used.append(not thread.is_alive())

    def product(x: Any, y: Any) -> Any:
        return (x[part] * w[part] + y[part] * w[part]).sum()

    x, y = data(1, 64, 64), data(3, 64, 64)
    expected = bits(*gradient(product(x, y), w))
    # One array in flight: the put of the second waits for the write of the first.
    store = BackendStore(backend, threads=1, inflight_nbytes=1, allocate=memory.empty)
    with store, everything(store) as session:
        backend.call = use
        loss = product(x, y)
        if then == "changed":
            x.mul_(2)
        del x, y
        w.exp()
        store.flush()
        assert bits(*gradient(loss, w)) == expected
    assert len(used) >= 2
    assert all(used)


def test_other_threads_use_a_session_while_a_change_waits_for_its_write() -> None:
    backend = MemoryBackend()
    x, w = data(1, 64, 64), normal(2, 64, 64)
    expected = bits(x)
    with memory_store(backend) as store:
        session = everything(store)
        with session:
            loss = (x * w).sum()
        backend.gate.clear()
        changing = threading.Thread(target=lambda: x.mul_(2))
        changing.start()
        while not store.stats().inflight_nbytes:
            pass
        done = threading.Event()

        def step() -> None:
            with session:
                other = (normal(3, 64, 64) * data(4, 64, 64)).sum()
            other.backward()
            done.set()

        other = threading.Thread(target=step)
        other.start()
        is_free = done.wait(SECONDS / 10)
        backend.gate.set()
        changing.join()
        other.join()
        assert is_free
        assert bits(*gradient(loss, w)) == expected
