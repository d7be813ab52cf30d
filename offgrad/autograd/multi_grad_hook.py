"""Hooks on the gradients of several tensors together."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from offgrad_storage.interrupts import MaskedLock

from offgrad.autograd import engine
from offgrad.autograd.handles import RemovableHandle
from offgrad.autograd.node import gradient_edge
from offgrad.autograd.tensor_base import describe

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class _MultiHandle(RemovableHandle):
    """Removes several hooks together."""

    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        super().__init__()
        self._handles = handles

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def register_multi_grad_hook(
    tensors: "Sequence[Tensor]", fn: Callable[[Any], None], *, mode: str = "all"
) -> RemovableHandle:
    """Call `fn` once in each backward pass that computes gradients of `tensors`.

    Args:
        tensors: tensors that require grad.
        fn: in mode ``"all"``, called after the last gradient with a list of all gradients, None for
            those that the pass does not compute; in mode ``"any"``, called with the first gradient.
            Its return value is ignored.
        mode: ``"all"`` or ``"any"``.

    Raises:
        ValueError: for another mode.
        RuntimeError: if a tensor does not require grad.
    """
    if mode not in ("all", "any"):
        raise ValueError(f"Expects mode to be one of ('all', 'any') but got {mode!r}")
    if not callable(fn):
        raise TypeError(f"a hook must be callable, got {type(fn).__name__}")
    edges = [gradient_edge(tensor) for tensor in tensors]
    for tensor, (node, _) in zip(tensors, edges, strict=True):
        if node is None:
            raise RuntimeError(
                f"hooks are for tensors that require grad, got a {describe(tensor)} that does not"
            )
    # Weak references: the nodes hold the hooks, so the hooks must not hold the nodes.
    lookups = [_node_lookup(tensor, node) for tensor, (node, _) in zip(tensors, edges, strict=True)]
    del edges
    key = object()
    lock = MaskedLock()

    def on_gradient(index: int, grad: "Tensor") -> None:
        backward_pass = engine.state.passes[-1]
        with lock:
            if key not in backward_pass.per_pass:
                count = sum(lookup() in backward_pass.nodes for lookup in lookups)
                backward_pass.per_pass[key] = {}, count
            grads, expected = backward_pass.per_pass[key]
            grads[index] = grad
        if mode == "any":
            if len(grads) == 1:
                fn(grad)
        elif len(grads) == expected:
            fn([grads.get(each) for each in range(len(lookups))])

    return _MultiHandle(
        [tensor.register_hook(partial(on_gradient, index)) for index, tensor in enumerate(tensors)]
    )


def _node_lookup(tensor: "Tensor", node: Any) -> "Callable[[], Any]":
    """Return a function that returns the node of `tensor`, for a leaf its current one, or None."""
    if tensor._grad_fn is not None:
        return ref(node)
    leaf = ref(tensor)

    def lookup() -> Any:
        alive = leaf()
        return None if alive is None or alive._accumulator is None else alive._accumulator()

    return lookup
