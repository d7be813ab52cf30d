"""The driver of the stress run reports each way to fail, and continues."""

import pytest

from tests.stress import driver
from tests.stress.failing import CASES
from tests.stress.table import table
from tests.stress.works import cases, programs


@pytest.mark.slow
def test_every_failure_is_reported_with_its_number() -> None:
    works = [driver.Work("failing", case, 0, 100, seconds=2) for case in CASES]
    seen: list[int] = []
    report = driver.run(works, show=lambda report: seen.append(len(report.failures)))
    assert {each.case: each.number for each in report.failures} == {
        "differs": 1,
        "hangs": 1,
        "crashes": 1,
        "raises": 1,
        "ends": 3,
    }
    assert seen == [1, 2, 3, 4, 5, 5], "each is shown at once"
    reasons = {each.case: each.reason for each in report.failures}
    assert reasons["differs"] == "other bits"
    assert reasons["hangs"] == "exit status 1"
    assert reasons["crashes"] == "exit status -11"
    assert reasons["raises"] == "ZeroDivisionError"
    assert reasons["ends"] == "exit status 1"
    (hung,) = (each for each in report.failures if each.case == "hangs")
    assert "failing.py" in hung.text, "the place where it hangs"
    assert report.attempts["failing", "differs"] == 4, "the attempts after a failure"
    assert report.counts["failing", "attempts"] >= 17
    assert "hangs, 1: exit status 1" in table(report)


def test_works_cover_all_numbers_once() -> None:
    made = [
        (each.case, number)
        for each in programs(20_000, seed=3)
        for number in range(each.first, each.stop)
    ]
    assert len(made) == len(set(made)) == 20_000
    assert {case for case, _ in made} == set(cases("programs"))
