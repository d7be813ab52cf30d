"""A part of the stress run: see `tests.stress.__main__`."""

import importlib.util
from random import Random

import pytest

from tests.stress.conftest import PROGRAMS, SEED, Attempt
from tests.stress.driver import Work
from tests.stress.works import cases, points, programs, signals

LONG = PROGRAMS > 0
STORE_POINTS = 7 if LONG else 97
SESSION_POINTS = 7 if LONG else 15_000
"""The step from one point that is interrupted to the next."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(max(300, 5 * PROGRAMS)),
]


def part_of(works: list[Work], part: int, parts: int) -> list[Work]:
    return works[part::parts]


@pytest.mark.parametrize("part", range(4))
def test_random_programs_give_the_bits_of_a_run_that_keeps(part: int, attempt: Attempt) -> None:
    count = PROGRAMS or len(cases("programs"))
    report = attempt(part_of(programs(count, SEED), part, 4))
    assert report.counts["programs", "programs"] == sum(report.attempts.values())
    if importlib.util.find_spec("torch") is None:
        pytest.skip("the bits are right, but not compared with torch, which is not installed")
    assert report.counts["programs", "compared with torch"] == sum(report.attempts.values())


@pytest.mark.parametrize("part", range(2))
def test_stores_work_after_an_interrupt_at_any_point(part: int, attempt: Attempt) -> None:
    works = points("stores", STORE_POINTS, Random(SEED))
    if not LONG:
        works = Random(SEED).sample(works, 48)
    report = attempt(part_of(works, part, 2))
    assert report.counts["stores", "signals at points"]


@pytest.mark.parametrize("part", range(2))
def test_sessions_work_after_an_interrupt_at_any_point(part: int, attempt: Attempt) -> None:
    report = attempt(part_of(points("sessions", SESSION_POINTS, Random(SEED)), part, 2))
    assert report.counts["sessions", "signals at points"]


@pytest.mark.parametrize("part", range(2))
def test_sessions_work_after_signals_at_random_moments(part: int, attempt: Attempt) -> None:
    count = max(PROGRAMS // 20, len(cases("signals")))
    report = attempt(part_of(signals(count, SEED), part, 2))
    assert report.counts["signals", "signals"] == sum(report.attempts.values())
