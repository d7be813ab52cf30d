"""Budgets: in-place changes, faults, threads, and the memory after a graph or session ends."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from offgrad_storage import PoolStore, QuotaExceededError

import offgrad
from offgrad import memory, nn
from offgrad.memory import OutOfMemoryError
from offgrad.policies import Budget
from tests.session.backends import MemoryBackend, RecordingStore, memory_store
from tests.session.bound import (
    KIB64,
    MANY,
    ShapeStore,
    budget,
)
from tests.session.graphs import bits, normal
from tests.session.helpers import alive, in_threads, unary_chain, wait_until


def test_a_change_in_place_writes_first(store: RecordingStore) -> None:
    w, start = normal(1, 64, 64), normal(2, 64, 64, grad=False)
    value = start.numpy().copy()
    with budget(MANY, store):
        loss = (start * w).sum()
        assert store.all("put") == []
        start.mul_(2)
        assert store.all("put") == [0]
        second = (start * w).sum()
        start.t()[3:].add_(1)
        assert store.all("put") == [0, 1]
    loss.backward()
    assert w.grad.numpy().tobytes() == value.tobytes()
    w.grad = None
    second.backward()
    assert w.grad.numpy().tobytes() == (value * 2).tobytes()


def test_a_change_in_place_that_cannot_be_written_does_not_happen() -> None:
    """Each attempt fails until the store has room."""
    w, start = normal(1, 64, 64), normal(2, 64, 64, grad=False)
    value = start.numpy().copy()
    with PoolStore(quota=20_000, allocate=memory.empty, hold=memory.empty) as store:
        blocker = store.put(np.ones(4096, np.float32))
        with budget(MANY, store):
            loss = (start * w).sum()
        for _ in range(2):
            with pytest.raises(QuotaExceededError):
                start.mul_(2)
            assert start.numpy().tobytes() == value.tobytes()
        loss.backward(retain_graph=True)
        assert w.grad.numpy().tobytes() == value.tobytes()
        w.grad = None
        del blocker
        start.mul_(2)
        loss.backward()
        assert w.grad.numpy().tobytes() == value.tobytes()


def test_a_full_store_is_an_error_of_the_op_and_nothing_is_lost() -> None:
    x, z = normal(1, 64, 64), normal(1, 64, 64)
    with PoolStore(quota=40_000, allocate=memory.empty, hold=memory.empty) as store:
        session = budget(2 * 16384, store)
        with session:
            loss = unary_chain(x, 3)
            with pytest.raises(QuotaExceededError):
                unary_chain(normal(2, 64, 64), 6)
        gc.collect()
        loss.backward()
        unary_chain(z, 3).backward()
        assert bits(x.grad) == bits(z.grad)
        for _ in range(3):
            x.grad = None
            with session:
                loss = unary_chain(x, 3)
            loss.backward()
            assert bits(x.grad) == bits(z.grad)
        del loss
        gc.collect()
        assert not store.stats().live_handles


@pytest.mark.parametrize("nbytes", [0, 3 * KIB64, 9 * KIB64])
def test_memory_and_handles_die_with_a_dropped_graph(nbytes: int) -> None:
    x = normal(1, 128, 128)
    with memory_store(MemoryBackend(delay=0.003)) as store:
        session = budget(nbytes, store)
        for _ in range(3):
            base = memory.allocated()
            with session:
                loss = unary_chain(x, 9)
            del loss
            wait_until(lambda: not store.stats().live_handles, "handles are alive")
            wait_until(lambda base=base: memory.allocated() <= base, "memory is held")  # type: ignore[misc]


def test_a_step_that_raises_leaves_nothing_behind(store: RecordingStore) -> None:
    x = normal(1, 128, 128)
    session = budget(3 * KIB64, store)
    base = alive()
    with pytest.raises(ZeroDivisionError), session:
        unary_chain(x, 6) / (1 // 0)
    wait_until(lambda: alive() <= base, "memory is held")

    def fail(_: Any) -> None:
        raise ZeroDivisionError

    with session:
        y = x.tanh().tanh()
        y.register_hook(fail)
        loss = y.tanh().tanh().tanh().sum()
    del y
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    del loss
    wait_until(lambda: alive() <= base, "memory is held")
    assert not store.stats().live_handles


def test_a_session_may_be_gone_before_backward(store: RecordingStore) -> None:
    x, z = normal(1, 128, 128), normal(1, 128, 128)
    session = budget(3 * KIB64, store)
    with session:
        loss = unary_chain(x, 8)
    del session
    gc.collect()
    loss.backward()
    unary_chain(z, 8).backward()
    assert bits(x.grad) == bits(z.grad)


def test_a_thousand_steps_leave_nothing() -> None:
    x = normal(1, 16, 16)
    with memory_store(MemoryBackend()) as store:
        session = budget(3 * 1024, store)

        def steps(count: int) -> int:
            for _ in range(count):
                with session:
                    loss = unary_chain(x, 6)
                loss.backward()
                with session:
                    unary_chain(x, 6)  # dropped
            x.grad = None
            gc.collect()
            wait_until(lambda: not store.stats().live_handles, "handles are alive")
            return len(gc.get_objects())

        steps(50)
        base, before = alive(), steps(50)
        assert abs(steps(450) - before) < 50
        assert alive() <= base


def test_a_limit_of_memory_tightens_the_budget() -> None:
    x, z = normal(1, 128, 128), normal(1, 128, 128)
    with memory_store(MemoryBackend(delay=0.001)) as store:
        with memory.limit(alive() + 12 * KIB64), budget(MANY, store):
            loss = unary_chain(x, 40)
            loss.backward()
        assert store.stats().puts > 20
        with memory.limit(alive() + KIB64), pytest.raises(OutOfMemoryError):
            unary_chain(z, 3)
        unary_chain(z, 40).backward()
        assert bits(x.grad) == bits(z.grad)


@pytest.mark.usefixtures("eager_switching")
def test_threads_share_the_budget() -> None:
    nbytes, count = 5 * KIB64, 3
    leaves = [normal(k, 128, 128) for k in range(count)]
    with memory_store(MemoryBackend(delay=0.0005), threads=2) as store:
        session = budget(nbytes, store)

        def work(x: Any) -> Callable[[], None]:
            def run() -> None:
                for _ in range(8):
                    x.grad = None
                    with session:
                        loss = unary_chain(x, 10)
                    loss.backward()

            return run

        base = alive()
        memory.reset_peak()
        in_threads(*(work(each) for each in leaves))
        # Each thread holds x.grad, one unpacked tensor, and at most five more in an op.
        assert memory.max_allocated() - base <= nbytes + count * 7 * KIB64
        for k, each in enumerate(leaves):
            z = normal(k, 128, 128)
            unary_chain(z, 10).backward()
            assert bits(each.grad) == bits(z.grad)
        assert not store.stats().live_handles


def test_nested_sessions_have_separate_budgets(store: RecordingStore) -> None:
    with ShapeStore() as inner, budget(4 * 4096, store):
        outer_loss = unary_chain(normal(1, 32, 32), 4)
        with budget(2 * 4096, inner):
            inner_loss = unary_chain(normal(2, 32, 32), 3)
        assert len(inner.shapes) == 1
        assert store.events == []
        outer_loss.backward()
        inner_loss.backward()


def test_modules_share_memory_only_if_their_budgets_are_equal() -> None:
    model = nn.Sequential(*(nn.Tanh() for _ in range(6)))
    for second, puts in ((4096 * 3, 3), (4096 * 3 + 1, 0)):
        with ShapeStore() as store:
            first = {str(k): Budget(4096 * 3, store) for k in range(3)}
            policies = first | {str(k): Budget(second, store) for k in range(3, 6)}
            with offgrad.offload(policies, model=model):
                loss = model(normal(1, 32, 32)).sum()
            assert puts <= len(store.shapes) <= puts + bool(puts)
            loss.backward()
