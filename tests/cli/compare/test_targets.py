"""``offgrad compare`` on scripts, functions and the built-in models."""

import errno
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad.cli import main
from offgrad.cli.compare.config import Config
from offgrad.cli.compare.largest import search
from offgrad.cli.compare.models import MODELS
from offgrad.cli.compare.policy_list import read_policies
from offgrad.cli.compare.text import generate
from offgrad.cli.compare.training import Training
from tests.cli.conftest import Offgrad

Finished = Callable[..., "subprocess.CompletedProcess[str]"]

SCRIPT = """
import argparse
import offgrad as torch
from offgrad import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.add_argument("--steps", type=int, default=1000)
options = parser.parse_args()
generator, critic = (
    nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Dropout(0.5), nn.Linear(512, 64))
    for _ in range(2)
)
optimizers = [torch.optim.AdamW(each.parameters()) for each in (generator, critic)]
for step in range(options.steps):
    noise = torch.randn(options.batch_size, 64)
    for model, optimizer in zip((generator, critic), optimizers):
        optimizer.zero_grad()
        loss = model(noise).square().mean()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
"""

MODULE = """
import offgrad
from offgrad import nn

model = nn.Linear(8, 8)
optimizer = offgrad.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    loss = model(offgrad.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()

def make(batch=4):
    x = offgrad.ones(batch, 8)
    def step():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss
    return step
"""


def _runs(folder: Path) -> Any:
    return json.loads((folder / "offgrad-compare" / "compare.json").read_text())["runs"]


