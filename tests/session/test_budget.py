"""Budget and Last: how much stays in memory, which entries are evicted, and their bits."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from offgrad_storage import DiskStore, Entry

import offgrad
from offgrad import memory, nn
from offgrad.autograd import Function, grad
from offgrad.policies import Last, Offload
from tests.session.backends import SECONDS, MemoryBackend, RecordingStore, memory_store
from tests.session.bound import (
    KIB64,
    MANY,
    Peaks,
    Program,
    ShapeStore,
    budget,
    chain,
    check_bound,
    measure,
)
from tests.session.graphs import normal
from tests.session.helpers import alive, everything, settle, unary_chain, wait_until


class Starting(MemoryBackend):
    """Signals the start of each write."""

    def __init__(self) -> None:
        super().__init__()
        self.started = threading.Semaphore(0)

    def write(self, entry: Entry, array: NDArray[Any]) -> int:
        """Signal, then write."""
        self.started.release()
        return super().write(entry, array)


def results(*rows: int) -> list[Any]:
    """Return scalars, each with a graph that holds one [rows, 32] result of a Tanh."""
    return [normal(each, each, 32).tanh().sum() for each in rows]


# The bound


@pytest.mark.parametrize("delay", [0.0, 0.002])
@pytest.mark.parametrize("tensors", [0, 0.5, 1, 1.5, 2, 3, 4.75, 12])
def test_a_chain_holds_no_more_than_the_budget(tensors: float, delay: float) -> None:
    x, nbytes = normal(1, 128, 128), int(tensors * KIB64)
    with memory_store(MemoryBackend(delay), threads=2) as store:
        session = budget(nbytes, store)
        check_bound(chain(x, 12), [x], session, nbytes)
        check_bound(chain(x, 12), [x], session, nbytes, backwards=3)
        wait_until(lambda: not store.stats().live_handles, "handles are alive")


@pytest.mark.parametrize("nbytes", [0, KIB64, 4 * KIB64])
def test_the_bound_holds_on_disk_with_a_large_prefetch_window(nbytes: int, tmp_path: Any) -> None:
    x = normal(1, 128, 256)
    with DiskStore(tmp_path, allocate=memory.empty) as store:
        check_bound(chain(x, 10), [x], budget(nbytes, store, prefetch_nbytes="1GiB"), nbytes)
    assert not store.stats().live_handles


def test_a_measured_run_ends_when_io_threads_hold_nothing_of_it() -> None:
    """Else the next run would be measured from a base that falls while it runs."""
    x, backend = normal(1, 128, 128), Starting()

    def program(peaks: Peaks) -> Any:
        loss = x.tanh().sum()
        assert backend.started.acquire(timeout=SECONDS)  # a write that has begun cannot be dropped
        return loss

    with memory_store(backend) as store:
        before = memory.allocated()
        backend.gate.clear()
        opened = threading.Timer(0.2, backend.gate.set)
        opened.start()
        measure(program, [x], everything(store))
        assert memory.allocated() == before
        opened.join()


class Reentrant(Function):
    """tanh(tanh(x)); backward recomputes it with a graph and runs backward through that."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.tanh().tanh()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        with offgrad.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            x.tanh().tanh().backward(grads[0])
        return x.grad


def reentrant(x: Any) -> Program:
    def program(peaks: Peaks) -> Any:
        y = x
        for _ in range(5):
            y = Reentrant.apply(y.tanh())
            y.register_hook(peaks.next)
            peaks.next()
        return y.sum()

    return program


def twice(x: Any) -> Program:
    def program(peaks: Peaks) -> Any:
        (first,) = grad(chain(x, 5)(peaks), [x], create_graph=True)
        peaks.next()
        assert first is not None
        return first.square().sum()

    return program


def inside(program: Program) -> Program:
    """Return a program that also runs backward inside the session."""

    def run(peaks: Peaks) -> Any:
        loss = program(peaks)
        peaks.next()
        loss.backward(retain_graph=True)
        return loss

    return run


