"""Views: the operations from a base to its view, and a view's new history after in-place changes.

A view keeps the chain of operations that led from its base to it. When a recorded operation changes
the shared memory in place, the base gets a new history; each view gets its own on next use, by
re-running its chain on the base.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray
from offgrad_storage.interrupts import MaskedLock

from offgrad.autograd import grad_mode
from offgrad.autograd.tensor_base import TensorBase, alias, describe, wrap

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.node import Node
    from offgrad.autograd.op import Op


# Held while the history of a base or a view is replaced: threads may change views of one base, or
# read the history of one view. Re-entrant: re-running a chain runs operations.
history_lock = MaskedLock(reentrant=True)


class ViewChain(NamedTuple):
    """The last operation on the way from a base to its view, and the chain before it.

    Attributes:
        previous: the chain of the tensor the view was taken from; None if that is the base.
        op: the operation; None for a user-defined Function, whose views always have a `blocked_by`.
        parameters: the operation's parameters besides the tensor.
        output_nr: the number of the output that is the view.
        blocked_by: why the view's history cannot follow an in-place change; None if it can.
    """

    previous: "ViewChain | None"
    op: "type[Op] | None"
    parameters: Mapping[str, Any]
    output_nr: int
    blocked_by: str | None

    def steps(self) -> "list[ViewChain]":
        """Return all steps, beginning at the base."""
        steps = []
        step: ViewChain | None = self
        while step is not None:
            steps.append(step)
            step = step.previous
        return steps[::-1]

    def take(self, base: "Tensor") -> "Tensor":
        """Run the chain on tensor `base`; return the view of it."""
        for step in self.steps():
            assert step.op is not None
            base = step.op.apply_all(base, **step.parameters)[step.output_nr]
        return base

    def take_array(self, base: NDArray[Any]) -> NDArray[Any]:
        """Run the chain on array `base`; return the view of it."""
        for step in self.steps():
            assert step.op is not None
            result = step.op().forward(base, **step.parameters)
            base = result[step.output_nr] if type(result) is tuple else result
        return base


# Values of `ViewChain.blocked_by`; error messages contain them.
SEVERAL_OUTPUTS = (
    "This view is the output of a function that returns multiple views, {}, whose histories cannot "
    "be separated; use the out-of-place form, or take the view by indexing"
)
NO_GRAD = (
    "A view was created in no_grad mode and is being modified inplace with grad mode on; take the "
    "view and change it both inside no_grad(), or both outside"
)
INFERENCE = (
    "A view was created in inference mode and is being modified inplace outside it; take the view "
    "and change it both inside inference_mode(), or both outside"
)
OUTSIDE = (
    "It is an as_strided view of another view and may reach outside that view; take it of the base"
)
CUSTOM = (
    "This view was created inside a custom Function, {}, whose own backward would miss the change; "
    "use the out-of-place form, or let the function return a clone"
)


def view_of(array: NDArray[Any], source: "Tensor", view_chain: ViewChain) -> "Tensor":
    """Return a tensor over `array`, the view that `view_chain` takes of the base of `source`."""
    view = wrap(array, source._storage)
    if source._storage.inference:
        return view  # inference tensors have no history
    base = view._base = base_of(source)
    view._view_chain = view_chain
    view._generation = base._generation
    return view


def view_chain(
    source: "Tensor",
    op: "type[Op] | None",
    parameters: Mapping[str, Any],
    output_nr: int,
    blocked_by: str | None,
) -> ViewChain:
    """Return the chain of a new view of `source`."""
    previous = source._view_chain
    if not grad_mode.state.grad_enabled:
        blocked_by = INFERENCE if grad_mode.state.inference else NO_GRAD
    if blocked_by is None and previous is not None:
        blocked_by = previous.blocked_by
    return ViewChain(previous, op, parameters, output_nr, blocked_by)


def base_of(tensor: TensorBase) -> "Tensor":
    """Return the base of a view; `tensor` itself if it is not a view."""
    base = tensor._base
    if base is None:
        return tensor  # type: ignore[return-value]
    if base._base is not None:
        # `turn_into_view` has turned the base itself into a view.
        base = tensor._base = base._base
    return base


def turn_into_view(tensor: "Tensor", view: "Tensor") -> None:
    """Turn `tensor` into `view`, a view of it, as ``t_`` and similar methods do.

    If `tensor` was not a view, a new tensor with its former array and history becomes its base, and
    the base of its views.
    """
    if tensor._base is None:
        base = alias(tensor)
        base._requires_grad = tensor._requires_grad
        base._grad_fn, base._output_nr = tensor._grad_fn, tensor._output_nr
        base._generation = tensor._generation
        tensor._base = base
    tensor._view_chain = view._view_chain
    tensor._generation = base_of(tensor)._generation
    tensor._share(view)
    set_history(tensor, view._grad_fn, view._output_nr)


def is_stale(tensor: TensorBase) -> bool:
    """Return whether `tensor` is a view whose base got a new history, or began to require grad,
    after the view was taken.
    """
    if tensor._base is None:
        return False
    base = base_of(tensor)
    if tensor._generation != base._generation:
        return True
    if tensor._requires_grad or not base._requires_grad:
        return False
    return tensor._view_chain is not None and tensor._view_chain.blocked_by is None


def requires_grad(tensor: "Tensor | None") -> bool:
    """Return whether `tensor` requires grad; in grad mode, refresh a stale view first.

    Call it before the operation's node is created: sequence numbers must increase along a graph,
    and refreshing records nodes.
    """
    if tensor is None:
        return False
    if tensor._base is None:
        return tensor._requires_grad
    stale = is_stale(tensor)
    if stale and grad_mode.state.grad_enabled:
        refresh(tensor)
        return tensor._requires_grad
    return stale or tensor._requires_grad


def refresh(view: "Tensor") -> None:
    """Give a stale view the current history of its memory.

    Raises:
        RuntimeError: if its history cannot follow the change.
    """
    with history_lock:
        if is_stale(view):
            _refresh(view)


def _refresh(view: "Tensor") -> None:
    base, chain = base_of(view), view._view_chain
    assert chain is not None
    if chain.blocked_by is not None:
        raise RuntimeError(
            f"the history of this view, a {describe(view)}, must follow an in-place change of its "
            f"base or of another view, but cannot. {chain.blocked_by}"
        )
    generation = base._generation
    replayed = grad_mode.call(True, chain.take, base)
    if _layout(replayed._array) != _layout(view._array):
        raise RuntimeError(
            f"the history of this view, a {describe(view)}, cannot follow that of its base, whose "
            "shape was changed in place under no_grad(); take the view again"
        )
    set_history(view, replayed._grad_fn, replayed._output_nr)
    view._generation = generation


def _layout(array: NDArray[Any]) -> tuple[Any, ...]:
    """Return address, shape and strides of an array."""
    return array.__array_interface__["data"][0], array.shape, array.strides


def set_history(tensor: "Tensor", node: "Node | None", output_nr: int) -> None:
    """Make `tensor` output `output_nr` of `node`; move its ``retain_grad()``, if set, to `node`."""
    previous = tensor._grad_fn
    retained = previous is not None and previous.stop_retaining_grad(tensor)
    tensor._requires_grad = node is not None
    tensor._grad_fn, tensor._output_nr = node, output_nr
    if retained and node is not None:
        node.retain_grad(tensor)
