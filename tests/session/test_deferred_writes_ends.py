"""Deferred writes under threads, memory limits and forks, and their cleanup."""

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offgrad_storage import PoolStore, StoreClosedError

import offgrad
from offgrad import memory, nn
from offgrad.memory import OutOfMemoryError
from tests.session.backends import MemoryBackend, RecordingStore, memory_store
from tests.session.graphs import Normalise, bits, data, gradient, normal
from tests.session.helpers import (
    MIB,
    alive,
    everything,
    in_threads,
    settle,
    unary_chain,
    wait_until,
)


@pytest.mark.slow
@pytest.mark.usefixtures("eager_switching")
def test_threads_drop_and_change_inputs_while_others_save() -> None:
    """All threads share one session and save the same inputs."""
    with memory_store(MemoryBackend(delay=0.0005), threads=2) as store:
        session = everything(store)
        shared = data(99, 64, 64)
        bits_shared = shared.numpy().copy()

        def work(seed: int) -> None:
            for step in range(9):
                w, x = normal(seed, 64, 64), data(seed + step, 64, 64)
                value = x.numpy() + bits_shared
                with session:
                    loss = (x * w).sum() + (shared * w).sum()
                    if step % 3 == 1:
                        x.zero_()
                    if step % 3:
                        del x
                    loss = loss + w.exp().sum() * 0
                (grad,) = gradient(loss, w)
                assert np.array_equal(grad.numpy(), value)

        def collect() -> None:
            for _ in range(12):
                session.reclaim()
                gc.collect()

        in_threads(lambda: work(100), lambda: work(200), collect)
        settle(store)
        wait_until(lambda: not store.stats().live_handles, "handles are alive")


@pytest.mark.usefixtures("eager_switching")
def test_two_backwards_run_while_the_input_is_dropped_or_changed(store: RecordingStore) -> None:
    for step in range(30):
        w, holder = normal(1, 64, 64), [data(step, 64, 64)]
        expected = bits(holder[0])
        with everything(store):
            loss = (holder[0][:, ::2] * w[:, ::2]).sum() + (holder[0] * w).sum()
        part = holder[0].numpy().copy()
        part[:, ::2] *= 2
        expected = part.tobytes()

        def run_backward(loss: Any = loss, w: Any = w, expected: bytes = expected) -> None:
            try:
                (grad,) = gradient(loss, w, retain_graph=True)
            except RuntimeError as error:
                text = str(error)
                assert "changed in place" in text  # while backward was using it
            else:
                assert grad.numpy().tobytes() == expected

        def end(holder: Any = holder, step: int = step) -> None:
            if step % 2:
                holder.clear()
            else:
                holder[0].view(4096)[:1].mul_(1)

        in_threads(run_backward, run_backward, end)


def test_a_memory_limit_writes_released_inputs(named_stores: str) -> None:
    w = normal(1, 512, 512)
    session = offgrad.offload("disk", directory=named_stores)
    inputs = [data(seed, 512, 512) for seed in range(4)]
    value = sum(each.numpy() for each in inputs)
    base = alive() - 4 * MIB
    with session:
        loss = sum((each * w).sum() for each in inputs)
    inputs.clear()
    assert memory.allocated() >= base + 4 * MIB
    with memory.limit(base + 2 * MIB):
        taken = offgrad.zeros(512, 512)
        assert session.ledger.writes == 4
        del taken
    loss.backward()
    assert np.allclose(w.grad.numpy(), value, atol=1e-5)


def test_a_memory_limit_writes_no_held_input(named_stores: str) -> None:
    w, x = normal(1, 512, 512), data(2, 512, 512)
    with offgrad.offload("disk", directory=named_stores) as session:
        loss = (x * w).sum()
    with memory.limit(memory.allocated()), pytest.raises(OutOfMemoryError):
        offgrad.zeros(512, 512)
    assert session.ledger.writes == 0
    loss.backward()


def test_an_out_of_memory_error_counts_writes_that_a_pool_could_not_take() -> None:
    w, x = normal(1, 512, 512), data(2, 512, 512)
    expected = bits(x)
    with PoolStore(allocate=memory.empty, hold=memory.empty) as store:
        with everything(store):
            loss = (x * w).sum()
        del x
        with memory.limit(memory.allocated()), pytest.raises(OutOfMemoryError) as caught:
            offgrad.zeros(2048, 512)
        text = str(caught.value)
        assert "4.0 MiB more were asked for" in text
        assert "1.0 MiB saved for backward, to be written" in text
        assert bits(*gradient(loss, w)) == expected
        caught.value.__traceback__ = None


