"""Replays: what it takes to run the forward of a cheap operation again."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offgrad.autograd.saved_tensor import SavedTensor
from offgrad.autograd.tensor_base import wrap
from offgrad.autograd.views import Derivation
from offgrad.memory import POOL_THRESHOLD

if TYPE_CHECKING:
    from offgrad.autograd.op import Op
    from offgrad.tensor import Tensor

Array: TypeAlias = NDArray[Any]


class Held(NamedTuple):
    """A leaf that is small or a parameter, and so may stay in memory.

    Attributes:
        tensor: the input, without its history.
        version: what the version of its memory was.
    """

    tensor: "Tensor"
    version: int


class Made(NamedTuple):
    """An input that another cheap operation made.

    Attributes:
        by: its replay.
        output_nr: which output of it.
        derivation: how the input was taken from that output; None if it is that.
    """

    by: "Replay"
    output_nr: int
    derivation: Derivation | None


Source: TypeAlias = str | Held | Made | None
"""Where an input comes from: a slot it is saved in; None for an input that was not given."""


class Replay(NamedTuple):
    """One run of an operation.

    Attributes:
        operation: the class.
        parameters: of its forward.
        sources: of its inputs.
        saved: what it saved, by slot; filled as it saves.
    """

    operation: "type[Op]"
    parameters: Mapping[str, Any]
    sources: tuple[Source, ...]
    saved: Mapping[str, SavedTensor]

    def run(self, arrays: "Sequence[Array | None]") -> tuple[Any, ...]:
        """Return all outputs for inputs as they were: the same bits."""
        node = self.operation()
        node.needs_input_grad = (False,) * len(arrays)
        with np.errstate(all="ignore"):
            result = node.forward(*arrays, **self.parameters)
        return result if type(result) is tuple else (result,)


def replay_of(
    node: "Op",
    inputs: "Sequence[Tensor | None]",
    arrays: Sequence[Array | None],
    parameters: Mapping[str, Any],
) -> Replay | None:
    """Return what it takes to run `node` again, None if an input would be missing.

    Args:
        node: an operation that just ran, and is about to save.
        inputs: of it.
        arrays: these as its forward got them.
        parameters: of its forward.
    """
    slots = {id(array): slot for slot, array in node._saves.items()}
    sources: list[Source] = []
    for tensor, array in zip(inputs, arrays, strict=True):
        source = None if tensor is None else slots.get(id(array)) or _source(tensor)
        if source is None and tensor is not None:
            return None
        sources.append(source)
    return Replay(type(node), parameters, tuple(sources), node._saved)


def _source(tensor: "Tensor") -> Held | Made | None:
    owner = tensor if tensor._base is None else tensor._base
    storage, maker = tensor._storage, owner._grad_fn
    if maker is None:
        if not owner._requires_grad and tensor._array.nbytes >= POOL_THRESHOLD:
            return None
        return Held(wrap(tensor._array, storage), storage.version)
    replay = made_by(owner)
    if replay is None:
        return None
    return Made(replay, owner._output_nr, tensor._derivation)


def made_by(tensor: "Tensor") -> Replay | None:
    """Return what made `tensor`, which is no view, if it is still what that made."""
    if tensor._grad_fn is None or tensor._storage.version:
        return None
    return tensor._grad_fn.replay
