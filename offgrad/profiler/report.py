"""The table of a memory profile."""

import io
from typing import TYPE_CHECKING

from offgrad.memory import format_nbytes

if TYPE_CHECKING:
    from rich.table import Table

    from offgrad.profiler.memory_profile import MemoryProfile

_TEXT_WIDTH = 100
_MAX_MODULES = 8


def table(profile: "MemoryProfile") -> "Table":
    """Return a table with a row for each figure of `profile` that exists."""
    from rich.table import Table  # slow to import

    result = Table(title="Tensor memory", title_justify="left")
    result.add_column("")
    result.add_column("memory", justify="right")
    result.add_column("above start", justify="right")
    start = profile.start_nbytes
    rows = {
        "at start": start,
        "peak in forward": profile.peak_in("forward"),
        "peak in backward": profile.peak_in("backward"),
        "peak after": profile.peak_in("after"),
        "at end": profile.end_nbytes,
    }
    for name, nbytes in rows.items():
        if nbytes is not None:
            above = "" if name == "at start" else signed(nbytes - start)
            result.add_row(name, format_nbytes(nbytes), above)
    held = profile.held_nbytes
    if held is not None:
        result.add_section()
        result.add_row("held from forward to backward", format_nbytes(held), "")
    for name, nbytes in list(profile.saved_by_module.items())[:_MAX_MODULES]:
        label = f"  saved by {name}" if name else "  saved outside of inner modules"
        result.add_row(label, format_nbytes(nbytes), "")
    passes = sum(phase.name == "backward" for phase in profile.phases)
    seconds = profile.phases[-1].end
    result.caption = f"{seconds:.3f} s, {passes} backward {'pass' if passes == 1 else 'passes'}"
    result.caption_justify = "left"
    return result


def text(profile: "MemoryProfile") -> str:
    """Return the table as plain text."""
    from rich.console import Console  # slow to import

    stream = io.StringIO()
    # Otherwise a console in a notebook displays the table there, and writes nothing here.
    console = Console(
        file=stream,
        width=_TEXT_WIDTH,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
    )
    console.print(table(profile))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def signed(nbytes: int) -> str:
    """Return a difference of bytes as text, with its sign."""
    return ("+" if nbytes >= 0 else "-") + format_nbytes(abs(nbytes))
