"""Is the plan that `choose` finds as good as the best one?

    python -m benchmarks.bench_auto [--models gpt,mlp,resnet] [--parts 0.25,0.5] [--rates 4,1,0.2]

For each model, bound of memory and drive, four answers are replayed: the chosen plan; an integer
program over storages (`scipy.optimize.milp`), each to be kept, computed again or stored; an
exhaustive trial over the largest classes; and the best of the fixed policies. The plan should be
within 5% of the best answer, and within 2% of the fixed ones. In brackets is what the program
itself expects, without a queue, budgets and waits for single arrays. No step is timed: all four are
predictions from one recording and one model of the drive. The exit status is 1 if a plan misses.

    python -m benchmarks.bench_auto --real [--rounds 25]

trains: `offload("auto")`, and the fixed policies at the same bound, taking turns in random order on
this machine's drive. Times are medians over the rounds, of the second of two steps in a row. The
last line compares the steps of a round with those of the fixed policy that takes least: the median,
and in brackets the quartiles. Where auto chooses one of the fixed policies it shows what two runs
of one policy differ by.
"""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import click
import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from benchmarks._lib.recorded_models import SMALL
from offgrad import offload
from offgrad.memory import format_nbytes, parse_nbytes
from offgrad.memory.units import size_text
from offgrad.policies import Placement, Policy, Recompute, SaveContext, Spill, Store
from offgrad.prediction import Machine, Recording, choose, replay
from offgrad.prediction.choosing import (
    MIN_NBYTES,
    TensorClass,
    classes_of,
    fixed_policies,
    text_of,
)
from offgrad.prediction.known_machines import measured
from offgrad.prediction.recording import Kind, Recipe

_TRIED = 4  # classes of the exhaustive trial
_MAX_OFF, _MAX_OFF_FIXED = 0.05, 0.02


@dataclass
class ByStorage(Policy):
    """Places the saves of a replay by their numbers.

    Attributes:
        actions: by save, ``"keep"``, ``"store"`` or ``"recompute"``.
        nbytes: the bound.
    """

    actions: Sequence[str]
    nbytes: int
    _counts: dict[int, int] = field(default_factory=dict)

    def place(self, context: SaveContext) -> Placement | None:
        number = self._counts.get(context.step, 0)
        self._counts[context.step] = number + 1
        if context.is_parameter:
            return None
        action = self.actions[number]
        if action == "recompute" and context.recompute_ops:
            return Recompute()
        passing = self.nbytes // 8
        room = passing if action == "store" else self.nbytes - passing
        return Spill(Store("disk"), nbytes=room)

    def __str__(self) -> str:
        return "by storage"


