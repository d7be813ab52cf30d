"""Tables, plot and files of a comparison, from made-up runs with every kind of row."""

import io
import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from offgrad.cli.compare.comparison import Comparison
from offgrad.cli.compare.config import Config
from offgrad.cli.compare.groups import Plan
from offgrad.cli.compare.output import check_output, write_output
from offgrad.cli.compare.plot import figure_of, save_comparison
from offgrad.cli.compare.report import as_json, print_tables
from offgrad.cli.compare.results import (
    FASTER,
    FINISHED,
    OUT_OF_MEMORY,
    SLOWER,
    STOPPED,
    UNKNOWN,
    WITHIN_SPREAD,
    Run,
)


def _run(
    name: str,
    status: str = FINISHED,
    gradients: str = "a",
    loss: float = 2.5,
    lossless: bool = True,
) -> Run:
    profile: dict[str, Any] = {
        "timeline": {"seconds": [0.0, 0.5, 1.0], "nbytes": [1 << 20, 5 << 20, 2 << 20]},
        "phases": [
            {"name": "forward", "start": 0.0, "end": 0.5, "start_nbytes": 1 << 20},
            {"name": "backward", "start": 0.5, "end": 1.0, "start_nbytes": 5 << 20},
        ],
    }
    step = {"loss": loss, "seconds": 1234.5678, "peak_nbytes": 1023 << 20, "gradients": gradients}
    run = Run(
        name,
        name,
        limited=False,
        lossless=lossless,
        status=status,
        steps=[step] * 6,
        peak_rss_nbytes=1023 << 20,
        ledger=dict.fromkeys(
            ("logical_nbytes", "stored_nbytes", "written_nbytes", "stall_seconds"), 2046 << 20
        ),
        error="" if status == FINISHED else "OutOfMemoryError",
        message="" if status == FINISHED else "held [red]all[/red] of it",
        failed_step=0 if status == OUT_OF_MEMORY else None,
    )
    for number in range(6):
        run.add_profile(number, profile)
    return run


def _timed(name: str, *seconds: float) -> Run:
    """Return a finished run with these times of steps, after one that warms up."""
    run = _run(name)
    run.steps = [{**run.steps[0], "seconds": each} for each in (100.0, *seconds)]
    return run


def _comparison(*groups: list[Run]) -> Comparison:
    plan = Plan(Config(), {"keep": "keep"}, (16,), (None,))
    return Comparison(plan, "text", list(groups), is_complete=True)


def _printed(runs: list[Run]) -> str:
    stream = io.StringIO()
    print_tables(Console(file=stream, width=80), [runs])
    return stream.getvalue()


def test_every_kind_of_row_fits_eighty_columns() -> None:
    runs = [
        _run("keep, no limit"),
        _run("keep", OUT_OF_MEMORY),
        _run("disk", gradients="b"),
        _run("zarr:blosc-zstd-bitshuffle"),
        _run("cast:bfloat16,then=disk,min=100MiB", gradients="c", lossless=False),
        Run("pool", "pool", limited=True, error="killed by signal 9"),
    ]
    for run in runs:
        run.compare(runs[0])
    text = _printed(runs)
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "DIFFER",
        "identical",
        "rounded",
        "out of memory",
        "crashed",
        "held [red]all[/red] of it",
    ):
        assert words in text
    assert "…" not in text
    assert "pool: the worker crashed (killed by signal 9)" in text


def test_equality_needs_the_same_bits() -> None:
    reference = _run("keep")
    for other, equal in (
        (_run("a"), True),
        (_run("b", gradients="x"), False),
        (_run("c", loss=2.5000000000000004), False),
        (_run("d", OUT_OF_MEMORY), None),
    ):
        other.compare(reference)
        assert other.equal is equal
        assert other.differs is (equal is False)
    reference.is_comparable = False
    other = _run("f", gradients="x")
    other.compare(reference)
    assert (other.equal, other.differs) == (None, False)
    reference.is_comparable = True
    rounded = _run("e", gradients="x", lossless=False)
    rounded.compare(reference)
    assert (rounded.equal, rounded.differs) == (False, False)
    undefined = _run("keep", loss=float("nan"))
    undefined.compare(_run("keep", loss=float("nan")))
    assert undefined.equal is True


def test_the_first_step_is_not_in_the_quartiles() -> None:
    run = _timed("keep", 1.0, 5.0, 3.0, 2.0, 4.0)
    assert run.seconds == (2.0, 3.0, 4.0)
    run.steps = run.steps[:1]
    assert run.seconds == (100.0, 100.0, 100.0)


def test_times_keep_compares_steps_of_the_same_round() -> None:
    # A load from outside slows three rounds tenfold. Medians of the whole runs would hide that
    # disk takes half as long again.
    keep = _timed("keep", 1.0, 1.0, 10.0, 10.0, 10.0, 1.0)
    disk = _timed("disk", 1.5, 1.5, 15.0, 15.0, 15.0, 1.5)
    assert disk.times(keep) == (1.5, 1.5, 1.5)
    assert disk.difference(keep) == SLOWER
    assert keep.difference(disk) == FASTER
    assert disk.times(_run("keep", OUT_OF_MEMORY)) is None


