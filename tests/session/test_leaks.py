"""Leaks: a step, a graph and a session leave nothing behind."""

import gc
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from offgrad_storage import DiskStore

import offgrad
from offgrad import memory, nn, optim
from offgrad.nn import functional as F
from offgrad.session import session as session_module
from tests.session.backends import RecordingStore
from tests.session.graphs import normal
from tests.session.helpers import alive, everything, open_stores, settle, unary_chain, wait_until

NAMES = ("keep", "pool", "disk", "zarr", "zarr:none")


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
    """During backward, not only after it."""
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
    """Return the bytes allocated in `files` that 150 more steps leave."""
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize("name", [*NAMES, "recompute,then=disk", "budget:256KiB"])
def test_a_session_leaves_no_reference_cycles(name: str, named_stores: str) -> None:
    """Its stores close, and its memory is freed, without a garbage collection."""
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 64))
    x = offgrad.randn(128, 64)

    def step() -> None:
        with offgrad.offload(name, directory=named_stores):
            loss = model(x).square().mean()
        loss.backward()
        model.zero_grad()

    step()
    gc.collect()
    gc.disable()
    try:
        step()
        assert gc.collect() == 0
    finally:
        gc.enable()
