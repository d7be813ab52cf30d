"""Sessions under every lossless policy, on stores that live as long as the test run."""

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from offgrad_storage import (
    BackendStore,
    DiskStore,
    PoolStore,
    StoreError,
    ZarrStore,
)

import offgrad
from offgrad import memory
from offgrad.policies import (
    Budget,
    Keep,
    Last,
    Offload,
    Placement,
    Recompute,
    SaveContext,
    Store,
    When,
)
from offgrad.session import named_stores as stores
from tests.session.backends import MemoryBackend, RecordingStore, memory_store
from tests.session.helpers import wait_until

RunPython = Callable[..., subprocess.CompletedProcess[str]]
Stores = dict[str, BackendStore]


class Mixed:
    """A policy by op, slot and size, over four stores."""

    def __init__(self, by_name: Stores) -> None:
        self.by_name = by_name

    def place(self, context: SaveContext) -> Placement:
        """Spread the saved tensors over the stores."""
        if context.op.startswith(("Mm", "Linear")):
            return Store(self.by_name["disk"])
        if context.slot == "result":
            return Store(self.by_name["pool"])
        if context.nbytes % 3 == 0:
            return Store(self.by_name["delayed"])
        return Keep() if context.is_parameter else Store(self.by_name["zarr"])


class Everything:
    """Store all, parameters too."""

    def __init__(self, store: BackendStore) -> None:
        self.store = store

    def place(self, context: SaveContext) -> Placement:
        """Store."""
        return Store(self.store)


def _policy(name: str, by_name: Stores) -> Any:
    store, _, rest = name.partition("-")
    if name == "keep":
        return Keep()
    if name == "mixed":
        return Mixed(by_name)
    if store == "recompute":
        return [Recompute(64, min_nbytes=0), _policy(rest, by_name)]
    if store == "budget":
        return Budget(int(rest), by_name["delayed"])
    if store == "last":
        return Last(int(rest), Offload(by_name["disk"], min_nbytes=0))
    if name == "first":
        return [
            When(Offload(by_name["disk"], min_nbytes=0), op=["Mm", "Addmm", "*Linear*"]),
            When(Offload(by_name["zstd_pool"], min_nbytes=0), output=True, dtype="*float*"),
            When("keep", max_nbytes=200),
            Offload(by_name["lz4_disk"], min_nbytes=300),
            Everything(by_name["delayed"]),
        ]
    if rest == "parameters":
        return Everything(by_name[store])
    return Offload(by_name[store], min_nbytes=0) if rest == "all" else Offload(by_name[store])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the rules of the policies called "first" match nothing in some of the small graphs."""
    quiet = pytest.mark.filterwarnings("ignore:no tensor saved for backward in this block")
    for each in items:
        if each.path.parent == Path(__file__).parent and "first" in each.name:
            each.add_marker(quiet)


LOSSLESS = (
    "keep",
    "pool",
    "pool-all",
    "disk",
    "disk-all",
    "disk-parameters",
    "zarr-all",
    "raw_zarr-all",
    "delayed-all",
    "mixed",
    "lz4_disk-all",
    "zstd_pool-all",
    "first",
    "budget-0",
    "budget-100000",
    "last-3",
    "recompute-keep",
    "recompute-disk-all",
    "recompute-mixed",
    "recompute-budget-10000",
)


@pytest.fixture(scope="session")
def every_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """One store of each kind."""
    folder = tmp_path_factory.mktemp("spill")
    made: Stores = {
        "pool": PoolStore(allocate=memory.empty, hold=memory.empty),
        "disk": DiskStore(folder, allocate=memory.empty),
        "zarr": ZarrStore(folder, allocate=memory.empty),
        "raw_zarr": ZarrStore(folder, codec="none", allocate=memory.empty),
        "lz4_disk": DiskStore(folder, codec="lz4", allocate=memory.empty),
        "zstd_pool": PoolStore(codec="zstd", allocate=memory.empty, hold=memory.empty),
        "delayed": memory_store(MemoryBackend(delay=0.002), threads=2),
    }
    yield made
    for each in made.values():
        each.close()
    assert list(folder.iterdir()) == []


@pytest.fixture(autouse=True)
def _no_handle_outlives(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that a test that passed leaves no stored array alive."""
    made: Stores | None = None
    if "every_store" in request.fixturenames:
        made = request.getfixturevalue("every_store")
    failures = request.session.testsfailed
    yield
    if made is None or request.session.testsfailed != failures:
        return
    if not all(_idle(store)() for store in made.values()):
        # Cycles, such as a caught exception's, are garbage only after a collection.
        gc.collect()
    for name, store in made.items():
        wait_until(_idle(store), f"{name} still holds {store.stats()}")


def _idle(store: BackendStore) -> Callable[[], bool]:
    def idle() -> bool:
        now = store.stats()
        return not now.live_handles and not now.inflight_nbytes

    return idle


@pytest.fixture(params=LOSSLESS)
def lossless(request: pytest.FixtureRequest, every_store: Stores) -> Any:
    """Each lossless policy in turn."""
    return _policy(request.param, every_store)


@pytest.fixture
def offload(lossless: Any) -> Callable[[], offgrad.session.OffloadSession]:
    """Open a session under a lossless policy."""
    return lambda: offgrad.offload(lossless)


@pytest.fixture
def named_stores(tmp_path: Path) -> Iterator[str]:
    """A folder for policies given by name; their stores are closed afterwards."""
    folder = tmp_path / "named"
    folder.mkdir()
    # Stores that other tests opened without a folder stay.
    known = set(stores._stores)
    yield str(folder)
    for key in set(stores._stores) - known:
        with suppress(StoreError):
            stores._stores.pop(key).close()
    assert list(folder.iterdir()) == []


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Run code in a separate Python process that spills into ``spill`` below `tmp_path`."""
    folder = tmp_path / "spill"
    folder.mkdir()

    def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-Werror", "-c", textwrap.dedent(code), *map(str, arguments)],
            env=child_environment(folder),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


def child_environment(folder: Path) -> dict[str, str]:
    """Return the environment for a Python that spills into `folder`."""
    path = os.pathsep.join(str(Path(each).absolute()) for each in sys.path)
    return os.environ | {"PYTHONPATH": path, "OFFGRAD_SPILL_DIR": str(folder)}


@pytest.fixture
def store() -> Iterator[RecordingStore]:
    """A store that logs its calls."""
    with RecordingStore() as made:
        yield made


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Switch threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)
