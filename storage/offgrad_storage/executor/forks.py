"""Forks: a store belongs to the process that made it, whose threads no fork has."""

from __future__ import annotations

import os


class _Process:
    """Counts the forks between this process and the first: cheaper to compare than its number."""

    forks = 0

    def count_fork(self) -> None:
        self.forks += 1


process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=process.count_fork)
