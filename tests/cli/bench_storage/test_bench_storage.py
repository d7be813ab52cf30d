"""`offgrad bench-storage` measures what is there, within its time, and leaves nothing."""

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from offgrad.cli.bench_storage.command import bench_storage
from offgrad.cli.bench_storage.measure import SIZES, STORES_MEASURED, cells, measure
from offgrad.cli.bench_storage.report import print_tables
from offgrad.cli.bench_storage.workload import Workload
from offgrad.cli.drive import describe_folder
from offgrad.policies.names import store_and_codec

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def workload() -> Workload:
    """Two arrays of zeros, which codecs shrink; the forward pass takes a quarter of the step."""
    return Workload([np.zeros((512, 512), np.float32) for _ in range(2)], 1.0, 3.0)


def test_what_a_step_carries_is_bounded_by_both_directions(workload: Workload) -> None:
    assert workload.nbytes_per_second == workload.nbytes / 4
    assert workload.carried(put=4e9, get=100e9) == 1e9
    assert workload.carried(put=100e9, get=4e9) == 3e9


def test_all_measurements_are_made_or_say_why_not(workload: Workload, tmp_path: Path) -> None:
    names = ["pool", "disk", "disk:lz4"]
    found = {each[:2]: each for each in measure(tmp_path, names, workload, 60, 4 << 20)}
    assert list(found) == cells(names)
    assert {(name, size) for name in ("pool", "disk") for size in (0, *SIZES)} <= set(found)
    for cell in found.values():
        assert (cell.rates is None) == (cell.reason is not None)
        assert cell.rates is None or min(cell.rates.put, cell.rates.get) > 0
    compressed, plain = found["disk:lz4", 0].rates, found["disk", 0].rates
    assert compressed is not None
    assert plain is not None
    assert compressed.stored_part < 0.1 < plain.stored_part
    assert not list(tmp_path.iterdir())

    shown = io.StringIO()
    drive = describe_folder(tmp_path)
    print_tables(Console(file=shown, width=80), list(found.values()), workload, drive)
    text = shown.getvalue()
    assert str(tmp_path) in text
    assert all(name in text for name in names)


def test_without_time_nothing_is_measured(workload: Workload, tmp_path: Path) -> None:
    assert {each.reason for each in measure(tmp_path, ["disk"], workload, 0)} == {
        "no time was left"
    }


def test_stores_of_the_default_exist() -> None:
    for each in STORES_MEASURED:
        store_and_codec(each, None)


@pytest.mark.slow
def test_json_has_rates_step_and_machine(run: Run, tmp_path: Path) -> None:
    result = run("bench-storage", "spill", "--stores", "disk", "--seconds", "20", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    figures = json.loads(result.stdout)
    assert figures["machine"]["drive"]["folder"] == str(tmp_path / "spill")
    assert figures["step"]["nbytes"] > 50e6
    (of_step,) = (
        each
        for each in figures["measured"]
        if each["name"] == "disk" and each["array_nbytes"] is None
    )
    expected = np.minimum(
        of_step["put"] * figures["step"]["forward_seconds"],
        of_step["get"] * figures["step"]["backward_seconds"],
    )
    seconds = figures["step"]["forward_seconds"] + figures["step"]["backward_seconds"]
    assert of_step["carried"] == pytest.approx(expected / seconds)
    assert not list((tmp_path / "spill").iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stores", "dsk"], "--stores: unknown store 'dsk'; did you mean disk?"),
        (["--stores", "disk:lz5"], "--stores: unknown codec 'lz5'; did you mean lz4?"),
        (["--stores", ","], "--stores needs at least one store"),
        (["--seconds", "0"], "0 is not in the range"),
        (["/proc/nothing"], "cannot be written to"),
        (["a", "--directory", "b"], "the folder is given twice"),
    ],
)
def test_bad_values(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(bench_storage, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_help_is_one_screen_with_an_example() -> None:
    text = CliRunner().invoke(bench_storage, ["--help"], terminal_width=100).stdout
    assert "offgrad bench-storage /mnt/nvme --seconds 60" in text
    assert text.count("\n") <= 30
