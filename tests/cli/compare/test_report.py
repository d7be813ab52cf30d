"""Tables, plot and files of a comparison, from made-up runs with every kind of row."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from offgrad.cli.compare.output import check_output, write_output
from offgrad.cli.compare.plot import save_comparison
from offgrad.cli.compare.report import print_tables
from offgrad.cli.compare.runner import FINISHED, OUT_OF_MEMORY, Run


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
    return Run(
        name,
        name,
        limited=False,
        lossless=lossless,
        status=status,
        steps=[step, step],
        profile=profile,
        peak_rss_nbytes=1023 << 20,
        ledger=dict.fromkeys(
            ("logical_nbytes", "stored_nbytes", "written_nbytes", "stall_seconds"), 2046 << 20
        ),
        error="" if status == FINISHED else "OutOfMemoryError",
        message="" if status == FINISHED else "held [red]all[/red] of it",
        failed_step=None if status == FINISHED else 0,
    )


def _printed(runs: list[Run]) -> str:
    stream = io.StringIO()
    print_tables(Console(file=stream, width=80), runs, runs[0])
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
    rounded = _run("e", gradients="x", lossless=False)
    rounded.compare(reference)
    assert (rounded.equal, rounded.differs) == (False, False)
    undefined = _run("keep", loss=float("nan"))
    undefined.compare(_run("keep", loss=float("nan")))
    assert undefined.equal is True


def test_the_first_step_is_not_in_the_median() -> None:
    run = _run("keep")
    run.steps = [{**run.steps[0], "seconds": seconds} for seconds in (100.0, 1.0, 3.0, 2.0)]
    assert run.median_seconds == 2.0
    run.steps = run.steps[:1]
    assert run.median_seconds == 100.0


def test_the_plot_has_a_line_for_each_run(tmp_path: Path) -> None:
    runs = [_run("keep"), _run("disk", OUT_OF_MEMORY), Run("zarr", "zarr", limited=True)]
    save_comparison(runs, 3 << 20, tmp_path / "picture")
    assert (tmp_path / "picture").read_bytes().startswith(b"\x89PNG")


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
