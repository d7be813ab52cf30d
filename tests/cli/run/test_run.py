"""`offgrad run`: a program behaves as under `python`, and its tensors go through the policy."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from offgrad_storage.files.spill_directory import file_system_of

from tests.cli.conftest import Offgrad

Run = Callable[..., "subprocess.CompletedProcess[str]"]

SUMMARY = re.compile(r"offgrad run: [^\n]*\n$")
FACTS = """
import sys
print(sys.argv, sys.path[0], __name__, __file__, __package__, __spec__ and __spec__.name)
print(sys.modules["__main__"].__dict__ is globals())
print(sorted({*globals()} - {"sys", "__annotations__"}))
"""
TRAINING = """
import sys, threading
import offgrad as torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256))

def train():
    model(torch.randn(128, 64)).sin().sum().backward()
"""


def write(folder: Path, name: str, source: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return path


def python(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `python` as a user does, without offgrad."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


PROGRAMS = {
    "all well": (
        FACTS
        + """
import atexit, threading, time
atexit.register(print, "exit", __name__)
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
sys.exit(7)
""",
        ("x.py", "--policy", "a", "-m"),
    ),
    "error": ("def f():\n    raise ValueError('x')\ntry:\n    f()\nfinally:\n    f()", ("x.py",)),
    "syntax error": ("def f(:\n", ("x.py",)),
    "exit text": ("import sys; sys.exit('no luck')", ("x.py",)),
    "interrupt": ("raise KeyboardInterrupt", ("x.py",)),
    "hook": (
        """
import sys, traceback
sys.excepthook = lambda kind, e, tb: print(kind, e, traceback.extract_tb(tb))
1 / 0
""",
        ("x.py",),
    ),
    "spawned": (
        """
import multiprocessing as mp
def f(x): return x * x, __name__
if __name__ == "__main__":
    with mp.get_context("spawn").Pool(1) as pool: print(pool.map(f, [3]))
""",
        ("x.py",),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_behaves_as_under_python(name: str, run: Run, tmp_path: Path) -> None:
    source, arguments = PROGRAMS[name]
    write(tmp_path, "x.py", source)
    expected = python(tmp_path, *arguments)
    result = run("run", "--policy", "disk", *arguments)
    errors, count = SUMMARY.subn("", result.stderr)
    assert count == 1
    assert (result.stdout, errors, result.returncode) == (
        expected.stdout,
        expected.stderr,
        expected.returncode,
    )


@pytest.mark.slow
def test_modules_packages_folders_and_archives(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "pack/__init__.py", "")
    write(tmp_path, "pack/part.py", "value = 5")
    write(tmp_path, "pack/tool.py", FACTS + "from . import part; from .part import value")
    write(tmp_path, "pack/__main__.py", FACTS + "from .part import value; sys.exit(value)")
    write(tmp_path, "folder/__main__.py", FACTS + "import near")
    write(tmp_path, "folder/near.py", "")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", FACTS)
    for arguments in (
        ("-m", "pack.tool", "--lr", "3"),
        ("-m", "pack", "-x"),
        ("folder", "1"),
        ("archive.zip",),
    ):
        expected = python(tmp_path, *arguments)
        result = run("run", "--policy", "pool", *arguments)
        assert (result.stdout, result.returncode) == (expected.stdout, expected.returncode)


def figures(errors: str) -> tuple[str, str]:
    """Return the bytes written and read of the summary."""
    found = re.search(r"; (\S+ \S+) written, (\S+ \S+) read; stalled", errors)
    assert found, errors
    return found[1], found[2]


@pytest.mark.slow
def test_policy_applies_in_all_threads_and_to_forks(run: Run, tmp_path: Path) -> None:
    write(
        tmp_path,
        "train.py",
        TRAINING
        + """
import os
train()
thread = threading.Thread(target=train)
thread.start()
thread.join()
pid = os.fork()
if not pid:
    train()
    sys.exit(3)
print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), sys.argv[1:])
with torch.offload("pool"):
    train()
from offgrad_storage import DiskStore
store = DiskStore()
with torch.offload(store):
    train()
