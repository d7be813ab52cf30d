"""Stores that fail: a batch of a step is done or not, an error says how far, a retry finishes."""

import contextlib
import errno
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from offgrad_storage import BackendStore, Entry, StoreError

import offgrad
from offgrad import checkpoint, memory, nn, optim
from offgrad.memory import OutOfMemoryError
from offgrad.nn import functional as F
from offgrad.policies import When
from tests.paging.models import WIDTH, assert_same, batches, mlp, result_of
from tests.session.backends import MemoryBackend

pytestmark = pytest.mark.usefixtures("kind_of_cache")

PAGE = WIDTH * WIDTH * 4


class Faulty(MemoryBackend):
    """Fails at numbered reads or writes, or past some bytes, until it is mended.

    Attributes:
        reads_left, writes_left: the calls that succeed before one fails; None for all.
        is_lasting: whether later calls fail as well.
        free_nbytes: the room on the drive.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mend()
        self.used_nbytes = 0
        self.calls = {"read": 0, "write": 0}

    def mend(self) -> None:
        """Let all calls succeed."""
        self.left: dict[str, int | None] = {"read": None, "write": None}
        self.is_lasting = False
        self.free_nbytes = 1 << 60

    def _count(self, kind: str) -> None:
        self.calls[kind] += 1
        left = self.left[kind]
        if left is None:
            return
        if left > 0:
            self.left[kind] = left - 1
            return
        if not self.is_lasting:
            self.left[kind] = None
        raise OSError(errno.EIO, "the drive is broken")

    def write(self, entry: Entry, array: NDArray[Any]) -> int:
        """Write, or fail."""
        self._count("write")
        if self.used_nbytes + array.nbytes > self.free_nbytes:
            raise OSError(errno.ENOSPC, "the drive is full")
        self.used_nbytes += array.nbytes
        return super().write(entry, array)

    def read(self, entry: Entry, out: NDArray[Any]) -> None:
        """Read, or fail."""
        self._count("read")
        super().read(entry, out)

    def free(self, entry: Entry) -> None:
        """Give the space back."""
        if entry.serial in self.kept:
            self.used_nbytes -= entry.nbytes
        super().free(entry)


@contextlib.contextmanager
def faulty(threads: int = 1) -> Iterator[tuple[Faulty, BackendStore]]:
    """Open a store over a backend that can fail."""
    backend = Faulty()
    store = BackendStore(backend, threads=threads, allocate=memory.empty)
    try:
        yield backend, store
    finally:
        backend.mend()
        with contextlib.suppress(StoreError):
            store.close()


def values(model: nn.Module, optimizer: Any) -> list[Any]:
    """Return, for each parameter, copies of it, its gradient and its state."""
    found = []
    for each in model.parameters():
        state = optimizer.state.get(each, {})
        found.append(
            [each.detach().numpy().copy()]
            + [np.zeros(0) if each.grad is None else each.grad.numpy().copy()]
            + [np.array(value) for _, value in sorted(state.items())]
        )
    return found


def same(a: list[Any], b: list[Any]) -> bool:
    """Whether two parameters have the same value, gradient and state."""
    return len(a) == len(b) and all(map(np.array_equal, a, b))


def is_untouched(now: list[Any], before: list[Any]) -> bool:
    """Whether a parameter is as before; a first state may have come, with zeros."""
    return same(now[:2], before[:2]) and (
        same(now, before) or (len(before) == 2 and all(not each.any() for each in now[2:]))
    )


def _with_rate(make: Any) -> Callable[[Any], Any]:
    return lambda parameters: make(parameters, lr=1e-2)


OPTIMIZERS = {
    name: _with_rate(getattr(optim, name))
    for name in optim.__all__
    if isinstance(getattr(optim, name), type)
    and name not in ("Optimizer", "LBFGS", "SparseAdam", "Muon")
}
OPTIMIZERS["Muon"] = lambda parameters: optim.Muon(
    [each for each in parameters if each.ndim == 2], lr=1e-2
)
OPTIMIZERS["SGD with momentum"] = lambda parameters: optim.SGD(parameters, lr=0.1, momentum=0.9)
OPTIMIZERS["amsgrad"] = lambda parameters: optim.AdamW(parameters, lr=1e-2, amsgrad=True)


def prepared(policy: Any, make: Callable[[Any], Any], steps: int, window: int) -> Any:
    """Return a model and an optimizer that have done some steps, with new gradients."""
    offgrad.manual_seed(3)
    context = (
        contextlib.nullcontext() if policy is None else offgrad.offload_model(policy, window=window)
    )
    with context:
        model = mlp(3)
    optimizer = make(model.parameters())
    for number, (x, y) in enumerate(batches(steps + 1)):
        if number:
            optimizer.step()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
    return model, optimizer


@pytest.mark.parametrize("kind", ["read", "write"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_fault_of_a_step(name: str, kind: str) -> None:
    make = OPTIMIZERS[name]
    steps, pages = 1, 4 if name in ("SGD", "Adafactor") else 8
    plain, optimizer = prepared(None, make, steps, 1)
    before = values(plain, optimizer)
    optimizer.step()
    after = values(plain, optimizer)
    for number in range(0, 400, 2):
        with faulty() as (backend, store):
            model, optimizer = prepared(store, make, steps, pages * PAGE)
            backend.left[kind] = number
            try:
                optimizer.step()
                error = None
            except StoreError as caught:
                error = caught.with_traceback(None)
            if backend.left[kind] is not None:
                break
            backend.mend()
            if error is not None:
                now = values(model, optimizer)
                updated = [same(*each) for each in zip(now, after, strict=True)]
                for each, old, done in zip(now, before, updated, strict=True):
                    assert done or is_untouched(each, old), (number, name)
                optimizer.step()
            now = values(model, optimizer)
            assert all(same(*each) for each in zip(now, after, strict=True)), number
    assert number or kind == "write"


@pytest.mark.parametrize("kind", ["read", "write"])
def test_each_fault_of_a_training_step(kind: str) -> None:
    make = OPTIMIZERS["AdamW"]
    plain, optimizer = prepared(None, make, 2, 1)
    expected = values(plain, optimizer)
    x, y = list(batches(3))[2]
    for number in range(0, 1000, 3):
        with faulty() as (backend, store):
            model, optimizer = prepared(store, make, 1, 4 * PAGE)
            optimizer.step()
            optimizer.zero_grad()
            backend.left[kind] = number
            with contextlib.suppress(StoreError):
                F.cross_entropy(model(x), y).backward()
            if backend.left[kind] is not None:
                break
            backend.mend()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            now = values(model, optimizer)
            assert all(same(*each) for each in zip(now, expected, strict=True)), number
    assert number


def test_a_full_drive_in_the_middle_of_steps() -> None:
    make = OPTIMIZERS["AdamW"]
    plain, optimizer = prepared(None, make, 1, 1)
    before = values(plain, optimizer)
    optimizer.step()
    after = values(plain, optimizer)
    failed = 0
    for room in range(0, 40 * PAGE, PAGE):
        with faulty(threads=2) as (backend, store):
            model, optimizer = prepared(store, make, 1, 8 * PAGE)
            backend.free_nbytes = room
            for _ in range(2):  # again without space
                try:
                    optimizer.step()
                    break
                except StoreError as caught:
                    failed += 1
                    notes = " ".join(caught.__notes__) if hasattr(caught, "__notes__") else ""
                    now = values_without_writes(backend, model, optimizer)
                    done = sum(same(*each) for each in zip(now, after, strict=True))
                    for each, old, new in zip(now, before, after, strict=True):
                        assert same(each, new) or is_untouched(each, old)
                    if done:
                        assert f"updated {done} of {len(now)} parameters" in notes
            else:
                backend.mend()
                optimizer.step()
            backend.mend()
            now = values(model, optimizer)
            assert all(same(*each) for each in zip(now, after, strict=True)), room
    assert failed


def values_without_writes(backend: Faulty, model: nn.Module, optimizer: Any) -> list[Any]:
    """Return the values, for which the drive must have room, as reading evicts."""
    room, backend.free_nbytes = backend.free_nbytes, 1 << 60
    try:
        return values(model, optimizer)
    finally:
        backend.free_nbytes = room


def test_a_retry_after_parameters_were_restored_updates_them_again() -> None:
    make = OPTIMIZERS["AdamW"]
    plain, optimizer = prepared(None, make, 1, 1)
    optimizer.step()
    after = values(plain, optimizer)
    with faulty() as (backend, store):
        model, optimizer = prepared(store, make, 1, 8 * PAGE)
        parameters = {name: each.clone() for name, each in model.state_dict().items()}
        state = deepcopy(optimizer.state_dict())
        for number in range(30):
            backend.left["read"] = number
            try:
                optimizer.step()
            except StoreError:
                if optimizer._updated:
                    break
            backend.mend()  # the copy of the state is paged, too
            model.load_state_dict(parameters)
            optimizer.load_state_dict(state)
        backend.mend()
        model.load_state_dict(parameters)
        optimizer.load_state_dict(state)
        optimizer.step()
        now = values(model, optimizer)
    assert all(same(*each) for each in zip(now, after, strict=True))


def test_a_fault_of_step_in_backward() -> None:
    plain, optimizer = prepared(None, OPTIMIZERS["AdamW"], 1, 1)
    optimizer.step()
    after = values(plain, optimizer)
    for number in range(0, 200, 5):
        with faulty() as (backend, store):
            model, optimizer = prepared(store, OPTIMIZERS["AdamW"], 0, 6 * PAGE)
            optimizer.step()
            optimizer.zero_grad()
            optim.step_in_backward(optimizer)
            x, y = list(batches(2))[1]
            loss = F.cross_entropy(model(x), y)
            backend.left["read"] = number
            try:
                loss.backward()
            except StoreError:
                backend.mend()
                # Those that backward reached are updated; the graph of the others is retained.
                pending = [each for each in model.parameters() if each.grad is not None]
                optimizer.step()
                optimizer.zero_grad()
                assert len(pending) <= 1
            else:
                is_over = backend.left["read"] is not None
                backend.mend()
                now = values(model, optimizer)
                for each, new in zip(now, after, strict=True):
                    assert same(each[:1] + each[2:], new[:1] + new[2:])
                if is_over:
                    break


def test_a_model_that_cannot_be_written_is_made_in_full_or_says_so() -> None:
    for room in range(0, 6 * PAGE, PAGE):
        with faulty() as (backend, store):
            backend.free_nbytes = room
            with pytest.raises(StoreError), offgrad.offload_model(store, window=1):
                mlp(8)
            backend.mend()
            with offgrad.offload_model(store, window=1) as offload:
                model = mlp(2)
            assert offload.resident_nbytes <= PAGE
            assert np.isfinite(model(offgrad.ones(1, WIDTH)).detach().numpy()).all()


def test_bring_back_after_a_fault() -> None:
    with faulty() as (backend, store):
        model, optimizer = prepared(store, OPTIMIZERS["AdamW"], 1, PAGE)
        expected = values(model, optimizer)
        backend.left["read"] = 3
        with pytest.raises(StoreError):
            offgrad.offload_model(model, "keep")
        backend.mend()
        now = values(model, optimizer)
        assert all(same(*each) for each in zip(now, expected, strict=True))
        offgrad.offload_model(model, "keep")
        assert not any(each._storage.is_paged for each in model.parameters())
        now = values(model, optimizer)
        assert all(same(*each) for each in zip(now, expected, strict=True))


def test_a_checkpoint_on_a_store_that_fails_leaves_the_older_file(tmp_path: Path) -> None:
    with faulty() as (backend, store):
        model, optimizer = prepared(store, OPTIMIZERS["AdamW"], 1, PAGE)
        path = tmp_path / "run.pt"
        run = {"model": model, "optimizer": optimizer}
        checkpoint.save(path, **run)
        expected, failed = path.read_bytes(), 0
        for background in (False, True):
            for kind in ("read", "write"):
                with offgrad.no_grad():
                    for each in model.parameters():
                        each.add_(1)
                backend.left[kind] = 2
                try:
                    checkpoint.save(path, background=background, **run).wait()
                    expected = path.read_bytes()
                except StoreError:
                    failed += 1
                backend.mend()
                assert path.read_bytes() == expected
                assert [each.name for each in tmp_path.iterdir()] == ["run.pt"]
        assert failed


@pytest.mark.parametrize("pages", range(1, 12))
def test_the_limit_holds_or_one_error_says_what_would_do(pages: int) -> None:
    plain, optimizer = prepared(None, OPTIMIZERS["AdamW"], 3, 1)
    expected = values(plain, optimizer)
    del plain, optimizer
    base = memory.allocated()
    memory.reset_peak()
    bound = base + pages * PAGE + 50_000
    with memory.limit(bound):
        try:
            model, optimizer = prepared("disk", OPTIMIZERS["AdamW"], 3, 2 * PAGE)
        except OutOfMemoryError as error:
            message = str(error)
            error.__traceback__ = None
        else:
            message = ""
        if message:
            assert pages < 9
            assert "is limited to" in message
        else:
            now = values(model, optimizer)
            assert all(same(*each) for each in zip(now, expected, strict=True))
    assert memory.max_allocated() <= bound


@pytest.mark.parametrize("pages", range(1, 10))
def test_a_strict_budget_holds_or_one_error_says_what_would_do(pages: int) -> None:
    plain, optimizer = prepared(None, OPTIMIZERS["AdamW"], 2, 1)
    expected = values(plain, optimizer)
    del plain, optimizer
    budget = f"budget:{pages * PAGE},spill=disk"
    try:
        model, optimizer = prepared(budget, OPTIMIZERS["AdamW"], 2, 2 * PAGE)
    except OutOfMemoryError as error:
        message = str(error)
        error.__traceback__ = None
    else:
        message = ""
    if message:
        assert pages < 6
        assert "a page of 64" in message
        assert " 0.weight of [128, 128]" in message or " 2.weight" in message
        assert "raise the budget" in message
    else:
        assert pages > 2
        now = values(model, optimizer)
        assert all(same(*each) for each in zip(now, expected, strict=True))


def test_lossy_policies_are_for_state_alone() -> None:
    with pytest.raises(ValueError, match="bit for bit"), offgrad.offload_model("cast:float16"):
        mlp(1)
    with pytest.raises(ValueError, match="gradients must come back bit for bit"):
        offgrad.offload_model("disk", gradients="cast:float16")
    with offgrad.offload_model("disk", gradients=When("disk:float16", op="Gradient")):
        model = mlp(1)
    x, y = next(batches(1))
    with pytest.raises(ValueError, match="bit for bit"):
        F.cross_entropy(model(x), y).backward()
    with offgrad.offload_model("disk", state="cast:float16,then=disk", window=1):
        model = mlp(1)
    optimizer = optim.AdamW(model.parameters())
    for x, y in batches(2):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert_same(result_of([], model), result_of([], model))
