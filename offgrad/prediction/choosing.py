"""choose: for each class of saved tensors keep, recompute, encode or store, by replays.

A class is an op, a slot and modules that differ in numbers alone. What is kept shares one budget,
what is stored another of an eighth of the bound, through which it passes on its way to the drive:
both budgets together are the bound, so each plan keeps it whatever a step saves. What a budget has
no room for goes to the drive, too.

The search begins with the fixed policies. It lets classes be recomputed, the cheapest for each byte
first, then changes one class at a time, whole or in part, while that saves time, or writes less in
the same time.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from offgrad import memory
from offgrad.memory.units import size_text
from offgrad.prediction.machine import Machine
from offgrad.prediction.plan import Choice, Plan
from offgrad.prediction.recording import Recipe, Recording, SavedTensorRecord
from offgrad.prediction.simulation import Replay, replay

MAX_SECONDS = 20.0
"""The search ends after so many seconds with the best plan so far."""
MIN_NBYTES = 64 << 10
_PARTS = (0.25, 0.5, 0.75, 1.0)
_MIN_GAIN = 0.002  # of a step; less is no reason for one more rule, and counts as the same time


@dataclass(frozen=True)
class TensorClass:
    """Saved tensors of one op and slot, in modules that differ in numbers alone.

    Attributes:
        op, slot: that save them.
        family: the name of the modules, with ``*`` for numbers.
        modules: their names, in the order of the first save.
        tensors: how many.
        arrays: how many of them are the first to save their memory, by module.
        nbytes: of them, where memory that is saved several times counts once, in its first class.
        recompute_seconds: to compute all of them again; None if that is not possible.
        max_ops: the operations that one takes.
        codec: a lossless one that makes them smaller; None if none is known.
    """

    op: str
    slot: str
    family: str
    modules: tuple[str, ...]
    tensors: int
    arrays: tuple[int, ...]
    nbytes: int
    recompute_seconds: float | None
    max_ops: int
    codec: str | None

    @property
    def actions(self) -> tuple[str, ...]:
        """What a plan may do with it, besides keeping it."""
        wanted = {"recompute": self.recompute_seconds is not None, "encode": self.codec is not None}
        return (*(each for each, possible in wanted.items() if possible), "store")


Decisions = Mapping[TensorClass, tuple[str, float]]
"""By class, an action, and the part of its modules to which it applies, the first ones."""


def classes_of(recording: Recording) -> list[TensorClass]:
    """Return the classes of the saved tensors that are large enough for a policy, largest first."""
    groups: dict[tuple[str, str, str], list[SavedTensorRecord]] = defaultdict(list)
    first: dict[int, int] = {}
    for number, save in enumerate(recording.saves):
        if not save.is_parameter and save.nbytes >= MIN_NBYTES:
            first.setdefault(save.memory, number)
            groups[save.op, save.slot, family_of(save.module)].append(save)
    owners = {number: recording.saves[number] for number in first.values()}
    found = []
    for (op, slot, family), saves in groups.items():
        own = [each for each in owners.values() if any(each is one for one in saves)]
        modules = tuple(dict.fromkeys(each.module for each in saves))
        recipes = [each.recipe for each in saves if each.recipe is not None]
        all_recipes = len(recipes) == len(saves)
        codecs = [set(each.ratios) for each in saves]
        shared = set.intersection(*codecs)
        found.append(
            TensorClass(
                op=op,
                slot=slot,
                family=family,
                modules=modules,
                tensors=len(saves),
                arrays=tuple(sum(one.module == each for one in own) for each in modules),
                nbytes=sum(recording.memories[each.memory].nbytes for each in own),
                recompute_seconds=sum(map(_seconds, recipes)) if all_recipes else None,
                max_ops=max(map(_ops, recipes), default=0),
                codec=min(shared, default=None),
            )
        )
    return sorted(found, key=lambda each: -each.nbytes)


def family_of(module: str) -> str:
    """Return a module's name with ``*`` for numbers."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", module)


