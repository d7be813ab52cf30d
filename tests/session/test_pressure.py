"""Memory limits: models that still fit, threads that wait, and OutOfMemoryError."""

import gc
import threading
from typing import Any

import pytest
from offgrad_storage import BackendStore

import offgrad
from offgrad import memory
from offgrad.autograd import grad
from offgrad.memory import OutOfMemoryError
from offgrad.policies import Last, Offload, Placement, SaveContext, Store
from tests.session.backends import SECONDS, MemoryBackend, memory_store
from tests.session.graphs import bits, normal
from tests.session.helpers import (
    MIB,
    alive,
    everything,
    open_stores,
    settle,
    unary_chain,
    wait_until,
)


def deep(x: Any) -> Any:
    """Return a scalar whose graph saves 24 tensors of 1 MiB."""
    for _ in range(12):
        x = (x * 1.01).tanh().exp() * 0.3
    return x.mean()


@pytest.mark.slow
def test_a_model_that_keep_cannot_hold_trains_on_disk_and_in_zarr(named_stores: str) -> None:
    def train(name: str) -> list[Any]:
        weight = normal(1, 512, 512)
        losses = []
        for _ in range(2):
            with offgrad.offload(name, directory=named_stores):
                loss = deep(weight)
            loss.backward()
            losses += bits(loss, weight.grad)
            with offgrad.no_grad():
                weight -= weight.grad
            weight.grad = None
        return losses

    expected = train("keep")
    base = alive()
    with memory.limit(base + 12 * MIB):
        with pytest.raises(OutOfMemoryError) as caught:
            train("keep")
        text = str(caught.value)
        assert "limited to" in text
        assert "saved for backward" in text
        assert "by TanhBackward0.result" in text or "by ExpBackward0.result" in text
        assert "offload('disk')" in text
        caught.value.__traceback__ = None
        del caught
        assert alive() == base, "the failed step left tensors behind"
        assert train("disk") == expected
        wait_until(lambda: memory.allocated() == base, "disk")
        assert train("zarr") == expected
        memory.reset_peak()
        with pytest.raises(OutOfMemoryError):
            train("pool")
        gc.collect()
        assert memory.max_allocated() <= base + 12 * MIB


@pytest.mark.slow
def test_prefetching_takes_no_memory_that_backward_needs(named_stores: str) -> None:
    """A limit that suffices without prefetching suffices with it."""
    weight = normal(1, 512, 512)

    def step(**options: Any) -> Any:
        with offgrad.offload("disk", directory=named_stores, **options):
            loss = deep(weight)
        loss.backward()
        found = bits(loss, weight.grad)
        weight.grad = None
        return found

    expected = step()
    base = alive()
    enough = None
    for mib in range(2, 24):
        try:
            with memory.limit(base + mib * MIB):
                assert step(prefetch_nbytes=1) == expected
        except OutOfMemoryError:
            weight.grad = None
            gc.collect()
            continue
        enough = mib
        break
    assert enough is not None
    with memory.limit(base + enough * MIB):
        assert step(prefetch_nbytes=MIB) == expected
        assert step() == expected
        assert step(prefetch_nbytes="1GiB") == expected


def test_an_allocation_under_pressure_waits_for_pending_writes() -> None:
    backend = MemoryBackend(delay=0.005)
    with memory_store(backend) as store:
        weight = normal(1, 512, 512)
        loss = deep(weight)
        expected = bits(loss, *grad(loss, weight))
        del loss
        base = alive()
        with memory.limit(base + 5 * MIB):
            with everything(store):
                loss = deep(weight)
            assert bits(loss) == expected[:1]
        assert bits(loss, *grad(loss, weight)) == expected


@pytest.mark.slow
def test_after_running_out_in_backward_the_next_step_works(named_stores: str) -> None:
    weight = normal(1, 512, 512)
    base = alive()
    session = offgrad.offload("disk", directory=named_stores)
    with session:
        loss = deep(weight)
    expected = bits(*grad(loss, weight, retain_graph=True))
    del loss
    with session:
        loss = deep(weight)
    for store in open_stores(named_stores):
        settle(store)
    gc.collect()
    wait_until(lambda: memory.allocated() < base + 65536, "a saved tensor is still in memory")
    held = alive()
    with memory.limit(held + MIB // 2), pytest.raises(OutOfMemoryError):
        loss.backward(retain_graph=True)
    assert alive() <= held
    assert bits(*grad(loss, weight, retain_graph=True)) == expected
    with session:
        second = deep(weight)
    assert bits(*grad(second, weight)) == expected


@pytest.mark.usefixtures("eager_switching")
def test_reclaim_while_another_thread_saves() -> None:
    """An allocation under pressure calls `reclaim` from any thread."""
    errors: list[BaseException] = []
    done = threading.Event()
    with memory_store(MemoryBackend(), threads=2) as store:
        session = everything(store)

        def reclaim() -> None:
            try:
                while not done.is_set():
                    session.reclaim()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=reclaim)
        thread.start()
        for seed in range(40):
            with session:
                unary_chain(normal(seed, 16, 16), 40)
        done.set()
        thread.join()
    assert errors == []


def test_an_eviction_does_not_count_as_memory_being_freed_for_itself() -> None:
    """A store that needs memory for a put fails at once, not after the longest wait."""
    answers = []

    class Asking(BackendStore):
        """Asks for memory in each put."""

        def put(self, array: Any, **options: Any) -> Any:
            """Ask, then put."""
            answers.append(session.reclaim())
            return super().put(array, **options)

    with Asking(MemoryBackend(), threads=1, allocate=memory.empty) as store:
        session = offgrad.offload(Last(1, then=Offload(store, min_nbytes=0)))
        with session:
            loss = unary_chain(normal(1, 16, 16), 2)
        loss.backward()
    assert answers == [False]


class Alternating:
    """Alternates between the given stores."""

    def __init__(self, *places: Any) -> None:
        self.places = places
        self.count = 0

    def place(self, context: SaveContext) -> Placement:
        """Take turns."""
        self.count += 1
        return Store(self.places[self.count % len(self.places)])


@pytest.mark.usefixtures("eager_switching")
@pytest.mark.parametrize("kind", ["one store", "mixed", "a session each", "a pool each"])
def test_pressure_from_several_threads(kind: str, every_store: Any) -> None:
    """Threads wait for memory that others hold: only OutOfMemoryError, no deadlock.

    The number of steps that succeed is random; a step after the other threads ended always does.
    """
    errors: list[BaseException] = []
    with memory_store(MemoryBackend(delay=0.0005), threads=2) as store:
        pool = every_store["pool"]
        places = {"one store": (store,), "a pool each": (pool,)}.get(kind, (store, pool))
        shared = offgrad.offload(Alternating(*places))

        def train(session: Any, seed: int) -> None:
            x = normal(seed, 128, 128)
            with session:
                loss = unary_chain(x, 25)
            loss.backward()

        def work(seed: int) -> None:
            session = offgrad.offload(Alternating(*places)) if "each" in kind else shared
            for step in range(6):
                try:
                    train(session, seed + step)
                except OutOfMemoryError:
                    pass  # the others may hold what this one needs
                except BaseException as error:
                    errors.append(error)

        threads = [threading.Thread(target=work, args=(k * 100,), daemon=True) for k in range(3)]
        limits = {"one store": 24, "a pool each": 70}
        with memory.limit(alive() + limits.get(kind, 50) * 65536):
            for each in threads:
                each.start()
            for each in threads:
                each.join(SECONDS)
            assert not any(each.is_alive() for each in threads), "a deadlock"
            assert errors == []
            train(shared, 1000)