@pytest.mark.parametrize("tensors", [0, 1, 3, 8])
@pytest.mark.parametrize("make", [reentrant, twice])
def test_backward_that_saves_holds_no_more_than_the_budget(
    make: Callable[[Any], Program], tensors: int
) -> None:
    x, nbytes = normal(1, 128, 128), tensors * KIB64
    with memory_store(MemoryBackend(), threads=2) as store:
        check_bound(make(x), [x], budget(nbytes, store), nbytes, backwards=2)
        check_bound(inside(make(x)), [x], budget(nbytes, store), nbytes)
        wait_until(lambda: not store.stats().live_handles, "handles are alive")


class Unused(Function):
    """x * 1; saves the result, and backward does not read it."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        result = x * 1
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 1


class SlowReads(MemoryBackend):
    """Holds the buffer of a read for a while; counts the reads that have begun."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.started = threading.Semaphore(0)

    def read(self, entry: Entry, out: NDArray[Any]) -> None:
        """Wait, and read."""
        self.started.release()
        time.sleep(self.seconds)
        super().read(entry, out)


@pytest.mark.parametrize("backwards", [1, 2])
@pytest.mark.parametrize("tensors", [0, 2, 3])
def test_reads_ahead_of_unused_arrays_hold_no_more_than_the_budget(
    tensors: int, backwards: int
) -> None:
    """The saved array dies with its node; an I/O thread still holds the buffer."""
    x, nbytes = normal(1, 128, 128), tensors * KIB64

    def program(peaks: Peaks) -> Any:
        y = x
        for _ in range(12):
            for op in (Unused.apply, offgrad.tanh):
                y = op(y)
                y.register_hook(peaks.next)
                peaks.next()
        return y.sum()

    with memory_store(SlowReads(0.02), threads=2) as store:
        check_bound(program, [x], budget(nbytes, store), nbytes, backwards)


def test_backward_ends_with_its_last_read() -> None:
    x, backend = normal(1, 128, 128), SlowReads(0.3)
    before = memory.allocated()
    with memory_store(backend) as store:
        with everything(store):
            loss = Unused.apply(x).sum()
        settle(store)

        def wait(_: Any) -> None:
            assert backend.started.acquire(timeout=SECONDS)

        loss.register_hook(wait)
        loss.backward()
        del loss
        x.grad = None
        assert memory.allocated() == before
        assert len(backend.reads) == 1


def test_the_budget_is_used_to_the_full() -> None:
    """Even if that takes writes: storing everything would also meet the bound."""
    x, nbytes = normal(1, 128, 128), 6 * KIB64
    with memory_store(MemoryBackend()) as store:
        held = alive()
        with budget(nbytes, store):
            loss = unary_chain(x, 40)
        settle(store)
        # A part may have been written before its memory was needed.
        assert held + nbytes * 3 // 4 - KIB64 <= alive() <= held + nbytes + 4096
        loss.backward()


def slices(x: Any) -> Any:
    """Return a program over parts of tensors: rows, columns, transposes."""

    def program(peaks: Peaks) -> Any:
        total, y = 0, x * 2
        for index in range(4):
            part = y[128 * index : 128 * (index + 1)]
            for each in (part.sin(), part.t().exp(), y[:, 1::2].sin()):
                total = total + each.sum()
                peaks.next()
            del part, each
        y.register_hook(peaks.next)
        return total

    return program


@pytest.mark.parametrize("tensors", [0, 1, 4, 7, 8, 10])
def test_parts_of_a_tensor_hold_no_more_than_the_budget(tensors: int) -> None:
    """Each part holds the whole storage, or is copied."""
    x = normal(1, 512, 128)
    with memory_store(MemoryBackend()) as store:
        check_bound(slices(x), [x], budget(tensors * KIB64, store), tensors * KIB64)


def test_parts_in_memory_are_reread_once_the_caller_drops_the_whole_in_backward() -> None:
    """Holding such a part before its use would hold the whole storage."""
    x, nbytes = normal(1, 1024, 128), 3 * KIB64
    after: list[int] = []
    with memory_store(MemoryBackend()) as store:
        base = alive()
        with budget(nbytes, store):
            whole = [x * 2]  # eight times KIB64: it goes to the store at once
            loss = sum(whole[0][k * 128 : k * 128 + 128].sin().sum() for k in range(8))
            last = normal(2, 128, 128).tanh()
            loss = loss + last.sum()
        settle(store)

        def drop_whole(_: Any) -> None:
            whole.clear()
            after.append(memory.allocated() - base)

        last.register_hook(drop_whole)
        loss.backward()
        # The leaf and `last`, its gradient, and the arrays prefetched or held.
        assert after
        assert after[0] <= nbytes + 4 * KIB64


