"""Budgets on stores that fail: which op raises, which tensors stay, and that none is lost."""

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from offgrad_storage import (
    BackendStore,
    DiskStore,
    Entry,
    QuotaExceededError,
    StoreError,
    StoreFullError,
)

import offgrad
from offgrad import memory
from offgrad.memory import OutOfMemoryError
from offgrad.policies import Last, Offload
from tests.session.backends import SECONDS, MemoryBackend, memory_store
from tests.session.bound import KIB64, MANY, budget
from tests.session.graphs import bits, normal
from tests.session.helpers import alive, settle, unary_chain, wait_until

BROKEN = "the drive is broken"


class Failing(MemoryBackend):
    """Fails to write the arrays with the given serial numbers."""

    def __init__(self, *serials: int) -> None:
        super().__init__()
        self.serials: Any = serials

    def write(self, entry: Entry, array: NDArray[Any]) -> int:
        """Write, or fail."""
        if entry.serial in self.serials:
            if not self.gate.wait(60):
                raise OSError("the gate stayed closed")
            raise OSError(5, BROKEN)
        return super().write(entry, array)


@contextmanager
def failing(backend: Failing) -> Iterator[BackendStore]:
    """Open a store; ignore failed writes of arrays that are gone."""
    with closed_quietly(memory_store(backend)) as store:
        yield store


@contextmanager
def closed_quietly(store: BackendStore) -> Iterator[BackendStore]:
    """Close `store` at the end; ignore failed writes of arrays that died while they ran."""
    try:
        yield store
    finally:
        with suppress(StoreError):
            store.close()


def fails(session: Any, x: Any, count: int, words: str = BROKEN) -> type[BaseException]:
    """Return the error type of a forward pass under `session`; drop its graph."""
    with pytest.raises(Exception, match=words) as caught, session:
        unary_chain(x, count)
    kind = caught.type
    caught.value.__traceback__ = None
    return kind


def expected(x: Any, count: int) -> Any:
    """Return the gradient of a chain."""
    z = x.detach().requires_grad_()
    unary_chain(z, count).backward()
    return bits(z.grad)


def test_a_failed_write_is_an_error_of_the_op_that_needs_memory_and_nothing_is_lost() -> None:
    x, y, z = (normal(seed, 64, 64) for seed in range(3))
    backend = Failing(*range(2, 100))
    with failing(backend) as store:
        session = budget(2 * 16384, store)
        with session:
            good, kept = unary_chain(x, 2), unary_chain(y, 2)
        for _ in range(2):
            assert fails(session, z, 2) is StoreError
        backend.serials = ()
        with session:  # the earlier error is not raised again
            fine = unary_chain(z, 2)
        for loss, leaf in ((good, x), (kept, y), (fine, z)):
            loss.backward()
            assert bits(leaf.grad) == expected(leaf, 2)
        del good, kept, fine, loss
        wait_until(lambda: not store.stats().live_handles, "handles are alive")


@pytest.mark.parametrize("tensors", [1, 2, 5])
def test_a_store_that_starts_to_refuse_writes_loses_nothing(tensors: int) -> None:
    x, y = normal(1, 128, 128), normal(2, 128, 128)
    backend = Failing()
    base = alive()
    with failing(backend) as store:
        session = budget(tensors * KIB64, store)
        with session:
            loss = unary_chain(x, 8)
        settle(store)
        backend.serials = range(1 << 30)
        for _ in range(4):
            assert fails(session, y, 2 * tensors) is StoreError
        assert alive() - base <= tensors * KIB64 + 4096
        loss.backward()
        assert bits(x.grad) == expected(x, 8)
        x.grad = None
        backend.serials = ()
        with session:
            loss = unary_chain(y, 8)
        loss.backward()
        assert bits(y.grad) == expected(y, 8)
        y.grad = None
        del loss
        wait_until(lambda: not store.stats().live_handles, "handles are alive")
    assert alive() <= base


def test_a_failed_early_write_is_ignored() -> None:
    """Writes begin before the memory is needed; if it never is, no error is raised."""
    x, z = normal(1, 128, 128), normal(2, 128, 128)
    backend = Failing()
    with failing(backend) as store:
        session = budget(8 * KIB64, store)
        with session:
            first = unary_chain(x, 12)
        first.backward()
        assert bits(x.grad) == expected(x, 12)
        settle(store)
        backend.serials = range(1 << 30)
        del first
        with session:
            loss = unary_chain(z, 7)
        settle(store)
        loss.backward()
        assert bits(z.grad) == expected(z, 7)
        del loss


