"""profile_memory around real forward and backward passes."""

import builtins
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rich.console

import offgrad
from offgrad import memory, nn
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import engine
from offgrad.memory import OutOfMemoryError
from offgrad.profiler import MemoryProfile, profile_memory
from offgrad.session.named_stores import open_store

KIB = 1024


def _model() -> tuple[nn.Sequential, Tensor]:
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128), nn.GELU())
    return model, offgrad.randn(256, 128)


def _step(model: nn.Sequential, x: Tensor) -> None:
    model(x).square().mean().backward()
    model.zero_grad()


def _profile(steps: int = 1) -> MemoryProfile:
    model, x = _model()
    _step(model, x)
    with profile_memory() as profile:
        for _ in range(steps):
            _step(model, x)
    return profile


def test_figures_are_exact() -> None:
    model, x = _model()
    start = memory.allocated()
    memory.reset_peak()
    with profile_memory() as profile:
        loss = model(x).square().mean()
        held = memory.allocated()
        loss.backward()
        del loss
    assert profile.start_nbytes == start
    assert profile.peak_nbytes == memory.max_allocated()
    assert profile.end_nbytes == memory.allocated()
    # The gradient to begin with is four bytes.
    assert 0 <= profile.phases[1].start_nbytes - held <= 8
    assert profile.held_nbytes == profile.phases[1].start_nbytes - start
    assert profile.held_nbytes > 256 * 256 * 4


def test_phases_are_named_and_follow_one_another() -> None:
    profile = _profile(steps=2)
    names = [phase.name for phase in profile.phases]
    assert names == ["forward", "backward", "forward", "backward", "after"]
    for phase, following in zip(profile.phases, profile.phases[1:], strict=False):
        assert phase.start <= phase.end <= following.start
        assert phase.peak_nbytes >= max(phase.start_nbytes, phase.end_nbytes)
    peaks = [profile.peak_in(name) for name in ("forward", "backward", "after")]
    assert max(peak for peak in peaks if peak is not None) == profile.peak_nbytes


def test_without_backward_all_is_forward() -> None:
    model, x = _model()
    with profile_memory() as profile:
        model(x)
    assert [phase.name for phase in profile.phases] == ["forward"]
    assert profile.held_nbytes is None
    assert profile.peak_in("backward") is None


def test_timeline() -> None:
    profile = _profile()
    seconds, nbytes = profile.timeline
    assert seconds.dtype == np.float64
    assert nbytes.dtype == np.int64
    assert seconds.shape == nbytes.shape
    assert (np.diff(seconds) >= 0).all()
    assert seconds[0] >= 0
    assert nbytes.max() == profile.peak_nbytes


def test_offloading_reduces_held_memory() -> None:
    model, x = _model()
    x = x.clone()
    with profile_memory() as kept:
        _step(model, x)
    session = offgrad.session.offload("disk", prefetch_nbytes=1)
    with profile_memory() as offloaded:
        with session:
            loss = model(x).square().mean()
        session.reclaim()
        open_store("disk").trim()  # packs of small arrays are tensor memory until written
        loss.backward()
    assert kept.held_nbytes is not None
    assert offloaded.held_nbytes is not None
    assert offloaded.held_nbytes < kept.held_nbytes / 2


def test_it_stops_when_the_block_raises() -> None:
    observers = list(engine.observers)
    with (
        pytest.raises(OutOfMemoryError),
        memory.limit(memory.allocated() + 512 * KIB),
        profile_memory() as profile,
    ):
        [offgrad.zeros(128, KIB // 4) for _ in range(5)]
    assert engine.observers == observers
    assert profile.peak_nbytes - profile.start_nbytes == 512 * KIB
    length = len(profile.timeline.seconds)
    offgrad.zeros(KIB, KIB)
    assert len(profile.timeline.seconds) == length


def test_profiles_nest() -> None:
    model, x = _model()
    with profile_memory() as outer:
        _step(model, x)
        with profile_memory() as inner:
            _step(model, x)
    assert len(outer.phases) == 5
    assert len(inner.phases) == 3
    assert outer.peak_nbytes >= inner.peak_nbytes


def test_table_says_the_figures() -> None:
    profile = _profile()
    text = str(profile)
    for words in ("at start", "peak in forward", "peak in backward", "at end", "held from forward"):
        assert words in text
    assert memory.format_nbytes(profile.peak_in("backward") or 0) in text
    assert "1 backward pass" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "3 backward passes" in str(_profile(steps=3))
    html = profile._repr_html_()
    assert html.count("<tr>") == len(text.splitlines()) - 6  # a title, a caption and four lines
    assert ">peak in backward</td>" in html
    assert repr(profile).startswith("<MemoryProfile: peak of ")


def test_the_text_is_the_same_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = _profile()
    expected = str(profile)
    # A notebook's kernel puts this function into the builtins, and rich knows the kernel by it.
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    assert rich.console.Console().is_jupyter
    assert str(profile) == expected
    assert "peak in backward" in expected
    assert capsys.readouterr().out == ""


def test_as_dict_is_json() -> None:
    profile = _profile(steps=3)
    figures = json.loads(json.dumps(profile.as_dict()))
    assert figures["peak_nbytes"] == profile.peak_nbytes == max(figures["timeline"]["nbytes"])
    assert [phase["name"] for phase in figures["phases"]].count("backward") == 3
    downsampled = profile.as_dict(max_points=20)["timeline"]
    assert len(downsampled["nbytes"]) == len(downsampled["seconds"]) < 40
    assert max(downsampled["nbytes"]) == profile.peak_nbytes


def test_plot_marks_the_phases(tmp_path: Path) -> None:
    profile = _profile(steps=2)
    profile.plot(tmp_path / "memory.svg")
    profile.plot(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    # Matplotlib writes each text into a comment beside its outlines.
    drawing = (tmp_path / "memory.svg").read_text()
    for words in ("forward", "backward", "seconds", "tensor memory (MiB)", "peak "):
        assert f"<!-- {words}" in drawing


def test_an_empty_profile_can_be_shown(tmp_path: Path) -> None:
    with profile_memory() as profile:
        pass
    profile.plot(tmp_path / "memory.png")
    assert "at start" in str(profile)


def test_importing_the_profiler_imports_neither_rich_nor_matplotlib() -> None:
    code = "import sys, offgrad.profiler; print({'rich', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"