def test_a_write_whose_graph_is_gone_still_counts_toward_the_budget() -> None:
    """A write in flight holds its memory."""
    x, nbytes = normal(1, 128, 128), 16 * KIB64
    backend = Starting()
    with memory_store(backend, threads=4) as store:
        session, peaks = budget(nbytes, store), Peaks()
        with session:
            y = x.tanh()
            for _ in range(24):
                y = y.tanh()
            settle(store)
            backend.gate.clear()
            backend.started = threading.Semaphore(0)
            for _ in range(4):  # a budget that had to wait starts writes early
                y = y.tanh()
                assert backend.started.acquire(timeout=SECONDS)
            del y
        opened = threading.Timer(0.2, backend.gate.set)
        opened.start()
        with memory.observe(peaks), session:
            loss = unary_chain(x, 16)
        opened.join()
        assert max(peaks.max_nbytes) <= nbytes + 2 * KIB64 + 4, "with inputs and output of an op"
        loss.backward()


# Eviction


def test_nothing_is_written_while_the_budget_has_room() -> None:
    x = normal(1, 32, 32)
    with ShapeStore() as store:
        for _ in range(3):
            with budget(12 * 4096, store):
                loss = unary_chain(x, 12)
            loss.backward(retain_graph=True)
            loss.backward()
        assert store.events == []
        with budget(12 * 4096 - 1, store):
            loss = unary_chain(x, 12)
        assert store.all("put") == [0]
        loss.backward()


def test_writes_begin_early_only_as_long_as_steps_need_more_than_the_room() -> None:
    x, backend = normal(1, 128, 128), MemoryBackend(0.002)
    writes: list[int] = []
    with memory_store(backend, threads=1) as store:
        session = budget(8 * KIB64, store)
        for length in (24, 7, 7, 7):
            before = len(backend.writes)
            with session:
                loss = unary_chain(x, length)
            settle(store)
            loss.backward()
            writes.append(len(backend.writes) - before)
    assert writes[0] >= 16
    assert writes[1] > 0  # early
    assert writes[2:] == [0, 0]


def test_the_entry_saved_first_is_evicted_first() -> None:
    with ShapeStore() as store:
        with budget(128 * (8 + 4 + 16), store):
            losses = results(8, 4, 16)
            assert store.shapes == []
            losses += results(9)
            assert store.shapes == [(8, 32), (4, 32)]
            losses += results(11)
            assert store.shapes[2] == (16, 32)
        for each in losses:
            each.backward()


@pytest.mark.parametrize("backward", [True, False])
def test_earlier_steps_do_not_change_the_order_of_eviction(backward: bool) -> None:
    """New arrays and objects may reuse the addresses of earlier ones."""
    with ShapeStore() as store:
        session = budget(128 * 66, store)
        for count in (5, 9, 3, 11, 7):
            with session:
                losses = results(*range(1, count + 1))
            if backward:
                sum(losses[::2]).backward()
            del losses
        with session:
            losses = results(*range(11, 0, -1))
            assert store.events == []
            losses += results(11)
        assert store.shapes == [(11, 32)]
        with session:
            losses += results(19)
        assert len(store.shapes) >= 3
        assert store.shapes == [(rows, 32) for rows in range(11, 0, -1)][: len(store.shapes)]
        for each in losses:
            each.backward()


def test_an_entry_that_is_saved_again_stays_longer() -> None:
    a, b, c, d = (normal(k, k, 32) for k in (8, 4, 5, 2))
    with ShapeStore() as store:
        with budget(128 * 17, store):
            a2, b2, c2, d2 = a + 1, b + 1, c + 1, d + 1
            loss = a2.sin().sum() + b2.sin().sum() + c2.sin().sum()
            loss = loss + a2.cos().sum() + d2.sin().sum()
            assert store.shapes == [(4, 32)]
        del a2, b2, c2, d2
        loss.backward()


