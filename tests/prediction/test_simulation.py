"""Replays: peaks as in real steps; time and bytes follow from the model of the drive."""

from typing import Any

import pytest

import offgrad
from offgrad import memory, nn
from offgrad.policies import Keep, Policy, Store
from offgrad.prediction import Machine, Recording, SaveRecorder, replay
from offgrad.prediction.drive import Drive

FAST = Machine(write_rate=1e12, read_rate=1e12, write_seconds=0.0, read_seconds=0.0)
SLOW = Machine(write_rate=1e8, read_rate=1e8)


class Trained:
    """A chain of layers, recorded once."""

    def __init__(self) -> None:
        offgrad.manual_seed(0)
        layers: list[Any] = []
        for _ in range(6):
            layers += [nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()]
        self.model = nn.Sequential(*layers)
        self.x = offgrad.randn(1100, 256)
        self.step("keep")
        with SaveRecorder() as recorder:
            self.step("keep")
        self.recording = recorder.recording

    def step(self, policy: Any) -> int:
        """Train a step; return its peak."""
        memory.reset_peak()
        with offgrad.offload(policy):
            loss = self.model(self.x).square().mean()
        loss.backward()
        self.model.zero_grad()
        return memory.max_allocated()


@pytest.fixture(scope="module")
def trained() -> Trained:
    return Trained()


@pytest.fixture
def recording(trained: Trained) -> Recording:
    return trained.recording


@pytest.mark.parametrize(
    "policy",
    ["keep", "pool", "recompute", "recompute,then=pool", "budget:2MiB,spill=pool", "cast:float16",
     "cast:int8", "pool:bfloat16"],
)  # fmt: skip
def test_a_peak_without_a_drive_is_exact(policy: str, trained: Trained) -> None:
    real = max(trained.step(policy) for _ in range(2))
    predicted = replay(trained.recording, policy).peak_nbytes
    assert predicted == pytest.approx(real, rel=0.02)


def test_a_replay_leaves_no_memory_behind(recording: Recording) -> None:
    memory.reset_peak()
    before = memory.allocated()
    replay(recording, "disk")
    assert memory.allocated() == before
    assert memory.max_allocated() <= before + 4 * memory.POOL_THRESHOLD


def test_bytes_of_a_replay(recording: Recording) -> None:
    kept, stored = (
        replay(recording, "keep"),
        replay(recording, "disk", machine=FAST, prefetch_nbytes="2MiB"),
    )
    assert kept.kept_nbytes > 0
    assert kept.written_nbytes == kept.read_nbytes == 0
    assert kept.stall_seconds == 0.0
    assert 0 < stored.written_nbytes <= recording.saved_nbytes
    assert stored.peak_nbytes < kept.peak_nbytes


@pytest.mark.parametrize(
    "policy",
    ["disk", "disk,min=0", "recompute,op=Gelu;disk,min=0", "budget:1MiB", "disk:int8,min=0",
     "cast:bfloat16,then=disk"],
)  # fmt: skip
@pytest.mark.parametrize("rows", [60, 1100])
def test_bytes_are_those_of_the_ledger(policy: str, rows: int, trained: Trained) -> None:
    x = trained.x[:rows].clone()

    def step(policy: Any) -> Any:
        with offgrad.offload(policy) as session:
            loss = trained.model(x).square().mean()
        loss.backward()
        trained.model.zero_grad()
        return session.ledger

    with SaveRecorder() as recorder:
        step("keep")
    predicted = replay(recorder.recording, policy, machine=FAST, rounds=1)
    real = step(policy)
    if policy != "budget:1MiB":  # what a budget evicts, depends on when writes end
        assert predicted.read_nbytes == real.read_nbytes
        # The ledger misses large arrays that were freed before it looked at their writes.
        assert real.written_nbytes <= predicted.written_nbytes <= predicted.read_nbytes
        # Small arrays are in a pack at once, but for encoded ones: backward may be there before.
        is_encoded = "int8" in policy or "bfloat16" in policy
        assert rows > 60 or is_encoded or real.written_nbytes == predicted.written_nbytes
    assert (predicted.written_nbytes > 0) == (real.written_nbytes > 0)