def test_out_of_memory_with_a_closed_store_is_out_of_memory(store: RecordingStore) -> None:
    w, x = normal(1, 300, 300), data(2, 300, 300)
    expected = bits(x)
    with everything(store):
        loss = (x * w).sum()
    del x
    store.close()
    with memory.limit(memory.allocated()), pytest.raises(OutOfMemoryError) as caught:
        offgrad.zeros(300, 300)
    assert isinstance(caught.value.__cause__, StoreClosedError)
    caught.value.__cause__ = caught.value.__traceback__ = None
    assert bits(*gradient(loss, w)) == expected


@pytest.mark.slow
def test_a_forked_child_writes_the_inputs_that_it_drops(run_python: Any) -> None:
    result = run_python(
        """
        import os
        import offgrad

        def step():
            w, x = offgrad.randn(256, 256, requires_grad=True), offgrad.randn(256, 256)
            value, before = x.clone(), session.ledger.writes
            with session:
                loss = (x * w).sum()
                del x
                w.sin()
            assert session.ledger.writes == before + 1
            loss.backward()
            assert w.grad.equal(value)

        session = offgrad.offload("disk")
        step()
        child = os.fork()
        if not child:
            step()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        step()
        """
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_a_forked_child_changes_its_own_copy_of_a_deferred_input(run_python: Any) -> None:
    """The store belongs to the parent, so the child keeps a copy of the input."""
    result = run_python(
        """
        import os
        import offgrad
        from offgrad.policies import Offload
        from tests.session.backends import RecordingStore

        with RecordingStore() as store:
            w, x = offgrad.randn(64, 64, requires_grad=True), offgrad.randn(64, 64)
            value = x.clone()
            with offgrad.offload(Offload(store, min_nbytes=0)) as session:
                loss = (x * w).sum()
            child = os.fork()
            if not child:
                x.zero_()
                loss.backward()
                os._exit(0 if w.grad.equal(value) else 5)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            loss.backward()
            assert w.grad.equal(value) and x.equal(value)
            assert store.events == []
        """
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_exit_before_backward_is_silent(run_python: Any) -> None:
    result = run_python(
        """
        import offgrad
        w, x = offgrad.randn(300, 300, requires_grad=True), offgrad.randn(300, 300)
        with offgrad.offload("disk,min=0"):
            loss = (x * w).sum()
            other = (offgrad.randn(300, 300) * w).sum()
        """
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_buffer_saved_in_every_step_accumulates_no_entries(store: RecordingStore) -> None:
    """Even while a graph of the first step is alive."""
    model = Normalise()
    x = normal(1, 8, 64)
    session = everything(store)
    with session:
        first = model(x).sum()
    for _ in range(3):
        with session:
            for row in range(8):
                (x[row] * model.scale[: 8 * row + 8].sum() * model.scale).sum().backward()
    storage = model.scale._storage
    (shared,) = storage.pending_writes
    assert len(list(shared().arrays)) == 1
    first.backward()
    assert shared() is None
    assert not session._deferred_writes.released
    assert store.stats().live_handles == 0


def test_nothing_is_left_of_steps_that_drop_their_inputs(named_stores: str) -> None:
    model = nn.Linear(256, 256)
    session = offgrad.offload("disk", directory=named_stores)

    def step(seed: int) -> None:
        x = data(seed, 256, 256)
        with session:
            loss = model(x)
            del x
            loss = loss.tanh().sum()
        loss.backward()
        for each in model.parameters():
            each.grad = None

    step(0)
    wait_until(lambda: True, "")
    held, threads = alive(), threading.active_count()
    for seed in range(5):
        step(seed)
        wait_until(lambda: memory.allocated() <= held, "tensor memory is held")
    assert threading.active_count() == threads
    assert session.ledger.writes == 12
    assert list(Path(named_stores).iterdir()) == []


def test_unary_chains_defer_no_write(store: RecordingStore) -> None:
    with everything(store) as session:
        loss = unary_chain(normal(1, 16, 16), 3)
    assert session.ledger.writes == 3
    loss.backward()