def test_backward_evicts_unneeded_entries_first_then_those_it_uses_last() -> None:
    late: list[Any] = []
    with ShapeStore() as store:
        session = budget(128 * (4 + 5 + 6 + 7), store)
        with session:
            four, five, six = (normal(k, k, 32).tanh() for k in (4, 5, 6))
            (other,) = results(7)
            loss = four.sum() + five.sum() + six.sum()

        def save_more(_: Any) -> None:
            with session, offgrad.enable_grad():
                for rows in (6, 2):
                    late.extend(results(rows))
                    late.append(list(store.shapes))

        six.register_hook(save_more)
        del four, five, six
        loss.backward(retain_graph=True)
        assert late[1] == [(7, 32)], "not needed by this backward, though saved last"
        assert late[3] == [(7, 32), (6, 32), (4, 32)], "then the planned entries that it uses last"
        for each in (loss, other, late[0], late[2]):
            each.backward()


@pytest.mark.parametrize("count", [0, 1, 4, 11, 12, 20])
def test_last_keeps_the_last_tensors(count: int) -> None:
    x = normal(1, 32, 32)
    with ShapeStore() as store:
        with offgrad.offload(Last(count, Offload(store, min_nbytes=0))):
            y = x
            for _ in range(12):
                y = y.tanh()
            loss = y.sum()
        del y
        assert len(store.shapes) == max(0, 12 - count)
        settle(store)
        loss.backward()
        assert sorted(store.all("get")) == list(range(max(0, 12 - count)))


# Values read back


CASES: dict[str, Callable[[], Any]] = {
    "fortran": lambda: offgrad.from_numpy(np.asfortranarray(np.eye(48, 32, dtype=np.float32) + 2)),
    "strided": lambda: (normal(1, 96, 64, grad=False) * 1)[::2, 1::2],
    "transposed": lambda: (normal(2, 48, 32, grad=False) * 1).t(),
    "expanded": lambda: (normal(3, 1, 32, grad=False) * 1).expand(48, 32),
    "empty": lambda: normal(4, 0, 32, grad=False) * 1,
    "scalar": lambda: normal(5, grad=False) * 1,
    "large": lambda: normal(6, 512, 512, grad=False) * 1,
}


@pytest.mark.parametrize("nbytes", [0, 7000, 100_000, MANY])
@pytest.mark.parametrize("case", CASES)
def test_memory_of_any_layout_comes_back(case: str, nbytes: int, store: RecordingStore) -> None:
    saved = CASES[case]()
    value = saved.numpy().copy()
    weight = normal(9, *saved.shape)
    with budget(nbytes, store):
        loss = (saved * weight).sum()
        (saved.exp() * weight).sum()
    del saved
    for _ in range(2):
        (found,) = grad(loss, [weight], retain_graph=True)
        assert found is not None
        assert found.numpy().tobytes() == value.tobytes()
        assert found.shape == value.shape


@pytest.mark.parametrize(("nbytes", "puts"), [(64 * 64 * 4, 0), (64 * 64 * 4 - 1, 1)])
def test_a_tensor_saved_many_times_has_one_copy(
    nbytes: int, puts: int, store: RecordingStore
) -> None:
    x = normal(1, 64, 64)
    with budget(nbytes, store):
        y = x.tanh()
        total = y.sin().sum() + y.cos().sum() + y.t().sin().sum() + y.view(-1).cos().sum()
        if not puts:
            total = total + y[3:].sin().sum() + y[5].expand(9, 64).sin()[0].sum()
    del y
    total.backward()
    assert len(store.all("put")) == puts


def test_parameters_do_not_count_toward_the_budget(store: RecordingStore) -> None:
    first, second = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
    second.weight = first.weight
    x = normal(1, 2, 64)
    with budget(4 * 2 * 64 * 4, store):
        loss = second(first(x).tanh()).tanh().sum()
    loss.backward()
    assert store.events == []
    assert first.weight.grad is not None
