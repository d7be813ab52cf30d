"""Checkpoints of paged models: whole or not at all, of the moment of the call, bit for bit."""

import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import checkpoint, nn, optim
from offgrad.nn import functional as F
from offgrad.utils.data import DataLoader, TensorDataset
from tests.paging.models import WIDTH, assert_same, batches, mlp, paging, result_of
from tests.processes import start_python
from tests.session.backends import MemoryBackend, memory_store


def trained(placement: str | None = "disk", steps: int = 2) -> tuple[nn.Module, Any]:
    """Return a model and its optimizer after some steps."""
    offgrad.manual_seed(3)
    with paging(placement, window=1):
        model = mlp(2)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    step(model, optimizer, steps)
    return model, optimizer


def step(model: nn.Module, optimizer: Any, count: int = 1) -> None:
    """Train."""
    for x, y in batches(count):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def test_a_background_save_has_the_state_of_its_call(tmp_path: Path) -> None:
    model, optimizer = trained()
    held = [each.detach().numpy() for each in model.parameters()]  # changed without notice
    for number in range(5):
        expected = result_of([], model, optimizer)._replace(gradients=[])
        save = checkpoint.save(
            tmp_path, step=number, background=True, model=model, optimizer=optimizer
        )
        for array in held:
            array += 1
        with offgrad.no_grad():
            for param in model.parameters():
                param.mul_(2)
        step(model, optimizer)
        save.wait()
        other, state = trained(None, 0)
        assert checkpoint.load(tmp_path, model=other, optimizer=state) == {"step": number}
        assert_same(result_of([], other, state)._replace(gradients=[]), expected)


def test_changes_through_an_array_after_a_background_save_are_not_lost(tmp_path: Path) -> None:
    model, _ = trained()
    first = next(model.parameters())
    held = first.detach().numpy()
    checkpoint.save(tmp_path / "a.pt", background=True, model=model).wait()
    held += 1
    expected = held.copy()
    del held
    step_by = [each.detach().sum() for each in [*model.parameters()] * 2]
    assert len(step_by)
    np.testing.assert_array_equal(first.detach().numpy(), expected)


def test_an_array_taken_while_a_save_is_pending_does_not_change_the_file(tmp_path: Path) -> None:
    backend = MemoryBackend()
    store = memory_store(backend)
    with offgrad.offload_model(store, window="1MiB"):
        model = mlp(2)
    expected = result_of([], model)
    with offgrad.no_grad():
        for each in model.parameters():
            each.mul_(1)
    backend.gate.clear()
    save = checkpoint.save(tmp_path / "a.pt", background=True, model=model)
    threading.Timer(0.05, backend.gate.set).start()
    for each in model.parameters():
        array = each.detach().numpy()
        array += 1
        each.data.numpy()[:1] = 7
    save.wait()
    other, _ = trained(None, 0)
    checkpoint.load(tmp_path / "a.pt", model=other)
    assert_same(result_of([], other)._replace(gradients=[]), expected._replace(gradients=[]))


def test_the_new_file_is_always_kept(tmp_path: Path) -> None:
    model, _ = trained(None, 0)
    for number in (10, 20, 5, 6, 30):
        written = checkpoint.save(tmp_path, step=number, keep_last=2, model=model).wait()
        assert written.exists()
        assert len([*tmp_path.iterdir()]) <= 2
    assert checkpoint.latest(tmp_path).name == "checkpoint-00000030.pt"
    for keep in (0, -1):
        with pytest.raises(ValueError, match="keep_last"):
            checkpoint.save(tmp_path, step=1, keep_last=keep, model=model)


