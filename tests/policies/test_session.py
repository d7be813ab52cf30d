"""Sessions: what is stored, what is read back and when, and what is left in the end."""

import gc
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offgrad_storage import DiskStore, PoolStore, ZarrStore

import offgrad
from offgrad import memory, nn, optim
from offgrad.autograd import Function, grad
from offgrad.autograd.graph import saved_tensors_hooks
from offgrad.memory import OutOfMemoryError
from offgrad.nn import functional as F
from offgrad.policies import Offload, Placement, SaveContext, Store, stores
from offgrad.policies import session as session_module
from tests.policies.backends import MemoryBackend, RecordingStore, memory_store
from tests.policies.conftest import wait_until
from tests.policies.graphs import bits, normal

MIB = 1 << 20


@pytest.fixture
def store() -> Iterator[RecordingStore]:
    """A store that logs."""
    with RecordingStore() as made:
        yield made


def everything(store: Any, **options: Any) -> offgrad.policies.OffloadSession:
    """Return a session that stores what is no parameter, however small."""
    return offgrad.offload(Offload(store, min_nbytes=0), **options)


def unary_chain(x: Any, count: int) -> Any:
    """Return a sum whose graph saves `count` results and nothing else."""
    for _ in range(count):
        x = x.tanh()
    return x.sum()


def alive() -> int:
    """Return the bytes of tensors that are not garbage."""
    gc.collect()
    return memory.allocated()


def settle(store: Any) -> None:
    """Wait for all writes."""
    wait_until(lambda: not store.stats().inflight_nbytes, "writes are pending")


# What is stored


def test_five_saves_a_transpose_and_a_reshape_by_hand(store: RecordingStore) -> None:
    x = normal(1, 64, 64)
    session = everything(store)
    y = x.clone()
    with session:
        outs = [y.sin() for _ in range(5)]
        outs.append(y.t().sin())
        outs.append(y.view(16, 256).sin())
        outs.append(y.unsqueeze(1).expand(64, 3, 64).sin())
    settle(store)
    ledger = session.ledger
    assert ledger.saves == 8
    assert ledger.logical_nbytes == (7 + 3) * 16384
    assert ledger.unique_nbytes == 16384
    assert ledger.kept_nbytes == 0
    assert ledger.stored_nbytes == 16384
    assert store.all("put") == [0]
    del y
    for each in outs:
        each.sum().backward(retain_graph=True)
    expected = 10 * np.cos(x.detach().numpy())
    assert np.allclose(x.grad.numpy(), expected, rtol=1e-5)


PARTS: list[Callable[[Any], Any]] = [
    lambda y: y[2:4],
    lambda y: y[4:6],
    lambda y: y[:, ::2],
    lambda y: y[:, 1::2],
    lambda y: y.T[::2],
]


def test_parts_are_stored_apart_and_found_again(store: RecordingStore) -> None:
    x = normal(1, 8, 64)
    y = x.clone()
    with everything(store) as session:
        for _ in range(2):
            y[2:4].sin()
            y[4:6].sin()
            y[:, ::2].sin()
            y[:, 1::2].sin()
            y.t()[::2].sin()
    # The graphs are gone and so are their handles, but the bytes are the same.
    assert session.ledger.unique_nbytes == 2 * 512 + 2 * 1024
    outs = []
    before = len(store.all("put"))
    with everything(store):
        for _ in range(2):
            outs += [y[2:4].sin(), y[4:6].sin(), y[:, ::2].sin(), y[:, 1::2].sin()]
            outs.append(y.t()[::2].sin())
    assert len(store.all("put")) - before == 4
    # Reading differs from what is held by nothing but its place.
    del y
    for out, part in zip(outs, 2 * PARTS, strict=True):
        x.grad = None
        out.sum().backward(retain_graph=True)
        expected = np.zeros((8, 64), np.float32)
        part(expected)[...] = np.cos(part(x.detach().numpy()))
        assert np.allclose(x.grad.numpy(), expected, rtol=1e-5)


