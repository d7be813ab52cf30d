"""A process leaves no spilled bytes however it ends, or the next start sweeps them."""

import os
import signal
import subprocess
import textwrap
from pathlib import Path
from typing import IO

import pytest
from offgrad_storage import ZarrStore, sweep

from tests.processes import start_python
from tests.session.conftest import RunPython, child_environment
from tests.session.helpers import wait_until

TRAIN = """
    import sys
    import offgrad
    from offgrad import nn, optim

    policy, directory, steps = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    x = offgrad.randn(256, 64)
    for step in range(steps):
        with offgrad.offload(policy, directory=directory):
            loss = model(x).square().mean()
        print(step, flush=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

policies = pytest.mark.parametrize("policy", ["disk", "zarr"])
places = pytest.mark.parametrize("place", ["environment", "directory="])


def start(policy: str, folder: Path, place: str) -> "subprocess.Popen[str]":
    """Start endless training and wait until it has made a few steps."""
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    by_name = place == "directory="
    process = start_python(
        textwrap.dedent(TRAIN),
        policy,
        str(folder) if by_name else "",
        "1000000000",
        env=child_environment(elsewhere if by_name else folder),
        stdout=subprocess.PIPE,
    )
    output: IO[str] | None = process.stdout
    assert output is not None
    for _ in range(3):
        assert output.readline()
    return process


def end(process: "subprocess.Popen[str]", how: signal.Signals) -> int:
    """End a process by a signal; return its exit status.

    Python drops an interrupt that arrives inside a finalizer, so the signal is sent again after a
    while, as a user would press Ctrl-C again.
    """
    for attempts_left in reversed(range(6)):
        process.send_signal(how)
        try:
            code = process.wait(10)
            break
        except subprocess.TimeoutExpired:
            if not attempts_left:
                process.kill()
                raise
    assert process.stdout is not None
    process.stdout.close()
    return code


@pytest.mark.slow
@places
@policies
def test_the_files_of_a_killed_process_are_swept_at_the_next_start(
    policy: str, place: str, tmp_path: Path
) -> None:
    folder = tmp_path / "spill"
    folder.mkdir()
    process = start(policy, folder, place)
    if policy.startswith("zarr"):
        assert list(folder.iterdir()), "the test checks the wrong folder"
    assert end(process, signal.SIGKILL) == -signal.SIGKILL
    if policy.startswith("zarr"):
        assert list(folder.iterdir())
        with ZarrStore(folder) as store:
            assert [store.path.parent] == list(folder.iterdir()), "the next start sweeps"
    assert list(folder.iterdir()) == []
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.slow
def test_a_sweep_spares_the_files_of_a_live_process(tmp_path: Path, run_python: RunPython) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    process = start("zarr", folder, "directory=")
    (mine,) = folder.iterdir()
    result = run_python(TRAIN, "zarr", folder, 2)
    assert result.returncode == 0, result.stderr
    assert list(folder.iterdir()) == [mine]
    assert process.stdout is not None
    for _ in range(3):
        assert process.stdout.readline(), "the first process continues"
    end(process, signal.SIGKILL)


@pytest.mark.slow
@policies
def test_an_interrupted_process_leaves_no_files(policy: str, tmp_path: Path) -> None:
    """Ctrl-C is an ordinary exception: it leaves nothing."""
    folder = tmp_path / "spill"
    folder.mkdir()
    assert end(start(policy, folder, "environment"), signal.SIGINT) != 0
    assert list(folder.iterdir()) == []


ENDINGS = {
    "exit": ("", 0),
    "exit with a graph": ("with offgrad.offload(policy): kept = model(x).sum()", 0),
    "exit with writes pending": (
        "with offgrad.offload(policy): kept = [(x * k).exp().sin() for k in range(40)]", 0
    ),
    "sys.exit": ("sys.exit(3)", 3),
    "exception in forward": ("with offgrad.offload(policy): model(x).exp() / 0 @ None", 1),
    "exception in backward": (
        "with offgrad.offload(policy):\\n"
        "    y = model(x)\\n"
        "    y.register_hook(lambda grad: 1 / 0)\\n"
        "    loss = y.sum()\\n"
        "loss.backward()", 1
    ),
    "exception in a thread": (
        "import threading\\n"
        "def run():\\n"
        "    with offgrad.offload(policy): model(x).exp() @ None\\n"
        "thread = threading.Thread(target=run); thread.start(); thread.join()", 0
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("policy", ["disk", "zarr"])
def test_a_process_leaves_no_files_at_exit(
    policy: str, ending: str, tmp_path: Path, run_python: RunPython
) -> None:
    code, expected = ENDINGS[ending]
    source = textwrap.dedent(TRAIN) + code.replace("\\n", "\n").replace("\\\\", "")
    source = source.replace("model = nn.Seq", "x = None\nmodel = nn.Seq")
    source = source.replace("x = offgrad.randn(256, 64)", "x = offgrad.randn(256, 64) * 1")
    result = run_python(source, policy, "", 2)
    assert result.returncode == expected, result.stderr
    assert ("Traceback" in result.stderr) == ("exception" in ending), result.stderr
    assert "ignored" not in result.stderr
    assert list((tmp_path / "spill").iterdir()) == []


FORK = """
    import os
    import sys
    import offgrad

    policy, ending = sys.argv[1:]
    def step(session, x):
        with session:
            loss = (x * 2).tanh().exp().tanh().sum()
        return loss

    x = offgrad.tensor([[k * 0.001 for k in range(256)]] * 256, requires_grad=True)
    session = offgrad.offload(policy)
    expected, = offgrad.autograd.grad(step(session, x), x)
    loss = step(session, x)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        # With the parent's session and with a new one; the parent's writes may be pending.
        for each in (session, offgrad.offload(policy)):
            for _ in range(2):
                found, = offgrad.autograd.grad(step(each, x), x)
                assert found.equal(expected), "the child's gradient"
        with offgrad.no_grad():
            x.mul_(0)
        if ending == "os._exit":
            os._exit(0)
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child failed"
    found, = offgrad.autograd.grad(loss, x)
    assert found.equal(expected), "the parent's gradient"
    for _ in range(2):
        found, = offgrad.autograd.grad(step(session, x), x)
        assert found.equal(expected), "the parent's gradient"
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("ending", ["os._exit", "sys.exit"])
@pytest.mark.parametrize("policy", ["pool", "disk", "zarr"])
def test_a_forked_child_and_its_parent_both_train(
    policy: str, ending: str, tmp_path: Path, run_python: RunPython
) -> None:
    result = run_python(FORK, policy, ending)
    assert result.returncode == 0, result.stderr
    if ending == "os._exit":
        # No cleanup runs: the next start removes the child's folder.
        sweep(tmp_path / "spill")
    assert list((tmp_path / "spill").iterdir()) == []


