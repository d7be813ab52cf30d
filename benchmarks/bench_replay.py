"""Does a replay predict the peaks and times of real steps?

    python -m benchmarks.bench_replay [--models gpt,mlp,resnet] [--rounds 9] [--throttle 200MB/s]

Each model is recorded, then trained under each policy, the policies taking turns; the drive is
measured in the same run. With a throttle its files take the time of a slow drive, so that other
load on the machine matters less. The table has both sides: memory as the exact peak of tensor
memory, times as minima over the rounds. The recording is scaled to the least time of `keep`.
"""

import statistics
from contextlib import nullcontext
from dataclasses import dataclass, replace

import click

import offgrad
from benchmarks._lib.recorded_models import MODELS, SMALL, Training
from benchmarks._lib.throttled_drive import throttled
from offgrad.prediction import Machine, Recording, Replay
from offgrad.prediction import replay as replay_policy
from offgrad.prediction.machine import parse_rate
from offgrad.prediction.measurements import measure
from offgrad.prediction.recording import Recipe

_MIB = 1 << 20
_PARTS = (0.25, 0.5)


@dataclass
class Row:
    """One policy, real and predicted."""

    policy: str
    seconds: float
    peak_nbytes: int
    predicted: Replay


def rows_of(training: Training, rounds: int, machine: Machine) -> list[Row]:
    """Train a model under each policy, and predict the same."""
    recording = training.record()
    budgets = [f"budget:{int(recording.saved_nbytes * part) // _MIB}MiB" for part in _PARTS]
    policies = ["keep", "disk", "pool", *budgets, "last:8", "recompute,then=disk"]
    sessions = {policy: offgrad.offload(policy) for policy in policies}
    seconds: dict[str, list[float]] = {policy: [] for policy in policies}
    peaks: dict[str, list[int]] = {policy: [] for policy in policies}
    for _ in range(rounds + 2):
        for policy, session in sessions.items():
            training.step(session)  # memory is mapped for this policy
            took, peak = training.step(session)
            seconds[policy].append(took)
            peaks[policy].append(peak)
    scaled = _scaled(recording, min(seconds["keep"][2:]))
    return [
        Row(
            policy,
            min(seconds[policy][2:]),
            int(statistics.median(peaks[policy][2:])),
            replay_policy(scaled, policy, machine=machine),
        )
        for policy in policies
    ]


def _scaled(recording: Recording, seconds: float) -> Recording:
    """Return the recording of a step that takes so long: other load may have slowed it."""
    factor = seconds / recording.seconds

    def cheaper(recipe: Recipe | None) -> Recipe | None:
        if recipe is None:
            return None
        inputs = [cheaper(each) if isinstance(each, Recipe) else each for each in recipe.inputs]
        return replace(recipe, seconds=recipe.seconds * factor, inputs=inputs)

    return replace(
        recording,
        seconds=seconds,
        times=[each * factor for each in recording.times],
        saves=[replace(each, recipe=cheaper(each.recipe)) for each in recording.saves],
    )


def table(model: str, rows: list[Row]) -> str:
    """Return lines of text."""
    lines = [
        f"{model:22} {'peak':>8} {'predicted':>10} {'off':>7}   "
        f"{'time':>7} {'predicted':>10} {'off':>7}"
    ]
    for row in rows:
        peak = row.predicted.peak_nbytes / row.peak_nbytes - 1
        real, predicted = row.seconds, row.predicted.seconds
        lines.append(
            f"{row.policy:22} {row.peak_nbytes / _MIB:8.1f} "
            f"{row.predicted.peak_nbytes / _MIB:10.1f} {peak:+7.1%}   {real:7.3f} "
            f"{predicted:10.3f} {predicted / real - 1:+7.1%}"
        )
    return "\n".join(lines)


@click.command()
@click.option("--models", default=",".join(MODELS), show_default=True)
@click.option("--rounds", default=9, show_default=True)
@click.option("--throttle", help="A rate that the drive does not exceed, such as 200MB/s.")
@click.option("--small", is_flag=True, help="Models that take less time.")
def main(models: str, rounds: int, throttle: str | None, small: bool) -> None:
    """Print a table for each model."""
    with nullcontext() if throttle is None else throttled(parse_rate(throttle)):
        machine = measure()
        click.echo(
            f"drive: writes {machine.write_rate / 1e9:.2f} GB/s, "
            f"reads {machine.read_rate / 1e9:.2f}"
        )
        for model in models.split(","):
            training = (SMALL if small else MODELS)[model]()
            click.echo(table(model, rows_of(training, rounds, machine)))


if __name__ == "__main__":
    main()
