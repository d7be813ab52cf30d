"""BLAS on one thread while kernels run matmuls from several threads.

Batched small matmuls gain little from BLAS's threads and are erratic under them; split over heads,
with one BLAS thread per worker, they are fast, and their bits do not depend on BLAS's settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, NamedTuple

from offgrad_storage.interrupts import MaskedLock

from offgrad.kernels import _openblas
from offgrad.memory.forks import forkables


class _Use(NamedTuple):
    """One use of single-threaded BLAS: its thread, and numbers of threads to restore there."""

    thread: int
    to_restore: list[tuple[Any, int]]


class _Limiter:
    """Knows the users of single-threaded BLAS: the first one sets it, the last one restores it."""

    lock = None  # a fork does not wait for users

    def __init__(self, libraries: list[Any] | None = None) -> None:
        self._lock = MaskedLock()
        self._libraries = libraries
        self._users: list[int] = []  # the threads, one as often as it entered
        self._before: list[int] = []  # the numbers of threads to restore
        forkables.add(self)

    def libraries(self) -> list[Any]:
        """Return the libraries, which are looked for once."""
        if self._libraries is None:
            self._libraries = _blas_libraries()
        return self._libraries

    def enter(self) -> _Use:
        """Set one thread; return the argument of `leave`.

        The same thread calls that, but for a context that an interrupt has left: its finalizer may
        run in another one.
        """
        with self._lock:
            libraries = self.libraries()
            if not self._users:
                self._before = [each.get_num_threads() for each in libraries]
            elif not any(map(_is_per_thread, libraries)):
                self._users.append(get_ident())
                return _Use(get_ident(), [])
            self._users.append(get_ident())
            changed = [(each, each.get_num_threads()) for each in libraries]
            for each, _ in changed:
                _set_num_threads(each, 1)
            # With OpenMP each thread has its own number and restores it itself.
            pairs = [pair for pair in changed if _is_per_thread(pair[0])]
            return _Use(get_ident(), pairs)

    def leave(self, use: _Use) -> None:
        with self._lock:
            if use.thread in self._users:  # else a fork has forgotten it
                self._users.remove(use.thread)
            if not self._users:
                self._restore()
            for library, count in use.to_restore:
                _set_num_threads(library, count)

    def set_count(self, count: int) -> None:
        """Set the number of threads, for the time after the last user if there are users."""
        with self._lock:
            libraries = self.libraries()
            if self._users:
                self._before = [count] * len(libraries)
                return
            for each in libraries:
                _set_num_threads(each, count)

    def count(self) -> int | None:
        """Return the largest number of threads, outside of users; None without a known BLAS."""
        with self._lock:
            counts = self._before or [each.get_num_threads() for each in self.libraries()]
            return max(counts, default=None)

    def forget_other_threads(self) -> None:
        """In a forked child: other threads use BLAS no more, and may have restored it by half."""
        self._users = [each for each in self._users if each == get_ident()]
        if not self._users:
            self._restore()

    def _restore(self) -> None:
        for library, count in zip(self._libraries or [], self._before, strict=False):
            if not _is_per_thread(library):
                _set_num_threads(library, count)
        self._before = []


def _blas_libraries() -> list[Any]:
    """Return NumPy's OpenBLAS, which is quick to set; else every BLAS that threadpoolctl finds."""
    openblas = _openblas.library()
    if openblas is not None:
        return [openblas]
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
    use = _limiter.enter()
    try:
        yield
    finally:
        _limiter.leave(use)


def find_blas() -> None:
    """Look for the libraries of BLAS, before threads that need them start."""
    _limiter.libraries()


def limit_this_thread() -> None:
    """Let BLAS use one thread in the calling thread from now on, where each has its own number.

    As with OpenMP; for threads that compute within `single_threaded_blas` only.
    """
    for library in _limiter.libraries():
        if _is_per_thread(library):
            _set_num_threads(library, 1)


def set_blas_threads(count: int) -> None:
    """Let BLAS use `count` threads, outside of `single_threaded_blas`."""
    _limiter.set_count(count)


def blas_threads() -> int | None:
    """Return the number of threads that BLAS may use, outside of `single_threaded_blas`; None for
    a BLAS that threadpoolctl does not know.
    """
    return _limiter.count()
