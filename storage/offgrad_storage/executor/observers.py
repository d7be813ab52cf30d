"""Observers of all stores: they learn which arrays stores hold, and what their threads do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

if TYPE_CHECKING:
    from offgrad_storage.entry import Entry
    from offgrad_storage.executor.jobs import Job


class StoreObserver(Protocol):
    """Its methods are called from any thread with the lock of a store held, so they do little."""

    def on_hold(self, entry: Entry, array: NDArray[Any]) -> None:
        """A store holds ``array`` in memory until it is written."""

    def on_captured(self, entry: Entry) -> None:
        """A store no longer holds the array of ``entry``, if it did."""

    def on_job_end(self, job: Job) -> None:
        """A read, a write or other work has ended, in the calling thread."""


observers: list[StoreObserver] = []
"""Those who are told now. Change it by ``append`` and ``remove``."""
