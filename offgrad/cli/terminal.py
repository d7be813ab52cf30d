"""Output for terminals of any width, and files of any encoding."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

_COLUMNS = 80


def print_table(console: Console, table: Table) -> None:
    """Print a table in 80 columns at least: where the terminal has fewer, it wraps the lines.

    Otherwise figures would be cut, and columns disappear.
    """
    width = console.width
    if width >= _COLUMNS:
        console.print(table, highlight=False)
        return
    console.width = _COLUMNS
    try:
        console.print(table, highlight=False)
    finally:
        console.width = width


@contextlib.contextmanager
def any_encoding() -> Iterator[None]:
    """Print what standard output cannot encode as ``?``, instead of an error."""
    stream, errors = sys.stdout, getattr(sys.stdout, "errors", None)
    if errors != "strict" or not hasattr(stream, "reconfigure"):
        yield
        return
    stream.reconfigure(errors="replace")
    try:
        yield
    finally:
        if not stream.closed:
            stream.reconfigure(errors=errors)


def discard_output() -> None:
    """Let Python's flush at exit not report the error of standard output once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def broken_pipe() -> int:
    """Return the exit status where the reader of our output has gone."""
    discard_output()
    return 128 + signal.SIGPIPE if hasattr(signal, "SIGPIPE") else 1
