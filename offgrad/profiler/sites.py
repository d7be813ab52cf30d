"""Where memory is allocated: the line of the program, and what offgrad's code wants it for."""

import os
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import offgrad_storage

from offgrad.profiler.categories import (
    GRADIENT,
    IN_FLIGHT,
    PARAMETER,
    PREFETCHED,
    SAVED,
    STATE,
    TEMPORARY,
)
from offgrad.profiler.events import Running

_PACKAGES = tuple(
    os.path.join(os.path.dirname(path), "")
    for path in (os.path.dirname(__file__), offgrad_storage.__file__)
)
_PROGRAMS = os.path.join(_PACKAGES[0], "cli", "")  # whose models are programs like others


class Purpose(NamedTuple):
    """What memory is for.

    Attributes:
        category: see `offgrad.profiler.categories`; -1 if the code does not tell.
        row: op, slot and module, where the code knows them.
        shape, dtype: where it knows them.
    """

    category: int
    row: tuple[str, str, str] | None = None
    shape: tuple[int, ...] | None = None
    dtype: Any = None


UNKNOWN = Purpose(-1)
_OUTSIDE = Purpose(-2)
_OPERATION = Purpose(-3)
_PASS = Purpose(-4)


def _prefetched(variables: dict[str, Any]) -> Purpose:
    saved = variables["wanted"].saved()
    if saved is None:
        return Purpose(PREFETCHED)
    return Purpose(PREFETCHED, saved.row, saved.shape, saved.dtype)


def _read(variables: dict[str, Any]) -> Purpose:
    saved = variables["self"]
    return Purpose(SAVED, saved.row, saved.shape, saved.dtype)


def _paged(variables: dict[str, Any]) -> Purpose:
    page = variables["page"]
    row = page.row
    return Purpose(_PAGES[row.op], (row.op, row.slot, row.module), page.shape, page.dtype)


_PACK = Purpose(IN_FLIGHT, ("Pack", "", ""))  # of many arrays, whichever it is read for
_PAGES = {"Parameter": PARAMETER, "Gradient": GRADIENT, "State": STATE}

_PURPOSES: dict[tuple[str, str], Purpose | Callable[[dict[str, Any]], Purpose]] = {
    ("profiler/tape.py", "_on_op"): _OPERATION,
    ("autograd/engine.py", "run"): _PASS,
    ("autograd/op.py", "_run"): _PASS,
    ("session/passes.py", "_read"): _prefetched,
    ("session/saved_array.py", "read"): _read,
    ("session/recompute.py", "data"): Purpose(SAVED),
    ("memory/storage.py", "make_successor"): Purpose(IN_FLIGHT),
    ("executor/open_packs.py", "_allocate"): _PACK,
    ("executor/pack_cache.py", "_load"): _PACK,
    ("executor/pack_cache.py", "load"): _PACK,
    ("offgrad_storage/pool.py", "prepare"): Purpose(SAVED),
    ("tiered/moves.py", "copy_in"): Purpose(SAVED),
    ("nn/init.py", "*"): Purpose(TEMPORARY),
    ("paging/page_cache.py", "_read"): _paged,
    ("paging/read_ahead.py", "_read"): _paged,
    ("paging/page_writer.py", "write"): _paged,
}
"""What functions allocate memory for, by file and name, or all of a file; perhaps their variables
tell.
"""


class Line(NamedTuple):
    """A line of a program."""

    path: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{self.path}:{self.number} in {self.function}"


Found = tuple[Purpose, tuple[CodeType, int] | None]
"""A purpose; and code and number of the line, None in threads of offgrad's own."""

_MAX_KNOWN = 20_000
# By identity, as the hash of code is computed from its constants each time; the code stays alive.
_known: dict[int, tuple[Purpose | Callable[[dict[str, Any]], Purpose], CodeType]] = {}


def find_site(frame: FrameType | None, running: Running) -> Found:
    """Return what the memory is for, and the innermost line outside of offgrad.

    The line of a running operation is looked up once, and that of a node is its origin's.

    Args:
        frame: to begin with.
        running: what the thread is doing.
    """
    purpose = UNKNOWN
    while frame is not None:
        code = frame.f_code
        entry = _known.get(id(code))
        if entry is None:
            if len(_known) >= _MAX_KNOWN:
                _known.clear()
            entry = _known[id(code)] = _purpose_of(code), code
        known = entry[0]
        if known is not UNKNOWN:
            if known is _OUTSIDE:
                return purpose, (code, frame.f_lineno)
            if known is _OPERATION:
                if running.op is not None:
                    outer, site = site_of_op(frame.f_back, running)
                    is_better = purpose is UNKNOWN or outer.row is not None
                    return (outer if is_better and purpose.row is None else purpose), site
            elif known is _PASS:
                origin = None if running.node is None else running.node[1]
                if origin is not None and origin[1] is not None:
                    return purpose, origin[1]
            elif purpose.row is None:
                if not isinstance(known, Purpose):
                    # The innermost page tells best, even if its store allocates: to read a page,
                    # another one may be written.
                    purpose = known(frame.f_locals)
                elif purpose is UNKNOWN:
                    purpose = known
        frame = frame.f_back
    return purpose, None


def site_of_op(frame: FrameType | None, running: Running) -> Found:
    """Return what `find_site` finds around the running operation.

    Args:
        frame: the caller of `Tape._on_op`.
        running: what the thread is doing.
    """
    found: Found | None = running.found
    if found is None:
        op, running.op = running.op, None  # one around it has a line of its own
        found = running.found = find_site(frame, running)
        running.op = op
    return found


def line_of(site: tuple[CodeType, int] | None) -> Line | None:
    """Return the line of a site."""
    return None if site is None else Line(site[0].co_filename, site[1], site[0].co_name)


def _purpose_of(code: CodeType) -> Purpose | Callable[[dict[str, Any]], Purpose]:
    path = code.co_filename
    if not path.startswith(_PACKAGES) or path.startswith(_PROGRAMS):
        is_library = path.startswith("<frozen") or path.endswith(_STANDARD)
        return UNKNOWN if is_library else _OUTSIDE
    parts = path.replace(os.sep, "/").split("/")
    file = "/".join(parts[-2:])
    return _PURPOSES.get((file, code.co_name)) or _PURPOSES.get((file, "*"), UNKNOWN)


_STANDARD = tuple(os.path.join("", each) for each in ("contextlib.py", "functools.py"))
"""Files of the standard library through which offgrad calls itself."""