def integer_program(recording: Recording, nbytes: int, machine: Machine) -> tuple[ByStorage, float]:
    """Return the best choice for each storage where time is what reads and writes cannot overlap;
    and that time, with that of computing.

    Variables: for each storage whether it is kept, and whether it is computed again; then the
    seconds for which forward waits for writes, and backward for reads.
    """
    owners = _owners(recording)
    storages = list(owners)
    sizes = np.array([recording.memories[each].nbytes for each in storages], float)
    costs = np.array([_cost(recording.saves[owners[each]].recipe) for each in storages])
    count = len(storages)
    forward = _begin_of_backward(recording)
    backward = max(recording.seconds - forward, 0.0)
    able = np.isfinite(costs)
    objective = np.concatenate([np.zeros(count), np.where(able, costs, 0.0), [1.0, 1.0]])
    each_once = np.hstack([np.eye(count), np.eye(count), np.zeros((count, 2))])
    room = np.concatenate([sizes, np.zeros(count + 2)])
    rows, lows = [], []
    for index, (rate, seconds) in enumerate(
        ((machine.write_rate, forward), (machine.read_rate, backward))
    ):
        # The wait is at least the time of all that is stored, less that of computing.
        wait = np.zeros(2)
        wait[index] = 1.0
        rows.append(np.concatenate([sizes / rate, sizes / rate, wait]))
        lows.append(sizes.sum() / rate - seconds)
    result = milp(
        objective,
        constraints=[
            LinearConstraint(each_once, 0, 1),
            LinearConstraint(room, 0, nbytes - nbytes // 8),
            LinearConstraint(np.array(rows), lows, np.inf),
        ],
        integrality=np.concatenate([np.ones(2 * count), np.zeros(2)]),
        bounds=Bounds(0, np.concatenate([np.ones(count), able.astype(float), [np.inf, np.inf]])),
        options={"time_limit": 20.0},
    )
    chosen: dict[int, str] = {}
    for position, storage in enumerate(storages):
        kept, again = result.x[position], result.x[count + position]
        chosen[storage] = "keep" if kept > 0.5 else "recompute" if again > 0.5 else "store"
    actions = [chosen.get(each.memory, "keep") for each in recording.saves]
    return ByStorage(actions, nbytes), recording.seconds + float(result.fun)


def _owners(recording: Recording) -> dict[int, int]:
    """Return by memory the first save of it, if it is large and no parameter."""
    owners: dict[int, int] = {}
    for number, each in enumerate(recording.saves):
        if not each.is_parameter and each.nbytes >= MIN_NBYTES:
            owners.setdefault(each.memory, number)
    return owners


def _cost(recipe: Recipe | None) -> float:
    if recipe is None:
        return float("inf")
    inner = [each for each in recipe.inputs if isinstance(each, Recipe)]
    return recipe.seconds + sum(map(_cost, inner))


def _begin_of_backward(recording: Recording) -> float:
    events = zip(recording.kinds, recording.times, strict=True)
    return next((when for kind, when in events if kind == Kind.BEGIN), recording.seconds)


def exhaustive(recording: Recording, nbytes: int, machine: Machine) -> float:
    """Return the least time of all decisions on the largest classes."""
    classes = [each for each in classes_of(recording) if each.nbytes][:_TRIED]
    best = float("inf")
    options = [("keep", *each.actions) for each in classes]
    for actions in itertools.product(*options):
        decisions: dict[TensorClass, tuple[str, float]] = {
            each: (action, 1.0) for each, action in zip(classes, actions, strict=True)
        }
        text = text_of(decisions, nbytes)
        best = min(best, replay(recording, text, machine=machine).seconds)
    return best


def check(recording: Recording, nbytes: int, machine: Machine) -> tuple[str, bool]:
    """Return a line of the table, and whether the plan is good enough."""

    def seconds(policy: Any) -> float:
        return replay(recording, policy, machine=machine).seconds

    plan = choose(recording, nbytes, machine=machine, max_seconds=60.0)
    fixed = min(seconds(each) for each in fixed_policies(nbytes))
    policy, ideal = integer_program(recording, nbytes, machine)
    program = seconds(policy)
    tried = exhaustive(recording, nbytes, machine)
    chosen, best = plan.predicted.seconds, min(program, tried, fixed)
    good = chosen <= best * (1 + _MAX_OFF) and chosen <= fixed * (1 + _MAX_OFF_FIXED)
    keep = seconds("keep")
    figures = " ".join(f"{each / keep:9.3f}" for each in (chosen, program, ideal, tried, fixed))
    return f"{figures}  {chosen / best - 1:+7.1%}  {'' if good else 'misses'}", good


def real(name: str, part: float, rounds: int) -> tuple[str, bool]:
    """Train under the plan and the fixed policies; return lines, and whether it is as good."""
    training = SMALL[name]()
    recording = training.record()
    nbytes = parse_nbytes(size_text(int(recording.saved_nbytes * part)))
    auto = offload("auto", budget=nbytes)
    while not auto.is_settled:
        training.step(auto)
    sessions = {"auto": auto} | {each: offload(each) for each in fixed_policies(nbytes)}
    times: dict[str, list[float]] = {each: [] for each in sessions}
    random = Random(0)
    for _ in range(rounds):
        for each, session in random.sample(list(sessions.items()), len(sessions)):
            training.step(session)
            times[each].append(training.step(session)[0])
    seconds = {each: float(np.median(found)) for each, found in times.items()}
    machine = measured()
    lines = [f"{name}, {format_nbytes(nbytes)}: {auto.policy}"]
    for each, took in seconds.items():
        policy = str(auto.policy) if each == "auto" else each
        expected = replay(recording, policy, machine=machine).seconds
        lines.append(f"  {each:34} {took:7.3f} s   predicted {expected:7.3f} s")
    best = min((each for each in seconds if each != "auto"), key=lambda each: seconds[each])
    ratios = np.divide(times["auto"], times[best]) - 1
    low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    lines.append(f"  {'to the best fixed policy':34} {median:+7.1%} ({low:+.1%} to {high:+.1%})")
    return "\n".join(lines), bool(median <= _MAX_OFF_FIXED)


def _recorded(name: str) -> Recording:
    return SMALL[name]().record()


@click.command()
@click.option("--models", default=",".join(SMALL), show_default=True)
@click.option("--parts", default="0.25,0.5", show_default=True, help="Bounds, of what is saved.")
@click.option("--rates", default="4,1,0.2", show_default=True, help="Of the drive, in GB/s.")
@click.option("--real", "is_real", is_flag=True, help="Time steps instead of predicting them.")
@click.option("--rounds", default=25, show_default=True, help="With --real.")
def main(models: str, parts: str, rates: str, is_real: bool, rounds: int) -> None:
    """Print a table, times as ratios to keep."""
    is_good = True
    if is_real:
        for name, part in itertools.product(models.split(","), map(float, parts.split(","))):
            line, good = real(name, part, rounds)
            is_good = is_good and good
            click.echo(line)
        sys.exit(not is_good)
    click.echo(
        f"{'':34} {'chosen':>9} {'milp':>9} {'(alone)':>9} {'trial':>9} {'fixed':>9}  to best"
    )
    for name in models.split(","):
        recording = _recorded(name)
        for part in map(float, parts.split(",")):
            nbytes = int(recording.saved_nbytes * part)
            for rate in map(float, rates.split(",")):
                machine = Machine().with_bandwidth(rate * 1e9)
                line, good = check(recording, nbytes, machine)
                is_good = is_good and good
                what = f"{name}, {format_nbytes(nbytes)}, {rate:g} GB/s"
                click.echo(f"{what:34} {line}")
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