def test_a_later_version_is_stored_anew(store: RecordingStore) -> None:
    y = normal(1, 32, 32, grad=False)
    weights = [normal(k, 32, 32) for k in range(3)]
    values = []
    with everything(store) as session:
        losses = []
        for weight in weights:
            values.append(y.numpy().copy())
            losses.append((y * weight).sum())
            losses.append((y.t() * weight.t()).sum())
            y.add_(1)
    assert store.all("put") == [0, 1, 2]
    assert session.ledger.unique_nbytes == 3 * 4096
    for loss in losses:
        loss.backward()
    for weight, value in zip(weights, values, strict=True):
        assert np.array_equal(weight.grad.numpy(), 2 * value)


def test_parameters_and_small_tensors_are_not_stored(store: RecordingStore) -> None:
    layer = nn.Linear(200, 200)
    x = offgrad.randn(200, 200)
    small = normal(1, 10)
    with offgrad.offload(store) as session:
        loss = layer(x.requires_grad_()).sum() + small.exp().sum()
    assert store.events == []
    assert session.ledger.kept_nbytes == session.ledger.logical_nbytes > 0
    loss.backward()


def test_a_tensor_kept_by_one_and_stored_by_another_node(store: RecordingStore) -> None:
    class SinOnly:
        def place(self, context: SaveContext) -> Placement:
            keep = offgrad.policies.Keep()
            return Store(store) if context.op == "SinBackward0" else keep

    x = normal(1, 16, 16)
    with offgrad.offload(SinOnly()) as session:
        y = x.clone()
        loss = (y.cos() + y.sin() + y.cos() + y.sin()).sum()
    assert store.all("put") == [0]
    assert session.ledger.unique_nbytes == 1024
    assert session.ledger.kept_nbytes == 2048
    del y
    loss.backward()
    z = normal(1, 16, 16)
    (z.cos() + z.sin() + z.cos() + z.sin()).sum().backward()
    assert bits(x.grad) == bits(z.grad)


def test_the_store_is_told_what_it_stores(tmp_path: Path) -> None:
    import zarr

    block = nn.Sequential(nn.Sequential(nn.GELU()))
    with ZarrStore(tmp_path, allocate=memory.empty) as store:
        with everything(store):
            out = block(normal(1, 3, 5).clone())
        settle(store)
        group = zarr.open_group(store.path, mode="r")
        (array,) = (array for _, array in group.arrays())
        expected = {"op": "GeluBackward0", "slot": "self", "module": "0.0", "step": 0}
        assert dict(array.attrs) | expected | {"shape": [3, 5]} == dict(array.attrs)
        del out


# Reading back


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
    assert store.stats().read_nbytes <= 64 * 64 * 4, "only the product itself is held by nobody"


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


