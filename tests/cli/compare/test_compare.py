"""``offgrad compare`` as a whole, on sizes that take seconds."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.compare.conftest import TINY

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# Saves about 11 MiB a step; with disk, few of them are in memory at a time.
LIMITED = (
    *("--layers", "8", "--width", "32", "--heads", "2", "--context", "128", "--batch", "8"),
    *(
        "--steps",
        "2",
    ),
)


def _figures(folder: Path) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads((folder / "compare.json").read_text(), parse_constant=refuse)


@pytest.mark.slow
def test_all_policies_give_the_same_gradients(run: Run, tmp_path: Path) -> None:
    done = run("compare", *TINY, "--seed", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80 + len(str(tmp_path))
    assert "\x1b" not in done.stdout
    for text in ("keep: step 3/3", "zarr: step 3/3", "Training", "Memory", "identical"):
        assert text in done.stdout
    folder = tmp_path / "offgrad-compare"
    assert sorted(path.name for path in folder.iterdir()) == ["compare.json", "compare.png"]
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "spill").iterdir()) == []

    figures = _figures(folder)
    assert figures["config"]["seed"] == 3
    assert figures["config"]["memory_limit"] is None
    assert figures["reference"] == "keep"
    assert {"cpu", "cores", "memory_nbytes", "python", "numpy"} <= set(figures["machine"])
    keep, *others = figures["runs"]
    assert [each["name"] for each in figures["runs"]] == ["keep", "pool", "disk", "zarr"]
    for each in figures["runs"]:
        assert each["status"] == "finished"
        assert each["identical_to_reference"] is True
        assert len(each["steps"]) == 3
        assert each["peak_tensor_nbytes"] > each["parameter_nbytes"] > 0
        assert each["peak_rss_nbytes"] > 20 << 20
        assert each["median_step_seconds"] > 0
        assert each["ledger"]["logical_nbytes"] > 0
        names = [phase["name"] for phase in each["profile"]["phases"]]
        assert names == ["forward", "backward", "after"]
        assert len(each["profile"]["timeline"]["nbytes"]) > 100
    for each in others:
        assert [step["gradients"] for step in each["steps"]] == [
            step["gradients"] for step in keep["steps"]
        ]
    assert len({step["gradients"] for step in keep["steps"]}) == 3


@pytest.mark.slow
def test_keep_runs_out_of_memory_where_disk_does_not(run: Run, tmp_path: Path) -> None:
    limit = 8 << 20
    done = run(
        "compare",
        *LIMITED,
        *("--memory-limit", str(limit), "--policies", "keep,pool,disk", "--hard-limit"),
        *("--output", "results/here"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "keep: OutOfMemoryError in step 1: tensor memory is limited to 8.0 MiB" in done.stdout
    assert "saved for" in done.stdout
    figures = _figures(tmp_path / "results" / "here")
    reference, keep, pool, disk = figures["runs"]
    assert (reference["name"], reference["limited"]) == ("keep, no limit", False)
    assert reference["peak_tensor_nbytes"] > limit
    assert (keep["status"], keep["error"]) == ("out of memory", "OutOfMemoryError")
    assert pool["status"] == "out of memory"
    assert keep["failed_step"] == 0
    assert keep["final_loss"] is None
    assert keep["identical_to_reference"] is None
    assert 0 < keep["peak_tensor_nbytes"] <= limit
    assert max(keep["profile"]["timeline"]["nbytes"]) == keep["peak_tensor_nbytes"]
    assert disk["status"] == "finished"
    assert disk["peak_tensor_nbytes"] <= limit
    assert disk["final_loss"] == reference["final_loss"]
    assert disk["identical_to_reference"] is True
    assert disk["written_nbytes_per_step"] > 0
    assert disk["address_space_nbytes"] > limit
    assert reference["address_space_nbytes"] is None


@pytest.mark.slow
def test_codecs_and_casts(run: Run, tmp_path: Path) -> None:
    done = run("compare", *TINY, "--policies", "disk:lz4,min=4KiB, cast:bfloat16,then=disk,min=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rounded" in done.stdout
    keep, lz4, cast = _figures(tmp_path / "offgrad-compare")["runs"]
    assert (lz4["policy"], lz4["lossless"]) == ("disk:lz4,min=4KiB", True)
    assert lz4["identical_to_reference"] is True
    assert (cast["policy"], cast["lossless"]) == ("cast:bfloat16,then=disk,min=1", False)
    assert cast["identical_to_reference"] is False
    assert cast["final_loss"] == pytest.approx(keep["final_loss"], rel=1e-3)
    assert 0 < cast["written_nbytes_per_step"] < cast["saved_nbytes_per_step"]


@pytest.mark.slow
def test_environment_and_text(run: Run, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("to be, or not to be: " * 20)
    done = run(
        "compare",
        *(option for option in TINY if option not in ("--steps", "3")),
        *("--text", "texts", "--policies", "keep"),
        OFFGRAD_COMPARE_STEPS="1",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = _figures(tmp_path / "offgrad-compare")
    assert figures["config"]["steps"] == 1
    assert figures["text"] == "texts, 420 bytes"
    assert len(figures["runs"]) == 1


@pytest.mark.slow
def test_a_worker_that_crashes_is_a_row_and_an_error(run: Run, tmp_path: Path) -> None:
    # Only the worker uses the spill directory, so the parent runs without it.
    done = run("compare", *TINY, "--policies", "disk", OFFGRAD_SPILL_DIR="/dev/null/none")
    assert done.returncode == 1
    assert "disk: the worker crashed (exit status 1)" in done.stdout
    assert "Traceback" in done.stdout
    keep, disk = _figures(tmp_path / "offgrad-compare")["runs"]
    assert (keep["status"], disk["status"]) == ("finished", "crashed")


BAD = {
    "negative": (["--layers", "-1"], "--layers must be at least 1, got -1"),
    "zero": (["--steps", "0"], "--steps must be at least 1"),
    "no number": (["--width", "wide"], "--width"),
    "heads": (["--width", "10", "--heads", "3"], "--width must be a multiple of --heads"),
    "dropout": (["--dropout", "1"], "--dropout must be from 0 to below 1"),
    "lr": (["--lr", "nan"], "--lr must be positive"),
    "seed": (["--seed", "-1"], "--seed must not be negative"),
    "near miss": (["--policies", "keep,dsik"], "did you mean disk?"),
    "unknown": (["--policies", "xyzzy"], "known: keep, pool, disk, zarr"),
    "codec": (["--policies", "zarr:foo"], "unknown codec 'foo'"),
    "codec of another": (["--policies", "keep,zarr:lz4"], "unknown codec 'lz4' of a ZarrStore"),
    "option of a policy": (["--policies", "disk,mim=1"], "unknown option 'mim'; did you mean min?"),
    "cast": (["--policies", "cast:flaot16"], "did you mean float16"),
    "twice with options": (["--policies", "disk,min=1, disk,min=1"], "names 'disk,min=1' twice"),
    "twice": (["--policies", "disk,disk"], "names 'disk' twice"),
    "none": (["--policies", " , "], "at least one"),
    "size": (["--memory-limit", "3apples"], "--memory-limit: a size is a number and a unit"),
    "hard": (["--hard-limit", "--memory-limit", "none"], "--hard-limit needs a --memory-limit"),
    "missing text": (["--text", "missing.txt"], "missing.txt does not exist"),
    "empty text": (["--text", "/dev/null"], "holds no text"),
    "short text": (["--text", "short.txt"], "257 bytes of text, got 5"),
    "output": (["--output", "short.txt"], "short.txt is not a folder"),
    "option": (["--stps", "3"], "--steps"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["negative", "near miss", "short text", "output", "option"])
def test_bad_values_get_one_line_and_status_2(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "short.txt").write_text("short")
    arguments, text = BAD[name]
    done = run("compare", *arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert done.stderr.startswith("offgrad: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["short.txt", "spill"]


@pytest.mark.parametrize("name", BAD)
def test_bad_values(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from offgrad.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("short")
    arguments, text = BAD[name]
    with pytest.raises(SystemExit) as stopped:
        main(["compare", *arguments])
    assert stopped.value.code == 2
    written = capsys.readouterr()
    assert text in written.err
    assert written.err.count("\n") == 1
    assert written.out == ""


@pytest.mark.slow
def test_help(run: Run) -> None:
    done = run("compare", "--help")
    assert done.returncode == 0
    for option in ("--layers", "--memory-limit", "--hard-limit", "--policies", "--output"):
        assert option in done.stdout
    for policy in ("disk:lz4", "cast:float16", "then=disk", "min=SIZE"):
        assert policy in done.stdout
    assert run("--version").stdout.startswith("offgrad, version ")
