"""The rules of changing a tensor in place."""

from typing import TYPE_CHECKING

from offgrad.autograd import grad_mode
from offgrad.autograd.tensor_base import describe

if TYPE_CHECKING:
    from offgrad.autograd.node import Node
    from offgrad.tensor import Tensor


def check_mutable(target: "Tensor", name: str, recorded: bool) -> None:
    """Raise unless operation `name` may change `target` in place.

    Args:
        target: the tensor.
        name: of the operation, for the message.
        recorded: whether the change will be part of the graph.

    Raises:
        RuntimeError: for read-only memory, for elements that share memory, and, in grad mode, for
            leaves that require grad and their views.
        NotImplementedError: for a view, where the change is to be recorded.
    """
    array = target._array
    if not array.flags.writeable:
        raise RuntimeError(
            f"{name}: the memory of this {describe(target)} is read-only; clone it first"
        )
    repeats = zip(array.strides, array.shape, strict=True)
    if array.size and any(step == 0 and size > 1 for step, size in repeats):
        raise RuntimeError(
            f"{name}: elements of this expanded {describe(target)} share memory; clone() it first"
        )
    if not grad_mode.state.grad_enabled:
        return
    if target._requires_grad and target._grad_fn is None:
        raise RuntimeError(
            f"{name}: a leaf that requires grad cannot be changed in place, got a "
            f"{describe(target)}; do it under no_grad(), or change a clone"
        )
    base = target._base
    if base is None or not (recorded or target._requires_grad or base._requires_grad):
        return
    if base._requires_grad and base._grad_fn is None:
        raise RuntimeError(
            f"{name}: a view of a leaf that requires grad cannot be changed in place, got a "
            f"{describe(target)}; do it under no_grad(), or change a clone"
        )
    raise NotImplementedError(
        f"{name}: changing a view in place is not recorded yet, got a view of a {describe(base)}; "
        "use the out-of-place form, or index_put for assignments"
    )


def adopt_history(target: "Tensor", node: "Node | None", output_nr: int) -> None:
    """Make `target`, whose memory was changed, output `output_nr` of `node`."""
    target._requires_grad = True
    target._grad_fn, target._output_nr = node, output_nr
    # Views taken before now know by this that their history is not the memory's any more.
    target._generation += 1
