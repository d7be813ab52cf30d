"""The tests make a few attempts of each suite; OFFGRAD_STRESS makes them make many."""

import os
from collections.abc import Callable

import pytest

from tests.stress import driver
from tests.stress.table import table

PROGRAMS = int(os.environ.get("OFFGRAD_STRESS", "0"))
"""Number of programs of a long run; 0 for a short one."""

SEED = 0

Attempt = Callable[[list[driver.Work]], driver.Report]


@pytest.fixture
def attempt() -> Attempt:
    """Make attempts in child processes; all must succeed."""

    def run(works: list[driver.Work]) -> driver.Report:
        report = driver.run(works, batch=len(works))
        print(table(report))  # to be seen with pytest -rP
        assert not report.failures, "\n\n".join(map(str, report.failures))
        return report

    return run
