"""Tables of text, for terminals and notebooks."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

WIDTH = 100
"""The maximum width of a table as text."""


# A line may end after these; only where that leaves too much, after those of the next level.
_BREAKS = (r"(?<=[,; ])", r"(?<=[.|/])", r"(?<=[:=_-])")


class Name:
    """A cell with words, such as a policy or the name of a module, folded between its parts."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Text]":
        from rich.text import Text  # slow to import

        yield Text("\n".join(folded(self._text, options.max_width)))

    def __rich_measure__(self, console: "Console", options: "ConsoleOptions") -> "Measurement":
        from rich.measure import Measurement

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


@dataclass(frozen=True)
class Grid:
    """A table whose cells are text.

    Attributes:
        head: the names of the columns.
        rows: the cells.
        texts: how many columns hold words, to the left, and may be broken; the others hold figures.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1

    def rich(self) -> "Table":
        """Return the table for a rich console."""
        from rich.table import Table  # slow to import
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for index, name in enumerate(self.head):
            if index < self.texts:
                table.add_column(name, overflow="fold")
            else:
                table.add_column(name, justify="right", no_wrap=True)
        for row in self.rows:
            names, figures = row[: self.texts], row[self.texts :]
            table.add_row(*map(Name, names), *map(Text, figures))  # a name may look like markup
        return table

    def html(self) -> str:
        """Return the table as HTML, without colours of its own: a notebook may be dark."""
        lines = ["<table><thead>", _html_row("th", self.head, self.texts), "</thead><tbody>"]
        lines += [_html_row("td", row, self.texts) for row in self.rows]
        return "\n".join([*lines, "</tbody></table>"])


Part = Grid | str
"""A table, or a paragraph."""


def as_rich(parts: Sequence[Part]) -> "RenderableType":
    """Return tables and paragraphs for a rich console, with empty lines between them."""
    from rich.console import Group  # slow to import
    from rich.text import Text

    shown: list[RenderableType] = []
    for part in parts:
        shown += [Text(part) if isinstance(part, str) else part.rich(), Text("")]
    return Group(*shown[:-1])


def as_text(shown: "RenderableType") -> str:
    """Return what a rich console shows as plain text, at most `WIDTH` columns wide."""
    import io

    from rich.console import Console  # slow to import

    stream = io.StringIO()
    # Otherwise a console in a notebook displays the table there, and writes nothing here.
    console = Console(
        file=stream,
        width=WIDTH,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        emoji=False,
    )
    console.print(shown)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def as_html(parts: Sequence[Part]) -> str:
    """Return tables and paragraphs as HTML."""
    return "\n".join(_paragraph(each) if isinstance(each, str) else each.html() for each in parts)


def _paragraph(text: str) -> str:
    from html import escape

    return f"<p>{'<br>'.join(map(escape, text.splitlines()))}</p>"


def _html_row(tag: str, cells: Sequence[str], texts: int) -> str:
    from html import escape

    sides = ["left"] * texts + ["right"] * (len(cells) - texts)
    shown = [
        f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>'
        for side, cell in zip(sides, cells, strict=True)
    ]
    return f"<tr>{''.join(shown)}</tr>"
