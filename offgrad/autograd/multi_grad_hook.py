"""Hooks on the gradients of several tensors together."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from offgrad.autograd import engine
from offgrad.autograd.handles import RemovableHandle
from offgrad.autograd.node import gradient_edge
from offgrad.autograd.tensor_base import describe

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class _Handles(RemovableHandle):
    """Removes several hooks as one."""

    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        super().__init__()
        self._handles = handles

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()


def register_multi_grad_hook(
    tensors: "Sequence[Tensor]", fn: Callable[[Any], None], *, mode: str = "all"
) -> RemovableHandle:
    """Call `fn` once in each backward pass that computes gradients of `tensors`.

    Args:
        tensors: they require grad.
        fn: takes, in mode ``"all"``, a list with the gradient of each tensor, or None for those the
            pass does not compute, when the last has been computed; in mode ``"any"`` the first
            gradient that is. What it returns does not count.
        mode: ``"all"`` or ``"any"``.

    Raises:
        ValueError: for another mode.
        RuntimeError: for a tensor that does not require grad.
    """
    if mode not in ("all", "any"):
        raise ValueError(f"the mode of a multi-grad hook is 'all' or 'any', got {mode!r}")
    if not callable(fn):
        raise TypeError(f"a hook must be callable, got {type(fn).__name__}")
    edges = [gradient_edge(tensor) for tensor in tensors]
    for tensor, (node, _) in zip(tensors, edges, strict=True):
        if node is None:
            raise RuntimeError(
                f"hooks are for tensors that require grad, got a {describe(tensor)} that does not"
            )
    # Weakly: the hooks are held by what they would hold.
    finders = [_finder(tensor, node) for tensor, (node, _) in zip(tensors, edges, strict=True)]
    del edges
    key = object()
    lock = threading.Lock()

    def one(index: int, grad: "Tensor") -> None:
        running = engine.state.passes[-1]
        with lock:
            grads = running.per_pass.setdefault(key, {})
            grads[index] = grad
            count = len(grads)
        if mode == "any":
            if count == 1:
                fn(grad)
        elif count == sum(find() in running.nodes for find in finders):
            fn([grads.get(each) for each in range(len(finders))])

    return _Handles(
        [tensor.register_hook(partial(one, index)) for index, tensor in enumerate(tensors)]
    )


def _finder(tensor: "Tensor", node: Any) -> "Callable[[], Any]":
    """Return what finds the node of `tensor` while it lives: of a leaf, the one it has then."""
    if tensor._grad_fn is not None:
        return ref(node)
    leaf = ref(tensor)

    def find() -> Any:
        alive = leaf()
        return None if alive is None or alive._accumulator is None else alive._accumulator()

    return find
