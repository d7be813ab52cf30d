"""Handles that take a hook away again."""

import itertools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

_ids = itertools.count()
_lock = threading.RLock()


def _new_id() -> int:
    with _lock:
        return next(_ids)


def skip_ids(last: int) -> None:
    """Have later handles have ids above `last`, one that was loaded: they are keys side by side."""
    global _ids
    beyond = itertools.count(last + 1)
    with _lock:
        if next(_ids) <= last:
            _ids = beyond


class RemovableHandle:
    """Removes a hook: by `remove()` or at the end of a ``with`` block. Twice is harmless."""

    def __init__(self, *registries: dict[int, Any]) -> None:
        self.id = _new_id()
        self._registries = registries

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        skip_ids(self.id)

    def remove(self) -> None:
        """Take the hook away."""
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
    """Add `hook` to `hooks`, its id to `flags`; return the handle that removes it from all.

    Raises:
        TypeError: if `hook` is not callable.
    """
    if not callable(hook):
        raise TypeError(f"a hook must be callable, got {type(hook).__name__}")
    handle = RemovableHandle(hooks, *flags)
    # The flags first: another thread may call the hook as soon as it is there.
    for each in flags:
        each[handle.id] = True
    hooks[handle.id] = hook
    return handle
