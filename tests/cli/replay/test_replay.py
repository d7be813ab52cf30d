"""offgrad replay and offgrad tune, in this process."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import offgrad
from offgrad.cli.replay.command import replay
from offgrad.cli.saves import StepSaves
from offgrad.cli.tune.command import tune
from offgrad.policies import parse_policy
from offgrad.prediction import Recording, SaveRecorder


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings") / "run.offgrad"
    x = offgrad.randn(256, 256, requires_grad=True)
    with SaveRecorder() as recorder:
        x.sin().exp().cos().sum().backward()
    recorder.recording.save(path)
    return path


def _run(command: object, *arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))  # type: ignore[arg-type]


def test_replay_prints_a_row_for_each_policy(file: Path) -> None:
    result = _run(replay, file, "--policy", "budget:256KiB", "--policy", "disk",
                  "--bandwidth", "1GB/s")  # fmt: skip
    assert result.exit_code == 0, result.output
    for word in ("budget:256KiB", "disk", "peak", "stall", "1 GB/s"):
        assert word in result.output


def test_replay_names_a_rule_that_matches_nothing(file: Path) -> None:
    result = _run(replay, file, "--policy", "disk,module=none.*", "--policy", "disk,op=Sin",
                  "--bandwidth", "1GB/s")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.output.count("did nothing") == 1
    assert "has module='none.*'" in result.output


def test_tune_ends_with_the_policy(file: Path) -> None:
    result = _run(tune, file, "--budget", "300KiB", "--bandwidth", "100MB/s", "--seconds", 0.5)
    assert result.exit_code == 0, result.output
    assert parse_policy(result.output.splitlines()[-1]).lossless


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (replay, ["none.offgrad"], "No such file"),
        (replay, [__file__], "is no recording"),
        (tune, ["--budget", "1MiB", "none"], "No such file"),
        (replay, ["FILE", "--policy", "dsik"], "did you mean disk"),
        (replay, ["FILE", "--policy", "disk,op=Gleu"], "Gelu"),
        (replay, ["FILE", "--bandwidth", "fast"], "a bandwidth is text such as"),
        (tune, ["FILE", "--budget", "much"], "a size is a number"),
        (tune, ["FILE", "--budget", "1MiB", "--seconds", "-1"], "positive"),
        (tune, ["FILE"], "--budget"),
        (tune, ["FILE", "more", "--budget", "1MiB"], "'more' is neither an option"),
        (tune, ["FILE", "--budget", "1MiB", "--steps", "0"], "not in the range"),
        (tune, ["none.py", "--budget", "1MiB"], "no script none.py"),
        (tune, [__file__, "--budget", "1MiB", "3"], "put offgrad's before the script"),
        (replay, ["FILE", "--directory", __file__], "it is no folder"),
        (tune, ["FILE", "--budget", "1MiB", "--directory", "/proc/none"], "does not exist"),
    ],
)
def test_wrong_arguments(command: object, arguments: list[str], message: str, file: Path) -> None:
    result = _run(command, *(file if each == "FILE" else each for each in arguments))
    assert result.exit_code == 2
    assert message in result.output


TRAINING = """
import sys
import threading
import offgrad as torch

layer = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)


def train(step):
    layer(torch.randn(512 if step == 1 else 64, 64)).tanh().sum().backward()
    optimizer.step()
    print("step", step)


for step in range(int(sys.argv[1])):
    thread = threading.Thread(target=train, args=(step,))
    thread.start()
    thread.join()
layer(torch.randn(4096, 64)).tanh()
"""


@pytest.mark.slow
def test_a_script_is_recorded_for_replay(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    result = run("profile", "--saves", "run.offgrad", "train.py", "3")
    assert "wrote a step for offgrad replay to" in result.stderr.splitlines()[-1]
    recording = Recording.load(tmp_path / "run.offgrad")
    assert [each.shape for each in recording.saves if not each.is_parameter] == [(512, 64)] * 2
    assert len(recording.passes) == 1
    result = run("profile", "--saves", "missing/run", "train.py", "3")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--saves missing/run cannot be written" in result.stderr


@pytest.mark.slow
def test_tune_records_a_script(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    result = run("tune", "train.py", "9", "--budget", "64KiB", "--bandwidth", "1GB/s",
                 "--seconds", "0.5", "--steps", "2")  # fmt: skip
    lines = result.stdout.splitlines()
    assert (result.returncode, lines[0]) == (0, "step 0")
    assert "step 1" not in lines
    assert "Traceback" not in result.stderr
    assert parse_policy(lines[-1]).lossless
    (tmp_path / "train.py").write_text("import offgrad; offgrad.zeros(3)")
    result = run("tune", "--budget", "1MiB", "--bandwidth", "1GB/s", "train.py")
    assert (result.returncode, result.stdout) == (1, "")
    assert "train.py saved nothing for backward" in result.stderr


def test_the_largest_step_is_kept_and_evaluation_is_no_step() -> None:
    x = offgrad.zeros(4, 64, requires_grad=True)
    optimizer = offgrad.optim.SGD([x], lr=0.1)
    with StepSaves(max_steps=3) as saves:
        x.sin().exp().sum().backward()
        optimizer.step()
        x.sin().sum().backward()
        optimizer.step()
        optimizer.step()  # no step of training
        offgrad.zeros(64, 64, requires_grad=True).sin()
        with pytest.raises(SystemExit):
            optimizer.step()
    assert saves.recording is not None
    assert len(saves.recording.saves) == 2
    assert len(saves.recording.passes) == 1


POOL = """
import multiprocessing, os, offgrad

