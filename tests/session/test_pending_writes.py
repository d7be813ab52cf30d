"""Pending writes: in-place changes wait for them, and memory is freed after them."""

import threading
from typing import Any

import numpy as np
import pytest

from offgrad import memory
from tests.session.backends import MemoryBackend, memory_store
from tests.session.graphs import normal
from tests.session.helpers import MIB, alive, everything, wait_until


def test_a_change_waits_for_the_pending_write() -> None:
    backend = MemoryBackend()
    with memory_store(backend) as store:
        w = normal(1, 64, 64)
        y = normal(2, 64, 64).clone()
        value = y.detach().numpy().copy()
        backend.gate.clear()
        with everything(store):
            loss = (y * w).sum()
        opener = threading.Timer(0.05, backend.gate.set)
        opener.start()
        y.zero_()
        assert backend.gate.is_set(), "the tensor changed while its write was pending"
        opener.join()
        loss.backward()
        assert np.array_equal(w.grad.numpy(), value)
        assert backend.reads == [0]


def test_a_change_waits_for_every_pending_write_of_its_memory() -> None:
    """Even if many parts of it were saved one by one."""
    backend = MemoryBackend(delay=0.001)
    rows = 200
    with memory_store(backend) as store:
        w = normal(1, rows, 16)
        y = normal(2, rows, 16).clone()
        value = y.detach().numpy().copy()
        with everything(store):
            products = [y[k] * w[k] for k in range(rows)]
        y.zero_()
        sum(products).sum().backward()
        assert np.array_equal(w.grad.numpy(), value)


@pytest.mark.parametrize("kind", ["disk", "zarr", "delayed"])
def test_changes_race_with_writes(kind: str, every_store: Any) -> None:
    for attempt in range(8):
        w = normal(1, 512, 512)
        y = normal(attempt, 512, 512).clone()
        value = y.detach().numpy().copy()
        with everything(every_store[kind]):
            a = (y * w).sum()
            b = (y.t() * w.t()).sum()
            c = (y[::2] * w[::2]).sum()
        y.fill_(attempt)
        with everything(every_store[kind]):
            d = (y * w).sum()
        y.fill_(-1)
        (a + b + c + d).backward()
        expected = value * 2
        expected[::2] += value[::2]
        assert np.allclose(w.grad.numpy(), expected + np.float32(attempt), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("eager_switching")
def test_threads_that_save_parts_of_one_memory() -> None:
    """A change waits for the writes of both threads."""
    for _ in range(30):
        with memory_store(MemoryBackend(delay=0.0005)) as store:
            w, y = normal(1, 40, 64), normal(2, 40, 64).clone()
            value = y.detach().numpy().copy()
            products: list[Any] = []
            start = threading.Barrier(2)

            def save(
                first: int, store: Any = store, w: Any = w, y: Any = y,
                start: Any = start, products: Any = products,
            ) -> None:  # fmt: skip
                start.wait()
                with everything(store):
                    products.extend(y[k] * w[k] for k in range(first, 40, 2))

            threads = [threading.Thread(target=save, args=(k,)) for k in range(2)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            y.zero_()
            sum(products).sum().backward()
            assert np.array_equal(w.grad.numpy(), value)
            del save


def test_memory_is_free_once_its_write_captured_it() -> None:
    backend = MemoryBackend()
    with memory_store(backend) as store:
        held = alive()
        backend.gate.clear()
        with everything(store):
            x = normal(1, 512, 512)
            z = x.exp().sum()
        assert memory.allocated() >= held + 2 * MIB
        backend.gate.set()
        wait_until(lambda: memory.allocated() < held + MIB + 65536, "the source is still held")
        z.backward()
        del x, z
