"""Faults of stores: the error names store and handle, and the session stays usable."""

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from offgrad_storage import (
    BackendStore,
    CorruptionError,
    DiskStore,
    ForkedStoreError,
    MissingDataError,
    PoolStore,
    QuotaExceededError,
    StoreClosedError,
    StoreError,
    ZarrStore,
)

import offgrad
from offgrad import memory
from offgrad.autograd import grad
from offgrad.policies import (
    Keep,
    Offload,
    Placement,
    SaveContext,
    Store,
)
from tests.session.conftest import RunPython
from tests.session.graphs import bits, normal
from tests.session.helpers import wait_until

Make = Callable[..., BackendStore]

KINDS: dict[str, Callable[..., BackendStore]] = {
    "pool": lambda folder, **options: PoolStore(
        allocate=memory.empty, hold=memory.empty, **options
    ),
    "disk": lambda folder, **options: DiskStore(
        folder, allocate=memory.empty, pack_below_nbytes=0, **options
    ),
    "zarr": lambda folder, **options: ZarrStore(
        folder, codec="none", allocate=memory.empty, **options
    ),
}

every_kind = pytest.mark.parametrize("kind", KINDS)


@contextmanager
def opened(store: BackendStore) -> Iterator[BackendStore]:
    """Close `store` at the end; ignore errors that were not raised before."""
    try:
        yield store
    finally:
        with suppress(StoreError):
            store.close()


def session_on(store: Any) -> offgrad.session.OffloadSession:
    return offgrad.offload(Offload(store, min_nbytes=0))


def settle(store: BackendStore) -> None:
    wait_until(lambda: not store.stats().inflight_nbytes, "writes are pending")


def forward(x: Any) -> Any:
    """Return a scalar whose graph saves three tensors without other references."""
    return x.tanh().tanh().tanh().sum()


def assert_works(session: offgrad.session.OffloadSession) -> None:
    """Assert that a step under `session` is right."""
    x, y = normal(3, 64, 64), normal(3, 64, 64)
    with session:
        loss = forward(x)
    loss.backward()
    forward(y).backward()
    assert bits(x.grad) == bits(y.grad)


@every_kind
def test_an_exceeded_quota_is_raised_by_forward(kind: str, tmp_path: Path) -> None:
    with opened(KINDS[kind](tmp_path, quota=70_000)) as store:
        session = session_on(store)
        x = normal(1, 64, 64)
        with pytest.raises(QuotaExceededError, match="quota of 70000 bytes") as caught, session:
            x.tanh().tanh().tanh().tanh().tanh()
        assert type(store).__name__ in caught.value.store
        assert "float32 (64, 64)" in caught.value.handle
        assert not isinstance(x.grad, offgrad.Tensor)
        caught.value.__traceback__ = None
        del caught
        wait_until(lambda: not store.stats().live_handles, "handles are alive")
        assert_works(session)


@every_kind
def test_a_closed_store_is_named_by_backward(kind: str, tmp_path: Path) -> None:
    with opened(KINDS[kind](tmp_path)) as store, opened(KINDS["disk"](tmp_path)) as other:

        class BySize:
            def place(self, context: SaveContext) -> Placement:
                return Store(store if context.shape[0] == 64 else other)

        session = offgrad.offload(BySize())
        x, y = normal(1, 64, 64), normal(2, 32, 32)
        with session:
            loss, good = forward(x), forward(y)
        settle(store)
        store.close()
        with pytest.raises(StoreClosedError, match="closed") as caught:
            loss.backward()
        assert type(store).__name__ in caught.value.store
        assert "float32 (64, 64)" in caught.value.handle
        assert x.grad is None
        # The other graph still works, while the first is alive.
        good.backward()
        z = normal(2, 32, 32)
        forward(z).backward()
        assert bits(y.grad) == bits(z.grad)
        with pytest.raises(StoreClosedError):
            loss.backward()
        with session:
            second = forward(y)
        second.backward()


@every_kind
def test_a_closed_store_is_named_by_forward(kind: str, tmp_path: Path) -> None:
    store = KINDS[kind](tmp_path)
    session = session_on(store)
    store.close()
    with pytest.raises(StoreClosedError, match="closed"), session:
        forward(normal(1, 4, 4))
    assert session.ledger.saves == 1
    forward(normal(1, 4, 4)).backward()


