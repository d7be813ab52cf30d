"""The order in which a budget evicts storages: furthest next use first."""

from collections import OrderedDict
from collections.abc import Iterable

from offgrad.session.cached_storage import CachedStorage, Room


class EvictionOrder:
    """The rooms of the storages that may be evicted. For use with the session's lock held.

    Storages that no backward pass has planned are used after all planned ones: they are evicted
    before these, and the one saved first goes first.
    """

    def __init__(self) -> None:
        self._unplanned: OrderedDict[int, Room] = OrderedDict()
        self._planned: OrderedDict[int, Room] = OrderedDict()

    def add(self, room: Room, *, first: bool = False) -> None:
        """Add `room` as that of the latest save, or as the first to be evicted."""
        self._unplanned[id(room)] = room
        if first:
            self._unplanned.move_to_end(id(room), last=False)

    def remove(self, room: Room) -> None:
        """Remove `room`, if it is there."""
        self._unplanned.pop(id(room), None)
        self._planned.pop(id(room), None)

    def touch(self, room: Room) -> None:
        """The storage was saved again: its next use comes earlier than before."""
        if id(room) in self._unplanned:
            self._unplanned.move_to_end(id(room))

    def plan(self, rooms: Iterable[Room]) -> None:
        """Plan the uses of `rooms`, the furthest first."""
        for room in rooms:
            self.remove(room)
            self._planned[id(room)] = room

    def forget_plan(self) -> None:
        """No pass is running: rooms left in the plan are the first to be evicted."""
        while self._planned:
            self.add(self._planned.popitem()[1], first=True)

    def next(self) -> CachedStorage | None:
        """Return the storage to be evicted next, which stays; None if there is none."""
        for queue in (self._unplanned, self._planned):
            while queue:
                key, room = next(iter(queue.items()))
                cached = room.cached()
                if cached is not None:
                    return cached
                del queue[key]
        return None
