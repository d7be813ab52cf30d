"""The files of results, opened by their consumers, and two of them side by side."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import offgrad.cli.compare
from offgrad.cli import main
from offgrad.cli.compare.comparison import Comparison
from offgrad.cli.compare.config import Config
from offgrad.cli.compare.files import write_files
from offgrad.cli.compare.groups import Plan
from offgrad.cli.compare.kept import Kept
from offgrad.cli.compare.results import (
    CRASHED,
    FINISHED,
    OUT_OF_MEMORY,
    STOPPED,
    Run,
    finished_rounds,
)

PNG = b"\x89PNG"


def _finish(run: Run, number: int) -> None:
    run.status = (FINISHED, FINISHED, OUT_OF_MEMORY, STOPPED)[number % 4]
    seconds = [9.0, 1.0 + number, 1.5 + number, 1.2 + number]
    run.steps = [
        {"loss": 2.5, "seconds": each, "peak_nbytes": (10 - number) << 20, "gradients": "a"}
        for each in seconds
    ]
    if run.status == OUT_OF_MEMORY:
        run.failed_step, run.error = 4, "OutOfMemoryError"
    run.ledger = dict.fromkeys(
        ("logical_nbytes", "stored_nbytes", "written_nbytes", "stall_seconds"), 8 << 20
    )
    run.peak_rss_nbytes, run.base_rss_nbytes = 300 << 20, 200 << 20
    timeline = {"seconds": [0.0, 1.0], "nbytes": [1 << 20, 5 << 20]}
    for step in range(5):
        run.add_profile(step, {"timeline": timeline, "phases": []})


def _comparison(**options: Any) -> Comparison:
    config = Config(target="mlp", batch=64)
    policies = {"keep": "keep", "a|b": "disk", "cold": "zarr"}
    plan = Plan(config, policies, (64, 128), (None, 1 << 30), **options)
    groups = [plan.runs(each) for each in plan.configs()]
    for group in groups:
        for number, run in enumerate(group):
            _finish(run, number)
            run.compare(group[0])
    return Comparison(plan, None, groups, is_complete=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_files(_comparison(with_torch=True), tmp_path, curve=True)
    return tmp_path


def _figures(folder: Path) -> Any:
    return json.loads((folder / "compare.json").read_text())


def test_json_is_as_its_schema_says(folder: Path) -> None:
    path = Path(*offgrad.cli.compare.__path__, "compare.schema.json")
    schema = json.loads(path.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    figures = _figures(folder)
    jsonschema.validate(figures, schema)
    assert len(figures["runs"]) == 4 + 5 + 4 + 5
    figures["runs"][0]["steps"][0]["seconds"] = "soon"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(figures, schema)


def test_csv_has_a_line_for_each_run(folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO((folder / "compare.csv").read_text())))
    figures = _figures(folder)["runs"]
    assert [row["name"] for row in rows] == [run["name"] for run in figures]
    assert rows[0]["step_seconds_median"] == "1.2"
    assert rows[1]["step_ratio_median"] == str(figures[1]["step_ratio"]["median"])
    assert rows[2]["step_seconds_median"] == "", "it ran out of memory"


def test_markdown_has_a_row_for_each_run_and_the_machine(folder: Path) -> None:
    text = (folder / "compare.md").read_text()
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 18
    assert {line.replace("\\|", "").count("|") for line in table} == {9}
    assert "a\\|b (batch 128, limit 1.0 GiB)" in text
    assert "openblas" in text.lower() or "NumPy" in text
    assert "stores in " in text


def test_pictures_are_not_empty(folder: Path) -> None:
    for name in ("compare.png", "curve.png"):
        content = (folder / name).read_bytes()
        assert content.startswith(PNG)
        assert len(content) > 10_000


def test_the_report_is_one_page_with_every_run(folder: Path) -> None:
    text = (folder / "compare.html").read_text()
    assert text.lower().startswith("<!doctype html>")
    for run in _figures(folder)["runs"]:
        assert (run["name"] in text) is (run["profile"] is not None)


def test_two_results_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = _figures(folder)
    for run in figures["runs"]:
        if run["step_seconds"]:
            run["step_seconds"]["median"] *= 2
    figures["config"]["seed"] = 7
    other = folder / "other.json"
    other.write_text(json.dumps(figures))
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "--from", str(folder / "compare.json"), str(other)])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "The trainings differ: seed 0 and 7" in text
    assert "2.00" in text
    assert max(map(len, text.splitlines())) <= 80 + len(str(other))


@pytest.mark.parametrize(
    ("content", "message"),
    [("{}", "holds no results"), ("[1", "not JSON"), (None, "cannot be read")],
)
def test_what_is_no_result(
    folder: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    other = folder / "other.json"
    if content is not None:
        other.write_text(content)
    with pytest.raises(SystemExit) as stopped:
        main(["compare", "--from", str(folder / "compare.json"), str(other)])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_repeats_become_one_run_whose_first_steps_do_not_count() -> None:
    runs = [Run("keep", "keep", limited=False) for _ in range(3)]
    for number, run in enumerate(runs):
        _finish(run, 0)
        for step in run.steps[1:]:
            step["seconds"] = 1.0 + number
    merged = Run.of_repeats(runs)
    assert merged.repeats == [0, 4, 8]
    assert merged.timed_steps == [1, 2, 3, 5, 6, 7, 9, 10, 11]
    assert merged.seconds == (1.0, 2.0, 3.0)
    assert merged.ledger["written_nbytes"] == 24 << 20
    assert merged.shown_step in (5, 6, 7)
    runs[1].status = CRASHED
    assert Run.of_repeats(runs) is runs[1]


def test_rounds_before_a_signal_and_after_it_become_one_run() -> None:
    parts = [[Run(name, name, limited=False) for name in ("keep", "disk")] for _ in range(2)]
    for run in (*parts[0], *parts[1]):
        _finish(run, 0)
    parts[0][0].status = STOPPED
    del parts[0][1].steps[2:]
    parts[0][1].status, parts[0][1].ledger = STOPPED, {}
    rounds = finished_rounds(parts[0])
    assert rounds == 2
    for run in parts[0]:
        run.end_after(rounds)
    keep, disk = (Run.of_repeats(runs) for runs in zip(*parts, strict=True))
    assert (keep.status, disk.status) == (FINISHED, FINISHED)
    assert keep.timed_steps == disk.timed_steps == [1, 3, 4, 5]
    assert disk.ledger["written_nbytes"] == 8 << 20
    assert disk.per_step("written_nbytes") == 2 << 20
    disk.compare(keep)
    assert disk.equal is True


def test_a_failed_run_stops_no_rounds() -> None:
    keep, disk = (Run(name, name, limited=False) for name in ("keep", "disk"))
    _finish(keep, 0)
    _finish(disk, 2)
    del disk.steps[1:]
    assert finished_rounds([keep, disk]) == 4
    disk.end_after(3)
    assert disk.status == OUT_OF_MEMORY


def test_a_stopped_run_is_compared_as_far_as_it_came() -> None:
    keep, disk = (Run(name, name, limited=False) for name in ("keep", "disk"))
    for run in (keep, disk):
        _finish(run, 0)
        run.status = STOPPED
    del disk.steps[-1]
    disk.compare(keep)
    assert disk.equal is True
    times = disk.times(keep)
    assert times is not None
    assert times.median == 1.0
    disk.steps[2]["gradients"] = "b"
    disk.compare(keep)
    assert disk.equal is False


def test_parts_of_groups_are_kept_for_the_same_settings(tmp_path: Path) -> None:
    (group, *_) = _comparison().groups
    Kept(tmp_path, {"steps": 3}).save(0, [group, group])
    loaded = Kept(tmp_path, {"steps": 3}).load(0)
    assert len(loaded) == 2
    for part in loaded:
        assert [run.as_kept() for run in part] == [run.as_kept() for run in group]
    assert Kept(tmp_path, {"steps": 3}).load(1) == []
    assert Kept(tmp_path, {"steps": 4}).load(0) == []
    (path,) = tmp_path.glob("unfinished/*.json")
    for broken in ("[{", "[[1]]", "1"):
        path.write_text(broken)
        assert Kept(tmp_path, {"steps": 3}).load(0) == [], "half a file"
    Kept(tmp_path, {"steps": 4}).clear()
    assert list(tmp_path.iterdir()) == []
