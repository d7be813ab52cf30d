"""`offgrad doctor` finds what is wrong, and names the remedy."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from offgrad_storage.files.spill_directory import file_system_of

import offgrad
from offgrad.cli.doctor.checks import FINE, NOTE, WRONG, spill_folder, thread_counts
from offgrad.cli.doctor.command import doctor

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_every_finding_that_is_wrong_has_a_remedy(tmp_path: Path) -> None:
    result = CliRunner().invoke(doctor, ["--json", "--directory", str(tmp_path)])
    report: dict[str, Any] = json.loads(result.stdout)
    assert report["offgrad"] == offgrad.__version__
    assert report["machine"]["drive"]["folder"] == str(tmp_path)
    states = [each["state"] for each in report["findings"]]
    assert report["healthy"] == (WRONG not in states)
    assert set(states) <= {FINE, NOTE, WRONG}
    assert {"BLAS", "Cache", "Threads", "Spill folder"} <= {
        each["topic"] for each in report["findings"]
    }
    assert all(each["remedy"] for each in report["findings"] if each["state"] == WRONG)
    assert not list(tmp_path.iterdir())


def test_a_spill_folder_in_memory_is_wrong() -> None:
    if file_system_of("/dev/shm") != "tmpfs":
        pytest.skip("needs a tmpfs")
    first, *_ = spill_folder("/dev/shm")
    assert first.state == WRONG
    assert first.text.startswith("/dev/shm: tmpfs on memory (tmpfs): what is spilled there still")
    assert first.remedy == "set --directory to a folder on a drive, such as /var/tmp"


def test_a_default_folder_that_cannot_be_used_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFGRAD_SPILL_DIR", "/proc/nothing")
    (folder,) = spill_folder(None)
    assert (folder.state, folder.remedy) == (WRONG, "set OFFGRAD_SPILL_DIR to a folder on a drive")


def test_too_many_threads_are_wrong() -> None:
    count = offgrad.get_num_threads()
    try:
        offgrad.set_num_threads(1000)
        threads = thread_counts()
    finally:
        offgrad.set_num_threads(count)
    assert threads.state == WRONG
    assert threads.remedy is not None
    assert threads.remedy.startswith("set OFFGRAD_NUM_THREADS=")


@pytest.mark.slow
def test_invalid_settings_and_limits_are_findings(run: Run) -> None:
    result = run(
        "doctor", OFFGRAD_NUM_THREADS="none", OFFGRAD_KERNELS="cuda", OPENBLAS_CORETYPE="Haswell"
    )
    text = " ".join(result.stdout.split())
    assert (result.returncode, result.stderr) == (1, "")
    assert "got 'none' → correct or unset OFFGRAD_NUM_THREADS" in text
    assert "got 'cuda': set OFFGRAD_KERNELS accordingly → correct or unset OFFGRAD_KERNELS" in text
    assert "things are wrong" in text


def test_a_folder_that_cannot_be_used_is_a_bad_value() -> None:
    result = CliRunner().invoke(doctor, ["--directory", "/proc/nothing"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--directory /proc/nothing cannot be written to" in result.stderr


def test_help_is_one_screen_with_an_example() -> None:
    text = CliRunner().invoke(doctor, ["--help"]).stdout
    assert "offgrad doctor --json > doctor.json" in text
    assert text.count("\n") <= 24
