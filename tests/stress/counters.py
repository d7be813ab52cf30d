"""The counters that are back where they were when everything is dropped."""

import functools
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakSet

from offgrad_storage import AbstractArrayStore, BufferPool, TieredStore
from offgrad_storage.testing.helpers import check_sums

from offgrad import memory
from offgrad.nn.hooks import call_stack, registry
from tests.conftest import _settings

SECONDS = 20.0
"""The timeout of a wait for a counter, far longer than any wait needs."""


class Difference(AssertionError):
    """A promise that did not hold."""


def require(condition: object, text: Callable[[], str] | str) -> None:
    """Raise `Difference` with `text` unless `condition` holds."""
    if not condition:
        raise Difference(text if isinstance(text, str) else text())


def soon(condition: Callable[[], object], text: Callable[[], str]) -> None:
    """Wait until `condition` holds, since threads may be late; raise `Difference` if it does not.

    Collects garbage once it has not held at first.
    """
    if condition():
        return
    gc.collect()
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise Difference(text())
        time.sleep(0.001)


class Baseline:
    """Counters of the process, to compare with later ones.

    Args:
        folder: the folder in which stores write.
    """

    def __init__(self, folder: str) -> None:
        gc.collect()
        self._folder = folder
        self._settings = _settings()
        self._handler = signal.getsignal(signal.SIGINT)
        self._trackers = registry.global_hooks.trackers
        self._threads = set(threading.enumerate())
        self._allocated = memory.allocated()
        self._pooled = _pooled_nbytes()
        self._files = _open_files(folder)

    def check(self, stores_closed: bool = True) -> None:
        """Raise `Difference` unless all counters are back.

        Args:
            stores_closed: whether threads, files and other stores' memory must be gone as well.
        """
        self.check_settings()
        soon(lambda: not held_locks(_globals()), lambda: f"held: {held_locks(_globals())}")
        soon(
            lambda: memory.allocated() <= self._allocated,
            lambda: f"{memory.allocated() - self._allocated} bytes of tensors are left",
        )
        if stores_closed:
            self._check_closed()

    def check_settings(self) -> None:
        """Raise `Difference` unless the state of this thread, and settings, are back."""
        now = _settings()
        changed = {key: value for key, value in now.items() if value != self._settings[key]}
        require(not changed, lambda: f"not put back: {changed}, was {self._settings}")
        trackers = registry.global_hooks.trackers
        require(trackers == self._trackers, lambda: f"{trackers} sessions track module calls")
        handler = signal.getsignal(signal.SIGINT)
        require(handler == self._handler, lambda: f"SIGINT is handled by {handler}")
        call = call_stack.calls.innermost
        require(call is None, lambda: f"a module call is still running: {call}")

    def _check_closed(self) -> None:
        soon(
            lambda: _pooled_nbytes() <= self._pooled,
            lambda: f"{_pooled_nbytes() - self._pooled} bytes of pooled buffers are left",
        )
        soon(
            lambda: not self._new_threads(),
            lambda: f"threads are left: {self._new_threads()}",
        )
        soon(
            lambda: not _open_files(self._folder) - self._files,
            lambda: f"files are open: {_open_files(self._folder) - self._files}",
        )

    def _new_threads(self) -> set[threading.Thread]:
        # zarr starts a few for the whole process.
        return {
            each
            for each in set(threading.enumerate()) - self._threads
            if not each.name.startswith(("asyncio_", "zarr"))
        }


_pools: WeakSet[BufferPool] = WeakSet()
"""All pools made since this module was imported: those of the stores."""


def _note_pools() -> None:
    make = BufferPool.__init__

    def make_and_note(pool: BufferPool, *arguments: Any, **options: Any) -> None:
        make(pool, *arguments, **options)
        _pools.add(pool)

    BufferPool.__init__ = make_and_note  # type: ignore[method-assign, assignment]


_note_pools()


def _pooled_nbytes() -> int:
    return sum(each.in_use_nbytes for each in list(_pools))


def _open_files(folder: str) -> set[str]:
    found = set()
    if os.path.isdir("/proc/self/fd"):
        for name in os.listdir("/proc/self/fd"):
            try:
                path = os.readlink(f"/proc/self/fd/{name}")
            except OSError:  # the listing itself
                continue
            if path.startswith(folder + os.sep):
                found.add(path)
    return found


def check_figures(store: AbstractArrayStore) -> None:
    """Raise `Difference` unless all figures of a store are sums over its arrays."""
    try:
        check_sums(store)
    except AssertionError as error:
        raise Difference(f"{store}: {error}") from error


def check_idle(store: AbstractArrayStore, keeps: bool = False) -> None:
    """Raise `Difference` unless a store without handles counts nothing, and holds no lock.

    Args:
        store: open, with all handles dropped.
        keeps: whether arrays outlive their handles in it.
    """
    names = ["live_handles", "logical_nbytes", "inflight_nbytes"]
    names += [] if keeps else ["stored_nbytes"]

    def left() -> dict[str, int]:
        stats = store.stats()
        return {name: value for name in names if (value := getattr(stats, name))}

    # The pack being filled waits for more arrays; a kept one is written at the end.
    if keeps:
        store.flush()
    soon(lambda: not left(), lambda: f"{store} without handles counts {left()}")
    check_figures(store)
    soon(lambda: not held_locks([store]), lambda: f"{store} holds {held_locks([store])}")


@functools.cache
def _global_names() -> list[tuple[Any, str]]:
    """Return the modules and names of the library's objects that live as long as the process."""
    return [
        (module, name)
        for module_name, module in list(sys.modules.items())
        if module_name.startswith("offgrad")
        for name, value in vars(module).items()
        if isinstance(value, _LOCKS)
        or (type(value).__module__.startswith("offgrad") and not isinstance(value, type))
    ]


def _globals() -> list[Any]:
    return [getattr(module, name) for module, name in _global_names()]


_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def held_locks(roots: Iterable[Any]) -> list[str]:
    """Return the paths of the locks that a thread holds, among those the library's objects have."""
    found: list[str] = []
    seen: set[int] = set()
    left: list[tuple[Any, str]] = [(each, type(each).__name__) for each in roots]
    while left:
        value, path = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _LOCKS):
            if not _is_free(value):
                found.append(path)
        elif isinstance(value, threading.Condition):
            left.append((value._lock, f"{path}.lock"))  # type: ignore[attr-defined]
        elif isinstance(value, list | tuple):
            left += [(each, f"{path}[{index}]") for index, each in enumerate(value)]
        elif type(value).__module__.startswith("offgrad"):
            names = [*getattr(value, "__dict__", {})]
            for kind in type(value).__mro__:
                slots = vars(kind).get("__slots__", ())
                names += [slots] if isinstance(slots, str) else slots
            for name in names:
                if not name.startswith("__") and hasattr(value, name):
                    left.append((getattr(value, name), f"{path}.{name}"))
    return found


def _is_free(lock: Any) -> bool:
    """Return whether no thread holds a lock; a re-entrant one must be asked in another thread."""
    if not hasattr(lock, "_is_owned"):
        return not lock.locked()
    taken: list[bool] = []

    def take() -> None:
        taken.append(lock.acquire(blocking=False))
        if taken[0]:
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken[0]


def stores_below(store: AbstractArrayStore) -> list[AbstractArrayStore]:
    """Return a store and all those below it."""
    if not isinstance(store, TieredStore):
        return [store]
    return [store, *(each for below in store.below for each in stores_below(below))]