def test_reads_run_ahead_no_further_than_allowed(store: RecordingStore) -> None:
    x = normal(1, 32, 32)
    for limit in (1, 4096, 3 * 4096 + 5, 1 << 30):
        store.events.clear()
        store.most_ahead_nbytes = 0
        with everything(store, prefetch_nbytes=limit):
            loss = unary_chain(x, 12)
        loss.backward()
        allowed = max(1, min(limit // 4096, 12)) * 4096
        assert store.most_ahead_nbytes == allowed
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


def test_within_a_node_too_reads_come_in_the_order_of_use(store: RecordingStore) -> None:
    """With room for one array ahead, no read finds another one's array in its place."""
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
    for what, number in store.events:
        if what == "prefetch":
            fetched.add(number)
        elif what == "get":
            if number not in fetched:
                missed.append(number)
            fetched.discard(number)
    assert not missed, store.events


def test_a_partial_backward_reads_what_it_needs_and_no_more(store: RecordingStore) -> None:
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


def test_a_failed_backward_leaves_no_reads_to_the_next(store: RecordingStore) -> None:
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
    assert alive() <= held, "reads ahead outlive the backward they were for"
    loss.backward()
    z = normal(1, 128, 128)
    unary_chain(z, 6).backward()
    assert bits(x.grad) == bits(z.grad)


class Stop(Function):
    """Passes its input on, and no gradient back."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None


def test_what_backward_turns_out_not_to_need_is_let_go_of(store: RecordingStore) -> None:
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
    assert alive() <= held, "arrays were read for a backward that is over"


def test_stores_without_threads_are_not_asked_to_read_ahead_in_vain() -> None:
    """PoolStore cannot prefetch: buffers for that would only take memory."""
    with PoolStore(allocate=memory.empty, hold=memory.empty) as store:
        x = normal(1, 256, 256)
        with everything(store):
            loss = unary_chain(x, 16)
        held = alive()
        memory.reset_peak()
        loss.backward()
        # Gradients in and out, x.grad, what is unpacked and what tanh needs for itself.
        assert memory.max_allocated() - held <= 8 * 256 * 256 * 4


# In place, while a write is pending


def test_a_change_waits_for_the_pending_write() -> None:
    backend = MemoryBackend()
    with memory_store(backend) as store:
        w = normal(1, 64, 64)
        y = normal(2, 64, 64, grad=False)
        value = y.numpy().copy()
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
    """Also where many parts of it were saved one by one."""
    backend = MemoryBackend(delay=0.001)
    rows = 200
    with memory_store(backend) as store:
        w = normal(1, rows, 16)
        y = normal(2, rows, 16, grad=False)
        value = y.numpy().copy()
        with everything(store):
            products = [y[k] * w[k] for k in range(rows)]
        y.zero_()
        sum(products).sum().backward()
        assert np.array_equal(w.grad.numpy(), value)


@pytest.mark.parametrize("kind", ["disk", "zarr", "delayed"])
def test_changes_race_with_writes(kind: str, every_store: Any) -> None:
    for attempt in range(8):
        w = normal(1, 512, 512)
        y = normal(attempt, 512, 512, grad=False)
        value = y.numpy().copy()
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


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Have threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switching")
def test_threads_that_save_parts_of_one_memory() -> None:
    """A change waits for the writes of them all."""
    for _ in range(30):
        with memory_store(MemoryBackend(delay=0.0005)) as store:
            w, y = normal(1, 40, 64), normal(2, 40, 64, grad=False)
            value = y.numpy().copy()
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


@pytest.mark.usefixtures("eager_switching")
def test_relief_while_another_thread_saves() -> None:
    """As an allocation under pressure asks for it, from any thread."""
    errors: list[BaseException] = []
    done = threading.Event()
    with memory_store(MemoryBackend(), threads=2) as store:
        session = everything(store)

        def relieve() -> None:
            try:
                while not done.is_set():
                    session.relieve()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=relieve)
        thread.start()
        for seed in range(40):
            with session:
                unary_chain(normal(seed, 16, 16), 40)
        done.set()
        thread.join()
    assert errors == []


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


# The ledger


def test_the_ledger_by_hand(tmp_path: Path) -> None:
    x = normal(1, 100, 100)
    with DiskStore(tmp_path, allocate=memory.empty) as store:
        session = everything(store)
        with session:
            y = x.clone()
            a = y.sin()  # y: 40000, stored as 10 pages
            b = y.t().cos()  # y again
            c = x.exp()  # its result: 40000
            d = c[:, :50].sin()  # a part of it: 20000, as 5 pages
            e = x.sin()  # a parameter: kept
            loss = (a + b + c).sum() + d.sum() + e.sum()
        settle(store)
        ledger = session.ledger
        assert ledger.saves == 5
        assert ledger.logical_nbytes == 4 * 40000 + 20000
        assert ledger.kept_nbytes == 40000
        assert ledger.by_slot["SinBackward0", "self"] == 40000 + 20000 + 40000
        assert ledger.by_slot["CosBackward0", "self"] == 40000
        assert ledger.by_slot["ExpBackward0", "result"] == 40000
        assert ledger.unique_nbytes == 40000 + 40000 + 20000 + 40000
        assert ledger.stored_nbytes == 25 * 4096
        assert ledger.written_nbytes == ledger.stored_nbytes
        assert ledger.read_nbytes == 0
        del a, b, c, d, e, y
        loss.backward()
        ledger = session.ledger
        # y was read once: after its use by one node it was held for that by the next.
        assert ledger.read_nbytes == 2 * 40000 + 20000
        assert ledger.stall_seconds > 0
        figures = ledger.as_dict()
        assert figures["by_slot"]["SinBackward0.self"] == 100000
        assert figures["saves"] == ledger.saves
        text = str(ledger)
        assert "SinBackward0.self" in text
        assert f"{ledger.saves} tensors saved" in text


def test_bytes_in_a_pool_are_not_on_disk() -> None:
    with PoolStore(allocate=memory.empty, hold=memory.empty) as store:
        session = everything(store)
        with session:
            loss = unary_chain(normal(1, 32, 32), 3)
        assert session.ledger.stored_nbytes == 3 * 4096
        assert session.ledger.written_nbytes == 0
        loss.backward()
        assert session.ledger.read_nbytes == 3 * 4096


def test_empty_tensors_count_and_are_kept(store: RecordingStore) -> None:
    with everything(store) as session:
        out = normal(1, 0, 5).exp()
    assert (session.ledger.saves, session.ledger.logical_nbytes) == (1, 0)
    assert store.events == []
    out.sum().backward()


def test_a_session_counts_its_own_part_of_a_store(store: RecordingStore) -> None:
    first, second = everything(store), everything(store)
    with first:
        a = unary_chain(normal(1, 32, 32), 2)
    settle(store)
    assert first.ledger.stored_nbytes == 2 * 4096
    assert second.ledger.stored_nbytes == 0
    with second:
        b = unary_chain(normal(1, 32, 32), 1)
    settle(store)
    assert second.ledger.stored_nbytes == 4096
    (a + b).backward()


# What is left


NAMES = ("keep", "pool", "disk", "zarr", "zarr:none")


def open_stores(folder: str) -> list[Any]:
    """Return the stores that names opened in `folder`, and the pool."""
    return [store for (name, where, _), store in stores._stores.items() if where in (folder, None)]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_left_of_a_step(name: str, named_stores: str) -> None:
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64))
    session = offgrad.offload(name, directory=named_stores)
    x = offgrad.randn(128, 64)

    def step() -> None:
        with session:
            loss = model(x).square().mean()
        loss.backward()
        for each in model.parameters():
            each.grad = None

    step()
    for store in open_stores(named_stores):
        settle(store)
    held, threads = alive(), threading.active_count()
    for _ in range(3):
        step()
        wait_until(lambda: memory.allocated() == held, "tensor memory is held")
    assert threading.active_count() == threads
    for store in open_stores(named_stores):
        wait_until(lambda store=store: not store.stats().live_handles, "handles are alive")  # type: ignore[misc]
        assert store.stats().stored_nbytes == 0 or name.startswith("zarr")
        wait_until(lambda store=store: not store.stats().stored_nbytes, "bytes are stored")  # type: ignore[misc]
    if name == "disk":
        assert list(Path(named_stores).iterdir()) == []
    if name.startswith("zarr"):
        wait_until(lambda: not list(Path(named_stores).glob("*/arrays.zarr/0*")), "arrays are left")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_left_of_a_graph_that_was_dropped(name: str, named_stores: str) -> None:
    x = normal(1, 256, 256)
    session = offgrad.offload(name, directory=named_stores)
    held = alive()
    for _ in range(3):
        with session:
            y = x.exp().sin().tanh()
        del y
    wait_until(lambda: memory.allocated() <= held, "tensor memory is held")
    for store in open_stores(named_stores):
        wait_until(lambda store=store: not store.stats().live_handles, "handles are alive")  # type: ignore[misc]


def test_handles_die_as_backward_goes(store: RecordingStore) -> None:
    """Not only when it has ended."""
    x = normal(1, 32, 32)
    alive: list[int] = []
    with everything(store):
        y = x
        for _ in range(6):
            y = y.tanh()
            y.register_hook(lambda grad: alive.append(store.stats().live_handles))
        loss = y.sum()
    del y
    loss.backward()
    assert alive == [6, 5, 4, 3, 2, 1]
    assert store.stats().live_handles == 0


def test_threads_have_names(named_stores: str) -> None:
    with offgrad.offload("disk", directory=named_stores):
        loss = (normal(1, 256, 256) * 1).sin().sum()
    loss.backward()
    strange = [
        each.name
        for each in threading.enumerate()
        if each is not threading.main_thread()
        and "I/O" not in each.name
        and not each.name.startswith(("offgrad", "asyncio", "zarr", "ThreadPoolExecutor", "pytest"))
    ]
    assert strange == []


def growth(step: Any, *, files: tuple[str, ...]) -> int:
    """Return the bytes that 150 more steps leave allocated by `files`."""
    for _ in range(20):
        step()
    only = [tracemalloc.Filter(True, file) for file in files]
    tracemalloc.start()
    try:
        for _ in range(50):
            step()
        gc.collect()
        before = tracemalloc.take_snapshot().filter_traces(only)
        for _ in range(150):
            step()
        gc.collect()
        after = tracemalloc.take_snapshot().filter_traces(only)
    finally:
        tracemalloc.stop()
    return sum(each.size_diff for each in after.compare_to(before, "filename"))


SESSION_FILES = (session_module.__file__, memory.allocator.__file__, memory.storage.__file__)


def test_a_session_used_in_every_step_does_not_grow(every_store: Any) -> None:
    model = nn.Linear(16, 16)
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    session = everything(every_store["pool"])
    x = offgrad.randn(8, 16, requires_grad=True)

    def step() -> None:
        optimizer.zero_grad()
        with session:
            loss = model(x).tanh().square().mean()
        loss.backward()
        optimizer.step()

    assert growth(step, files=SESSION_FILES) < 150 * 16


def test_a_session_opened_in_every_step_leaves_nothing(every_store: Any) -> None:
    x = offgrad.randn(8, 16, requires_grad=True)

    def step() -> None:
        with everything(every_store["pool"]):
            loss = x.tanh().square().mean()
        loss.backward()

    assert growth(step, files=SESSION_FILES) < 150 * 16


def test_a_session_dies_with_its_graphs(store: RecordingStore) -> None:
    import weakref

    session = everything(store)
    with session:
        loss = unary_chain(normal(1, 16, 16), 3)
    reference = weakref.ref(session)
    del session
    loss.backward(retain_graph=True)
    assert reference() is not None
    del loss
    gc.collect()
    assert reference() is None


# A limit on memory


def deep(x: Any) -> Any:
    """Return a scalar; 24 tensors of 1 MiB are saved on the way to it."""
    for _ in range(12):
        x = (x * 1.01).tanh().exp() * 0.3
    return x.mean()


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
        assert "saved for backward by TanhBackward0.result" in text or (
            "saved for backward by ExpBackward0.result" in text
        )
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


def test_reading_ahead_takes_no_memory_that_backward_needs(named_stores: str) -> None:
    """Under a limit that is enough without any reading ahead, it is enough with it."""
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


def test_after_running_out_in_backward_the_next_step_works(named_stores: str) -> None:
    weight = normal(1, 512, 512)
    session = offgrad.offload("disk", directory=named_stores)
    with session:
        loss = deep(weight)
    expected = bits(*grad(loss, weight, retain_graph=True))
    del loss
    with session:
        loss = deep(weight)
    wait_until(lambda: not open_stores(named_stores)[0].stats().inflight_nbytes, "writes")
    gc.collect()
    held = alive()
    with memory.limit(held + MIB // 2), pytest.raises(OutOfMemoryError):
        loss.backward(retain_graph=True)
    assert alive() <= held
    assert bits(*grad(loss, weight, retain_graph=True)) == expected
    with session:
        again = deep(weight)
    assert bits(*grad(again, weight)) == expected


class Alternating:
    """Every other save to the pool, the rest elsewhere."""

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
    """Some wait for memory while others hold what they wait for: no error but one, no deadlock."""
    errors: list[BaseException] = []
    finished: list[int] = []
    with memory_store(MemoryBackend(delay=0.0005), threads=2) as store:
        pool = every_store["pool"]
        places = {"one store": (store,), "a pool each": (pool,)}.get(kind, (store, pool))
        shared = offgrad.offload(Alternating(*places))

        def work(seed: int) -> None:
            session = offgrad.offload(Alternating(*places)) if "each" in kind else shared
            for step in range(6):
                try:
                    x = normal(seed + step, 128, 128)
                    with session:
                        loss = unary_chain(x, 25)
                    loss.backward()
                    finished.append(seed)
                except OutOfMemoryError:
                    pass  # the others may hold what this one needs
                except BaseException as error:
                    errors.append(error)

        threads = [threading.Thread(target=work, args=(k * 100,), daemon=True) for k in range(3)]
        rooms = {"one store": 24, "a pool each": 70}
        with memory.limit(alive() + rooms.get(kind, 50) * 65536):
            for each in threads:
                each.start()
            for each in threads:
                each.join(20)
        assert not any(each.is_alive() for each in threads), "a deadlock"
        assert errors == []
        assert finished


# Plain hooks: no wrong gradient either


def test_hooks_that_hold_the_very_tensor_are_told_of_its_change() -> None:
    w, y = normal(1, 4), normal(2, 4, grad=False)
    for unpack in (lambda x: x, lambda x: x.view(4), lambda x: x.clone(), lambda x: x * 1):
        with saved_tensors_hooks(lambda x: x, unpack):
            loss = (y * w).sum()
        y.add_(1)
        with pytest.raises(RuntimeError, match=r"MulBackward0.self saved at version"):
            loss.backward()


def test_hooks_that_copied_are_not() -> None:
    w, y = normal(1, 4), normal(2, 4, grad=False)
    value = y.numpy().copy()
    with saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        loss = (y * w).sum()
    y.add_(1)
    loss.backward()
    assert np.array_equal(w.grad.numpy(), value)


def test_a_graph_changed_through_an_unpacked_tensor_does_not_affect_others(
    store: RecordingStore,
) -> None:
    """What one backward does to what it was given, the next does not see."""

    class Vandal(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            (x,) = ctx.saved_tensors
            with offgrad.no_grad():
                x.detach().zero_()
            return grads[0]

    x = normal(1, 16, 16)
    with everything(store):
        y = x * 1
        a = y.sin().sum()
        b = Vandal.apply(y).sum()
    del y
    (a + b).backward(retain_graph=True)
    z = normal(1, 16, 16)
    (z.sin().sum() + z.sum()).backward()
    assert np.allclose(x.grad.numpy(), z.grad.numpy())


def test_training_with_a_loss_and_a_store_per_step(tmp_path: Path) -> None:
    """A store may end with its step."""
    model = nn.Linear(8, 8)
    x = offgrad.randn(4, 8)
    losses = []
    for _ in range(3):
        with DiskStore(tmp_path, allocate=memory.empty) as store:
            with everything(store):
                loss = F.mse_loss(model(x).tanh(), x)
            loss.backward()
            losses.append(loss.item())
    assert len(set(losses)) == 1
    assert list(tmp_path.iterdir()) == []
