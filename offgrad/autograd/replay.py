"""Replays: the inputs and parameters that re-run the forward of a cheap operation."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offgrad.autograd.saved_tensor import SavedTensor, is_parameter
from offgrad.autograd.tensor_base import alias, metadata, wrap
from offgrad.autograd.views import ViewChain

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.op import Op

Array: TypeAlias = NDArray[Any]

_MAX_COPIED_NBYTES = 16 << 10
"""The size of a leaf that a replay copies; no budget counts the copy."""


class HeldInput(NamedTuple):
    """A copy of a small leaf, or a large parameter itself.

    Attributes:
        tensor: the input, without its history.
        version: of its memory when the operation ran, or was copied.
    """

    tensor: "Tensor"
    version: int


class ComputedInput(NamedTuple):
    """An input that another cheap operation computed.

    Attributes:
        by: the replay of that operation.
        output_nr: the number of its output.
        view_chain: how the input was taken from that output; None if it is the output itself.
    """

    by: "Replay"
    output_nr: int
    view_chain: ViewChain | None


Source: TypeAlias = str | HeldInput | ComputedInput | None
"""Where an input comes from: the slot it is saved in; None for an input that was not given."""


class Replay(NamedTuple):
    """One run of an operation.

    Attributes:
        operation: the class.
        parameters: of its forward.
        sources: of its inputs.
        saved: its saved tensors by slot; filled as it saves.
        outputs: the ids of the storages of its outputs.
        ops: how many operations must run if none of their inputs was saved.
        holds_parameters: whether an input is a large parameter, held without being saved.
    """

    operation: "type[Op]"
    parameters: Mapping[str, Any]
    sources: tuple[Source, ...]
    saved: Mapping[str, SavedTensor]
    outputs: tuple[int, ...]
    ops: int
    holds_parameters: bool


def run(
    operation: "type[Op]", parameters: Mapping[str, Any], arrays: "Sequence[Array | None]"
) -> tuple[Any, ...]:
    """Run an operation on the inputs of its forward; return all outputs, the same bits."""
    node = operation()
    node.needs_input_grad = (False,) * len(arrays)
    with np.errstate(all="ignore"):
        result = node.forward(*arrays, **parameters)
    return result if type(result) is tuple else (result,)


def replay_of(
    node: "Op",
    inputs: "Sequence[Tensor | None]",
    arrays: Sequence[Array | None],
    outputs: "Sequence[Tensor | None]",
    parameters: Mapping[str, Any],
) -> Replay | None:
    """Return the replay of `node`; None if an input is not available, or the chain is too long.

    Args:
        node: an operation that has just run, and is about to save.
        inputs: of it.
        arrays: the inputs as its forward got them.
        outputs: of it.
        parameters: of its forward.
    """
    from offgrad.policies.base import MAX_RECOMPUTE_OPS  # loaded by the policy that recomputes

    slots = {id(array): slot for slot, array in node._saves.items()}
    sources: list[Source] = []
    for tensor, array in zip(inputs, arrays, strict=True):
        source = None if tensor is None else slots.get(id(array)) or _source(tensor)
        if source is None and tensor is not None:
            return None
        sources.append(source)
    before = [each.by for each in sources if isinstance(each, ComputedInput)]
    ops = 1 + sum(each.ops for each in before)
    if ops > MAX_RECOMPUTE_OPS:
        return None
    holds_parameters = any(each.holds_parameters for each in before) or any(
        isinstance(each, HeldInput) and metadata(each.tensor).nbytes > _MAX_COPIED_NBYTES
        for each in sources
    )
    uids = tuple([-1 if each is None else each._storage.uid for each in outputs])
    if any(isinstance(each, np.ndarray) for each in parameters.values()):
        # The caller may change its arrays.
        parameters = {key: copy(each) for key, each in parameters.items()}
    return Replay(type(node), parameters, tuple(sources), node._saved, uids, ops, holds_parameters)


def _source(tensor: "Tensor") -> HeldInput | ComputedInput | None:
    owner = tensor if tensor._base is None else tensor._base
    storage, maker, view_chain = tensor._storage, owner._grad_fn, tensor._view_chain
    # An input without gradient must not hold the graph that computed it.
    if maker is None or not tensor._requires_grad:
        if metadata(tensor).nbytes <= _MAX_COPIED_NBYTES:
            return HeldInput(wrap(tensor._array.copy("K")), 0)
        # NumPy does not report changes.
        if storage.external or storage.exported or not is_parameter(owner):
            return None
        return HeldInput(alias(tensor), storage.version)
    replay = made_by(owner)
    if replay is None:
        return None
    # A view taken by a custom Function cannot be taken again.
    if view_chain is not None and any(step.op is None for step in view_chain.steps()):
        return None
    return ComputedInput(replay, owner._output_nr, view_chain)


def made_by(tensor: "Tensor") -> Replay | None:
    """Return the replay that computes `tensor`, which is not a view; None if it has changed."""
    node, storage = tensor._grad_fn, tensor._storage
    if node is None or node.replay is None or storage.version or storage.exported:
        return None
    # Setting .data gives a tensor other memory, or makes it a view, and leaves its history.
    if node.replay.outputs[tensor._output_nr] != storage.uid or tensor._array is not storage.root:
        return None
    return node.replay
