"""Handles that remove hooks."""

import itertools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from offgrad_storage.interrupts import MaskedLock

_ids = itertools.count()
_lock = MaskedLock(reentrant=True)


def _new_id() -> int:
    with _lock:
        return next(_ids)


def skip_ids(last: int) -> None:
    """Make ids of later handles larger than `last`, an unpickled id: one dict may hold both."""
    global _ids
    later_ids = itertools.count(last + 1)
    with _lock:
        if next(_ids) <= last:
            _ids = later_ids


class RemovableHandle:
    """Removes a hook: by `remove()` or at the end of a ``with`` block; may be called twice."""

    def __init__(self, *registries: dict[int, Any]) -> None:
        self.id = _new_id()
        self._registries = registries

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        skip_ids(self.id)

    @property
    def hooks_dict_ref(self) -> Callable[[], dict[int, Any] | None]:
        """A function that returns the dict of the hook, as PyTorch's weak reference does."""
        return lambda: self._registries[0] if self._registries else None

    def remove(self) -> None:
        """Remove the hook."""
        for hooks in self._registries:
            hooks.pop(self.id, None)

    def __enter__(self) -> "RemovableHandle":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()


def add_hook(
    hooks: dict[int, Any], hook: Callable[..., Any], *flags: dict[int, bool]
) -> RemovableHandle:
    """Add `hook` to `hooks` and its id to `flags`; return the handle that removes it from all.

    Raises:
        TypeError: if `hook` is not callable.
    """
    if not callable(hook):
        raise TypeError(f"a hook must be callable, got {type(hook).__name__}")
    handle = RemovableHandle(hooks, *flags)
    # Flags first: another thread may call the hook as soon as it is in `hooks`.
    for each in flags:
        each[handle.id] = True
    hooks[handle.id] = hook
    return handle