def test_a_tensor_too_large_for_the_budget_is_an_error_of_its_op() -> None:
    x = normal(1, 64, 64)
    with failing(Failing(1)) as store:
        session = budget(1000, store)
        assert fails(session, x, 3) is StoreError
        with session:
            loss = unary_chain(x, 3)
        loss.backward()
        assert bits(x.grad) == expected(x, 3)
        del loss


def test_last_keeps_its_tensors_if_the_others_cannot_be_written() -> None:
    x, y = normal(1, 64, 64), normal(2, 64, 64)
    with failing(Failing(0)) as store:
        session = offgrad.offload(Last(2, Offload(store, min_nbytes=0)))
        with session:
            loss = unary_chain(x, 3)
        settle(store)
        assert fails(session, y, 1) is StoreError
        loss.backward()
        assert bits(x.grad) == expected(x, 3)
        del loss


def test_tensors_whose_rounded_write_fails_stay_exact(tmp_path: Path) -> None:
    """The tensor in memory is exact; backward reads nothing."""
    x = normal(1, 64, 64)
    with DiskStore(tmp_path, codec="int8", pack_below_nbytes=0, allocate=memory.empty) as store:
        session = offgrad.offload(Last(0, Offload(store, min_nbytes=0)))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        try:
            with session:
                loss = unary_chain(x, 1)
            settle(store)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        loss.backward()
        assert bits(x.grad) == expected(x, 1)
        assert session.ledger.reads == 0
        del loss


def test_a_change_in_place_whose_write_fails_does_not_happen() -> None:
    w, start = normal(1, 64, 64), normal(2, 64, 64, grad=False)
    value = start.numpy().copy()
    with failing(Failing(0, 1)) as store:
        with budget(MANY, store):
            loss = (start * w).sum()
        for _ in range(2):
            with pytest.raises(StoreError, match=BROKEN):
                start.mul_(2)
            assert start.numpy().tobytes() == value.tobytes()
        loss.backward(retain_graph=True)
        assert w.grad.numpy().tobytes() == value.tobytes()
        w.grad = None
        start.mul_(2)
        assert start.numpy().tobytes() == (value * 2).tobytes()
        loss.backward()
        assert w.grad.numpy().tobytes() == value.tobytes()
        del loss


class Delayed(BackendStore):
    """Holds one thread up after its wait for a write.

    Attributes:
        thread: the thread.
        is_waiting: set when it begins to wait.
        goes_on: set to let it go on.
    """

    def __init__(self, backend: Failing) -> None:
        super().__init__(backend, threads=1, allocate=memory.empty)
        self.thread: threading.Thread | None = None
        self.is_waiting, self.goes_on = threading.Event(), threading.Event()

    def _wait_written(self, entry: Entry) -> None:
        is_delayed = threading.current_thread() is self.thread
        if is_delayed:
            self.is_waiting.set()
        super()._wait_written(entry)
        if is_delayed:
            self.goes_on.wait(SECONDS)


def test_a_change_in_place_whose_failed_write_another_thread_reports_is_written_again() -> None:
    w, start, z = normal(1, 64, 64), normal(2, 64, 64, grad=False), normal(3, 64, 64)
    value = start.numpy().copy()
    backend = Failing(*range(100))
    backend.gate.clear()
    with Delayed(backend) as store:
        session = budget(16384, store)
        with session:
            loss = (start * w).sum()
        store.thread = threading.Thread(target=lambda: start.mul_(2))
        store.thread.start()
        assert store.is_waiting.wait(SECONDS)
        backend.gate.set()
        assert fails(session, z, 2) is StoreError
        backend.serials = ()
        store.goes_on.set()
        store.thread.join()
        assert start.numpy().tobytes() == (value * 2).tobytes()
        loss.backward()
        assert w.grad.numpy().tobytes() == value.tobytes()
        del loss


def test_after_a_failed_write_of_one_part_the_other_parts_stay_stored() -> None:
    start = normal(1, 64, 64, grad=False)
    w, v = normal(2, 32, 64), normal(3, 32, 64)
    value = start.numpy().copy()
    with failing(Failing(1)) as store:
        with budget(MANY, store):
            loss = (start[:32] * w).sum() + (start[32:] * v).sum()
        with pytest.raises(StoreError, match=BROKEN):
            start.zero_()
        assert store.stats().puts == 2
        start.zero_()
        assert store.stats().puts == 3, "only the failed part is rewritten"
        loss.backward()
        assert np.array_equal(w.grad.numpy(), value[:32])
        assert np.array_equal(v.grad.numpy(), value[32:])
        del loss