def train(number):
    model = offgrad.nn.Linear(8, 8)
    optimizer = offgrad.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(offgrad.randn(4, 8)).sum().backward()
        optimizer.step()
        print("step", step, "of", number, flush=True)
    return number

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print("trained", pool.map(train, range(2)), flush=True)
    train(9)
"""

FORK = """
import os, sys, offgrad

pid = os.fork()
model = offgrad.nn.Linear(8, 8)
optimizer = offgrad.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model(offgrad.randn(4, 8)).sum().backward()
    optimizer.step()
    if step == 0 and pid:
        print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
if "exit" in sys.argv:
    sys.exit(7)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="pipes are POSIX's")
def test_tune_ends_quietly_where_nobody_reads(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING.replace('print("step", step)', "pass"))
    reader, writer = os.pipe()
    os.close(reader)
    options = ["--budget", "64KiB", "--bandwidth", "1GB/s", "--seconds", "0.1", "--steps", "2"]
    result = subprocess.run(
        [sys.executable, "-m", "offgrad", "tune", *options, "train.py", "9"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert result.returncode in (1, 128 + signal.SIGPIPE)  # Rich and we
    assert "Traceback" not in result.stderr


def _tune_script(
    run: Callable[..., "subprocess.CompletedProcess[str]"], *script: str, steps: int = 3
) -> "subprocess.CompletedProcess[str]":
    return run("tune", "--budget", "1MiB", "--bandwidth", "1GB/s", "--seconds", "0.1",
               "--steps", str(steps), *script)  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_steps_of_forked_processes_are_their_own(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    (tmp_path / "pool.py").write_text(POOL)
    result = _tune_script(run, "pool.py", steps=2)
    lines = result.stdout.splitlines()
    assert (result.returncode, result.stderr) == (0, "")
    assert "trained [0, 1]" in lines
    assert [f"step {step} of 9" in lines for step in range(4)] == [True, False, False, False]
    assert parse_policy(lines[-1]).lossless


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("argument", "status"), [("return", 0), ("exit", 7)])
def test_a_forked_process_ends_without_a_report(
    run: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path: Path,
    argument: str,
    status: int,
) -> None:
    (tmp_path / "fork.py").write_text(FORK)
    result = _tune_script(run, "fork.py", argument)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"status {status}" in result.stdout.splitlines()
    assert result.stdout.count("Held for backward") == 1


EXIT = """
import sys, offgrad

model = offgrad.nn.Linear(8, 8)
optimizer = offgrad.optim.SGD(model.parameters(), lr=0.1)
try:
    for step in range(2):
        model(offgrad.randn(4, 8)).sum().backward()
        optimizer.step()
except BaseException:
    sys.exit("ended early")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "status", "message"),
    [
        ("sys.exit('data set is damaged')", 1, "data set is damaged\n"),
        ("sys.exit(5)", 5, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit()", 0, ""),
    ],
)
def test_a_script_that_fails_after_a_step_gives_its_status(
    run: Callable[..., "subprocess.CompletedProcess[str]"],
    tmp_path: Path,
    end: str,
    status: int,
    message: str,
) -> None:
    (tmp_path / "train.py").write_text(EXIT + end)
    result = _tune_script(run, "train.py")
    assert (result.returncode, result.stderr) == (status, message)
    assert ("Held for backward" in result.stdout) == (status == 0)


@pytest.mark.slow
def test_a_script_that_fails_as_its_training_ends_is_tuned(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(EXIT)
    result = _tune_script(run, "train.py", steps=1)
    assert (result.returncode, result.stderr) == (0, "")
    assert "Held for backward" in result.stdout


@pytest.mark.slow
def test_ctrl_c_in_the_script_of_tune_is_one_line(
    run: Callable[..., "subprocess.CompletedProcess[str]"], tmp_path: Path
) -> None:
    (tmp_path / "stopped.py").write_text("import offgrad\nraise KeyboardInterrupt\n")
    result = run("tune", "stopped.py", "--budget", "64KiB", "--bandwidth", "1GB/s")
    assert (result.returncode, result.stderr) == (130, "offgrad: interrupted\n")
