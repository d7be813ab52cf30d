"""The prefetcher: which arrays are read, in which order, and how far ahead of backward."""

import gc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from offgrad_storage import Handle, PoolStore

from offgrad import memory
from offgrad.autograd import Function, grad
from tests.session.backends import RecordingStore
from tests.session.graphs import bits, normal
from tests.session.helpers import alive, everything, settle, unary_chain


def test_nothing_is_read_while_the_caller_holds_the_tensors(store: RecordingStore) -> None:
    x = normal(1, 64, 64)
    with everything(store):
        a = x.exp()
        b = a.t().tanh()
        c = (b * a).sin()
        loss = c.sum()
    product = c.grad_fn
    loss.backward(retain_graph=True)
    assert product is not None
    assert store.all("get") == [] or store.all("get") == store.all("get")[:1]
    assert store.stats().read_nbytes <= 64 * 64 * 4, "only the product has no other reference"


def test_a_held_tensor_that_has_changed_is_read(store: RecordingStore) -> None:
    w = normal(1, 16, 16)
    y = normal(2, 16, 16, grad=False)
    value = y.numpy().copy()
    with everything(store):
        loss = (y * w).sum()
    y.mul_(2)
    loss.backward()
    assert store.all("get") == [0]
    assert np.array_equal(w.grad.numpy(), value)


def test_reads_come_in_the_order_of_use(store: RecordingStore) -> None:
    x = normal(1, 32, 32)
    with everything(store):
        loss = unary_chain(x, 12)
    loss.backward()
    assert store.all("put") == list(range(12))
    assert store.all("get") == list(range(11, -1, -1))
    assert store.all("prefetch") == list(range(11, -1, -1))
    assert store.stats().gets == 12


def test_prefetched_bytes_stay_within_the_window(store: RecordingStore) -> None:
    x = normal(1, 32, 32)
    for limit in (1, 4096, 3 * 4096 + 5, 1 << 30):
        store.events.clear()
        store.max_prefetched_nbytes = 0
        with everything(store, prefetch_nbytes=limit):
            loss = unary_chain(x, 12)
        loss.backward()
        window_nbytes = max(1, min(limit // 4096, 12)) * 4096
        assert store.max_prefetched_nbytes == window_nbytes
        assert len(store.all("get")) == 12
        assert sorted(store.all("prefetch")) == list(range(12))


def test_every_read_of_a_chain_is_prefetched(store: RecordingStore) -> None:
    x = normal(1, 32, 32)
    with everything(store, prefetch_nbytes=2 * 4096):
        loss = unary_chain(x, 12)
    loss.backward()
    order = store.events[12:]
    for number in range(12):
        assert order.index(("prefetch", number)) < order.index(("get", number))


def test_reads_within_a_node_come_in_the_order_of_use(store: RecordingStore) -> None:
    """In a window of one array, every read finds its own array prefetched."""
    x = normal(1, 32, 32)
    with everything(store, prefetch_nbytes=1):
        y = x.tanh()
        for _ in range(6):
            y = y * y.tanh()
        loss = y.sum()
    del y
    loss.backward()
    fetched: set[int] = set()
    missed = []
    for kind, number in store.events:
        if kind == "prefetch":
            fetched.add(number)
        elif kind == "get":
            if number not in fetched:
                missed.append(number)
            fetched.discard(number)
    assert not missed, store.events


def test_a_partial_backward_reads_only_the_tensors_it_needs(store: RecordingStore) -> None:
    a, b = normal(1, 16, 16), normal(2, 16, 16)
    with everything(store):
        left = a.tanh().tanh().tanh().sum()  # 0, 1, 2
        right = b.tanh().tanh().tanh().sum()  # 3, 4, 5
        loss = left + right
    loss.backward(inputs=[b], retain_graph=True)
    assert store.all("get") == store.all("prefetch") == [5, 4, 3]
    store.events.clear()
    grad(loss, [a])
    assert store.all("get") == store.all("prefetch") == [2, 1, 0]


def test_a_failed_backward_leaves_no_prefetches_to_the_next(store: RecordingStore) -> None:
    x = normal(1, 128, 128)
    session = everything(store, prefetch_nbytes=2 * 65536)
    with session:
        stem = x.tanh().tanh().tanh().tanh()  # 0 to 3
        loss = stem.tanh().tanh().sum()  # 4 and 5
        other = unary_chain(x, 3)  # 6 to 8

    def fail(grad: Any) -> Any:
        raise ZeroDivisionError

    handle = stem.register_hook(fail)
    del stem
    settle(store)
    held = alive()
    with pytest.raises(ZeroDivisionError):
        loss.backward(retain_graph=True)
    gc.collect()
    store.events.clear()
    other.backward()
    assert store.all("get") == [8, 7, 6]
    assert store.all("prefetch") == [8, 7, 6], "the failed backward's order is no longer valid"
    del other
    handle.remove()
    x.grad = None
    assert alive() <= held, "prefetched arrays outlive their backward"
    loss.backward()
    z = normal(1, 128, 128)
    unary_chain(z, 6).backward()
    assert bits(x.grad) == bits(z.grad)


class Stop(Function):
    """Returns its input and no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None


def test_arrays_that_backward_does_not_need_in_the_end_are_dropped(store: RecordingStore) -> None:
    x, y = normal(1, 128, 128), normal(2, 128, 128)
    with everything(store, prefetch_nbytes=2 * 65536):
        a = unary_chain(y, 4)
        b = Stop.apply(unary_chain(x, 4).reshape(1))
        loss = a + b.sum()
    del a, b
    settle(store)
    held = alive()
    loss.backward(retain_graph=True)
    assert x.grad is None
    gotten = store.all("get")
    assert gotten == [3, 2, 1, 0]
    y.grad = None
    assert alive() <= held, "arrays of a finished backward are in memory"


def test_a_store_without_threads_gets_no_prefetch_buffers() -> None:
    """PoolStore cannot prefetch, so buffers would only take memory."""
    with PoolStore(allocate=memory.empty, hold=memory.empty) as store:
        x = normal(1, 256, 256)
        with everything(store):
            loss = unary_chain(x, 16)
        held = alive()
        memory.reset_peak()
        loss.backward()
        # Gradients in and out, x.grad, the unpacked tensor and temporaries of tanh.
        assert memory.max_allocated() - held <= 8 * 256 * 256 * 4


class WithoutMemory(RecordingStore):
    """Has no memory for prefetches, as a store may that allocates there."""

    def prefetch(self, handle: Handle, out: NDArray[Any] | None = None) -> None:
        """Fail."""
        self.events.append(("prefetch", -1))
        raise MemoryError("no memory to prefetch")


def test_a_prefetch_without_memory_is_a_read_without_prefetch() -> None:
    x, z = normal(1, 128, 128), normal(1, 128, 128)
    unary_chain(z, 4).backward()
    with WithoutMemory() as store:
        with everything(store) as session:
            loss = unary_chain(x, 4)
        loss.backward()
        assert ("prefetch", -1) in store.events
        assert session.ledger.reads == session.ledger.writes == 4
        assert session.ledger.hits == 0
        assert not sum(session.held_by_purpose().values())
    assert bits(x.grad) == bits(z.grad)