def test_a_graph_dropped_while_its_write_is_about_to_fail_leaves_nothing() -> None:
    x = normal(1, 128, 128)
    backend = Failing(*range(100))
    base = alive()
    with failing(backend) as store:
        backend.gate.clear()
        with offgrad.offload(Last(0, Offload(store, min_nbytes=0))):
            loss = unary_chain(x, 3)
        del loss
        backend.gate.set()
        wait_until(lambda: not store.stats().live_handles, "handles are alive")
        wait_until(lambda: memory.allocated() <= base, "memory is held")


def test_the_ledger_counts_no_bytes_for_a_failed_write() -> None:
    x = normal(1, 32, 32)
    backend = Failing(0)
    with failing(backend) as store:
        backend.gate.clear()  # the second put would raise the error of the first write
        with offgrad.offload(Last(0, Offload(store, min_nbytes=0))) as session:
            loss = unary_chain(x, 2)
        backend.gate.set()
        settle(store)
        loss.backward()
        ledger = session.ledger
        assert (ledger.writes, ledger.encoded_nbytes, ledger.stored_nbytes) == (2, 4096, 4096)
        assert ledger.reads == 1
        del loss
        assert session.ledger.stored_nbytes == 4096


@pytest.mark.parametrize("pack_below_nbytes", [0, 1 << 20])
def test_a_full_disk_is_an_error_of_forward(tmp_path: Path, pack_below_nbytes: int) -> None:
    """A limit on the file size stands for it."""
    x, y = normal(1, 256, 256), normal(2, 256, 256)
    # With few bytes in flight the second pack waits for the first, and the third raises: enough
    # tensors for three packs of 4 MiB.
    disk = DiskStore(
        tmp_path,
        pack_below_nbytes=pack_below_nbytes,
        inflight_nbytes=1 << 20,
        allocate=memory.empty,
    )
    with closed_quietly(disk) as store:
        session = budget(2 << 18, store)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        with session:
            loss = unary_chain(x, 4)
        store.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, hard))
        try:
            for _ in range(2):
                assert fails(session, y, 60, "File too large") is StoreFullError
            loss.backward()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert bits(x.grad) == expected(x, 4)
        with session:
            loss = unary_chain(y, 6)
        loss.backward()
        assert bits(y.grad) == expected(y, 6)
        del loss


# Running out of memory


def runs_out(session: Any, x: Any, count: int) -> BaseException | None:
    """Return the cause of the `OutOfMemoryError` of a forward pass."""
    with pytest.raises(OutOfMemoryError, match="limited to") as caught, session:
        unary_chain(x, count)
    caught.value.__traceback__ = None
    return caught.value.__cause__


def test_out_of_memory_with_a_full_store_is_out_of_memory(tmp_path: Path) -> None:
    x, y = normal(1, 128, 128), normal(2, 128, 128)
    with DiskStore(tmp_path, quota=3 * KIB64, pack_below_nbytes=0, allocate=memory.empty) as store:
        session = budget(MANY, store)
        with memory.limit(alive() + 8 * KIB64):
            with session:
                loss = unary_chain(x, 6)
            cause = runs_out(session, y, 12)
            assert isinstance(cause, QuotaExceededError), cause
        loss.backward()
        assert bits(x.grad) == expected(x, 6)
        del loss


def test_out_of_memory_with_a_broken_store_is_out_of_memory() -> None:
    x, y = normal(1, 128, 128), normal(2, 128, 128)
    backend = Failing(*range(100))
    with failing(backend) as store:
        session = budget(MANY, store)
        with memory.limit(alive() + 8 * KIB64):
            with session:
                loss = unary_chain(x, 5)
            cause = runs_out(session, y, 12)
            assert isinstance(cause, StoreError)
            assert BROKEN in str(cause)
        loss.backward()
        assert bits(x.grad) == expected(x, 5)
        del loss


def test_one_failed_write_does_not_stop_others_from_freeing_memory() -> None:
    x = normal(1, 128, 128)
    with failing(Failing(0)) as store:
        session = budget(MANY, store)
        with memory.limit(alive() + 8 * KIB64):
            with session:
                loss = unary_chain(x, 12)
            loss.backward()
        assert bits(x.grad) == expected(x, 12)
        del loss