@pytest.mark.slow
def test_a_forked_child_changes_its_copy_while_the_parent_still_writes(
    tmp_path: Path, run_python: RunPython
) -> None:
    """No write is pending in the child: in-place operations and limits work there."""
    result = run_python(
        """
        import os
        import offgrad
        from offgrad import memory
        from offgrad.policies import Offload
        from tests.session.backends import MemoryBackend, memory_store

        backend = MemoryBackend()
        backend.gate.clear()
        with memory_store(backend) as store:
            w = offgrad.randn(64, 64, requires_grad=True)
            y = w.clone()
            with offgrad.offload(Offload(store, min_nbytes=0)) as session:
                loss = (y * w).sum()
            child = os.fork()
            if not child:
                y.mul_(2)
                try:
                    with memory.limit(memory.allocated() + 1):
                        offgrad.ones(512, 512)
                except offgrad.OutOfMemoryError:
                    os._exit(0)
                os._exit(5)
            _, status = os.waitpid(child, 0)
            backend.gate.set()
            assert os.waitstatus_to_exitcode(status) == 0
            y.zero_()
            loss.backward()
            assert not w.grad.equal(y)
        """
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_zarr_leaves_no_array_of_a_step_that_is_over(tmp_path: Path) -> None:
    folder = tmp_path / "spill"
    folder.mkdir()
    process = start("zarr", folder, "environment")
    assert process.stdout is not None
    for _ in range(50):
        assert process.stdout.readline()
    (mine,) = folder.iterdir()
    wait_until(lambda: len(list(mine.glob("arrays.zarr/0*"))) <= 12, "arrays pile up")
    end(process, signal.SIGKILL)
