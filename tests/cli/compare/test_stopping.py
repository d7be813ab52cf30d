"""Stopped in any way, ``offgrad compare`` leaves no process, no spilled data, and what it did."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import Offgrad

LONG = (
    *("--layers", "4", "--width", "32", "--heads", "2", "--context", "128", "--batch", "8"),
    *("--steps", "100000", "--memory-limit", "none"),
)

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")


@pytest.fixture
def training(start: Offgrad) -> Callable[[str], "subprocess.Popen[str]"]:
    """Start a comparison that would run for hours, and wait until it trains."""

    def begin(policy: str) -> "subprocess.Popen[str]":
        process = start("compare", *LONG, "--policies", policy, "--seed", "1")
        assert process.stdout is not None
        for line in process.stdout:
            if "step 2/" in line:
                return process
        raise AssertionError(process.communicate()[1])

    return begin


def _wait_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "whole_group", "status", "message"),
    [
        (signal.SIGINT, True, 130, "offgrad: interrupted\n"),
        (signal.SIGINT, False, 130, "offgrad: interrupted\n"),
        (signal.SIGTERM, False, 143, "offgrad: terminated\n"),
    ],
)
def test_signals(
    training: Callable[[str], "subprocess.Popen[str]"],
    tmp_path: Path,
    signum: int,
    whole_group: bool,
    status: int,
    message: str,
) -> None:
    process = training("keep")
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers
    (os.killpg if whole_group else os.kill)(process.pid, signum)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert errors == message
    _wait_gone(workers)
    assert list((tmp_path / "spill").iterdir()) == []
    figures = json.loads((tmp_path / "offgrad-compare" / "compare.json").read_text())
    assert figures["complete"] is False
    (keep,) = figures["runs"]
    assert keep["status"] == "stopped"
    assert len(keep["steps"]) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_spilled_data_is_removed_with_the_worker(
    start: Offgrad, tmp_path: Path, signum: int
) -> None:
    spill = tmp_path / "spill"
    steps = [each if each != "100000" else "12" for each in LONG]
    process = start("compare", *steps, "--policies", "zarr")
    assert process.stdout is not None
    for line in process.stdout:
        if "zarr: step 1/" in line:
            break
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers
    assert list(spill.iterdir()), "zarr spills into a folder"
    os.kill(process.pid, signum)
    process.communicate(timeout=60)
    _wait_gone(workers)
    deadline = time.monotonic() + 10
    while list(spill.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(spill.iterdir()) == []
    assert (tmp_path / "offgrad-compare").exists() is (signum == signal.SIGINT)


@pytest.mark.slow
def test_results_stay_where_nothing_finished(start: Offgrad, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(
        "import os, signal, time, offgrad\n"
        "def step():\n"
        "    offgrad.ones(4, requires_grad=True).sin().sum().backward()\n"
        "def fail():\n"
        "    raise ValueError('no luck')\n"
        "def interrupt():\n"
        "    step()\n"
        "    os.kill(os.getppid(), signal.SIGINT)\n"
        "    time.sleep(60)\n"
    )

    def compare(name: str) -> tuple[int, str]:
        process = start("compare", f"work:{name}", "--policies", "keep,disk", "--steps", "2")
        return process.wait(timeout=60), process.communicate()[0]

    folder = tmp_path / "offgrad-compare"
    assert compare("fail")[0] == 1
    failed = (folder / "compare.json").read_bytes()
    assert compare("step")[0] == 0
    results = (folder / "compare.json").read_bytes()
    assert results != failed
    status, text = compare("fail")
    assert (status, "offgrad-compare keeps the results of an earlier run" in text) == (1, True)
    assert compare("interrupt")[0] == 130
    assert (folder / "compare.json").read_bytes() == results


def _workers(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Return the comparison's workers, in the order in which they started."""
    found = psutil.Process(process.pid).children(recursive=True)
    return sorted(found, key=lambda each: each.create_time())


@pytest.mark.slow
def test_a_killed_worker_is_a_row_and_the_others_go_on(start: Offgrad, tmp_path: Path) -> None:
    steps = [each if each != "100000" else "12" for each in LONG]
    process = start("compare", *steps, "--policies", "disk,pool")
    assert process.stdout is not None
    for line in process.stdout:
        if "pool: step 2/" in line:
            _, disk, _ = _workers(process)
            disk.kill()
            break
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    assert "disk: the worker crashed (killed by signal 9)" in output
    assert "pool: step 12/12" in output
    runs = json.loads((tmp_path / "offgrad-compare" / "compare.json").read_text())["runs"]
    assert [each["status"] for each in runs] == ["finished", "crashed", "finished"]
    assert runs[2]["identical_to_reference"] is True


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_does_not_answer_delays_no_signal(
    start: Offgrad, tmp_path: Path, signum: int
) -> None:
    process = start("compare", *LONG, "--policies", "disk,pool")
    assert process.stdout is not None
    for line in process.stdout:
        if "pool: step 2/" in line:
            break
    workers = _workers(process)
    workers[1].suspend()
    os.kill(process.pid, signum)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signum
    _wait_gone(workers)
    assert list((tmp_path / "spill").iterdir()) == []


@pytest.mark.slow
def test_a_closed_pipe_ends_it_quietly(start: Offgrad, tmp_path: Path) -> None:
    process = start("compare", *LONG, "--policies", "keep")
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stderr:
        with process.stdout:
            process.stdout.readline()
        errors = process.stderr.read()
    assert process.wait(timeout=60) != 0
    assert errors == ""
    written = tmp_path / "offgrad-compare" / "compare.json"  # of the steps that were done, if any
    assert not written.exists() or not json.loads(written.read_text())["complete"]