def test_codecs_whose_bytes_depend_on_values_are_named(recording: Recording) -> None:
    plain, encoded = replay(recording, "disk"), replay(recording, "disk:lz4")
    assert encoded.written_nbytes == plain.written_nbytes
    assert encoded.notes == (
        "disk:lz4: bytes after encoding depend on values; counted as if not encoded",
    )
    assert plain.notes == replay(recording, "cast:int8,then=disk").notes == ()


def test_a_slow_drive_costs_time(recording: Recording) -> None:
    results = [replay(recording, "budget:4MiB", bandwidth=rate) for rate in (1e8, 1e9, 1e11)]
    times = [each.seconds for each in results]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]
    assert results[0].stall_seconds > 0.0


def test_a_budget_holds(recording: Recording) -> None:
    rest = max(
        value for kind, value in zip(recording.kinds, recording.values, strict=True) if not kind
    )
    for nbytes in (1 << 20, 4 << 20):
        predicted = replay(recording, f"budget:{nbytes}", machine=SLOW)
        assert predicted.peak_nbytes <= rest + nbytes + (32 << 20)


def test_recomputation_takes_its_time(recording: Recording) -> None:
    predicted = replay(recording, "recompute")
    assert predicted.recompute_seconds > 0.0
    assert predicted.peak_nbytes < replay(recording, "keep").peak_nbytes


def test_a_custom_policy_decides(recording: Recording) -> None:
    class NormsToDisk(Policy):
        def place(self, context: Any) -> Any:
            return Store("disk") if "Norm" in context.op and not context.is_parameter else Keep()

    predicted = replay(recording, NormsToDisk(), machine=FAST)
    norms = [each for each in recording.saves if "Norm" in each.op and not each.is_parameter]
    assert 0 < predicted.written_nbytes <= sum(each.nbytes for each in norms) + (1 << 20)


def test_wrong_policies(recording: Recording) -> None:
    with pytest.raises(ValueError, match="unknown policy"):
        replay(recording, "dsik")
    with pytest.raises(TypeError, match="a policy is"):
        replay(recording, 3)


def test_a_drive_works_while_the_program_computes() -> None:
    drive = Drive(Machine(write_rate=100.0, read_rate=50.0, write_seconds=0.0, read_seconds=0.0))
    ended: list[str] = []
    drive.write(100, lambda: True, lambda: ended.append("first"))
    drive.write(100, lambda: True, lambda: ended.append("second"))
    job = drive.read(50, lambda: ended.append("read"))
    drive.compute(1.5)
    assert ended == ["first"]  # then the read goes before the second write
    assert drive.wait_for(lambda: job.is_done)
    assert (drive.now, drive.stall_seconds) == (2.0, 0.5)
    drive.finish()
    assert ended == ["first", "read", "second"]
    assert drive.stall_seconds == 0.5


def test_computing_is_slower_beside_a_busy_drive() -> None:
    machine = Machine(write_rate=100.0, write_seconds=0.0, write_load=2e-3)
    drive = Drive(machine)
    drive.write(100, lambda: True, lambda: None)
    drive.compute(2.0)
    assert drive.now == pytest.approx(2.2)
    drive.write(100, lambda: True, lambda: None)
    drive.wait_for(lambda: not drive.is_writing, for_write=True)
    assert drive.now == pytest.approx(3.2)  # nothing was computed beside the second


def test_a_drive_is_slower_beside_computing() -> None:
    drive = Drive(Machine(write_rate=100.0, write_seconds=0.0, write_factor=2.0))
    job = drive.write(100, lambda: True, lambda: None)
    drive.compute(0.5)
    drive.compute(0.5)
    assert not job.is_done
    drive.wait_for(lambda: job.is_done)
    assert (drive.now, drive.stall_seconds) == (1.5, 0.5)
    drive.write(100, lambda: True, lambda: None)
    drive.compute(2.0)
    assert not drive.is_writing
    assert drive.now == 3.5


def test_an_array_alone_takes_longer_than_one_after_another() -> None:
    drive = Drive(Machine(write_rate=100.0, write_seconds=0.0, write_latency=1.0))
    for _ in range(3):
        drive.write(100, lambda: True, lambda: None)
    drive.finish()
    assert drive.now == pytest.approx(2.0 + 1.0 + 1.0)
