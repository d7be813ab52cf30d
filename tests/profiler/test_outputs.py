"""The outputs of a profile: table, JSON, trace and figure."""

import json
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import offgrad
from offgrad import memory, nn
from offgrad.profiler import Profile, profile


@pytest.fixture(scope="module")
def prof() -> Profile:
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256))
    optimizer = offgrad.optim.AdamW(model.parameters())
    with profile(interval=0.001) as prof:
        for _ in range(2):
            with offgrad.offload("disk"):
                loss = model(offgrad.randn(128, 256)).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    return prof


@pytest.fixture(scope="module")
def empty() -> Profile:
    with profile(interval=None) as prof:
        pass
    return prof


def test_table_says_the_figures(prof: Profile) -> None:
    text = str(prof)
    for words in (
        "2 steps in",
        "in backward of step",
        "forward",
        "optimizer state",
        "Alive at the",
    ):
        assert words in text
    assert memory.format_nbytes(prof.peak_nbytes) in text
    assert "test_outputs.py:" in text
    assert f"Sessions, saved tensors: {prof.ledger.saves} packed" in text
    assert "Process: at most" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("marks", "more", "words"),
    [
        (0, False, "No step marked (prof.step() ends one) in "),
        (1, False, "1 step in "),
        (1, True, "1 step, and work after the last one, in "),
        (2, False, "2 steps in "),
    ],
)
def test_only_marked_steps_count(marks: int, more: bool, words: str) -> None:
    x = offgrad.ones(4, requires_grad=True)
    with profile(interval=None) as prof:
        for _ in range(marks):
            x.sin().sum().backward()
            prof.step()
        if more or not marks:
            x.sin().sum().backward()
    assert str(prof).startswith(words)
    assert ("of step" in str(prof)) is bool(marks)


def test_a_notebook_shows_the_tables(prof: Profile) -> None:
    html = prof._repr_html_()
    assert html.count("<table") == html.count("</table>") == 4
    assert "optimizer state" in html


def test_saved_json_is_the_dict(prof: Profile, tmp_path: Path) -> None:
    prof.save(tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text()) == prof.to_dict()


def test_points_are_downsampled(prof: Profile) -> None:
    timeline = prof.to_dict(max_points=20)["timeline"]
    assert len(timeline["seconds"]) == len(timeline["nbytes"]) < 40
    assert max(timeline["nbytes"]) == prof.peak_nbytes
    assert all(len(each) == len(timeline["seconds"]) for each in timeline["categories"].values())


_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": float, "dur": float, "args": dict},
    "C": {"name": str, "pid": int, "tid": int, "ts": float, "args": dict},
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
}
"""What the trace event format demands of each kind of event."""


def _trace(prof: Profile, tmp_path: Path) -> list[dict[str, Any]]:
    prof.save_trace(tmp_path / "trace.json")
    content = json.loads((tmp_path / "trace.json").read_text())
    assert content["displayTimeUnit"] in ("ms", "ns")
    events: list[dict[str, Any]] = content["traceEvents"]
    return events


def test_trace_keeps_its_schema(prof: Profile, empty: Profile, tmp_path: Path) -> None:
    for each in (prof, empty):
        for event in _trace(each, tmp_path):
            fields = _FIELDS[event["ph"]]
            assert event.keys() == {"ph", *fields}
            assert all(isinstance(event[name], kind) for name, kind in fields.items()), event
            assert event.get("ts", 0) >= 0
            assert event.get("dur", 0) >= 0
            if event["ph"] == "C":
                assert all(isinstance(value, int | float) for value in event["args"].values())


def test_trace_has_spans_of_modules_operations_phases_and_io(prof: Profile, tmp_path: Path) -> None:
    events = _trace(prof, tmp_path)
    spans = [each for each in events if each["ph"] == "X"]
    assert {each["cat"] for each in spans} == {"module", "op", "phase", "io"}
    named = {each["tid"] for each in events if each["name"] == "thread_name"}
    assert {each["tid"] for each in spans} <= named
    counters = {each["name"] for each in events if each["ph"] == "C"}
    assert counters == {"tensor memory", "resident memory", "page cache", "drive"}
    names = [each["name"] for each in spans]
    assert names.count("TanhBackward0") == 4  # forward and backward of two steps


def test_spans_of_a_thread_are_nested(prof: Profile) -> None:
    spans = [each for each in prof.to_dict()["spans"] if each["kind"] in ("module", "op")]
    spans.sort(key=lambda each: (each["start"], -each["end"]))
    open_ends: list[float] = []
    for each in spans:
        while open_ends and open_ends[-1] <= each["start"]:
            open_ends.pop()
        assert not open_ends or each["end"] <= open_ends[-1]
        open_ends.append(each["end"])


def test_plot_returns_axes_and_saves(prof: Profile, tmp_path: Path) -> None:
    axes = prof.plot(tmp_path / "memory.png", title="my model")
    assert isinstance(axes, Axes)
    assert axes.get_title(loc="left") == "my model"
    image = matplotlib.image.imread(tmp_path / "memory.png")
    assert len({tuple(pixel) for pixel in image.reshape(-1, image.shape[-1])[::7].tolist()}) > 20
    legend = axes.get_legend()
    assert legend is not None
    assert {"parameter", "optimizer state"} <= {each.get_text() for each in legend.get_texts()}


def test_plot_draws_on_given_axes(prof: Profile) -> None:
    axes = Figure().add_subplot()
    assert prof.plot(axes=axes) is axes
    assert axes.has_data()


def test_an_empty_profile_can_be_shown(empty: Profile, tmp_path: Path) -> None:
    empty.plot(tmp_path / "memory.svg")
    assert "0 steps" not in str(empty)
    assert "peak" in repr(empty)


def test_a_wrong_interval() -> None:
    for interval in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="interval must be"):
            profile(interval=interval)