def test_a_difference_within_the_spread_is_called_one() -> None:
    keep = _timed("keep", 1.0, 1.0, 1.0, 1.0, 1.0)
    noisy = _timed("disk", 0.4, 0.5, 0.5, 1.2, 1.3)
    quick = _timed("zarr", 0.4, 0.5, 0.5, 0.6, 1.3)
    assert noisy.times(keep) == (0.5, 0.5, 1.2)
    assert noisy.difference(keep) == WITHIN_SPREAD
    assert quick.difference(keep) == FASTER
    text = _printed([keep, noisy, quick])
    rows = [line.split() for line in text[text.index("Time") : text.index("Memory")].splitlines()]
    assert ["disk", "0.500", "(0.500-1.200)", "0.50", "(0.50-1.20)", *WITHIN_SPREAD.split()] in [
        row[:-2] for row in rows
    ]
    for name, difference in (("keep", "reference"), ("zarr", FASTER)):
        assert any(row[:1] == [name] and difference in row for row in rows)
    figures = as_json(_comparison([keep, noisy, quick]))["runs"][1]
    assert figures["step_ratio"] == {"low": 0.5, "median": 0.5, "high": 1.2}
    assert figures["step_seconds"] == {"low": 0.5, "median": 0.5, "high": 1.2}
    assert figures["step_difference"] == WITHIN_SPREAD


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ((0.5, 0.5, 0.5, 0.5, 0.5), "0.500 (0.500-0.500)"),
        ((5.0, 9.0, 9.0, 12.0, 12.0), "9.0 (9.0-12.0)"),
        ((5.0, 90.0, 90.0, 123.4, 500.0), "90 (90-123)"),
    ],
)
def test_times_have_as_many_digits_as_their_size_asks(times: tuple[float, ...], text: str) -> None:
    assert text in _printed([_timed("keep", *times)])


def test_few_steps_show_no_difference() -> None:
    keep, disk = _timed("keep", 1.0, 1.0, 1.0), _timed("disk", 2.0, 2.0, 2.0)
    assert disk.difference(keep) == UNKNOWN


@pytest.mark.parametrize("seconds", list(itertools.permutations((5.0, 1.0, 2.0, 7.0))))
def test_the_plot_shows_a_step_of_median_time(seconds: tuple[float, ...]) -> None:
    run = _timed("keep", *seconds)
    shown = run.shown_step
    assert shown is not None
    assert run.steps[shown]["seconds"] == 2.0
    run.add_profile(shown, {"timeline": "of this step"})
    assert run.profile == {"timeline": "of this step"}


def test_the_plot_shows_the_failed_step() -> None:
    run = _run("keep", OUT_OF_MEMORY)
    run.failed_step = 6
    assert run.profile is None
    run.add_profile(6, {"timeline": "of this step"})
    assert run.profile == {"timeline": "of this step"}


def _legend(axes: Any) -> list[str]:
    return [each.get_text() for each in axes.get_legend().get_texts()]


def test_the_plot_says_which_steps_it_shows() -> None:
    failed = _run("pool", OUT_OF_MEMORY)
    cold = {"seconds": [0.0, 60.0], "nbytes": [1 << 20, 9 << 20]}
    failed.add_profile(0, {"timeline": cold, "phases": []})
    axes = figure_of([_run("keep"), failed], []).axes[0]
    title = axes.get_title("left")
    assert title.endswith("(of each policy that finished, one of median time)")
    texts = _legend(axes)
    assert texts == ["keep: peak 5 MiB", "pool: OutOfMemoryError in step 1"]
    # The cold step takes no room from the others; its mark stays in the picture.
    assert axes.get_xlim()[1] == pytest.approx(1.05)
    assert axes.lines[-1].get_marker() == "X"
    assert axes.lines[-1].get_xdata() == pytest.approx([1.05])
    assert "one of median time" in figure_of([_run("keep")], []).axes[0].get_title("left")
    assert "that failed" in figure_of([failed], []).axes[0].get_title("left")


def test_a_stopped_run_is_not_drawn_as_a_failed_one() -> None:
    axes = figure_of([_run("keep", STOPPED)], []).axes[0]
    assert _legend(axes) == ["keep: peak 5 MiB"]
    assert not [each for each in axes.lines if each.get_marker() == "X"]


def test_the_plot_has_a_line_for_each_run(tmp_path: Path) -> None:
    runs = [_run("keep"), _run("disk", OUT_OF_MEMORY), Run("zarr", "zarr", limited=True)]
    save_comparison(runs, [3 << 20], tmp_path / "picture")
    assert (tmp_path / "picture").read_bytes().startswith(b"\x89PNG")


def test_the_plot_of_runs_that_all_crashed_warns_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_comparison([Run("disk", "disk", limited=True)], [], tmp_path / "picture")
    assert (tmp_path / "picture").read_bytes().startswith(b"\x89PNG")


def test_files_of_an_earlier_run_do_not_stay_beside_those_of_another(tmp_path: Path) -> None:
    def writer(path: Path) -> None:
        path.write_text("x")

    write_output(tmp_path, {"x": writer, "y": writer})
    (tmp_path / "theirs").write_text("x")
    write_output(tmp_path, {"x": writer}, ["x", "y", "z"])
    assert {each.name for each in tmp_path.iterdir()} == {"x", "theirs"}


def test_output_is_all_or_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"

    def fail(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_output(folder, {"x": lambda path: path.write_text("x"), "y": fail})
    assert list(tmp_path.iterdir()) == []
    files = write_output(folder, {"x": lambda path: path.write_text("x")})
    assert files == [folder / "x"]
    assert [path.name for path in folder.iterdir()] == ["x"]


def test_output_is_checked_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "compare.json").mkdir()
    check_output(tmp_path / "new" / "folder", ("compare.json",))
    assert not (tmp_path / "new").exists()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path):
        with pytest.raises(ValueError, match="--output"):
            check_output(folder, ("compare.json",))
