"""The allocator of file ranges, against a plain set of pages."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from offgrad_storage.memory.extents import Extents


def test_freed_space_is_reused_best_fit() -> None:
    extents = Extents()
    starts = [extents.allocate(length) for length in (3, 1, 2, 1, 4)]
    assert starts == [0, 3, 4, 6, 7]
    extents.free(0, 3)
    extents.free(4, 2)
    assert extents.allocate(2) == 4
    assert extents.allocate(1) == 0
    assert extents.allocate(2) == 1
    assert extents.end == 11


def test_neighbours_coalesce() -> None:
    extents = Extents()
    for _ in range(3):
        extents.allocate(2)
    extents.free(0, 2)
    extents.free(4, 2)
    extents.free(2, 2)
    assert extents.allocate(6) == 0


def test_the_limit_bounds_the_file() -> None:
    extents = Extents()
    assert extents.allocate(4, limit=10) == 0
    assert extents.allocate(4, limit=10) == 4
    assert extents.allocate(3, limit=10) is None
    extents.free(4, 4)
    assert extents.allocate(6, limit=10) == 4
    assert extents.end == 10


@settings(deadline=None)
@given(st.lists(st.integers(-20, 20).filter(bool)))
def test_against_a_set(actions: list[int]) -> None:
    extents = Extents()
    used: set[int] = set()
    ranges: list[tuple[int, int]] = []
    for action in actions:
        if action > 0:
            start = extents.allocate(action)
            assert start is not None
            taken = set(range(start, start + action))
            assert not taken & used
            used |= taken
            ranges.append((start, action))
        elif ranges:
            start, length = ranges.pop(action % len(ranges))
            extents.free(start, length)
            used -= set(range(start, start + length))
        assert extents.free_nbytes == extents.end - len(used)
        assert not used or max(used) < extents.end
    for start, length in ranges:
        extents.free(start, length)
    if extents.end:
        assert extents.allocate(extents.end) == 0
