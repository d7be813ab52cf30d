"""``offgrad compare`` as a whole, on sizes that take seconds."""

import json
import os
import re
import subprocess
import sys
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
    assert sorted(path.name for path in folder.iterdir()) == [
        *("compare.csv", "compare.html", "compare.json", "compare.md", "compare.png"),
    ]
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "compare.html").read_text()
    assert re.findall(r'{"name":"(\w+)","profile":', page) == ["keep", "pool", "disk", "zarr"]
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
        assert 0 < each["step_seconds"]["low"] <= each["step_seconds"]["high"]
        assert each["step_ratio"]["median"] > 0
        assert each["step_difference"] == "too few steps"
        times = [each["steps"][number]["seconds"] for number in (1, 2)]
        assert each["steps"][each["profile_step"]]["seconds"] == min(times)
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
    assert "keep: OutOfMemoryError in step 1: forward of " in done.stdout
    assert ": tensor memory is limited to 8.0 MiB" in done.stdout
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
@pytest.mark.skipif(os.name == "nt", reason="resource limits are POSIX's")
def test_a_worker_that_crashes_is_a_row_and_an_error(run: Run, tmp_path: Path) -> None:
    # No file may be larger than 4 MiB: the worker's writes fail, while the results fit.
    (tmp_path / "sitecustomize.py").write_text(
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    arguments = (*LIMITED, "--memory-limit", "none", "--policies", "disk")
    done = run("compare", *arguments, PYTHONPATH=path)
    assert done.returncode == 1
    assert "disk: the worker crashed (exit status 1)" in done.stdout
    assert "Traceback" in done.stdout
    assert done.stderr == "offgrad: no policy finished; the reasons are above\n"
    keep, disk = _figures(tmp_path / "offgrad-compare")["runs"]
    assert (keep["status"], disk["status"]) == ("finished", "crashed")


@pytest.mark.slow
def test_the_status_is_1_if_no_policy_finished(run: Run, tmp_path: Path) -> None:
    done = run("compare", *LIMITED, "--memory-limit", "2MiB", "--policies", "keep,disk")
    assert done.returncode == 1
    assert done.stderr == "offgrad: no policy finished; the reasons are above\n"
    runs = _figures(tmp_path / "offgrad-compare")["runs"]
    assert [each["status"] for each in runs] == ["finished", "out of memory", "out of memory"]


@pytest.mark.slow
def test_policies_take_turns(run: Run) -> None:
    arguments = [each if each != "3" else "6" for each in TINY]
    done = run("compare", *arguments, "--policies", "keep,pool,disk")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    steps = [re.match(r"(\w+): step (\d)/6", line) for line in lines]
    turns = [(step[1], int(step[2])) for step in steps if step is not None]
    rounds = [turns[begin : begin + 3] for begin in range(0, 18, 3)]
    assert len(turns) == 18
    for number, each in enumerate(rounds, 1):
        assert sorted(each) == [("disk", number), ("keep", number), ("pool", number)]
    orders = {tuple(name for name, _ in each) for each in rounds}
    assert len(orders) > 1, "the order changes from round to round"
    assert lines.index("disk: starting") < min(map(lines.index, filter(_is_step, lines)))


def _is_step(line: str) -> bool:
    return ": step " in line


SETTINGS = {
    "OFFGRAD_NUM_THREADS": "abc",
    "OFFGRAD_KERNELS": "cuda",
    "OFFGRAD_SPILL_DIR": "/dev/null/none",
    "OFFGRAD_COMPARE_STEPS": "many",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_bad_settings_get_one_line_and_status_2(run: Run, name: str) -> None:
    done = run("compare", **{name: SETTINGS[name]})
    assert done.returncode == 2
    assert done.stderr.startswith("offgrad: ")
    assert SETTINGS[name] in done.stderr
    assert name in done.stderr or "--steps" in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("name", SETTINGS)
def test_bad_settings_do_not_disturb_the_import(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; import offgrad"],
        env=os.environ | {name: SETTINGS[name]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_a_rule_that_matches_nothing_is_reported(run: Run, tmp_path: Path) -> None:
    done = run("compare", *TINY, "--policies", "disk,op=Dropout;keep, disk,module=blocks.?.gelu")
    assert done.returncode == 0, done.stdout + done.stderr
    shown = " ".join(done.stdout.split())
    assert "disk,op=Dropout;keep: warning: no tensor saved for backward in this block" in shown
    _, dropout, gelu = _figures(tmp_path / "offgrad-compare")["runs"]
    assert len(dropout["warnings"]) == 1
    assert "has op='Dropout'" in dropout["warnings"][0]
    assert gelu["warnings"] == []


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
    "op": (["--policies", "disk,op=Gleu"], "no operation has the op 'Gleu'; did you mean"),
    "slot": (["--policies", "disk,slot=foo"], "no operation has the slot 'foo'"),
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
