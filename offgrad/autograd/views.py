"""Views: how each was taken from its base, and the history it gets when the base's changes.

A view remembers the operations that led from its base to it. When the shared memory is changed in
place by an operation that is recorded, the base gets a new history, and each of its views, once it
is asked for, the one that the same operations give it from there.
"""

from collections.abc import Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from offgrad.autograd import grad_mode
from offgrad.autograd.tensor_base import TensorBase, describe, wrap

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.node import Node
    from offgrad.autograd.op import Op


# Held while the history of a base or a view is replaced: threads may change views of one base, or
# ask for the history of one view. Re-entrant: to replay a view is an operation.
history_lock = RLock()


class ViewChain(NamedTuple):
    """The last step from a base to a view of it, and the steps before.

    Attributes:
        before: the chain of the tensor the view was taken from; None if that is the base.
        op: the operation; None for one of the user's, whose views always have a `blocked_by`.
        parameters: its parameters besides the tensor.
        output_nr: which of its outputs the view is.
        blocked_by: why the view's history cannot follow an in-place change; None if it can.
    """

    before: "ViewChain | None"
    op: "type[Op] | None"
    parameters: Mapping[str, Any]
    output_nr: int
    blocked_by: str | None

    def steps(self) -> "list[ViewChain]":
        """Return all steps, the first first."""
        steps = []
        step: ViewChain | None = self
        while step is not None:
            steps.append(step)
            step = step.before
        return steps[::-1]

    def take(self, base: "Tensor") -> "Tensor":
        """Return the same view of `base`."""
        for step in self.steps():
            assert step.op is not None
            base = step.op.apply_all(base, **step.parameters)[step.output_nr]
        return base

    def take_array(self, base: NDArray[Any]) -> NDArray[Any]:
        """Return the same view of an array."""
        for step in self.steps():
            assert step.op is not None
            result = step.op().forward(base, **step.parameters)
            base = result[step.output_nr] if type(result) is tuple else result
        return base


SEVERAL_OUTPUTS = (
    "it is one of several outputs of {}, whose histories cannot be told apart; use the "
    "out-of-place form, or take the view by indexing"
)
NO_GRAD = (
    "it was taken under no_grad() and the change is recorded; take the view and change it both "
    "inside no_grad(), or both outside"
)
INFERENCE = (
    "it was taken in inference mode and the change is recorded; take the view and change it both "
    "inside inference_mode(), or both outside"
)
OUTSIDE = (
    "as_strided took it of another view, and may have reached outside of that; take it of the base"
)
CUSTOM = (
    "it came out of {}, whose own backward the change would pass by; use the out-of-place form, or "
    "have the function return a clone"
)


def view_of(array: NDArray[Any], source: "Tensor", view_chain: ViewChain) -> "Tensor":
    """Return a tensor over `array`, which lies in the memory of `source` and came by `view_chain`
    from the base of `source`.
    """
    view = wrap(array, source._storage)
    if source._storage.inference:
        return view  # no history will ever have to follow
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
    """Return the chain of a view taken from `source` now."""
    before = source._view_chain
    if not grad_mode.state.grad_enabled:
        blocked_by = INFERENCE if grad_mode.state.inference else NO_GRAD
    if blocked_by is None and before is not None:
        blocked_by = before.blocked_by
    return ViewChain(before, op, parameters, output_nr, blocked_by)


def base_of(tensor: TensorBase) -> "Tensor":
    """Return the base of a view, any other tensor itself."""
    base = tensor._base
    if base is None:
        return tensor  # type: ignore[return-value]
    if base._base is not None:
        # The base became a view itself, of what it was before: see `become`.
        base = tensor._base = base._base
    return base


def become(tensor: "Tensor", view: "Tensor") -> None:
    """Make `tensor` what `view` is, a view taken of it, as ``t_`` and its like do.

    A tensor that was no view becomes one of a base that is what it was; so do its views.
    """
    if tensor._base is None:
        base = wrap(tensor._array, tensor._storage, tensor._requires_grad)
        base._grad_fn, base._output_nr = tensor._grad_fn, tensor._output_nr
        base._generation = tensor._generation
        tensor._base = base
    tensor._view_chain = view._view_chain
    tensor._generation = base_of(tensor)._generation
    tensor._array = view._array
    set_history(tensor, view._grad_fn, view._output_nr)


def is_stale(tensor: TensorBase) -> bool:
    """Return whether `tensor` is a view whose base got another history, or came to require grad,
    since it was taken.
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
    """Return whether `tensor` requires grad; in grad mode a stale view is given its history.

    To be asked before the operation's node is made: nodes count up along a graph.
    """
    if tensor is None:
        return False
    stale = is_stale(tensor)
    if stale and grad_mode.state.grad_enabled:
        refresh(tensor)
        return tensor._requires_grad
    return stale or tensor._requires_grad


def refresh(view: "Tensor") -> None:
    """Give a stale view the history that its memory has by now.

    Raises:
        RuntimeError: if its history cannot follow.
    """
    with history_lock:
        if is_stale(view):
            _refresh(view)


def _refresh(view: "Tensor") -> None:
    base, steps = base_of(view), view._view_chain
    assert steps is not None
    if steps.blocked_by is not None:
        raise RuntimeError(
            f"the history of this view, a {describe(view)}, must follow an in-place change of its "
            f"base or of another view, but {steps.blocked_by}"
        )
    generation = base._generation
    with grad_mode.enable_grad():
        fresh = steps.take(base)
    if _place(fresh._array) != _place(view._array):
        raise RuntimeError(
            f"the history of this view, a {describe(view)}, cannot follow that of its base, whose "
            "shape was changed in place under no_grad(); take the view again"
        )
    set_history(view, fresh._grad_fn, fresh._output_nr)
    view._generation = generation


def _place(array: NDArray[Any]) -> tuple[Any, ...]:
    """Return where in memory an array lies, and how."""
    return array.__array_interface__["data"][0], array.shape, array.strides


def set_history(tensor: "Tensor", node: "Node | None", output_nr: int) -> None:
    """Make `tensor` output `output_nr` of `node`; if it retained its gradient, it does so there."""
    before = tensor._grad_fn
    retained = before is not None and before.forget_retainer(tensor)
    tensor._requires_grad = node is not None
    tensor._grad_fn, tensor._output_nr = node, output_nr
    if retained and node is not None:
        node.retain_grad(tensor)
