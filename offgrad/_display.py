"""Tables of text, for terminals and notebooks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

WIDTH = 100
"""The maximum width of a table as text."""


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
            table.add_row(*map(Text, row))  # a name may look like markup
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
        file=stream, width=WIDTH, color_system=None, force_terminal=False, force_jupyter=False
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
