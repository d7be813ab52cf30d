"""The order in which a TieredStore evicts arrays: furthest next use first."""

from __future__ import annotations

import heapq
from collections.abc import Sequence, Set

Key = tuple[int, int, int]
"""Sorts by next use, the furthest first; the last item is the array's serial."""

_UNPLANNED, _PLANNED, _REQUESTED = range(3)


class EvictionOrder:
    """Members are sorted by their next use, the furthest first.

    First come arrays without a planned use, the oldest first; then planned ones, by their next
    place in the plan; last, arrays with a prefetch request and no planned use. Arrays are
    identified by their serials, which grow in the order of puts.

    All operations are O(log n) in the members; ``plan`` is linear in its length and the members.
    """

    def __init__(self) -> None:
        self._keys: dict[int, Key] = {}
        self._heap: list[Key] = []  # of the current keys, and some outdated ones
        self._uses: dict[int, list[int]] = {}  # places in the plan, the next one last
        self._requests: dict[int, int] = {}
        self._request_count = 0

    def plan(self, serials: Sequence[int]) -> None:
        """Replace the plan: arrays will be used in this order, each as often as it occurs."""
        self._uses = {}
        for place in range(len(serials) - 1, -1, -1):
            self._uses.setdefault(serials[place], []).append(place)
        self._rebuild()

    def request(self, serial: int) -> None:
        """A prefetch was requested: the array is used after those requested earlier."""
        if serial not in self._requests:
            self._request_count += 1
            self._requests[serial] = self._request_count
            self._update(serial)

    def cancel_request(self, serial: int) -> None:
        """The prefetch of the array was cancelled."""
        if self._requests.pop(serial, None) is not None:
            self._update(serial)

    def record_use(self, serial: int) -> None:
        """The array was used: remove its next place from the plan."""
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
        """Remove the array from the members; it keeps its places in the plan."""
        self._keys.pop(serial, None)

    def forget(self, serial: int) -> None:
        """The array is dead: remove it from the members and the plan."""
        self.discard(serial)
        self._uses.pop(serial, None)
        self._requests.pop(serial, None)

    def furthest(self, beyond: int) -> int | None:
        """The member with the furthest next use, if that is further than that of ``beyond``."""
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

    def _check(self, members: Set[int], live: Set[int]) -> None:
        """Raise AssertionError unless it sorts these members, and knows of live arrays only."""
        assert self._keys == {serial: self._key(serial) for serial in members}
        assert set(self._keys.values()) <= set(self._heap)
        assert len(self._heap) <= 2 * len(self._keys) + 64
        assert self._uses.keys() | self._requests.keys() <= live
