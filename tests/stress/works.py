"""The attempts of a stress run, by suite."""

import importlib
from collections.abc import Sequence
from random import Random

from tests.stress.driver import SUITES, Work

MAX_POINTS = 1_000_000
"""More than any operation has; an attempt tells where they end."""


def cases(suite: str) -> Sequence[str]:
    """Return the names of the cases of a suite."""
    found: Sequence[str] = importlib.import_module(SUITES[suite]).CASES
    return found


def programs(count: int, seed: int) -> list[Work]:
    """Return `count` random programs, spread over all policies; others for each seed."""
    return _spread("programs", count, seed * MAX_POINTS)


def signals(count: int, seed: int) -> list[Work]:
    """Return `count` signals at random moments, spread over all policies."""
    return _spread("signals", count, seed * MAX_POINTS)


def _spread(suite: str, count: int, first: int) -> list[Work]:
    names = cases(suite)
    each, more = divmod(count, len(names))
    works = []
    for index, name in enumerate(names):
        size = each + (index < more)
        # Small pieces keep all processes busy to the end, and a new process now and then.
        for start in range(first, first + size, 20):
            works.append(Work(suite, name, start, min(start + 20, first + size)))
    return works


def points(suite: str, step: int, random: Random) -> list[Work]:
    """Return interrupts at each `step`-th point of each case, from a random one on."""
    return [Work(suite, each, random.randint(1, step), MAX_POINTS, step) for each in cases(suite)]
