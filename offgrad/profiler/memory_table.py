"""The table of a memory profile."""

from typing import TYPE_CHECKING

from offgrad._display import Grid, as_html, as_text
from offgrad.memory import format_nbytes

if TYPE_CHECKING:
    from rich.table import Table

    from offgrad.profiler.memory_profile import MemoryProfile

_MAX_MODULES = 8
_TITLE = "Tensor memory"
_HEAD = ("", "memory", "above start")


def table(profile: "MemoryProfile") -> "Table":
    """Return a table with a row for each figure of `profile` that exists."""
    from rich.table import Table  # slow to import

    result = Table(title=_TITLE, title_justify="left", caption_justify="left")
    result.add_column(_HEAD[0])
    for name in _HEAD[1:]:
        result.add_column(name, justify="right")
    peaks, held = _peaks(profile), _held(profile)
    for index, row in enumerate([*peaks, *held], 1):
        result.add_row(*row, end_section=index == len(peaks))
    result.caption = _caption(profile)
    return result


def html(profile: "MemoryProfile") -> str:
    """Return the table for a notebook."""
    grid = Grid(_HEAD, [*_peaks(profile), *_held(profile)])
    return as_html([_TITLE, grid, _caption(profile)])


def _peaks(profile: "MemoryProfile") -> list[tuple[str, str, str]]:
    start = profile.start_nbytes
    rows = {
        "at start": start,
        "peak in forward": profile.peak_in("forward"),
        "peak in backward": profile.peak_in("backward"),
        "peak after": profile.peak_in("after"),
        "at end": profile.end_nbytes,
    }
    return [
        (name, format_nbytes(nbytes), "" if name == "at start" else signed(nbytes - start))
        for name, nbytes in rows.items()
        if nbytes is not None
    ]


def _held(profile: "MemoryProfile") -> list[tuple[str, str, str]]:
    rows = []
    held = profile.held_nbytes
    if held is not None:
        rows.append(("held from forward to backward", format_nbytes(held), ""))
    for name, nbytes in list(profile.saved_by_module.items())[:_MAX_MODULES]:
        label = f"  saved by {name}" if name else "  saved outside of inner modules"
        rows.append((label, format_nbytes(nbytes), ""))
    return rows


def _caption(profile: "MemoryProfile") -> str:
    phases = profile.phases
    passes = sum(phase.name == "backward" for phase in phases)
    return f"{phases[-1].end:.3f} s, {passes} backward {'pass' if passes == 1 else 'passes'}"


def text(profile: "MemoryProfile") -> str:
    """Return the table as plain text."""
    return as_text(table(profile))


def signed(nbytes: int) -> str:
    """Return a difference of bytes as text, with its sign."""
    return ("+" if nbytes >= 0 else "-") + format_nbytes(abs(nbytes))
