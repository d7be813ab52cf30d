"""BLAS on one thread, for as long as kernels run matmuls from several threads of their own.

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
    """Counts users of single-threaded BLAS: the first one in sets it, the last one out restores."""

    def __init__(self, libraries: list[Any] | None = None) -> None:
        self._lock = threading.Lock()
        self._libraries = libraries
        self._users = 0
        self._before: list[int] = []

    def enter(self) -> None:
        with self._lock:
            if self._libraries is None:
                self._libraries = _blas_libraries()
            if self._users == 0:
                self._before = [library.get_num_threads() for library in self._libraries]
                self._set([1] * len(self._before))
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._set(self._before)

    def in_child(self) -> _Limiter:
        """The limiter of a forked child: its users were other threads, which do not exist there."""
        if self._users:
            self._set(self._before)
        return _Limiter(self._libraries)

    def _set(self, counts: list[int]) -> None:
        for library, count in zip(self._libraries or [], counts, strict=True):
            if library.get_num_threads() != count:
                library.set_num_threads(count)


def _blas_libraries() -> list[Any]:
    from threadpoolctl import ThreadpoolController

    return list(ThreadpoolController().select(user_api="blas").lib_controllers)


_limiter = _Limiter()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Within the context, BLAS uses one thread in the whole process; nests, and threads may share.

    The setting is BLAS's and global: a matmul of another thread meanwhile runs on one thread too.
    """
    limiter = _limiter
    limiter.enter()
    try:
        yield
    finally:
        limiter.leave()


def _reset_in_child() -> None:
    global _limiter
    _limiter = _limiter.in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