torch.memory.reset_peak()
""",
    )
    result = run("run", "train.py", "-a", "--policy", "disk,min=100KiB", "--memory-limit", "64MiB")
    assert (result.returncode, result.stdout) == (0, "child 3 ['-a']\n")
    # Of each step tanh's output and sin's input are large: twice 128 KiB, of three steps.
    assert figures(result.stderr) == ("768.0 KiB", "768.0 KiB")
    assert result.stderr.count("offgrad run: disk,min=100KiB, limit 64.0 MiB: peak ") == 1
    assert "peak 0 B" not in result.stderr
    assert not list((tmp_path / "spill").iterdir())


@pytest.mark.slow
def test_model_is_paged_and_folder_is_used(run: Run, tmp_path: Path) -> None:
    used = "import offgrad_storage\nprint(offgrad_storage.spill_directory(), file=sys.stderr)\n"
    write(tmp_path, "train.py", TRAINING + "train()\nprint(model[0].weight)\n" + used)
    (tmp_path / "elsewhere").mkdir()
    whole = run("run", "--policy", "keep", "train.py")
    result = run("run", "--offload-model", "disk", "--directory", "elsewhere", "train.py")
    assert (result.returncode, result.stdout) == (0, whole.stdout)
    assert "no parameter was paged" not in result.stderr
    assert result.stderr.startswith(f"{tmp_path / 'elsewhere'}\n")


@pytest.mark.slow
def test_a_folder_in_memory_is_told(run: Run, tmp_path: Path) -> None:
    if file_system_of("/dev/shm") != "tmpfs":
        pytest.skip("needs a tmpfs")
    write(tmp_path, "train.py", TRAINING + "train()")
    result = run("run", "--policy", "disk", "--directory", "/dev/shm", "train.py")
    assert " written (/dev/shm is memory, not a drive), " in result.stderr


@pytest.mark.slow
def test_policy_that_got_nothing_is_told(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "empty.py", "")
    write(tmp_path, "own.py", TRAINING + "with torch.offload('disk,min=0'):\n    train()\n")
    for script, reason in (("empty.py", "the script does not train"), ("own.py", "own sessions")):
        message = run("run", "--policy", "disk", script).stderr
        assert "the policy got no tensor" in message
        assert reason in message
    assert run("run", "--quiet", "--policy", "disk", "empty.py").stderr == ""


@pytest.mark.slow
def test_rules_that_matched_nothing_are_told_without_a_place(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "x.py", TRAINING + "train()")
    result = run("run", "--policy", "disk,op=Gelu", "x.py")
    told, summary = result.stderr.splitlines()
    assert told.startswith("offgrad run: no tensor saved for backward in this block has op='Gelu'")
    assert summary.startswith("offgrad run: disk,op=Gelu: peak")
    assert run("run", "-q", "--policy", "disk,op=Gelu", "x.py").stderr == ""


@pytest.mark.slow
def test_the_last_line_tells_what_to_do_about_the_limit(run: Run, tmp_path: Path) -> None:
    write(tmp_path, "train.py", TRAINING + "train()")
    result = run("run", "train.py", "--policy", "disk", "--memory-limit", "400KiB")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("offgrad run: out of memory: train.py needs more for tensors than")
    assert "--memory-limit 400.0 KiB; try --offload-model disk" in last
    assert "--policy disk" not in last
    assert "out of memory" not in run("run", "-q", "--memory-limit", "400KiB", "train.py").stderr
    write(tmp_path, "own.py", "import offgrad\nwith offgrad.memory.limit(9):\n offgrad.ones(9)")
    result = run("run", "--memory-limit", "1MiB", "own.py")
    assert "OutOfMemoryError" in result.stderr
    assert "offgrad run: out of memory" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.py",), "there is no script missing.py"),
        (("x",), "there is no script x; there is x.py"),
        (("spill",), "spill is a folder without __main__.py"),
        (("-m", "no.such"), "there is no module no.such"),
        (("-m", "x.py"), "x.py without -m is a script"),
        (("-m", "a-b"), "-m takes a module such as package.module, got 'a-b'"),
        (("--policy", "dsk", "x.py"), "--policy: unknown policy 'dsk'; did you mean disk?"),
        (("--policy", "auto", "x.py"), "offgrad tune finds a text"),
        (("--offload-model", "dsk", "x.py"), "--offload-model: unknown policy 'dsk'"),
        (
            ("--offload-model", "cast:int8", "x.py"),
            "parameters must come back bit for bit",
        ),
        (("--offload-model", "disk:float16", "x.py"), "must come back bit for bit"),
        (("--offload-model", "recompute", "x.py"), "parameters cannot be recomputed"),
        (("--memory-limit", "much", "x.py"), "--memory-limit: a size is a number and a unit"),
        (("--memory-limit", "0", "x.py"), "--memory-limit: a size must be positive"),
        (("--directory", "/proc/x", "x.py"), "--directory /proc/x cannot be written to"),
        (("x.py", "--policy", "ppo"), "put one of offgrad before the script"),
        (("x.py", "--policy", "disk", "more"), "'more' is neither an option"),
        (("x.py", "--policy", "disk", "--lr", "1"), "options of the script stand before it"),
    ],
)
def test_bad_values_are_refused_in_one_line(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from offgrad.cli import main

    write(tmp_path, "x.py", "print('it ran')")
    (tmp_path / "spill").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    with pytest.raises(SystemExit) as exit_:
        main(["run", *arguments])
    output, errors = capsys.readouterr()
    assert (exit_.value.code, output) == (2, "")
    assert errors.startswith("offgrad: ")
    assert errors.count("\n") == 1
    assert message in errors


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_program_and_leave_nothing(
    kind: signal.Signals, start: Offgrad, tmp_path: Path
) -> None:
    write(
        tmp_path,
        "train.py",
        TRAINING
        + """
loss = model(torch.randn(4096, 64)).sin().sum()
print("ready", flush=True)
while True:
    train()
""",
    )
    process = start("run", "--policy", "zarr", "--directory", "spill", "train.py")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(kind)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -kind
    if kind == signal.SIGINT:  # as Python, which SIGTERM ends at once
        assert "\nKeyboardInterrupt\noffgrad run: zarr: peak" in errors
        assert "offgrad/cli" not in errors
        assert not list((tmp_path / "spill").iterdir())
