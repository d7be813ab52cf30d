"""`benchmarks.bench_vs_torch` compares the same work, and says which targets are met."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks._lib.versus_measure import (
    Contender,
    GradientsDiffer,
    Measurement,
    compare_gradients,
)
from benchmarks._lib.versus_report import verdict
from benchmarks._lib.versus_rows import ROWS, Row

SIZES = {"layers": 1, "width": 16, "heads": 2, "context": 8, "batch": 2}


def write(folder: Path, **gradients: list[float]) -> Path:
    folder.mkdir()
    for name, values in gradients.items():
        np.save(folder / f"{name}.npy", np.array(values, np.float32))
    return folder


def test_gradients_may_differ_by_rounding(tmp_path: Path) -> None:
    reference = write(tmp_path / "torch", weight=[1.0, 2.0], bias=[0.0])
    compare_gradients(write(tmp_path / "near", weight=[1.0, 2.001], bias=[1e-7]), reference)


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        ({"weight": [1.0, 2.1], "bias": [0.0]}, "the gradient weight.npy of other is 0.1 from"),
        ({"weight": [1.0, 2.0], "bias": [1e-3]}, "the gradient bias.npy"),
        ({"weight": [1.0, float("nan")], "bias": [0.0]}, "the gradient weight.npy"),
        ({"weight": [1.0, 2.0]}, r"other has gradients \['weight.npy'\], torch \['bias.npy', "),
    ],
)
def test_other_gradients_are_refused(
    tmp_path: Path, gradients: dict[str, list[float]], message: str
) -> None:
    reference = write(tmp_path / "torch", weight=[1.0, 2.0], bias=[0.0])
    with pytest.raises(GradientsDiffer, match=message):
        compare_gradients(write(tmp_path / "other", **gradients), reference)


def test_the_verdict_says_by_how_much_a_target_is_missed() -> None:
    assert verdict(0.4, 0.4) == "met"
    assert verdict(0.6, 0.4) == "missed by 1.50x"
    assert verdict(0.6, None) == ""


def test_names_of_rows_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


def measure(*contenders: Contender, dropout: float = 0.0) -> dict[str, Any]:
    pytest.importorskip("torch", reason="compares with torch, which is not installed")
    row = Row(
        "tiny GPT", "GPTSteps", {**SIZES, "dropout": dropout}, {"step": 0.5}, has_peak=dropout > 0
    )
    return Measurement(row, 1, 2, contenders, dict(os.environ), lambda _: None).run()


@pytest.mark.slow
def test_a_row_has_seconds_ratios_and_peaks_of_each_contender() -> None:
    figures = measure(Contender("torch"), Contender("offgrad"), dropout=0.1)
    for name in ("torch", "offgrad"):
        assert len(figures["seconds"][name]["step"]) == 2
        assert figures["peak"][name]["peak_nbytes"] > figures["peak"][name]["before_nbytes"] > 0
        assert figures["libraries"][name]["thread_pools"]
    assert figures["ratios"]["torch"]["step"] == [1.0, 1.0, 1.0]
    assert figures["losses"]["offgrad"] == pytest.approx(figures["losses"]["torch"], rel=1e-5)


@pytest.mark.slow
def test_a_policy_that_changes_gradients_fails_the_comparison() -> None:
    with pytest.raises(GradientsDiffer, match="of offgrad cast:int4,min=0 is"):
        measure(Contender("torch"), Contender("offgrad", variant="cast:int4,min=0"))


@pytest.mark.slow
def test_a_contender_that_does_not_work_is_skipped_visibly() -> None:
    figures = measure(Contender("torch"), Contender("offgrad", variant="nowhere"))
    assert "nowhere" in figures["skipped"]["offgrad nowhere"]
    assert list(figures["seconds"]) == ["torch"]


@pytest.mark.slow
def test_the_command_prints_targets_and_writes_figures(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="compares with torch, which is not installed")
    command = [sys.executable, "-m", "benchmarks.bench_vs_torch", "--rounds", "1"]
    path = tmp_path / "figures.json"
    result = subprocess.run(
        [*command, "--only", "module", "--threads", "1", "--json", str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    line = next(line for line in result.stdout.splitlines() if "with a forward hook" in line)
    assert "1.20" in line
    assert "met" in line or "missed by" in line
    figures = json.loads(path.read_text())
    assert figures["machine"]["numpy"] == np.__version__
    assert [row["row"] for row in figures["rows"]] == ["module call"]