def test_any_corrupt_byte_is_found_or_harmless(tmp_path: Path) -> None:
    path, bad = tmp_path / "a.pt", tmp_path / "bad.pt"
    model = nn.Linear(3, 2)
    checkpoint.save(path, model=model, note="text")
    content = path.read_bytes()
    expected = result_of([], model)
    raised = 0
    generator = random.Random(0)
    for position in generator.sample(range(len(content)), 250):
        changed = bytearray(content)
        changed[position] ^= 1 << generator.randrange(8)
        bad.write_bytes(changed)
        other = nn.Linear(3, 2)
        before = result_of([], other)
        states = offgrad.get_rng_state()
        try:
            checkpoint.load(bad, model=other)
        except RuntimeError:
            raised += 1
            assert_same(result_of([], other), before)
            assert offgrad.equal(offgrad.get_rng_state(), states)
        else:
            assert_same(result_of([], other), expected)
    assert raised > 50
    for size in (0, 1, 100, len(content) // 2, len(content) - 1):
        bad.write_bytes(content[:size])
        with pytest.raises(RuntimeError, match="truncated or corrupt"):
            checkpoint.load(bad, model=other)


def test_missing_names_load_nothing(tmp_path: Path) -> None:
    model, optimizer = trained(steps=1)
    checkpoint.save(tmp_path / "a.pt", model=model)
    before = result_of([], model, optimizer)
    step(model, optimizer)
    after = result_of([], model, optimizer)
    with pytest.raises(KeyError, match="optimizer"):
        checkpoint.load(tmp_path / "a.pt", model=model, optimizer=optimizer)
    assert_same(result_of([], model, optimizer), after)
    assert before is not after
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "b.pt", model=model)
    with pytest.raises(ValueError, match="taken"):
        checkpoint.save(tmp_path / "c.pt", random=1)


KILLED = """
import os, sys, offgrad
from offgrad import checkpoint
from tests.paging.test_checkpoint import trained, step
model, optimizer = trained(steps=1)
path = sys.argv[1]
checkpoint.save(path, model=model, optimizer=optimizer, count=0)
print("ready", flush=True)
for count in range(1, 100000):
    with offgrad.no_grad():
        for each in model.parameters():
            each.fill_(count)
    checkpoint.save(path, model=model, optimizer=optimizer, count=count, background=count % 2 == 1)
"""


def test_kill_during_a_save_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    for _ in range(1):
        child = start_python(KILLED, str(path), stdout=-1)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        signal.sigtimedwait([], random.random() * 0.1)
        child.kill()
        child.wait()
        child.stdout.close()
        model, optimizer = trained(None, 1)
        count = checkpoint.load(path, model=model, optimizer=optimizer)["count"]
        if count:
            assert all(bool((each == count).all()) for each in model.parameters())
    for each in tmp_path.glob(".*"):
        os.utime(each, (0, 0))
    (tmp_path / ".a.pt.0123456789ab.tmp").write_bytes(b"unfinished")
    os.utime(tmp_path / ".a.pt.0123456789ab.tmp", (0, 0))
    checkpoint.save(path, model=model, optimizer=optimizer)
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt"]


def run(folder: Path, stop: int, workers: int) -> list[float]:
    """Train with dropout and a shuffled loader from the last checkpoint on; return the losses."""
    offgrad.manual_seed(1)
    random.seed(2)
    np.random.seed(3)  # noqa: NPY002
    with paging("disk", window=1):
        model = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)
        )
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    data = TensorDataset(offgrad.randn(20, WIDTH), offgrad.arange(20) % 5)
    loader = checkpoint.ResumableLoader(
        DataLoader(data, batch_size=3, shuffle=True, num_workers=workers)
    )
    state: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "schedule": schedule,
        "loader": loader,
    }
    count = 0
    losses: list[float] = []
    if folder.exists():
        found = checkpoint.load(folder, **state)
        count, losses = found["step"], found["losses"]
    while True:
        for x, y in loader:
            if count == stop:
                return losses
            noise = random.random() + float(np.random.rand())  # noqa: NPY002
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x + noise), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            count += 1
            losses.append(loss.item())
            checkpoint.save(
                folder, step=count, keep_last=1, background=True, losses=losses, **state
            )


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_in_pieces_has_the_same_losses(tmp_path: Path, workers: int) -> None:
    whole = run(tmp_path / "whole", 17, workers)
    for stop in (1, 2, 7, 8, 14, 17):  # 7 batches an epoch
        pieces = run(tmp_path / "pieces", stop, workers)
    assert pieces == whole
