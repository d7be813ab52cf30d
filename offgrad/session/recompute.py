"""Recomputation: how a session computes an array that it did not keep.

It replays a cheap operation whose inputs are available: saved by the same session, in memory
anyway, or recomputed themselves.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from weakref import WeakValueDictionary

import numpy as np

from offgrad import memory
from offgrad.autograd import replay as replays
from offgrad.autograd.replay import Replay
from offgrad.autograd.save_hooks import Unpacker
from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.autograd.views import ViewChain
from offgrad.memory import PendingCopy, Storage
from offgrad.policies.base import MAX_RECOMPUTE_OPS
from offgrad.session.saved_array import (
    Array,
    Layout,
    PackedTensor,
    SavedArray,
    StorageRange,
    address,
    compact,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

Unpack: TypeAlias = Callable[[PackedTensor], "Tensor"]


class _Input(Protocol):
    """An input of a recomputation."""

    @property
    def ops(self) -> int:
        """How many operations it takes to get it."""

    @property
    def lossless(self) -> bool:
        """Whether it has the same bits as in forward."""

    def pin(self) -> bool:
        """Pin the value it had when it was found: later reads return it even after an in-place
        change. Return False if it has changed already.
        """

    def array(self, unpack: Unpack) -> Array | None:
        """Return the array."""

    def saved_inputs(self) -> Iterator[SavedArray]:
        """Yield the saved arrays that it takes, in the order of use."""


class _NoInput:
    """An optional input that was not given."""

    ops = 0
    lossless = True

    def pin(self) -> bool:
        return True

    def array(self, unpack: Unpack) -> None:
        return None

    def saved_inputs(self) -> Iterator[SavedArray]:
        return iter(())


class _HeldInput(_NoInput, PendingCopy):
    """An array in memory. It is copied once, for all recomputations, before an in-place change."""

    def __init__(self, tensor: "Tensor") -> None:
        self._array = tensor._array
        self._storage: Storage | None = tensor._storage
        self._version = tensor._storage.version
        self._is_pinned = False

    @classmethod
    def of(cls, tensor: "Tensor") -> "_HeldInput":
        """Return the input for the array of `tensor` at its present version; one for all uses."""
        # While an array is not copied it is alive, so that no other has its id.
        key = (tensor._storage.uid, tensor._storage.version, id(tensor._array))
        found = _held_inputs.get(key)
        if found is None or found.captured:
            found = _held_inputs[key] = cls(tensor)
        return found

    def pin(self) -> bool:
        storage = self._storage
        if storage is None:
            return True
        if not self._is_pinned:
            self._is_pinned = True
            storage.add_pending_write(self)
        return storage.version == self._version

    def array(self, unpack: Unpack) -> Any:
        return self._array

    @property
    def captured(self) -> bool:
        return self._storage is None

    def wait_captured(self) -> None:
        if self._storage is not None:
            data, layout, _ = compact(self._array)
            self._array = layout.view(memory.copy(data))
            self._storage = None


_held_inputs: WeakValueDictionary[tuple[int, int, int], _HeldInput] = WeakValueDictionary()


class _SavedInput(_NoInput):
    """An array that the session saved."""

    def __init__(self, packed: PackedTensor) -> None:
        self._packed = packed
        recomputation = packed.saved.recomputation
        self.ops = 0 if recomputation is None else recomputation.ops
        self.lossless = packed.saved.lossless

    def array(self, unpack: Unpack) -> Any:
        return unpack(self._packed)._array

    def saved_inputs(self) -> Iterator[SavedArray]:
        yield self._packed.saved


class Recomputation:
    """How to compute an output of an operation from inputs that are available.

    Attributes:
        ops: how many operations that takes.
        lossless: whether none of its inputs was rounded by a store.
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
        # Without the replay's slots: one may hold the output, which holds this recomputation.
        self._run = partial(replays.run, replay.operation, replay.parameters)
        self._output_nr = output_nr
        self._inputs = inputs
        self._view_chain = view_chain
        self.ops = 1 + sum(each.ops for each in inputs)
        self.lossless = all(each.lossless for each in inputs)

    def pin(self) -> bool:
        """Pin the inputs; return False if one has changed since this recomputation was found."""
        return all(each.pin() for each in self._inputs)

    def array(self, unpack: Unpack) -> Any:
        """Compute the array: the same bits as in forward."""
        arrays = [each.array(unpack) for each in self._inputs]
        array = self._run(arrays)[self._output_nr]
        return array if self._view_chain is None else self._view_chain.take_array(array)

    def data(self, unpack: Unpack) -> Array:
        """Return the elements of the array, in the memory order it had in forward."""
        array = self.array(unpack)
        data, layout, _ = compact(array)
        if layout != self.layout:
            data = memory.empty((array.size,), array.dtype)
            np.copyto(self.layout.view(data), array)
        return data

    def saved_inputs(self) -> Iterator[SavedArray]:
        """Yield the saved arrays that it takes, in the order of use."""
        for each in self._inputs:
            yield from each.saved_inputs()


def recomputation_for(
    owner: "Tensor", part: StorageRange, session: Unpacker
) -> Recomputation | None:
    """Return how `session` can recompute `part`; None if it cannot.

    Args:
        owner: a tensor that is not a view.
        part: the range of its storage to recompute: all of it, without gaps.
        session: unpacks saved inputs.
    """
    replay = replays.made_by(owner) if part.is_dense else None
    if replay is None:
        return None
    whole, layout, is_dense = compact(owner._array)
    if not is_dense or whole.nbytes != part.data.nbytes or address(whole) != address(part.data):
        return None
    recomputation = _recomputation(replay, owner._output_nr, None, session)
    # A recomputation may take another, so chains have a bound, too, not only policies.
    if recomputation is None or recomputation.ops > MAX_RECOMPUTE_OPS:
        return None
    recomputation.layout = layout
    return recomputation


def _recomputation(
    replay: Replay, output_nr: int, view_chain: ViewChain | None, session: Unpacker
) -> Recomputation | None:
    inputs = []
    for source in replay.sources:
        each = _input(source, replay.saved, session)
        if each is None:
            return None
        inputs.append(each)
    return Recomputation(replay, output_nr, inputs, view_chain)


def _input(
    source: replays.Source, saved: Mapping[str, SavedTensor], session: Unpacker
) -> _Input | None:
    """Return the input that `source` gives; None if it is not available."""
    if source is None:
        return _NoInput()
    if isinstance(source, replays.ComputedInput):
        return _recomputation(source.by, source.output_nr, source.view_chain, session)
    if isinstance(source, replays.HeldInput):
        unchanged = source.tensor._storage.version == source.version
        return _HeldInput.of(source.tensor) if unchanged else None
    if source not in saved:  # yet
        return None
    packed = saved[source].packed
    if packed is not None:
        unpacker, packed_tensor = packed
        return _SavedInput(packed_tensor) if unpacker is session else None
    kept = saved[source].kept()
    # NumPy does not report changes.
    if kept is None or kept._storage.external or kept._storage.exported:
        return None
    return _HeldInput.of(kept)
