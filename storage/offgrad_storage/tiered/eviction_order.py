"""Which of some arrays is wanted last: the one to make room with."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

Key = tuple[int, int, int]
"""Sorts what is wanted last first; the last item is the array's serial."""

_UNPLANNED, _PLANNED, _REQUESTED = range(3)


class EvictionOrder:
    """Members are sorted by their next use, the furthest first.

    Without a plan that is the member put first. With one, what is not in the plan goes before what
    is, and of the rest the one whose turn comes last. What is wanted now, and in no plan, goes
    after all others. Arrays are known by their serials, which grow in the order of putting.

    All is O(log n) in the members, but for ``plan``: O(n) in its length and the members.
    """

    def __init__(self) -> None:
        self._keys: dict[int, Key] = {}
        self._heap: list[Key] = []  # of the keys in force, and some that no longer are
        self._uses: dict[int, list[int]] = {}  # places in the plan, the next one last
        self._requests: dict[int, int] = {}
        self._request_count = 0

    def plan(self, serials: Sequence[int]) -> None:
        """Arrays will be used in this order, each as often as it occurs; forgets the last plan."""
        self._uses = {}
        for place in range(len(serials) - 1, -1, -1):
            self._uses.setdefault(serials[place], []).append(place)
        self._rebuild()

    def request(self, serial: int) -> None:
        """The array is wanted soon, before what was not said to be, and after what was."""
        if serial not in self._requests:
            self._request_count += 1
            self._requests[serial] = self._request_count
            self._update(serial)

    def cancel_request(self, serial: int) -> None:
        """The array is not wanted sooner than others after all."""
        if self._requests.pop(serial, None) is not None:
            self._update(serial)

    def record_use(self, serial: int) -> None:
        """The array has been used: its next place in the plan is past."""
        self._requests.pop(serial, None)
        uses = self._uses.get(serial)
        if uses is not None:
            uses.pop()
            if not uses:
                del self._uses[serial]
        self._update(serial)

    def add(self, serial: int) -> None:
        """Make the array a member."""
        self._push(serial)

    def discard(self, serial: int) -> None:
        """The array is no member; it keeps its places in the plan."""
        self._keys.pop(serial, None)

    def forget(self, serial: int) -> None:
        """The array is dead: it is no member and never will be."""
        self.discard(serial)
        self._uses.pop(serial, None)
        self._requests.pop(serial, None)

    def furthest(self, beyond: int) -> int | None:
        """The member wanted last, if that is later than the array ``beyond`` is."""
        while self._heap and self._keys.get(self._heap[0][2]) != self._heap[0]:
            heapq.heappop(self._heap)
        if not self._heap or self._heap[0] >= self._key(beyond):
            return None
        return self._heap[0][2]

    def _key(self, serial: int) -> Key:
        if serial in self._uses:
            return (_PLANNED, -self._uses[serial][-1], serial)
        if serial in self._requests:
            return (_REQUESTED, -self._requests[serial], serial)
        return (_UNPLANNED, serial, serial)

    def _update(self, serial: int) -> None:
        if serial in self._keys:
            self._push(serial)

    def _push(self, serial: int) -> None:
        key = self._key(serial)
        if self._keys.get(serial) == key:
            return
        self._keys[serial] = key
        heapq.heappush(self._heap, key)
        if len(self._heap) > 2 * len(self._keys) + 64:
            self._rebuild()

    def _rebuild(self) -> None:
        self._keys = {serial: self._key(serial) for serial in self._keys}
        self._heap = list(self._keys.values())
        heapq.heapify(self._heap)
