"""Pending writes: an allocation that has no memory waits for them."""

from weakref import ref

from offgrad_storage import Handle

_MIN_TO_PRUNE = 64


class PendingWrites:
    """The writes of one session that hold memory. For use with its lock held."""

    def __init__(self) -> None:
        self._handles: list[ref[Handle]] = []
        self._max_handles = _MIN_TO_PRUNE

    def add(self, handle: Handle) -> None:
        """Note a write that has begun."""
        if handle.captured:
            return
        if len(self._handles) >= self._max_handles:
            self._handles = list(map(ref, self.handles()))
            self._max_handles = max(_MIN_TO_PRUNE, 2 * len(self._handles))
        self._handles.append(ref(handle))

    def handles(self) -> list[Handle]:
        """Return the handles of writes that have not ended."""
        handles = [each() for each in self._handles]
        return [each for each in handles if each is not None and each.is_pending]

    def clear(self) -> None:
        """Forget all."""
        self._handles.clear()
