"""The line at the bottom of the terminal while a program runs.

The program's output must reach the terminal as it is: it may write parts of lines, ask for input,
or draw progress of its own, from Python, C or child processes. So nothing stands between them: the
terminal scrolls the rows above the last one, and the line is drawn there.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

from rich.console import Console
from rich.text import Text

_SECONDS = 0.5
_SAVE, _RESTORE, _CLEAR = "\x1b7", "\x1b8", "\x1b[K"


def can_be_live(stream: IO[str]) -> bool:
    """Return whether the line can be shown there: on a terminal that can move its cursor."""
    console = Console(file=stream, emoji=False)
    return console.is_terminal and not console.is_dumb_terminal and stream.isatty()


class LiveLine:
    """Shows a line, twice a second, until `stop`.

    Args:
        stream: of the terminal.
        text: returns the line.
    """

    def __init__(self, stream: IO[str], text: Callable[[], str]) -> None:
        self._descriptor = stream.fileno()
        self._text = text
        self._rows = 0
        self._pid = os.getpid()
        self._stopped = threading.Event()
        # Updates in the thread, and the end in another one.
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="offgrad-live", daemon=True)

    def start(self) -> None:
        """Begin; SIGTERM, if it ends the process, first gives the terminal back."""
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminate)
        self._thread.start()

    def stop(self) -> None:
        """Remove the line and give the whole terminal back; may be called twice."""
        self._stopped.set()
        if os.getpid() != self._pid:
            return  # a fork: the line is its parent's
        # A signal may have come while this very thread draws: then the terminal is worth more.
        if self._lock.acquire(timeout=1.0):
            self._lock.release()
        rows, self._rows = self._rows, 0
        if rows:
            self._write(f"{_SAVE}\x1b[r\x1b[{rows};1H{_CLEAR}{_RESTORE}")

    def _run(self) -> None:
        while not self._stopped.is_set():
            with self._lock, contextlib.suppress(OSError):  # the terminal may be gone
                if not self._stopped.is_set():
                    self._draw()
            self._stopped.wait(_SECONDS)

    def _draw(self) -> None:
        size = os.get_terminal_size(self._descriptor)
        if size.lines < 3 or size.columns < 20:
            return
        start = ""
        if size.lines != self._rows:
            if self._rows:  # the terminal has another size now
                start = f"{_SAVE}\x1b[{self._rows};1H{_CLEAR}{_RESTORE}"
            # One row down scrolls if the cursor is in the last row; setting the rows moves it.
            start += f"\x1bD\x1b[A{_SAVE}\x1b[1;{size.lines - 1}r{_RESTORE}"
            self._rows = size.lines
        self._write(
            f"{start}{_SAVE}\x1b[{size.lines};1H{self._styled(size.columns)}{_CLEAR}{_RESTORE}"
        )

    def _styled(self, columns: int) -> str:
        text = Text(self._text(), style="reverse")
        # The last column stays free: some terminals wrap when it is written.
        text.truncate(columns - 1, overflow="ellipsis")
        console = Console(
            width=columns - 1, force_terminal=True, color_system="standard", emoji=False
        )
        with console.capture() as capture:
            console.print(text, end="")
        return capture.get()

    def _write(self, text: str) -> None:
        # In one call, so that the program's output cannot come in between.
        with contextlib.suppress(OSError):
            os.write(self._descriptor, text.encode("utf-8", "replace"))

    def _terminate(self, signum: int, frame: Any) -> None:
        self.stop()
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)


def show(line: str) -> None:
    """Print a line to standard error as it is."""
    with contextlib.suppress(OSError, ValueError):  # it may be closed
        print(line, file=sys.stderr, flush=True)