def spill_file(folder: Path) -> int:
    """Return the descriptor of this process's file without a name in `folder`."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{number}")
            if target.startswith(str(folder)) and "deleted" in target:
                found.append(int(number))
    (descriptor,) = found
    return descriptor


def truncate(store: BackendStore, folder: Path) -> None:
    os.ftruncate(spill_file(folder), 16384 + 4096)


def flip_bit(store: BackendStore, folder: Path) -> None:
    flip_bits_of(Path(f"/proc/self/fd/{spill_file(folder)}"))


def flip_bits_of(path: Path) -> None:
    with open(path, "r+b", buffering=0) as file:
        for place in range(100, os.fstat(file.fileno()).st_size, 4096):
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))


def shards(store: BackendStore) -> list[Path]:
    assert isinstance(store, ZarrStore)
    return [each for each in store.path.glob("*/c/**/*") if each.is_file()]


def flip_bits_of_shards(store: BackendStore, folder: Path) -> None:
    for path in shards(store):
        flip_bits_of(path)


def cut_shards(store: BackendStore, folder: Path) -> None:
    for path in shards(store):
        os.truncate(path, 100)


DAMAGES: list[tuple[str, Callable[[BackendStore, Path], None], type[StoreError]]] = [
    ("disk", truncate, MissingDataError),
    ("disk", flip_bit, CorruptionError),
    ("zarr", flip_bits_of_shards, CorruptionError),
    ("zarr", cut_shards, MissingDataError),
]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the spill file in /proc")
@pytest.mark.parametrize(
    ("kind", "damage", "error"), DAMAGES, ids=[each[1].__name__ for each in DAMAGES]
)
def test_damaged_bytes_are_an_error_of_backward(
    kind: str,
    damage: Callable[[BackendStore, Path], None],
    error: type[StoreError],
    tmp_path: Path,
) -> None:
    with opened(KINDS[kind](tmp_path)) as store:
        session = session_on(store)
        x = normal(1, 64, 64)
        with session:
            loss = forward(x)
        settle(store)
        store.flush()
        damage(store, tmp_path)
        for _ in range(2):
            with pytest.raises(error) as caught:
                loss.backward(retain_graph=True)
            assert type(store).__name__ in caught.value.store
            assert "float32 (64, 64)" in caught.value.handle
            assert caught.value.fix
            assert x.grad is None
        assert offgrad.is_grad_enabled()
        # A tensor that the program still references needs no store.
        y = normal(4, 64, 64)
        with session:
            held = y.tanh()
            fine = held.sum()
        fine.backward()
        assert_works(session)
        with pytest.raises(StoreError):
            grad(loss, x)


def test_a_failed_write_is_raised_by_the_next_save_and_loses_nothing(
    run_python: RunPython,
) -> None:
    """The largest allowed file stands for a full disk."""
    result = run_python(
        """
        import resource
        import offgrad
        from offgrad.session.named_stores import open_store
        from offgrad_storage import StoreFullError

        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        for name in ("disk", "zarr:none"):
            session = offgrad.offload(name)
            x = offgrad.randn(512, 512, requires_grad=True)
            with session:
                loss = x.tanh().sum()  # one save: a second one might raise the error already
            while open_store(name).stats().inflight_nbytes:
                pass  # until then the writes have not failed
            small = offgrad.randn(128, 128, requires_grad=True)
            try:
                with session:
                    small.tanh().tanh()
            except StoreFullError as error:
                assert ("DiskStore" if name == "disk" else "ZarrStore") in error.store, error
                assert "float32 (128, 128)" in error.handle, error
                assert "ulimit -f" in error.fix, error
                print("full", name)
            loss.backward()
            (right,) = offgrad.autograd.grad(x.tanh().sum(), x)
            assert x.grad.equal(right), "the arrays stay in memory"
            del loss
            with session:
                y = small.tanh().tanh().sum()
            y.backward()
            assert small.grad is not None
        """
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["full", "disk", "full", "zarr:none"]
    assert not result.stderr


def test_a_failed_write_does_not_stop_a_later_change(tmp_path: Path) -> None:
    """An in-place operation waits for a write that fails, and goes on; the store has a copy."""
    with opened(DiskStore(tmp_path, allocate=memory.empty, pack_below_nbytes=0)) as store:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        w, y = normal(1, 128, 128), normal(2, 128, 128, grad=False)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
        try:
            with session_on(store):
                loss = (y * w).sum()
            y.add_(1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        with pytest.raises(StoreError, match="File too large"), session_on(store):
            (w * 1).tanh()  # the next put says so
        loss.backward()
        value = normal(2, 128, 128, grad=False)
        assert bits(w.grad) == bits(value), "the value before the change"
        assert_works(session_on(store))


def test_a_store_of_another_process_is_named(tmp_path: Path) -> None:
    with opened(DiskStore(tmp_path, allocate=memory.empty, pack_below_nbytes=0)) as store:
        with session_on(store):
            loss = forward(normal(1, 64, 64))
        settle(store)
        child = os.fork()
        if not child:
            code = 1
            try:
                loss.backward()
            except ForkedStoreError:
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        loss.backward()


def test_an_error_of_a_policy_leaves_everything_usable() -> None:
    class Broken:
        calls = 0

        def place(self, context: SaveContext) -> Placement:
            self.calls += 1
            if self.calls == 2:
                raise ZeroDivisionError
            return Keep()

    session = offgrad.offload(Broken())
    x = normal(1, 4)
    with pytest.raises(ZeroDivisionError), session:
        x.exp().tanh()
    with session:
        x.exp().tanh().sum().backward()