@pytest.mark.slow
def test_an_untouched_script_with_batch_sizes(run: Finished, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    arguments = ("--batch", "256,512", "--steps", "2", "--policies", "keep,disk")
    done = run("compare", "train.py", *arguments, "--", "--batch-size", "{batch}")
    assert done.returncode == 0, done.stdout + done.stderr
    runs = _runs(tmp_path)
    assert [(each["policy"], each["batch"]) for each in runs] == [
        *(("keep", 256), ("disk", 256), ("keep", 512), ("disk", 512)),
    ]
    for each in runs:
        assert each["identical_to_reference"] is True
        assert len(each["steps"]) == 2
        # Two models with AdamW: parameters, gradients and two numbers of state.
        nbytes = 2 * 4 * (2 * 64 * 512 + 512 + 64)
        assert each["parameter_nbytes"] == nbytes
        assert each["model_nbytes"] >= 3 * nbytes
        # The digest of a later step covers both optimizers.
        assert len(each["steps"][1]["gradients"]) == 64
    assert runs[1]["written_nbytes_per_step"] > 0
    assert runs[3]["saved_nbytes_per_step"] > 1.5 * runs[1]["saved_nbytes_per_step"]


@pytest.mark.slow
def test_a_script_that_ends_early_and_one_that_fails(run: Finished, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    arguments = ("train.py", "--policies", "keep", "--steps", "5")
    done = run("compare", *arguments, "--", "--batch-size", "8", "--steps", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [len(each["steps"]) for each in _runs(tmp_path)] == [2]
    assert "warning: train.py ended by itself after 2 of 5 steps" in " ".join(done.stdout.split())
    assert "ended by itself" in (tmp_path / "offgrad-compare" / "compare.md").read_text()
    done = run("compare", *arguments, "--", "--batch-size", "eight")
    assert done.returncode == 1
    assert "invalid int value: 'eight'" in done.stdout
    done = run("compare", *arguments, "--", "--batch-size", "8", "--steps", "0")
    assert done.returncode == 2
    assert done.stderr == (
        "offgrad: train.py ended without a step: no optimizer of offgrad made one\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["step", "make"])
def test_a_function_and_a_factory(run: Finished, tmp_path: Path, name: str) -> None:
    (tmp_path / "work.py").write_text(MODULE)
    done = run("compare", f"work:{name}", "--steps", "3", "--policies", "keep,pool")
    assert done.returncode == 0, done.stdout + done.stderr
    keep, pool = _runs(tmp_path)
    assert keep["steps"][0]["loss"] > keep["steps"][2]["loss"]
    assert len({step["gradients"] for step in keep["steps"]}) == 3
    assert pool["identical_to_reference"] is True
    done = run("compare", f"work:{name}s", "--policies", "keep")
    assert (done.returncode, done.stderr) == (
        2,
        f"offgrad: work has no '{name}s'; did you mean {name}?\n",
    )
    assert done.stdout == ""  # no worker started


@pytest.mark.slow
def test_names_that_appear_as_a_module_runs_are_found(run: Finished, tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(MODULE)
    (tmp_path / "star.py").write_text("from inner import *\n")
    (tmp_path / "lazy.py").write_text("import inner\n__getattr__ = inner.__dict__.__getitem__\n")
    for module in ("star", "lazy"):
        done = run("compare", f"{module}:step", "--steps", "1", "--policies", "keep")
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_function_of_arguments_is_refused(run: Finished, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("def step(model, x): pass\n")
    done = run("compare", "work:step", "--steps", "1", "--policies", "keep")
    assert done.returncode == 2
    assert "cannot be called without arguments (missing a required argument: 'model')" in (
        done.stderr
    )


@pytest.mark.slow
def test_a_script_with_sessions_of_its_own_compares_nothing(run: Finished, tmp_path: Path) -> None:
    own = SCRIPT.replace(
        "        loss = model", "        with torch.offload('keep'):\n            loss = model"
    )
    (tmp_path / "own.py").write_text(own)
    done = run(
        *("compare", "own.py", "--policies", "keep,disk", "--steps", "2"),
        *("--", "--batch-size", "8"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    warning = "every policy: warning: the policy got no tensor"
    assert " ".join(done.stdout.split()).count(warning) == 1
    assert (tmp_path / "offgrad-compare" / "compare.md").read_text().count(warning) == 1
    assert all(len(each["warnings"]) == 1 for each in _runs(tmp_path))


LOOP = """
import os, sys, threading
import offgrad as torch
from offgrad import nn

model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(512, 256)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks are POSIX's")
@pytest.mark.parametrize("end", ["os._exit(5)", "sys.exit(0)"])
def test_the_steps_of_a_forked_process_are_its_own(run: Finished, tmp_path: Path, end: str) -> None:
    fork = f"train(1)\nif not (child := os.fork()):\n    train(3)\n    {end}\n"
    (tmp_path / "fork.py").write_text(f"{LOOP}{fork}os.waitpid(child, 0)\ntrain(5)\n")
    (tmp_path / "alone.py").write_text(f"{LOOP}train(6)\n")
    losses = []
    for script in ("fork.py", "alone.py"):
        done = run("compare", script, "--steps", "4", "--policies", "keep,disk,min=0", "--fresh")
        assert done.returncode == 0, done.stdout + done.stderr
        losses.append([[step["loss"] for step in each["steps"]] for each in _runs(tmp_path)])
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_the_policy_applies_to_threads(run: Finished, tmp_path: Path) -> None:
    thread = "thread = threading.Thread(target=train, args=(3,))\nthread.start()\nthread.join()\n"
    (tmp_path / "thread.py").write_text(f"{LOOP}{thread}")
    done = run("compare", "thread.py", "--steps", "2", "--policies", "keep,disk,min=0")
    assert done.returncode == 0, done.stdout + done.stderr
    keep, disk = _runs(tmp_path)
    assert not keep["warnings"]
    assert not disk["warnings"]
    assert disk["ledger"]["written_nbytes"]


# Each run begins with the other thread, as a race might.
RACE = """
import os, threading, offgrad

models = [offgrad.nn.Linear(8, 8) for _ in range(2)]

def train(model):
    optimizer = offgrad.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(offgrad.ones(4, 8)).square().mean().backward()
        optimizer.step()

try:
    os.mkdir("turn")
except FileExistsError:
    os.rmdir("turn")
    models.reverse()
for model in models:
    thread = threading.Thread(target=train, args=(model,))
    thread.start()
    thread.join()
"""


@pytest.mark.slow
def test_steps_of_several_threads_are_not_compared(run: Finished, tmp_path: Path) -> None:
    (tmp_path / "race.py").write_text(RACE)
    done = run("compare", "race.py", "--steps", "2", "--policies", "keep,disk,min=0")
    assert done.returncode == 0, done.stdout + done.stderr
    keep, disk = _runs(tmp_path)
    assert keep["final_loss"] != disk["final_loss"]
    assert disk["identical_to_reference"] is None
    assert "every policy: warning: steps come from several threads" in done.stdout
    assert "DIFFER" not in done.stdout


@pytest.mark.slow
def test_a_rule_that_matched_nothing_is_named(run: Finished, tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text(f"{LOOP}train(2)\nsys.exit(0)\n")
    done = run("compare", "exits.py", "--steps", "2", "--policies", "keep,disk,module=none.*")
    assert "has module='none.*'" in " ".join(done.stdout.split())
    done = run("run", "exits.py", "--policy", "disk,module=none.*")
    assert "has module='none.*'" in done.stderr


def test_a_full_drive_leaves_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("offgrad.cli.compare.plot.save_comparison", no_room)
    small = ["compare", "mlp", "--layers", "1", "--width", "8", "--batch", "4", "--steps", "2"]
    small += ["--policies", "keep"]
    with pytest.raises(SystemExit) as stopped:
        main([*small, "--memory-limit", "none", "--output", str(tmp_path)])
    assert stopped.value.code == 1
    error = capsys.readouterr().err
    assert "No space left on device; the figures alone are in" in error
    assert str(tmp_path) in error
    assert [each.name for each in tmp_path.iterdir()] == ["compare.json"]


def test_damaged_results_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    machine = {"cpu": "one", "usable_threads": 1, "blas": "some"}
    run = {"name": "keep", "step_seconds": None, "final_loss": 1.0, "peak_tensor_nbytes": 5}
    good = {"machine": machine, "config": {"batch": None}, "runs": [run], "version": 2}
    good |= {"offgrad": "1", "created": "today"}
    damaged = {**good, "runs": [{**run, "peak_tensor_nbytes": "x"}]}
    files = {"good": good, "new": {**good, "version": 99}, "damaged": damaged}
    files["other"] = {**good, "config": {"batch": 3}}
    for name, figures in files.items():
        Path(f"{name}.json").write_text(json.dumps(figures))
    for name, code, text in (
        ("new", 2, "new.json is of version 99"),
        ("damaged", 2, "a value of good.json or damaged.json is damaged"),
        ("other", 0, "batch none and 3"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["compare", "--from", "good.json", f"{name}.json"])
        assert stopped.value.code == code
        written = capsys.readouterr()
        assert text in written.out + written.err


@pytest.mark.slow
def test_a_limit_below_the_model_is_refused(run: Finished, tmp_path: Path) -> None:
    model = ("mlp", "--layers", "4", "--width", "256", "--batch", "32", "--policies", "disk")
    done = run("compare", *model, "--memory-limit", "3MiB")
    assert done.returncode == 2
    assert "step 1" not in done.stdout
    assert "state take 4.0 MiB; the least that works is" in done.stderr
    assert not (tmp_path / "offgrad-compare").exists()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="signals are POSIX's")
def test_it_goes_on_where_it_was_stopped(start: Offgrad, run: Finished, tmp_path: Path) -> None:
    arguments = (
        *("compare", "mlp", "--layers", "2", "--width", "64", "--batch", "64"),
        *("--policies", "keep", "--repeats", "2", "--steps", "300"),
    )
    process = start(*arguments)
    assert process.stdout is not None
    is_second = False
    for line in process.stdout:
        is_second = is_second or "repeat 2 of 2" in line
        if is_second and "step 9/" in line:
            process.send_signal(signal.SIGINT)
            break
    process.communicate(timeout=60)
    assert process.returncode == 130
    folder = tmp_path / "offgrad-compare"
    first = json.loads((folder / "compare.json").read_text())
    assert first["complete"] is False
    done = run(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "repeat 1 of 2: kept from before" in done.stdout
    kept = int(re.findall(r"repeat 2 of 2: (\d+) of 300 rounds kept", done.stdout)[0])
    figures = json.loads((folder / "compare.json").read_text())
    assert figures["complete"] is True
    assert figures["runs"][0]["steps"][:300] == first["runs"][0]["steps"][:300]
    # Where it goes on, a step warms up.
    assert len(figures["runs"][0]["steps"]) == 601
    assert figures["runs"][0]["steps"][: 300 + kept] == first["runs"][0]["steps"][: 300 + kept]
    assert not (folder / "unfinished").exists()


@pytest.mark.slow
def test_the_largest_batch(run: Finished, tmp_path: Path) -> None:
    model = ("--layers", "8", "--width", "32", "--heads", "2", "--context", "128")
    limit = ("--memory-limit", "8MiB", "--largest-batch", "--policies", "keep")
    done = run("compare", *model, *limit)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "offgrad-compare" / "largest.json").read_text())
    (keep,) = figures["largest"]
    assert keep["largest_batch"] + 1 == keep["fails"]
    for batch, outcome in ((keep["largest_batch"], "trains"), (keep["fails"], "does not fit")):
        assert f"keep: batch {batch} {outcome} within 8.0 MiB" in done.stdout


@pytest.mark.parametrize("fits", [0, 1, 4, 7, 300, 5000])
def test_the_search_takes_few_trials(fits: int) -> None:
    asked: list[int] = []

    def peaks(batch: int) -> tuple[int, int] | None:
        asked.append(batch)
        return (1010, 1000 + 10 * batch) if batch <= fits else None

    found = search(peaks, 1000 + 10 * fits)
    assert found.trains <= fits < found.fails
    assert found.fails - found.trains <= max(1, fits // 10)
    assert len(asked) <= 12


TORCH_SIZES: dict[str, dict[str, Any]] = {
    "gpt": {"dropout": 0.0},
    "resnet": {},
    "lstm": {},
    "mlp": {},
    "vit": {},
}


@pytest.mark.parametrize("name", MODELS)
def test_models_train_and_agree_with_torch(name: str) -> None:
    pytest.importorskip("torch")
    tiny = MODELS[name].tiny | TORCH_SIZES[name]
    config = Config(target=name, steps=2, **tiny)
    session = offgrad.offload("keep")
    text = generate(5000)
    own, its = Training(config, text, session), Training(config, text, None, "torch")
    assert own.parameter_nbytes == its.parameter_nbytes
    for number in range(2):
        found, expected = own.step(number), its.step(number)
        assert found.loss == pytest.approx(expected.loss, rel=2e-3)
        assert (found.peak_nbytes > 0, expected.peak_nbytes) == (True, 0)


def test_policies_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policies.toml"
    path.write_text('[policies]\nsmall = "disk,max=1MiB;keep"\nall = "disk"\n')
    assert read_policies(str(path)) == {"small": "disk,max=1MiB;keep", "all": "disk"}
    path.write_text('policies = ["keep", "disk:lz4"]\n')
    assert read_policies(str(path)) == {"keep": "keep", "disk:lz4": "disk:lz4"}


BAD: dict[str, tuple[list[str], str]] = {
    "model": (["gtp"], "did you mean gpt?"),
    "no script": (["missing.py"], "missing.py cannot be read"),
    "syntax": (["broken.py"], "broken.py is not Python"),
    "module": (["no_such_module:step"], "no module named 'no_such_module'"),
    "module of a package": (["json.no_such:step"], "no module named 'json.no_such'"),
    "no such function": (["json.decoder:scanString"], "no 'scanString'; did you mean scanstring?"),
    "no such step": (["work:step"], "work has no 'step'"),
    "no name": (["a b:step"], "is not a built-in model"),
    "arguments": (["mlp", "--", "--lr", "3"], "only a script takes arguments"),
    "size": (["resnet", "--heads", "2"], "--heads is no option of the model resnet"),
    "size of a script": (["fine.py", "--width", "2"], "--width is no option of fine.py"),
    "batch of a script": (["fine.py", "--batch", "2"], "{batch} in its arguments"),
    "batch": (["mlp", "--batch", "2,x"], "--batch takes whole numbers, got 'x'"),
    "batch twice": (["mlp", "--batch", "2,2"], "--batch names 2 twice"),
    "limit twice": (["mlp", "--memory-limit", "1MiB,1MiB"], "names 1MiB twice"),
    "image": (["vit", "--image", "30"], "--image must be a multiple of 4"),
    "repeats": (["--repeats", "0"], "--repeats must be at least 1"),
    "torch": (["fine.py", "--torch"], "--torch trains built-in models alone"),
    "text": (["mlp", "--text", "fine.py"], "only gpt learns a text"),
    "modes": (["--curve", "--largest-batch"], "two modes"),
    "no limit": (["mlp", "--largest-batch"], "--largest-batch needs a --memory-limit"),
    "folder": (["--directory", "fine.py/below"], "--directory"),
    "one file": (["--from", "a.json"], "--from takes two files"),
    "toml": (["--policies", "bad.toml"], "bad.toml is not TOML"),
    "toml policy": (["--policies", "typo.toml"], "'fast': "),
    "reference in toml": (["--policies", "keep.toml"], "'keep' is the name of the reference"),
    "no toml": (["--policies", "none.toml"], "none.toml cannot be read"),
    "name in toml": (["--policies", "name.toml"], "a name is text in one line"),
    "empty toml": (["--policies", "empty.toml"], "needs policies ="),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_values_get_one_line(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, text in {
        "broken.py": "def f(",
        "fine.py": "pass",
        "work.py": "raise SystemExit('it ran')\ndef stride(): pass",
        "bad.toml": "x = ",
        "typo.toml": '[policies]\nfast = "dsik"',
        "keep.toml": '[policies]\nkeep = "disk"',
        "empty.toml": "",
        "name.toml": '[policies]\n"a\\nb" = "keep"',
    }.items():
        (tmp_path / file).write_text(text)
    arguments, text = BAD[name]
    with pytest.raises(SystemExit) as stopped:
        main(["compare", *arguments])
    assert stopped.value.code == 2
    written = capsys.readouterr()
    assert text in written.err
    assert written.err.count("\n") == 1
    assert written.out == ""


def test_batches_of_models_depend_on_seed_and_step() -> None:
    training = Training(Config(target="mlp", **MODELS["mlp"].tiny), generate(0), None, "offgrad")
    first, again, other = (training._batch(step) for step in (0, 0, 1))
    np.testing.assert_array_equal(first[0], again[0])
    assert (first[0] != other[0]).any()
