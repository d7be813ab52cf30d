"""BLAS on one thread while kernels run matmuls from several threads.

Batched small matmuls gain little from BLAS's threads and are erratic under them; split over heads,
with one BLAS thread per worker, they are fast, and their bits do not depend on BLAS's settings.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Limiter:
    """Counts users of single-threaded BLAS: the first one sets it, the last one restores it."""

    def __init__(self, libraries: list[Any] | None = None) -> None:
        self._lock = threading.Lock()
        self._libraries = libraries
        self._users = 0
        self._before: list[int] = []

    def enter(self) -> list[tuple[Any, int]]:
        """Set one thread; return the argument of `leave`, which the same thread calls."""
        with self._lock:
            if self._libraries is None:
                self._libraries = _blas_libraries()
            if self._users == 0:
                self._before = [library.get_num_threads() for library in self._libraries]
            self._users += 1
            changed = [(library, library.get_num_threads()) for library in self._libraries]
            for library, _ in changed:
                _set_num_threads(library, 1)
            # With OpenMP each thread has its own number and restores it itself.
            return [pair for pair in changed if _is_per_thread(pair[0])]

    def leave(self, entered: list[tuple[Any, int]]) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._restore()
            for library, count in entered:
                _set_num_threads(library, count)

    def in_child(self) -> _Limiter:
        """The limiter of a forked child, in which the users, other threads, do not exist."""
        if self._users:
            self._restore()
        return _Limiter(self._libraries)

    def _restore(self) -> None:
        for library, count in zip(self._libraries or [], self._before, strict=True):
            if not _is_per_thread(library):
                _set_num_threads(library, count)


def _blas_libraries() -> list[Any]:
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


def _is_per_thread(library: Any) -> bool:
    return getattr(library, "threading_layer", None) == "openmp"


def _set_num_threads(library: Any, count: int) -> None:
    if library.get_num_threads() == count:
        return
    # threadpoolctl (3.8) obeys the thread that set a number first and silently ignores others; here
    # any thread may be the first or the last user, one at a time.
    release = getattr(library, "clear_controlling_thread", lambda force: None)
    release(force=True)
    library.set_num_threads(count)
    release(force=True)


_limiter = _Limiter()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Within the context, BLAS uses one thread in the whole process; contexts nest and overlap.

    The setting is global: a matmul of another thread runs on one thread meanwhile, too.
    """
    limiter = _limiter
    entered = limiter.enter()
    try:
        yield
    finally:
        limiter.leave(entered)


def _reset_in_child() -> None:
    global _limiter
    _limiter = _limiter.in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
