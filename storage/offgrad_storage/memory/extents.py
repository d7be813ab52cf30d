"""Extents: the free ranges of a file or a mapping."""

from __future__ import annotations

from bisect import bisect_left, insort


class Extents:
    """A best-fit allocator of ranges of a file that grows at its end and never shrinks.

    Rewriting a range is faster than growing the file, so the smallest free range that fits is
    taken, the first of equal ones. Adjacent free ranges coalesce.

    Args:
        first: start of the first range.
    """

    def __init__(self, first: int = 0) -> None:
        self.end = first
        """Bytes from the start of the file to the end of the last range ever used."""
        self._lengths: dict[int, int] = {}  # start -> length
        self._starts: dict[int, int] = {}  # end -> start
        self._by_length: list[tuple[int, int]] = []  # (length, start)

    def free_ranges(self) -> list[tuple[int, int]]:
        """Start and length of each free range."""
        return list(self._lengths.items())

    @property
    def free_nbytes(self) -> int:
        """Bytes before ``end`` that are free."""
        return sum(self._lengths.values())

    def end_with(self, length: int) -> int:
        """The value of ``end`` after ``allocate(length)``."""
        if self._by_length and self._by_length[-1][0] >= length:
            return self.end
        return self._starts.get(self.end, self.end) + length

    def allocate(self, length: int, limit: int | None = None) -> int | None:
        """The start of a range of ``length`` bytes; None if ``end`` would exceed ``limit``."""
        index = bisect_left(self._by_length, (length, 0))
        if index < len(self._by_length):
            found, start = self._by_length[index]
            self._remove(start, found)
            if found > length:
                self._add(start + length, found - length)
            return start
        start = self._starts.get(self.end, self.end)  # a free range at the end can be extended
        if limit is not None and start + length > limit:
            return None
        if start < self.end:
            self._remove(start, self.end - start)
        self.end = start + length
        return start

    def free(self, start: int, length: int) -> None:
        """Free a range."""
        before = self._starts.get(start)
        if before is not None:
            self._remove(before, start - before)
            start, length = before, length + start - before
        after = self._lengths.get(start + length)
        if after is not None:
            self._remove(start + length, after)
            length += after
        self._add(start, length)

    def _add(self, start: int, length: int) -> None:
        self._lengths[start] = length
        self._starts[start + length] = start
        insort(self._by_length, (length, start))

    def _remove(self, start: int, length: int) -> None:
        del self._lengths[start]
        del self._starts[start + length]
        self._by_length.pop(bisect_left(self._by_length, (length, start)))
