"""Trials: each plan in turn, the slow ones leave, the fastest stays; with the bits of keep."""

import itertools
import warnings
from collections import Counter

import pytest

import offgrad
from offgrad import nn
from offgrad.prediction import AutoSession, Plan, Replay
from offgrad.prediction.choosing import fixed_policies
from offgrad.prediction.trial import Trial, typical
from tests.prediction.test_choosing import Trained

NBYTES = 1 << 20


def predicted(policy: str, seconds: float) -> Replay:
    return Replay(policy, 0, seconds, 0.0, 0.0, 0, 0, 0)


def plan(*others: float) -> Plan:
    """Return a plan of 1 s, compared with fixed policies of so many seconds."""
    pairs = zip(fixed_policies(NBYTES), others, strict=False)
    keep = predicted("keep", 0.5)  # does not hold the bound
    replays = [keep, *(predicted(policy, seconds) for policy, seconds in pairs)]
    return Plan("disk", NBYTES, predicted("disk", 1.0), replays)


def run(trial: Trial, seconds: dict[str, float]) -> Counter[str]:
    """Take steps until the trial is over; return how many each policy had."""
    counts: Counter[str] = Counter()
    while not trial.is_over:
        counts[str(trial.plan)] += 1
        trial.note(seconds[str(trial.plan)])
        assert sum(counts.values()) < 100
    return counts


def test_the_fastest_of_the_measured_plans_stays() -> None:
    budget, recompute, *_ = fixed_policies(NBYTES)
    trial = Trial(plan(1.1, 1.2))
    counts = run(trial, {"disk": 1.0, budget: 0.95, recompute: 0.97})
    assert str(trial.plan) == str(trial.best) == budget
    assert counts == {"disk": 6, budget: 6, recompute: 6}
    assert any(budget in line and "0.950" in line for line in trial.lines())


def test_plans_of_short_steps_have_more_rounds() -> None:
    budget, recompute, *_ = fixed_policies(NBYTES)
    counts = run(Trial(plan(1.1, 1.2)), {"disk": 0.01, budget: 0.0098, recompute: 0.0099})
    assert counts == {"disk": 20, budget: 20, recompute: 20}
    counts = run(Trial(plan(1.1)), {"disk": 0.25, budget: 0.25})
    assert counts == {"disk": 10, budget: 10}


def test_slow_plans_leave_after_a_round() -> None:
    budget, recompute, *_ = fixed_policies(NBYTES)
    trial = Trial(plan(1.1, 1.2))
    counts = run(trial, {"disk": 1.0, budget: 2.0, recompute: 0.97})
    assert str(trial.plan) == recompute
    assert counts == {"disk": 6, budget: 2, recompute: 6}


def test_a_step_that_is_slow_by_chance_decides_nothing() -> None:
    budget = fixed_policies(NBYTES)[0]
    trial, numbers = Trial(plan(1.1)), itertools.count()
    while not trial.is_over:
        name = str(trial.plan)
        is_slow = name == budget and next(numbers) in (1, 9)
        trial.note({"disk": 0.02, budget: 0.019}[name] * (1.25 if is_slow else 1))
    assert str(trial.best) == budget


def test_the_time_of_a_plan_leaves_out_its_slowest_quarter() -> None:
    assert typical([]) == float("inf")
    assert typical([3.0]) == typical([3.0, 4.0]) == 3.0
    assert typical([1.0, 9.0, 2.0, 3.0]) == 2.0


def test_only_plans_that_may_be_as_fast_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert Trial(plan()).is_over
    trial = Trial(plan(1.5))
    assert trial.is_over
    assert str(trial.plan) == "disk"


def test_a_first_step_after_another_plan_does_not_count() -> None:
    trial = Trial(plan(1.1))
    seconds = itertools.cycle([0.1, 1.0])  # the first steps are fast by chance
    while not trial.is_over:
        trial.note(next(seconds) if str(trial.plan) == "disk" else 0.9)
    assert str(trial.plan) == fixed_policies(NBYTES)[0]


@pytest.fixture(autouse=True)
def all_plans_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is predicted for the plans does not exclude one, and no search takes long."""
    monkeypatch.setattr("offgrad.prediction.auto._MAX_SEARCH_SECONDS", 0.5)
    monkeypatch.setattr("offgrad.prediction.trial._MAX_PREDICTED", 1000.0)


@pytest.mark.parametrize("in_one_block", [False, True])
def test_a_session_tries_plans_with_the_bits_of_keep(in_one_block: bool) -> None:
    trained = Trained()
    expected = trained.step(offgrad.offload("keep"))
    session = AutoSession(budget="1MiB")
    seen = set()

    def steps() -> None:
        for _ in range(2 + 20 * 5 + 1):
            assert trained.step(session) == expected
            seen.add(str(session.policy))

    if in_one_block:
        with session:
            steps()
    else:
        steps()
    assert session.is_settled
    assert session.chosen is not None
    assert str(session.policy) == str(session.chosen)
    assert len(seen - {"auto, budget:1MiB"}) >= 2
    assert set(fixed_policies(1 << 20)) <= seen | {str(session.chosen)}
    assert session.explain().count("measured") >= 2


def test_other_steps_do_not_count_and_end_the_trial() -> None:
    trained = Trained()
    session = AutoSession(budget="1MiB")
    for _ in range(3):
        trained.step(session)
    first = session.chosen
    assert not session.is_settled
    layer = nn.Linear(256, 256)
    for _ in range(20):
        with session:
            loss = layer(offgrad.ones(256, 256)).sum()
        loss.backward()
    assert session.is_settled
    assert session.chosen is first


def test_a_failed_step_does_not_count() -> None:
    trained = Trained()
    expected = trained.step(offgrad.offload("keep"))
    session = AutoSession(budget="1MiB")
    for _ in range(4):
        trained.step(session)
    with pytest.raises(RuntimeError), session:  # noqa: PT012
        trained.model.loss(trained.tokens, trained.targets)
        offgrad.ones(2) @ offgrad.ones(3)
    while not session.is_settled:
        assert trained.step(session) == expected
    assert session.explain().count("measured") >= 2


def test_without_need_nothing_is_tried() -> None:
    trained = Trained()
    session = AutoSession(budget="1GiB")
    for _ in range(3):
        trained.step(session)
    assert session.is_settled
    assert "measured" not in session.explain()


def test_a_given_bandwidth_is_of_another_drive() -> None:
    trained = Trained()
    session = AutoSession(budget="1MiB", bandwidth="200MB/s")
    for _ in range(3):
        trained.step(session)
    assert session.is_settled


def test_a_session_for_each_step_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutoSession, "_beginnings", 0)
    trained = Trained()
    sessions = [AutoSession(budget="1MiB", bandwidth="1GB/s") for _ in range(10)]
    for each in sessions[:4] * 2:  # of four models, say
        trained.step(each)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for each in sessions[4:]:
            with each:
                loss = trained.model.loss(trained.tokens, trained.targets)
            loss.backward()
    assert ["make the session once" in str(each.message) for each in caught] == [True]
    assert [each.filename for each in caught] == [__file__]
