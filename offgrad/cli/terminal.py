"""Output for terminals of any width, and files of any encoding."""

import contextlib
import re
import sys
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_COLUMNS = 80
# A line may end after these; only where that leaves too much, after those of the next level.
_BREAKS = (r"(?<=[,; ])", r"(?<=[.|/])", r"(?<=[:=_-])")


class Name:
    """A cell with a policy or the name of a module, folded between its parts."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text("\n".join(folded(self._text, options.max_width)))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, max(map(len, folded(self._text, options.max_width))))


def folded(text: str, width: int) -> list[str]:
    """Return lines of at most `width` characters, broken between parts, and within them if one is
    longer than that.
    """
    lines = [""]
    for piece in _pieces(text, max(width, 1), _BREAKS):
        if len(lines[-1]) + len(piece.rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += piece
    return [each.rstrip() for each in lines]


def _pieces(text: str, width: int, breaks: tuple[str, ...]) -> list[str]:
    """Return the parts of a text: split no further than to make them fit."""
    if len(text) <= width or not text:
        return [text]
    if not breaks:
        return [text[at : at + width] for at in range(0, len(text), width)]
    parts = [each for each in re.split(breaks[0], text) if each]
    return [piece for each in parts for piece in _pieces(each, width, breaks[1:])]


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
