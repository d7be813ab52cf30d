"""What all commands of `offgrad` have in common."""

import ast
import ctypes
import os
import signal
import subprocess
import sys
import time
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

import offgrad
from offgrad import cli
from offgrad._display import Name, folded
from offgrad.cli import _COMMANDS, main
from offgrad.cli.terminal import any_encoding, print_table
from offgrad.prediction import SaveRecorder

SPILLING = sorted(_COMMANDS.keys() - {"warmup"})
"""The commands that write spill files."""


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main([*arguments])
    return exit_.value.code, *capsys.readouterr()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(("target", "code"), [(">&-", 0), (">/dev/full", 1)])
def test_standard_output_that_takes_nothing(target: str, code: int) -> None:
    command = f'"{sys.executable}" -m offgrad --help {target}'
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        ["sh", "-c", command], stderr=subprocess.PIPE, text=True, env=environment, check=False
    )
    assert done.returncode == code
    assert done.stderr.count("\n") == code


def test_the_list_of_commands_cuts_nothing_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, text, _ = output(capsys, "--help")
    listed = text.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == sorted(_COMMANDS)
    assert not [line for line in listed if "..." in line]


@pytest.mark.parametrize("command", sorted(_COMMANDS))
def test_help_is_one_screen_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text, _ = output(capsys, command, "--help")
    assert status == 0
    assert f"offgrad {command}" in text.partition("Example")[2]
    assert "Exit status: " in text
    assert text.count("\n") <= 50
    if command in SPILLING:
        assert "--directory" in text


