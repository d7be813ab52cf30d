"""Recordings: what a step saved, as a file, without a trace in the step's results."""

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import nn
from offgrad.nn import functional as F
from offgrad.prediction import Recording, SaveRecorder
from offgrad.prediction.recording import Kind


def model() -> Any:
    """Return a model that saves large tensors, one of which it changes in place."""
    offgrad.manual_seed(0)
    return nn.Sequential(
        nn.Linear(128, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 256), nn.Tanh(),
        nn.Linear(256, 8),
    )  # fmt: skip


def step(net: Any, session: Any, x: Any) -> list[Any]:
    """Train a step; return the bytes of loss and gradients."""
    net.zero_grad()
    with session:
        hidden = net[0](x)
        hidden = F.relu(hidden, inplace=True)
        loss = net[1:](hidden).square().mean()
    loss.backward()
    return [loss.item(), *(each.grad.numpy().tobytes() for each in net.parameters())]


def record(policy: Any = "keep", **options: Any) -> Recording:
    net, x = model(), offgrad.randn(128, 128)
    session = offgrad.offload(policy)
    with SaveRecorder(**options) as recorder:
        step(net, session, x)
        recorder.step()
        step(net, session, x)
    return recorder.recording


def test_recording_changes_no_bits() -> None:
    net, x = model(), offgrad.randn(128, 128)
    expected = step(net, offgrad.offload("keep"), x)
    with SaveRecorder():
        assert step(net, offgrad.offload("disk"), x) == expected
    with SaveRecorder(max_nbytes="64KiB"):
        assert step(net, offgrad.offload("disk"), x) == expected
    assert step(net, offgrad.offload("disk"), x) == expected


def test_a_step_is_recorded() -> None:
    recording = record()
    saves = {(each.op, each.slot, each.module) for each in recording.saves}
    assert ("GeluBackward0", "self", "2") in saves
    assert ("AddmmBackward0", "mat1", "3") in saves
    (number,) = [n for n, each in enumerate(recording.saves) if each.module == "2"]
    assert recording.saves[number].nbytes == 128 * 256 * 4
    events = list(zip(recording.kinds, recording.values, strict=True))
    assert events.index((Kind.SAVE, number)) < events.index((Kind.BEGIN, 0))
    assert events.index((Kind.BEGIN, 0)) < events.index((Kind.USE, number))
    assert events.index((Kind.USE, number)) < events.index((Kind.DROP, number))
    assert recording.times == sorted(recording.times)
    assert number in recording.passes[0]


def test_what_can_be_computed_again_has_a_recipe() -> None:
    recording = record()
    (of_gelu,) = [each for each in recording.saves if each.key == ("AddmmBackward0", "mat1", "3")]
    assert of_gelu.recipe is not None
    assert of_gelu.recipe.seconds > 0.0
    (source,) = [each for each in of_gelu.recipe.inputs if each is not None]
    assert isinstance(source, int)
    assert recording.saves[source].op == "GeluBackward0"


def test_memory_of_the_recorder_is_apart() -> None:
    """A bound of what it holds in memory changes nothing that it records."""
    unbounded, bounded = record(), record(max_nbytes="64KiB")
    for kind in (Kind.SAVE, Kind.FREE, Kind.USE, Kind.DROP):
        assert unbounded.kinds.count(kind) == bounded.kinds.count(kind)

    def peak(recording: Recording) -> int:
        pairs = zip(recording.kinds, recording.values, strict=True)
        return max(value for kind, value in pairs if kind == Kind.MEMORY)

    assert peak(bounded) <= peak(unbounded) + 256 * 1024


def test_an_in_place_change_keeps_what_was_saved() -> None:
    x = offgrad.randn(256, 256, requires_grad=True)
    with SaveRecorder() as recorder:
        y = x * 2.0
        z = y.sin()
        expected = np.cos(y.detach().numpy().copy())
        y.zero_()
        z.sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), 2.0 * expected, rtol=1e-6)
    assert Kind.CHANGE in recorder.recording.kinds


def test_a_recorder_without_a_step() -> None:
    recorder = SaveRecorder()
    with recorder:
        pass
    with pytest.raises(RuntimeError, match="no step was recorded"):
        _ = recorder.recording


def test_a_recording_is_a_file(tmp_path: Path) -> None:
    recording = record()
    recording.save(tmp_path / "run.offgrad")
    assert Recording.load(tmp_path / "run.offgrad") == recording


