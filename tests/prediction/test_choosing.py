"""Chosen plans: within the bound, no slower than fixed policies, as text, with the same bits."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import memory, nn
from offgrad.cli.compare.gpt import GPT, VOCABULARY, GPTConfig
from offgrad.memory.units import size_text
from offgrad.policies import Recompute, SaveContext, Spill, parse_policy
from offgrad.prediction import (
    AutoSession,
    Machine,
    Recording,
    Replay,
    SaveRecorder,
    choose,
    replay,
)
from offgrad.prediction.choosing import classes_of, family_of, fixed_policies, text_of
from offgrad.prediction.known_machines import cache_file, measured
from offgrad.prediction.machine import parse_rate

SLOW = Machine(write_rate=2e7, read_rate=2e7)


class Trained:
    """A small GPT."""

    def __init__(self) -> None:
        offgrad.manual_seed(0)
        self.model = GPT(GPTConfig(2, 64, 2, 64, dropout=0.1))
        sample = offgrad.randint(0, VOCABULARY, (8, 65))
        self.tokens, self.targets = sample[:, :-1].clone(), sample[:, 1:].clone()

    def step(self, session: Any) -> list[Any]:
        """Train a step without an update; return the bytes of loss and gradients."""
        offgrad.manual_seed(1)
        self.model.zero_grad()
        with session:
            loss = self.model.loss(self.tokens, self.targets)
        loss.backward()
        gradients = [each.grad for each in self.model.parameters()]
        return [loss.item(), *(each.numpy().tobytes() for each in gradients if each is not None)]


@pytest.fixture(autouse=True)
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offgrad.prediction.auto._MAX_SEARCH_SECONDS", 0.5)


@pytest.fixture(scope="module")
def recording() -> Recording:
    trained = Trained()
    with SaveRecorder() as recorder:
        trained.step(offgrad.offload("keep"))
    return recorder.recording


def test_classes(recording: Recording) -> None:
    assert family_of("blocks.3.mlp2.0") == "blocks.*.mlp2.*"
    found = {(each.op, each.slot, each.family): each for each in classes_of(recording)}
    gelu = found["GeluBackward0", "self", "blocks.*.gelu"]
    assert gelu.modules == ("blocks.0.gelu", "blocks.1.gelu")
    assert gelu.tensors == 2
    assert gelu.nbytes == 2 * 8 * 64 * 256 * 4
    assert gelu.recompute_seconds is None
    contract = found["AddmmBackward0", "mat1", "blocks.*.contract"]
    assert contract.recompute_seconds is not None
    total = sum(each.nbytes for each in found.values())
    assert total <= recording.saved_nbytes


@pytest.mark.parametrize("part", [0.2, 0.5, 2.0])
def test_a_plan_is_no_slower_than_fixed_policies(part: float, recording: Recording) -> None:
    nbytes = int(recording.saved_nbytes * part)
    plan = choose(recording, nbytes, machine=SLOW, max_seconds=0.5)
    fixed = [replay(recording, each, machine=SLOW).seconds for each in fixed_policies(nbytes)]
    assert plan.predicted.seconds <= min(fixed) * 1.02
    assert str(nbytes) in str(plan.predicted.policy) or "budget" in str(plan)
    again = replay(recording, parse_policy(str(plan)), machine=SLOW)
    assert again.peak_nbytes == plan.predicted.peak_nbytes
    assert str(plan) in plan.explain()


def test_every_answer_is_within_the_bound(recording: Recording) -> None:
    nbytes = recording.saved_nbytes // 4
    plan = choose(recording, nbytes, machine=SLOW, max_seconds=0.5)
    rooms = {}
    for number, save in enumerate(recording.saves):
        context = SaveContext(
            op=save.op, slot=save.slot, module=save.module, dtype=np.dtype(np.float32),
            shape=save.shape, nbytes=save.nbytes, is_parameter=save.is_parameter,
            is_output=save.is_output,
            storage=number, step=0, recompute_ops=int(save.recipe is not None),
        )  # fmt: skip
        placement = plan.place(context)
        if save.is_parameter:
            assert placement is None
        else:
            assert isinstance(placement, Spill | Recompute)
        if isinstance(placement, Spill):
            rooms[placement] = placement.nbytes
    assert sum(each or 0 for each in rooms.values()) <= nbytes


@pytest.mark.parametrize(
    ("budget", "shown"),
    [("100KiB", "store +5 "), ("600KiB", "keep +[12] of 5 "), ("2MiB", "keep +5 ")],
)
def test_what_has_no_room_is_not_said_to_be_kept(budget: str, shown: str) -> None:
    layers = [each for _ in range(5) for each in (nn.Linear(256, 256), nn.Tanh())]
    model = nn.Sequential(*layers)
    x = offgrad.randn(256, 256)
    with SaveRecorder(model=model) as recorder:
        model(x).sum().backward()
    plan = choose(recorder.recording, budget, machine=SLOW, max_seconds=0.5)
    choices = [each for each in plan.choices if each.op == "TanhBackward0"]
    assert re.match(shown, str(choices[0]).strip())
    assert sum(each.chosen for each in choices) == 5
    assert sum(each.nbytes for each in choices) == 5 * 256 * 256 * 4
    assert len({each.action for each in choices}) == len(choices)
    assert all(each.nbytes for each in plan.choices)


def test_of_plans_that_take_the_same_time_one_writes_least(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    def equally_fast(_: Recording, policy: str, **options: object) -> Replay:
        written = 1000 - 10 * policy.count("recompute,")
        seconds = 1.0 if written > 980 else 1.001
        return Replay(policy, 0, seconds, 0.0, 0.0, written, written, 0)

    monkeypatch.setattr("offgrad.prediction.choosing.replay", equally_fast)
    able = [each for each in classes_of(recording) if each.recompute_seconds is not None]
    plan = choose(recording, recording.saved_nbytes // 4)
    assert len(able) > 2
    assert plan.predicted.written_nbytes == 1000 - 10 * len(able)


def test_a_late_search_gives_a_plan(recording: Recording) -> None:
    plan = choose(recording, "256KiB", machine=SLOW, max_seconds=1e-9)
    assert parse_policy(str(plan)).lossless


def test_auto_has_the_bits_of_keep() -> None:
    trained = Trained()
    expected = trained.step(offgrad.offload("keep"))
    session = AutoSession("auto", budget="1MiB", bandwidth="200MB/s")
    assert "0 of 2 steps" in session.explain()
    for _ in range(4):
        assert trained.step(session) == expected
    assert session.chosen is not None
    assert "Held for backward" in session.explain()
    assert session.ledger.saves > 0
    assert trained.step(offgrad.offload(str(session.policy))) == expected


def test_auto_records_steps_that_end_in_backward() -> None:
    trained = Trained()
    session = AutoSession(budget="1MiB", bandwidth="1GB/s")
    with session, offgrad.no_grad():
        trained.model(trained.tokens)
    with pytest.raises(RuntimeError), session:  # noqa: PT012
        hidden = trained.model(trained.tokens)
        hidden @ offgrad.ones(3)
    with session:
        trained.model(trained.tokens)  # its graph dies
    assert "0 of 2" in session.explain()
    trained.step(session)
    assert "1 of 2" in session.explain()
    trained.step(offgrad.offload("disk"))
    trained.step(session)
    with session:
        pass
    assert session.chosen is not None


def test_auto_in_one_block_around_all_steps() -> None:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
    x, peaks = offgrad.ones(1024, 256), []

    def step() -> list[bytes]:
        memory.reset_peak()
        model.zero_grad()
        model(x).sum().backward()
        peaks.append(memory.max_allocated())
        return [each.grad.numpy().tobytes() for each in model.parameters()]  # type: ignore[union-attr]

    expected, expected_peak = step(), peaks[-1]
    with AutoSession(budget="1MiB", bandwidth="1GB/s") as session:
        for _ in range(2):
            assert step() == expected
        assert session.chosen is None
        for _ in range(2):
            assert step() == expected
            assert session.chosen is not None
    # 7 MiB are saved. Two arrays may be in flight, two prefetched.
    assert max(peaks[1:]) <= expected_peak - (2 << 20)


def test_auto_records_within_the_memory_limit() -> None:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(12)))
    x = offgrad.ones(1024, 256)
    session = AutoSession(budget="1GiB", bandwidth="1GB/s")
    with memory.limit(memory.allocated() + (11 << 20)):
        for _ in range(3):
            with session:
                model.zero_grad()
                model(x).sum().backward()
    assert session.chosen is not None


def test_an_interrupted_choice_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Trained()
    session = AutoSession(budget="1MiB", bandwidth="1GB/s")
    for _ in range(2):
        trained.step(session)
    with monkeypatch.context() as patch:
        patch.setattr("offgrad.prediction.auto.choose", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            trained.step(session)
    trained.step(session)
    assert session.chosen is not None


def _interrupt(*args: object, **kwargs: object) -> None:
    raise KeyboardInterrupt


def test_a_budget_of_a_byte_is_shared_by_rules(recording: Recording) -> None:
    text = text_of({classes_of(recording)[0]: ("store", 1.0)}, 1)
    assert parse_policy(text).lossless


def test_auto_inside_a_module() -> None:
    model = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128))
    session = AutoSession(budget="64KiB", module=model[1], bandwidth=1e9)
    for _ in range(3):
        with session:
            loss = model(offgrad.ones(256, 128)).sum()
        loss.backward()
    assert session.chosen is not None
    assert {each.op for each in session.chosen.choices} <= {"GeluBackward0"}


def test_offload_makes_one() -> None:
    assert isinstance(offgrad.offload("auto", budget="1MiB"), AutoSession)
    assert isinstance(
        offgrad.offload(policy="auto", budget=1 << 20), offgrad.session.OffloadSession
    )


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="auto needs the bound"):
        offgrad.offload("auto")
    with pytest.raises(ValueError, match="a size is a number"):
        offgrad.offload("auto", budget="much")
    with pytest.raises(ValueError, match="budget= is for the policy 'auto'"):
        offgrad.offload("disk", budget="1MiB")
    with pytest.raises(ValueError, match="a bandwidth is"):
        AutoSession(budget="1MiB", bandwidth="fast")


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1GB/s", 1e9), ("250 MB/s", 2.5e8), ("1GiB/s", 1 << 30), (5e6, 5e6), ("1e9", 1e9)],
)
def test_rates(text: Any, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1", 0, "0GB/s", "nan", "inf"])
def test_wrong_rates(text: Any) -> None:
    with pytest.raises(ValueError, match="a bandwidth is"):
        parse_rate(text)


def test_a_drive_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("offgrad.prediction.measurements._NBYTES", 8 << 20)
    machine = measured(tmp_path)
    assert machine.write_rate > 0
    assert machine.read_rate > 0
    assert measured(tmp_path) == machine
    cache_file().write_text("garbage")
    assert measured(tmp_path).copy_rate > 0


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (1, "1B"), (1500, "1500B"), (64 << 10, "64KiB"), (15 << 20, "15MiB"),
        (60_200_000, "57.4MiB"), (3 << 19, "1.5MiB"), (1_100_000, "1074.2KiB"), (1 << 40, "1TiB"),
    ],
)  # fmt: skip
def test_sizes_are_short_and_hold_the_bound(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text
    assert 0.99 * nbytes <= memory.parse_nbytes(text) <= nbytes
