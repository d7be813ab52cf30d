"""The least that paging must move: a linear program over one step's uses of pages.

A page stays in memory between two of its uses, or is evicted and read again. A page that is evicted
after a change is also written. The window bounds the pages that an event uses, and those that
stay, at every event. The program lets parts of pages stay, so its optimum is a lower bound of what
any order of evictions moves, and needs to know the future.
"""

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import linprog


class Use(NamedTuple):
    """A page that an event has in memory.

    Attributes:
        page: its name.
        nbytes: its size.
        changes: whether the event changes it.
        is_new: whether the event makes it, so that nothing is read; that is a change as well.
        is_last: whether it is freed after the event.
    """

    page: Hashable
    nbytes: int
    changes: bool = False
    is_new: bool = False
    is_last: bool = False


class _Stay(NamedTuple):
    """From one use of a page to the next, which may be in the next step."""

    begin: int
    end: int
    nbytes: int
    change: int | None  # the number of the change that an eviction would have to write


def least_nbytes(events: Sequence[Sequence[Use]], window_nbytes: int) -> float:
    """Return a lower bound of the bytes read and written in each of many equal steps.

    Args:
        events: of a step, in order; each uses a page once.
        window_nbytes: what all pages in memory may take.

    Raises:
        ValueError: an event alone exceeds the window, or uses a page twice.
    """
    for event in events:
        nbytes = sum(use.nbytes for use in event)
        if nbytes > window_nbytes:
            raise ValueError(f"a window of {window_nbytes} bytes, but an event uses {nbytes}")
        if len({use.page for use in event}) < len(event):
            raise ValueError(f"an event uses a page once, got {event}")
    stays = _stays(events)
    if not stays:
        return 0.0
    used = [sum(use.nbytes for use in event) for event in events]
    changes = {stay.change: stay.nbytes for stay in stays if stay.change is not None}
    column = {change: len(stays) + number for number, change in enumerate(changes)}
    # Variables: the part of each page that stays, then the part of each change that is written.
    gains = [-stay.nbytes for stay in stays]
    room = sparse.lil_array((len(events), len(stays) + len(changes)))
    for number, stay in enumerate(stays):
        end = stay.end if stay.end > stay.begin else stay.end + len(events)
        for between in range(stay.begin + 1, end):
            room[between % len(events), number] = stay.nbytes
    written = [number for number, stay in enumerate(stays) if stay.change is not None]
    writes = sparse.lil_array((len(written), len(stays) + len(changes)))
    for row, number in enumerate(written):  # stays + written >= 1
        change = stays[number].change
        assert change is not None
        writes[row, number] = writes[row, column[change]] = -1
    found = linprog(
        np.array([*gains, *changes.values()]),
        A_ub=sparse.vstack([room, writes]).tocsr(),
        b_ub=np.array([*(window_nbytes - nbytes for nbytes in used), *[-1] * len(written)]),
        bounds=(0, 1),
        method="highs",
    )
    assert found.status == 0, found.message
    return float(found.fun) - sum(gains)


def _stays(events: Sequence[Sequence[Use]]) -> list[_Stay]:
    uses: dict[Hashable, list[tuple[int, Use]]] = {}
    for number, event in enumerate(events):
        for use in event:
            uses.setdefault(use.page, []).append((number, use))
    stays = []
    change_count = 0
    for of_page in uses.values():
        change = None
        first_change = next((at for at, (_, use) in enumerate(of_page) if _changes(use)), 0)
        cycle = [*of_page[first_change:], *of_page[: first_change + 1]]
        for (begin, use), (end, following) in pairwise(cycle):
            if _changes(use):
                change, change_count = change_count, change_count + 1
            if not use.is_last and not following.is_new:
                stays.append(_Stay(begin, end, use.nbytes, change))
    return stays


def _changes(use: Use) -> bool:
    return use.changes or use.is_new
