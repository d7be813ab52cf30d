"""The live line: on a terminal only, and the terminal is as before when the program has ended."""

import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from offgrad.cli.run.figures import Figures, duration
from offgrad.cli.run.live import LiveLine, can_be_live
from offgrad.session.named_stores import Traffic
from tests.processes import start_python

BEGIN, END = b"\x1b[1;9r", b"\x1b[r\x1b[10;1H\x1b[K"
PROGRAM = """
import offgrad, os, time
with offgrad.offload("disk"):
    loss = offgrad.ones(1024, 1024, requires_grad=True).sin().exp().sum()
print("half a ", end="", flush=True)
while not os.path.exists("shown"):
    time.sleep(0.01)
print("line", flush=True)
while WAIT:
    time.sleep(0.01)
loss.backward()
"""


class Terminal:
    """A terminal of ten lines, and what was written to it."""

    def __init__(self) -> None:
        self.descriptor, self.side = pty.openpty()
        fcntl.ioctl(self.side, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 150, 0, 0))
        self.output = b""

    def read(self, until: bytes, after: bytes = b"") -> None:
        while after not in self.output or until not in self.output[self.output.index(after) :]:
            self.output += os.read(self.descriptor, 4096)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    os.close(made.descriptor)
    os.close(made.side)


def start(terminal: Terminal, folder: Path, wait: bool) -> "subprocess.Popen[str]":
    (folder / "x.py").write_text(f"WAIT = {wait}" + PROGRAM)
    return start_python(
        "from offgrad.cli import main; main()",
        *("run", "--policy", "keep", "x.py"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm"},
        stdin=terminal.side,
        stdout=terminal.side,
        stderr=terminal.side,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", [None, signal.SIGINT, signal.SIGTERM])
def test_terminal_is_given_back(
    kind: signal.Signals | None, terminal: Terminal, tmp_path: Path
) -> None:
    process = start(terminal, tmp_path, wait=kind is not None)
    # Of all sessions: the program's own writes, not the policy of the command.
    terminal.read(b"MiB, peak 12.0 MiB ", after=b"half a ")
    (tmp_path / "shown").touch()
    terminal.read(b"line\r\n")
    if kind is not None:
        process.send_signal(kind)
    terminal.read(END)
    assert process.wait() == (0 if kind is None else -kind)
    text = terminal.output
    assert text.index(BEGIN) < text.index(b"half a ") < text.index(b"\x1b8line\r\n")
    if kind != signal.SIGTERM:
        terminal.read(b" read; stalled ")
        assert b"4.0 MiB written" in terminal.output


def test_nothing_is_shown_elsewhere(terminal: Terminal, tmp_path: Path) -> None:
    assert not can_be_live(io.StringIO())
    with (tmp_path / "file").open("w") as file:
        assert not can_be_live(file)


def test_line_fits_and_stays_in_its_row(terminal: Terminal) -> None:
    with os.fdopen(os.dup(terminal.side), "w") as stream:
        live = LiveLine(stream, lambda: "\U0001f600 [bold] " + "x" * 1000)
        live.start()
        terminal.read(b"x\xe2\x80\xa6")
        live.stop()
        live.stop()
        terminal.read(END)
    assert "\U0001f600".encode() in terminal.output
    assert b"[bold]" in terminal.output
    assert terminal.output.count(b"x") <= 150


def test_figures_as_text() -> None:
    before = Figures(1.0, 0, 0, Traffic(0, 0, 0.0))
    now = Figures(3.0, 1 << 20, 2 << 20, Traffic(4 << 20, 2 << 20, 0.5))
    assert now.line(before) == (
        "memory 1.0 MiB, peak 2.0 MiB | writing 2.0 MiB/s, reading 1.0 MiB/s, stalled 25% | 3.0 s"
    )
    assert [duration(each) for each in (0, 59.94, 185, 3723)] == [
        "0.0 s",
        "59.9 s",
        "3:05",
        "1:02:03",
    ]