def _changed(recording: Recording, path: Path, **changes: Any) -> Path:
    recording.save(path)
    content = json.loads(gzip.decompress(path.read_bytes()))
    path.write_bytes(gzip.compress(json.dumps(content | changes).encode()))
    return path


@pytest.mark.parametrize(
    "content",
    [b"", b"garbage", gzip.compress(b"garbage"), gzip.compress(b"[]"), gzip.compress(b"[]")[:-9]],
    ids=["empty", "garbage", "no JSON", "a list", "cut"],
)
def test_a_file_of_garbage(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "run.offgrad"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"run\.offgrad is no recording of offgrad"):
        Recording.load(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"kinds": [1], "times": [0.0], "values": [9999]},
        {"kinds": [99], "times": [0.0], "values": [0]},
        {"kinds": [0], "times": [], "values": []},
        {"passes": [[-1]]},
        {"memories": []},
        {"saves": [{"op": "Sin"}]},
        {"saves": None},
        {"seconds": "long"},
        {"machine": []},
    ],
)
def test_a_damaged_recording(changes: dict[str, Any], tmp_path: Path) -> None:
    path = _changed(record(), tmp_path / "run.offgrad", **changes)
    with pytest.raises(ValueError, match="is no recording of offgrad"):
        Recording.load(path)


@pytest.mark.parametrize("change", [{"ratios": []}, {"ratios": {"lz4": "x"}}, {"op": {}}])
def test_a_damaged_save(change: dict[str, Any], tmp_path: Path) -> None:
    recording = record()
    saves = recording.to_dict()["saves"]
    saves[0].update(change)
    path = _changed(recording, tmp_path / "run.offgrad", saves=saves)
    with pytest.raises(ValueError, match="is no recording of offgrad"):
        Recording.load(path)


def test_a_recording_of_another_version(tmp_path: Path) -> None:
    path = _changed(record(), tmp_path / "run.offgrad", version=99)
    with pytest.raises(ValueError, match="version 99"):
        Recording.load(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Recording.load(tmp_path / "none.offgrad")


def test_a_profile_records_saves(tmp_path: Path) -> None:
    net, x = model(), offgrad.randn(128, 128)
    for saves in (True, False):
        with offgrad.profiler.profile(interval=None, saves=saves) as prof:
            step(net, offgrad.offload("disk"), x)
            prof.step()
            step(net, offgrad.offload("disk"), x)
        prof.save(tmp_path / f"{saves}.offgrad")
    loaded = Recording.load(tmp_path / "True.offgrad")
    assert [each.key for each in loaded.saves] == [each.key for each in record().saves]
    with pytest.raises(ValueError, match=r"profile\(saves=True\)"):
        Recording.load(tmp_path / "False.offgrad")


def test_many_steps_take_no_more_memory() -> None:
    net, x = model(), offgrad.randn(128, 128)
    session = offgrad.offload("keep")
    with SaveRecorder() as recorder:
        for _ in range(3):
            step(net, session, x)
            recorder.step()
        counts = len(recorder._refs), len(recorder._alone), len(recorder._recipes.costs)
        allocated = offgrad.memory.allocated()
        for _ in range(20):
            step(net, session, x)
            recorder.step()
        assert (len(recorder._refs), len(recorder._alone), len(recorder._recipes.costs)) == counts
        assert offgrad.memory.allocated() <= allocated


def test_threads_that_train_are_recorded() -> None:
    results: list[Any] = []

    def train() -> None:
        net, x = model(), offgrad.ones(128, 128)
        results.append(step(net, offgrad.offload("keep"), x)[1:])

    with SaveRecorder() as recorder:
        threads = [threading.Thread(target=train) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    recorder.recording.check()
    assert len(recorder.recording.passes) == 3
    train()
    assert all(each[0] is not None and len(each) == len(results[-1]) for each in results)
    assert sum(kind == Kind.USE for kind in recorder.recording.kinds) >= 9


def test_a_graph_that_outlives_its_recorder() -> None:
    net, x = model(), offgrad.randn(128, 128)
    expected = step(net, offgrad.offload("keep"), x)
    with SaveRecorder(max_nbytes="64KiB") as recorder:
        net.zero_grad()
        hidden = F.relu(net[0](x), inplace=True)
        loss = net[1:](hidden).square().mean()
        recorder.step()
    loss.backward(retain_graph=True)
    net.zero_grad()
    loss.backward()
    found = [loss.item(), *(each.grad.numpy().tobytes() for each in net.parameters())]
    assert found == expected
