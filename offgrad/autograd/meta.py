"""Operations on meta tensors: forward runs as it stands, on arrays without memory."""

from collections.abc import Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad.autograd.tensor_base import is_differentiable, metadata
from offgrad.memory.meta import MetaArray, as_meta, meters, shapes_only

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.op import Op


def metered_inputs(inputs: "tuple[Tensor | None, ...]") -> "tuple[Tensor | None, ...]":
    """Return the inputs of an operation; if this thread has a meter, all on the meta device."""
    meter = meters.get(get_ident())
    if meter is None:
        return inputs
    return tuple(
        [
            each if each is None or type(metadata(each)) is MetaArray else meter.twin(each)
            for each in inputs
        ]
    )


def forward_of_shapes(
    node: "Op",
    inputs: "tuple[Tensor | None, ...]",
    arrays: list[Any],
    parameters: Mapping[str, Any],
) -> Any:
    """Return what ``node.forward(*arrays, **parameters)`` does, as meta arrays; so are its saves.

    Args:
        node: an operation.
        inputs: of it, at least one on the meta device.
        arrays: of the inputs; meta arrays replace numbers.
        parameters: of its forward.

    Raises:
        RuntimeError: for an input on the CPU, unless it has no dimensions, or holds integers.
        NotImplementedError: if the result depends on values, or forward has no rule for a step.
    """
    for index, array in enumerate(arrays):
        if array is not None and type(array) is not MetaArray:
            if array.ndim and not is_differentiable(array.dtype):
                continue  # indices may be on the CPU
            if array.ndim:
                raise RuntimeError(
                    f"Tensor on device cpu is not on the expected device meta! Input {index} of "
                    f"{node.name()} is a {array.dtype.name} tensor of shape {list(array.shape)}"
                )
            arrays[index] = as_meta(array)
    try:
        with shapes_only():
            result = node.forward(*arrays, **parameters)
    except NotImplementedError as error:
        raise NotImplementedError(
            f"{type(node).__name__}: this operation gives no shapes on the meta device ({error})"
        ) from error
    # One object stays one: saves that are outputs are recognised by identity.
    known = {id(each): each for each in arrays}

    def converted(array: Any) -> Any:
        if array is None or type(array) is MetaArray:
            return array
        found = known.get(id(array))
        if found is None:
            found = known[id(array)] = as_meta(np.asarray(array))
        return found

    several = type(result) is tuple
    results = tuple([converted(each) for each in (result if several else (result,))])
    if node._saves:
        node._saves = {slot: converted(each) for slot, each in node._saves.items()}
    node._on_meta = True
    # Backward runs on tensors: arrays have no rule where operations are nested. With a meter all of
    # the pass computes shapes only, and on arrays it takes less memory.
    if not meters:
        node.backward_takes_arrays = False  # type: ignore[misc]
    return results if several else results[0]
