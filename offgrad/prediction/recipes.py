"""Recipes: how what a recorder holds could be computed again, and what that takes.

An operation is run again once for each kind of tensor, to measure it.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from offgrad import memory
from offgrad.autograd import replay as replays
from offgrad.autograd.replay import Replay
from offgrad.autograd.saved_tensor import Save, SavedTensor
from offgrad.policies.base import MAX_RECOMPUTE_OPS
from offgrad.prediction.held_memory import Packed
from offgrad.prediction.recording import Recipe
from offgrad.session.saved_array import Array, StorageRange, address, compact


class Recipes:
    """Finds recipes for the saves of one recorder, and measures them."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self.costs: dict[Any, list[_Cost]] = {}

    def of(self, save: Save, step: Any) -> Recipe | None:
        """Return how to compute the array of `save` again; None if that is not possible."""
        part = StorageRange.of(save.array, save.storage)
        replay = replays.made_by(save.owner) if part.is_dense else None
        if replay is None or replay.ops > MAX_RECOMPUTE_OPS:
            return None
        whole, _, is_dense = compact(save.owner._array)
        if not is_dense or whole.nbytes != part.data.nbytes or address(whole) != address(part.data):
            return None
        names: list[str] = []
        recipe = self._recipe(replay, names, step)
        if recipe is None:
            return None
        key = (tuple(names), save.owner._array.shape, save.owner._array.dtype)
        costs = self.costs.get(key)
        if costs is None:
            costs = self.costs[key] = self._measure(replay)
        _set_costs(recipe, iter(costs))
        return recipe

    def _recipe(self, replay: Replay, names: list[str], step: Any) -> Recipe | None:
        inputs: list[int | Recipe | None] = []
        for source in replay.sources:
            each: int | Recipe | None = None
            if isinstance(source, replays.ComputedInput):
                each = self._recipe(source.by, names, step)
                if each is None:
                    return None
            elif isinstance(source, replays.HeldInput):
                if source.tensor._storage.version != source.version:
                    return None
            elif source is not None:
                if source not in replay.saved:  # yet
                    return None
                each = self._saved_input(replay.saved[source], step)
                if each == -1:
                    return None
            inputs.append(each)
        names.append(replay.operation.__name__)
        return Recipe(0.0, 0, inputs)

    def _saved_input(self, saved: SavedTensor, step: Any) -> int | None:
        """Return the number of a saved input; None if it is in memory anyway, -1 if not here."""
        if saved.packed is None:
            kept = saved.kept()
            is_safe = kept is not None and not (kept._storage.external or kept._storage.exported)
            return None if is_safe else -1
        unpacker, packed = saved.packed
        return packed.number if unpacker is self._recorder and packed.step is step else -1

    def _measure(self, replay: Replay) -> "list[_Cost]":
        """Return the costs of each operation, the first run first; the minimum of two runs."""
        runs: list[list[_Cost]] = [[], []]
        try:
            for costs in runs:
                self._run(replay, costs)
        except MemoryError:
            return [_Cost(0.0, 0)] * MAX_RECOMPUTE_OPS
        finally:
            memory.allocated()  # notices what is free
        return [min(pair) for pair in zip(*runs, strict=True)]

    def _run(self, replay: Replay, costs: "list[_Cost]") -> tuple[Any, ...]:
        arrays: list[Any] = []
        for source in replay.sources:
            if isinstance(source, replays.ComputedInput):
                array = self._run(source.by, costs)[source.output_nr]
                arrays.append(
                    array if source.view_chain is None else source.view_chain.take_array(array)
                )
            elif isinstance(source, replays.HeldInput):
                arrays.append(source.tensor._array)
            elif source is None:
                arrays.append(None)
            else:
                arrays.append(_array_of(replay.saved[source]))
        began = time.perf_counter()
        result = replays.run(replay.operation, replay.parameters, arrays)
        seconds = time.perf_counter() - began
        nbytes = sum(each.nbytes for each in result if each is not None)
        costs.append(_Cost(seconds, nbytes))
        return result


class _Cost(NamedTuple):
    """Of an operation that is run again: its time, and the bytes of its outputs."""

    seconds: float
    nbytes: int


def _array_of(saved: SavedTensor) -> Array:
    kept = saved.kept()
    if kept is not None:
        return kept._array
    assert saved.packed is not None
    packed: Packed = saved.packed[1]
    return packed.view(packed.held.bring_back())


def _set_costs(recipe: Recipe, costs: Iterator[_Cost]) -> None:
    for each in recipe.inputs:
        if isinstance(each, Recipe):
            _set_costs(each, costs)
    recipe.seconds, recipe.nbytes = next(costs)
