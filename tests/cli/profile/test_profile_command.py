"""`offgrad profile`: a program is recorded without a change to it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import pytest

import offgrad
from offgrad.cli.profile.command import write
from offgrad.prediction import Recording
from offgrad.prediction.recording import GZIP_MAGIC
from offgrad.profiler import profile

Run = Callable[..., "subprocess.CompletedProcess[str]"]

TRAINING = """
import sys
import offgrad as torch

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    model(torch.randn(4096, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained", *sys.argv[1:])
"""


@pytest.mark.slow
def test_it_records_a_script_unchanged(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING + "raise SystemExit(7)")
    result = run("profile", "-o", "made/out", "train.py", "3", "-o", "x")
    assert (result.returncode, result.stdout) == (7, "trained 3 -o x\n")
    folder = tmp_path / "made" / "out"
    figures = json.loads((folder / "profile.json").read_text())
    assert [each["index"] for each in figures["steps"]] == [0, 1, 2]
    assert "train.py:8 in <module>" in {
        Path(each["line"]).name for each in figures["peak"]["contents"]
    }
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert {"X", "C", "M"} == {each["ph"] for each in events}
    assert matplotlib.image.imread(folder / "memory.png").std() > 0.01
    assert "Alive at the peak" in result.stderr
    assert "train.py:8" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("offgrad profile: wrote profile.json")


@pytest.mark.slow
def test_the_figures_of_a_profile_are_no_recording(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    assert run("profile", "train.py", "2").returncode == 0
    with pytest.raises(ValueError, match="offgrad profile --saves FILE"):
        Recording.load(tmp_path / "offgrad-profile" / "profile.json")


@pytest.mark.slow
def test_an_error_of_the_script_is_as_under_python(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import offgrad\noffgrad.zeros(1000)\n1 / 0")
    result = run("profile", "train.py")
    expected = subprocess.run(
        [sys.executable, "-c", "1 / 0"], capture_output=True, text=True, check=False
    )
    assert result.returncode == expected.returncode == 1
    assert "ZeroDivisionError: division by zero" in result.stderr
    assert "offgrad/cli" not in result.stderr
    assert (tmp_path / "offgrad-profile" / "profile.json").exists()


@pytest.mark.slow
def test_a_script_without_tensors_leaves_no_files(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import offgrad\nraise SystemExit(2)")
    result = run("profile", "train.py")
    assert result.returncode == 2
    assert result.stderr.startswith("offgrad profile: nothing to write")
    assert not (tmp_path / "offgrad-profile").exists()


@pytest.mark.slow
def test_ctrl_c_ends_the_script_as_under_python(run: Run, tmp_path: Path) -> None:
    text = "import offgrad, signal\noffgrad.zeros(1000)\nsignal.raise_signal(signal.SIGINT)"
    (tmp_path / "train.py").write_text(text)
    result = run("profile", "train.py")
    expected = run("run", "train.py")
    assert result.returncode == expected.returncode != 1
    assert (tmp_path / "offgrad-profile" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals are POSIX's")
def test_sigterm_leaves_the_profile(run: Run, tmp_path: Path) -> None:
    fork = "if not (child := os.fork()): signal.raise_signal(signal.SIGTERM)\n"
    wait = "print(os.waitpid(child, 0)[1])\nsys.stdout.flush()\n"
    text = f"import offgrad, os, signal, sys\noffgrad.zeros(1000)\n{fork}{wait}"
    (tmp_path / "train.py").write_text(f"{text}signal.raise_signal(signal.SIGTERM)\n")
    result = run("profile", "train.py")
    assert result.returncode == -signal.SIGTERM
    assert result.stdout == f"{signal.SIGTERM:d}\n"  # of the child, which wrote nothing
    assert result.stderr.count("wrote profile.json") == 1
    assert (tmp_path / "offgrad-profile" / "report.html").exists()


WRITING = """
import signal
import offgrad
from offgrad.profiler import Profile

offgrad.zeros(1000)
save = Profile.save_trace

def interrupted(self, path):
    for _ in range({signals}):
        signal.raise_signal({signal})
    save(self, path)

Profile.save_trace = interrupted
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_it_write_first_and_a_second_one_ends_it(
    run: Run, tmp_path: Path, number: int
) -> None:
    (tmp_path / "train.py").write_text(WRITING.format(signal=int(number), signals=1))
    result = run("profile", "train.py")
    assert result.returncode == -number
    assert "Traceback" not in result.stderr
    assert "a second signal ends it at once" in result.stderr
    names = {each.name for each in (tmp_path / "offgrad-profile").iterdir()}
    assert names == {"profile.json", "trace.json", "memory.png", "report.html"}
    (tmp_path / "train.py").write_text(WRITING.format(signal=int(number), signals=2))
    assert run("profile", "-o", "killed", "train.py").returncode == -number
    assert not (tmp_path / "killed" / "trace.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.py",), "there is no script missing.py"),
        (("-o", "train.py", "train.py"), "--output train.py cannot be written to"),
        (("-m", "no such", "train.py"), "-m takes a module"),
        (("--saves", "no/run.offgrad", "train.py"), "--saves no/run.offgrad cannot be written"),
        (("--saves", "train.py", "train.py"), "--saves train.py: the file exists and is no record"),
        (("-o", "", "train.py"), "--output needs the name of a folder"),
    ],
)
def test_wrong_arguments(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "train.py").write_text("print()")
    result = run("profile", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert {each.name for each in tmp_path.iterdir()} == {"spill", "train.py"}


@pytest.mark.slow
def test_with_saves_figures_are_those_of_keep_and_it_says_so(run: Run, tmp_path: Path) -> None:
    training = TRAINING.replace("    model(", "    with torch.offload('disk'): loss = model(")
    training = training.replace(".sum().backward()", ".sum()\n    loss.backward()")
    (tmp_path / "train.py").write_text(training)
    for arguments, has_session in ((), True), (("--saves", "run.offgrad"), False):
        result = run("profile", *arguments, "train.py", "2")
        assert result.returncode == 0, result.stderr
        figures = json.loads((tmp_path / "offgrad-profile" / "profile.json").read_text())
        assert bool(figures["ledger"]["saves"]) is has_session
        note = "with --saves all figures are those of the policy keep"
        assert result.stderr.rstrip().endswith(note) is not has_session
    assert "those of the policy keep" in " ".join(run("profile", "--help").stdout.split())


@pytest.mark.skipif(sys.platform == "win32", reason="limits are POSIX's")
def test_a_full_drive_leaves_no_half_written_file(tmp_path: Path) -> None:
    import resource

    with profile() as prof:
        offgrad.ones(300, 300, requires_grad=True).square().sum().backward()
    _, failures = write(prof, tmp_path)
    assert not failures
    earlier = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
    try:
        written, failures = write(prof, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    assert not written
    assert len(failures) == len(earlier)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == earlier


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits are POSIX's")
def test_files_that_were_not_written_are_a_failure(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run.offgrad").write_bytes(GZIP_MAGIC)
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
    (tmp_path / "train.py").write_text(limit + TRAINING + "sys.exit(0)")
    result = run("profile", "--saves", "run.offgrad", "train.py", "1")
    assert result.returncode == 1
    assert "run.offgrad: File too large" in result.stderr
    assert (tmp_path / "run.offgrad").read_bytes() == GZIP_MAGIC
    assert not list((tmp_path / "offgrad-profile").iterdir())