def text_of(decisions: Decisions, nbytes: int) -> str:
    """Return the policy for `decisions` as text, within a bound of `nbytes`."""
    passing = max(nbytes // 8, 1)
    chosen = {each: value for each, value in decisions.items() if value[0] != "keep"}
    is_passing = any(action != "recompute" for action, _ in chosen.values())
    room = max(nbytes - passing, 1) if is_passing else nbytes
    rules = []
    # Patterns of outer modules match inner ones, too: the innermost come first.
    for each, (action, part) in sorted(chosen.items(), key=_depth, reverse=True):
        names = each.modules[: max(1, round(len(each.modules) * part))]
        pattern = each.family if len(names) == len(each.modules) else "|".join(names)
        where = f"op={each.op},slot={each.slot},module={pattern}"
        if action == "recompute":
            rules.append(f"recompute,ops={max(each.max_ops, 1)},{where}")
        else:
            spill = f"disk:{each.codec}" if action == "encode" else "disk"
            rules.append(f"budget:{size_text(passing)},spill={spill},{where}")
    return ";".join([*rules, f"budget:{size_text(room)}"])


def choose(
    recording: Recording,
    budget: int | str,
    *,
    machine: Machine | None = None,
    max_seconds: float = MAX_SECONDS,
) -> Plan:
    """Return the plan that takes least time for a recorded step, as far as replays tell.

    Of plans that take the same time it is one that writes least to the drive.

    Args:
        recording: of a step.
        budget: the bound of the memory held for backward.
        machine: the rates of the drive and of memory; None for typical ones.
        max_seconds: a bound of the search, which then may miss the best plan.

    Raises:
        ValueError: if the budget is no size, or not positive.
    """
    nbytes = memory.parse_nbytes(budget)
    return _Search(recording, nbytes, Machine() if machine is None else machine).run(max_seconds)


def fixed_policies(nbytes: int) -> list[str]:
    """Return the policies without rules for classes that hold the bound."""
    bound = f"budget:{size_text(nbytes)}"
    return [bound, f"recompute;{bound}", f"recompute,ops=1;{bound}", f"recompute,ops=64;{bound}"]


class _Search:
    """Looks for the decisions that take least time."""

    def __init__(self, recording: Recording, nbytes: int, machine: Machine) -> None:
        self._recording, self._nbytes, self._machine = recording, nbytes, machine
        self._classes = classes_of(recording)
        self._known: dict[tuple[str, int], Replay] = {}
        self._deadline = 0.0

    def run(self, max_seconds: float) -> Plan:
        """Return the best plan found."""
        self._deadline = monotonic() + max_seconds
        fixed = [self._replay(each, final=True) for each in fixed_policies(self._nbytes)]
        best_fixed = _best(fixed)
        if self._recording.saved_nbytes <= self._nbytes:
            decisions: Decisions = {}
        else:
            decisions = self._improved(self._greedy())
        predicted = self._replay(text_of(decisions, self._nbytes), final=True)
        if _best([predicted, best_fixed]) is not predicted:
            return Plan(
                best_fixed.policy, self._nbytes, best_fixed, self._others(best_fixed, fixed)
            )
        return Plan(
            predicted.policy, self._nbytes, predicted, self._others(predicted, fixed),
            list(self._choices(decisions, predicted)),
        )  # fmt: skip

    def _others(self, chosen: Replay, fixed: Sequence[Replay]) -> list[Replay]:
        keep = self._replay("keep", final=True)
        return [keep, *(each for each in fixed if each.policy != chosen.policy)]

    def _replay(self, text: str, *, final: bool = False) -> Replay:
        """Return what a step takes under a policy; `final` is more exact."""
        rounds = 2 if final else 1
        found = self._known.get((text, rounds))
        if found is None:
            result = replay(self._recording, text, machine=self._machine, rounds=rounds)
            found = self._known[text, rounds] = replace(result, policy=text)
        return found

    def _result(self, decisions: Decisions) -> Replay:
        return self._replay(text_of(decisions, self._nbytes))

    @property
    def _is_late(self) -> bool:
        return monotonic() > self._deadline

    def _greedy(self) -> dict[TensorClass, tuple[str, float]]:
        """Recompute classes, the cheapest for each byte first, as long as that saves something."""
        decisions: dict[TensorClass, tuple[str, float]] = {}
        best = self._result(decisions)
        least = best.seconds
        able = [
            each for each in self._classes if each.recompute_seconds is not None and each.nbytes
        ]
        for each in sorted(able, key=lambda one: (one.recompute_seconds or 0.0) / one.nbytes):
            trial = {**decisions, each: ("recompute", 1.0)}
            result = self._result(trial)
            if _is_better(result, best, least) or result.seconds < least:
                decisions, best, least = trial, result, min(least, result.seconds)
            if self._is_late:
                break
        return decisions

    def _improved(
        self, decisions: dict[TensorClass, tuple[str, float]]
    ) -> dict[TensorClass, tuple[str, float]]:
        """Change one class at a time, the largest first, while that saves something."""
        best = self._result(decisions)
        least = best.seconds
        improves = True
        while improves and not self._is_late:
            improves = False
            for trial in self._neighbours(decisions):
                result = self._result(trial)
                if _is_better(result, best, least):
                    decisions, best, least = trial, result, min(least, result.seconds)
                    improves = True
                    break
                if self._is_late:
                    break
        return decisions

    def _neighbours(
        self, decisions: dict[TensorClass, tuple[str, float]]
    ) -> Iterator[dict[TensorClass, tuple[str, float]]]:
        for each in self._classes:
            now = decisions.get(each, ("keep", 1.0))
            parts = _PARTS if len(each.modules) > 1 else (1.0,)
            options = [
                ("keep", 1.0),
                *((action, part) for action in each.actions for part in parts),
            ]
            for option in options:
                if option != now:
                    trial = {**decisions, each: option}
                    if option[0] == "keep":
                        del trial[each]
                    yield trial

    def _choices(self, decisions: Decisions, predicted: Replay) -> Iterator[Choice]:
        rate = self._machine.write_rate
        for each in self._classes:
            action, part = decisions.get(each, ("keep", 1.0))
            tensors = each.tensors
            if action == "keep":
                tensors = sum(each.arrays)  # the memory of the others is in other classes
                if not tensors:
                    continue
            modules = len(each.modules)
            share = max(1, round(modules * part)) / modules if modules else 1.0
            drive = f"{each.nbytes / rate * 1e3:.1f} ms to write all"
            if action == "recompute":
                cost = (each.recompute_seconds or 0.0) * 1e3
                reason = f"{cost:.1f} ms to compute again, {drive}"
            elif action == "encode":
                reason = f"smaller by {each.codec}, then to the disk"
            elif action == "store":
                reason = f"makes room for others; {drive}"
            else:
                share = _part_in_memory(each, predicted)
                reason = "in memory when backward needs it"
                if not share:
                    action, share = "store", 1.0
                    reason = f"no room left in the budget; {drive}"
            chosen = max(1, round(tensors * share))
            nbytes = round(each.nbytes * chosen / tensors)
            name = each.op, each.slot, each.family
            yield Choice(*name, action, tensors, nbytes, chosen, reason)
            if chosen == tensors:
                continue
            rest, reason = "keep", "in memory when backward needs it"
            if action == "keep":
                rest, reason = "store", f"no room left in the budget; {drive}"
            yield Choice(*name, rest, tensors, each.nbytes - nbytes, tensors - chosen, reason)


def _part_in_memory(each: TensorClass, predicted: Replay) -> float:
    """Return the part of a class that backward found in memory; what is written may stay there."""
    read = 0
    for module, arrays in zip(each.modules, each.arrays, strict=True):
        # An array that is used several times may be read as often.
        read += min(predicted.reads.get((each.op, each.slot, module), 0), arrays)
    return 1 - read / sum(each.arrays)


def _best(results: Sequence[Replay]) -> Replay:
    """Return the one that takes least time; of those that take the same, one that writes least."""
    most = min(each.seconds for each in results) * (1 + _MIN_GAIN)
    return min((each for each in results if each.seconds <= most), key=_written)


def _written(result: Replay) -> int:
    return result.written_nbytes


def _is_better(new: Replay, now: Replay, least: float) -> bool:
    """Return whether a plan takes less time than the least so far; or the same, and writes less.

    The same is as the least, not as `now`: else small losses would add up, and plans come again.
    """
    if new.seconds < least * (1 - _MIN_GAIN):
        return True
    return new.seconds <= least * (1 + _MIN_GAIN) and new.written_nbytes < now.written_nbytes


def _depth(item: tuple[TensorClass, tuple[str, float]]) -> int:
    family = item[0].family
    return family.count(".") + 1 if family else 0


def _seconds(recipe: Recipe) -> float:
    inner = [each for each in recipe.inputs if isinstance(each, Recipe)]
    return recipe.seconds + sum(map(_seconds, inner))


def _ops(recipe: Recipe) -> int:
    return 1 + sum(_ops(each) for each in recipe.inputs if isinstance(each, Recipe))
