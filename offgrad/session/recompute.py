"""Recipes: how a session computes an array again that it did not keep.

A recipe is the replay of a cheap operation whose inputs are at hand: saved by the same session,
held in memory anyway, or made by another recipe.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

import numpy as np

from offgrad import memory
from offgrad.autograd import replay as replays
from offgrad.autograd.replay import Replay
from offgrad.autograd.saved_tensor import SavedTensor, Unpacker
from offgrad.autograd.views import ViewChain
from offgrad.memory import Storage
from offgrad.session.layout import (
    Array,
    Layout,
    address,
    compact,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.session.saved_array import Entry


class Packed(NamedTuple):
    """What a saved tensor holds in place of its data."""

    entry: "Entry"
    layout: Layout


Unpack = Callable[[Packed], "Tensor"]


class _Input(Protocol):
    """An input of a recipe."""

    @property
    def ops(self) -> int:
        """How many operations it takes to have it."""

    @property
    def lossless(self) -> bool:
        """Whether it is bit for bit what it was."""

    def hold(self) -> None:
        """Be as now whenever it is asked for."""

    def array(self, unpack: Unpack) -> Array | None:
        """Return it."""

    def entries(self) -> "Iterator[Entry]":
        """Yield what it takes from the session, in the order of use."""


class _Nothing:
    """An input that was not given."""

    ops = 0
    lossless = True

    def hold(self) -> None:
        pass

    def array(self, unpack: Unpack) -> None:
        return None

    def entries(self) -> "Iterator[Entry]":
        return iter(())


class _Kept(_Nothing):
    """An array in memory. It is copied, once for all, before somebody changes it in place."""

    def __init__(self, tensor: "Tensor") -> None:
        self._array = tensor._array
        self._storage: Storage | None = tensor._storage
        self._held = False

    @classmethod
    def of(cls, tensor: "Tensor") -> "_Kept":
        """Return the one for the array of `tensor`, as it is now."""
        # An array that is not copied yet is alive, and so has its id for itself.
        key = (tensor._storage.uid, tensor._storage.version, id(tensor._array))
        found = _all_kept.get(key)
        if found is None or found.captured:
            found = _all_kept[key] = cls(tensor)
        return found

    def hold(self) -> None:
        if self._storage is not None and not self._held:
            self._held = True
            self._storage.add_pending_write(self)

    def array(self, unpack: Unpack) -> Any:
        return self._array

    @property
    def captured(self) -> bool:
        return self._storage is None

    def wait_captured(self) -> None:
        data, layout, _ = compact(self._array)
        self._array = layout.view(memory.copy(data))
        self._storage = None


_all_kept: WeakValueDictionary[tuple[int, int, int], _Kept] = WeakValueDictionary()


class _Saved(_Nothing):
    """An array that the session saved."""

    def __init__(self, packed: Packed) -> None:
        self._packed = packed
        recipe = packed.entry.recipe
        self.ops = 0 if recipe is None else recipe.ops
        self.lossless = packed.entry.lossless

    def array(self, unpack: Unpack) -> Any:
        return unpack(self._packed)._array

    def entries(self) -> "Iterator[Entry]":
        yield self._packed.entry


class Recipe:
    """How to have an output of an operation again, from inputs that are at hand.

    Attributes:
        ops: how many operations that takes.
        lossless: whether it takes nothing that a store rounded.
        layout: of the output in memory.
    """

    layout: Layout

    def __init__(
        self,
        replay: Replay,
        output_nr: int,
        inputs: Sequence[_Input],
        view_chain: ViewChain | None = None,
    ) -> None:
        # Without the slots: the output may be in one of them, and hold this recipe.
        self._run = partial(replays.run, replay.operation, replay.parameters)
        self._output_nr = output_nr
        self._inputs = inputs
        self._view_chain = view_chain
        self.ops = 1 + sum(each.ops for each in inputs)
        self.lossless = all(each.lossless for each in inputs)

    def hold(self) -> None:
        """From now on, give the array as it would be now."""
        for each in self._inputs:
            each.hold()

    def array(self, unpack: Unpack) -> Any:
        """Compute the array again: the same bits."""
        arrays = [each.array(unpack) for each in self._inputs]
        array = self._run(arrays)[self._output_nr]
        return array if self._view_chain is None else self._view_chain.take_array(array)

    def data(self, unpack: Unpack) -> Array:
        """Return its elements in the order of memory it had."""
        array = self.array(unpack)
        data, layout, _ = compact(array)
        if layout != self.layout:
            data = memory.empty((array.size,), array.dtype)
            np.copyto(self.layout.view(data), array)
        return data

    def entries(self) -> "Iterator[Entry]":
        """Yield what it takes from the session, in the order of use."""
        for each in self._inputs:
            yield from each.entries()


def recipe_of(owner: "Tensor", data: Array, session: Unpacker) -> Recipe | None:
    """Return how `session` can have `data` again; None if it cannot.

    Args:
        owner: a tensor that is no view.
        data: its elements in memory order, C-contiguous; else there is no recipe.
        session: what unpacks.
    """
    replay = replays.made_by(owner)
    if replay is None:
        return None
    whole, layout, dense = compact(owner._array)
    if not dense or whole.nbytes != data.nbytes or address(whole) != address(data):
        return None
    recipe = _recipe(replay, owner._output_nr, None, session)
    # Recipes follow from recipes: whatever policies say, these do not go on for ever.
    if recipe is None or recipe.ops > replays.MAX_RECOMPUTE_OPS:
        return None
    recipe.layout = layout
    return recipe


def _recipe(
    replay: Replay, output_nr: int, view_chain: ViewChain | None, session: Unpacker
) -> Recipe | None:
    inputs = []
    for source in replay.sources:
        each = _input(source, replay.saved, session)
        if each is None:
            return None
        inputs.append(each)
    return Recipe(replay, output_nr, inputs, view_chain)


def _input(
    source: replays.Source, saved: Mapping[str, SavedTensor], session: Unpacker
) -> _Input | None:
    if source is None:
        return _Nothing()
    if isinstance(source, replays.ComputedInput):
        return _recipe(source.by, source.output_nr, source.view_chain, session)
    if isinstance(source, replays.HeldInput):
        unchanged = source.tensor._storage.version == source.version
        return _Kept.of(source.tensor) if unchanged else None
    if source not in saved:  # yet
        return None
    packed = saved[source].packed
    if packed is not None:
        unpacker, what = packed
        return _Saved(what) if unpacker is session else None
    kept = saved[source].kept()
    # Of a change of foreign memory nobody tells.
    return None if kept is None or kept._storage.external else _Kept.of(kept)