@pytest.mark.parametrize("command", sorted(_COMMANDS))
def test_an_unknown_option_is_refused_in_one_line(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text, errors = output(capsys, command, "--no-such-option")
    assert (status, text) == (2, "")
    assert errors.startswith("offgrad: ")
    assert errors.count("\n") == 1


def test_a_table_keeps_its_figures_on_a_narrow_terminal() -> None:
    table = Table("policy", *("figure",) * 6)
    table.add_row("a policy", *(f"{each}234.5" for each in range(6)))
    file = StringIO()
    console = Console(file=file, width=30)
    print_table(console, table)
    text = file.getvalue()
    assert "a policy" in text
    assert "5234.5" in text
    assert console.width == 30


@pytest.mark.parametrize(
    ("name", "width", "lines"),
    [
        ("disk", 4, ["disk"]),
        ("keep, no limit", 8, ["keep, no", "limit"]),
        ("cast:bfloat16,then=disk,min=1MiB", 14, ["cast:bfloat16,", "then=disk,", "min=1MiB"]),
        ("zarr:blosc-zstd-bitshuffle", 12, ["zarr:blosc-", "zstd-", "bitshuffle"]),
        ("layers.10.feed_forward.0", 12, ["layers.10.", "feed_", "forward.0"]),
        ("disk,op=Gelu;[red]", 13, ["disk,op=Gelu;", "[red]"]),
        ("unbreakable", 6, ["unbrea", "kable"]),
        ("", 5, [""]),
    ],
)
def test_a_name_is_folded_between_its_parts(name: str, width: int, lines: list[str]) -> None:
    assert folded(name, width) == lines
    table = Table("name", "figure", box=None, pad_edge=False)
    table.columns[1].no_wrap = True
    table.add_row(Name(name), "1234567890")
    file = StringIO()
    Console(file=file, width=width + 12).print(table)
    shown = [line[:width].rstrip() for line in file.getvalue().splitlines()[1:]]
    assert shown == lines


def test_what_an_encoding_lacks_does_not_stop_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    written = BytesIO()
    stream = TextIOWrapper(written, "ascii")
    monkeypatch.setattr("sys.stdout", stream)
    with any_encoding():
        print("→ remedy", flush=True)
    assert written.getvalue() == b"? remedy\n"
    assert stream.errors == "strict"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["profil"], "did you mean profile?"),
        (["estimate"], "there are bench-storage, compare, doctor,"),
        (["compare", "train.py", "--epochs", "1"], "offgrad compare train.py -- --epochs"),
    ],
)
def test_a_hint_follows_what_does_not_exist(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, errors = output(capsys, *arguments)
    assert (status, errors.count("\n")) == (2, 1)
    assert hint in errors


@pytest.mark.parametrize("command", SPILLING)
def test_a_mistyped_folder_is_not_made(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = offgrad.randn(4, requires_grad=True)
    with SaveRecorder() as recorder:
        x.sin().sum().backward()
    recorder.recording.save(tmp_path / "saves")
    arguments = {
        "profile": [__file__],
        "replay": [str(tmp_path / "saves")],
        "run": [__file__],
        "tune": [str(tmp_path / "saves"), "--budget", "1MiB"],
    }
    folder = tmp_path / "no ne"
    status, text, errors = output(
        capsys, command, "--directory", str(folder), *arguments.get(command, [])
    )
    assert (status, text, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(
        f"offgrad: --directory {folder} cannot be written to: it does not exist; "
        f"mkdir -p '{folder}' makes it"
    )
    assert not folder.exists()


@pytest.mark.parametrize("command", ["bench-storage", "compare", "doctor", "profile", "run"])
def test_an_empty_name_is_no_folder(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [__file__] if command in ("profile", "run") else []
    status, _, errors = output(capsys, command, "--directory", "", *arguments)
    assert (status, errors) == (
        2,
        "offgrad: --directory needs the name of a folder, got an empty one\n",
    )


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        ("", "--directory needs the name of a folder, got an empty one"),
        (
            "/proc/none/x",
            "--directory /proc/none/x cannot be written to: it does not exist, and no folder can "
            "be made in /proc: ",
        ),
        ("FOLDER/link/x", "it does not exist, and no folder can be made in FOLDER/link: "),
        ("FOLDER/file/x", "cannot be written to: Not a directory"),
        ("FOLDER/" + 300 * "x", "cannot be written to: File name too long"),
    ],
)
def test_a_folder_that_cannot_be_made(
    directory: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if directory.startswith("/proc") and not os.path.isdir("/proc"):
        pytest.skip("there is no /proc")
    (tmp_path / "link").symlink_to("nothing")
    (tmp_path / "file").touch()
    given, expected = (each.replace("FOLDER", str(tmp_path)) for each in (directory, message))
    status, _, errors = output(capsys, "doctor", "--directory", given)
    assert (status, errors.count("\n")) == (2, 1)
    assert expected in errors
    assert "mkdir" not in errors
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("command", ["bench-storage", "compare", "doctor", "profile", "run"])
def test_a_file_is_no_folder(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [__file__] if command in ("profile", "run") else []
    status, _, errors = output(capsys, command, "--directory", __file__, *arguments)
    assert (status, errors.count("\n")) == (2, 1)
    assert "it is no folder" in errors


@pytest.mark.parametrize("command", SPILLING)
def test_an_impossible_folder_is_refused_in_one_line(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {"run": [__file__], "replay": [__file__], "tune": [__file__]}
    status, text, errors = output(
        capsys, command, "--directory", "/proc/nothing", *arguments.get(command, [])
    )
    assert (status, text) == (2, "")
    assert errors.startswith("offgrad: ")
    assert errors.count("\n") == 1


def test_no_console_reads_names_as_emoji() -> None:
    """A module ``models:train`` is no picture of a train."""
    package = Path(offgrad.__file__).parent
    consoles = [
        (file.name, node)
        for file in package.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        and node.func.id == "Console"
    ]  # fmt: skip
    assert len(consoles) > 5
    for name, console in consoles:
        options = {each.arg: ast.unparse(each.value) for each in console.keywords}
        assert options.get("emoji") == "False", name


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_within_a_callback_of_c_is_not_lost(signum: signal.Signals) -> None:
    """Numba loads compiled loops with such callbacks, and Python drops what they raise."""
    callback = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signum))
    before = signal.getsignal(signum)

    def work() -> None:
        callback()
        time.sleep(20)

    with pytest.raises(cli._Stopped) as stopped, cli._signals():
        work()
    assert stopped.value.signum == signum
    assert signal.getsignal(signum) is before


def test_other_errors_in_callbacks_are_shown_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("shown")

    seen: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: seen.append(str(dropped.exc_value)))
    with cli._signals():
        ctypes.CFUNCTYPE(None)(fail)()
    assert seen == ["shown"]
