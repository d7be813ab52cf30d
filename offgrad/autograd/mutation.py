"""In-place changes: checks before the change, and the new history of the changed memory."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd import grad_mode
from offgrad.autograd.node import gradient_edge
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.autograd.views import ViewChain, base_of, history_lock, set_history
from offgrad.memory.meta import MetaArray

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.node import Edge


def check_mutable(target: "Tensor", name: str, recorded: bool) -> None:
    """Raise unless operation `name` may change `target` in place.

    Args:
        target: the tensor.
        name: the operation's name, for the message.
        recorded: whether the change will be part of the graph.

    Raises:
        RuntimeError: for read-only memory; for elements that share memory; for inference tensors
            outside inference mode; in grad mode, for leaves that require grad and their views, and
            for views whose history cannot follow the change.
    """
    check_history(target, name, recorded)
    array = target._array
    if not array.flags.writeable and type(array) is not MetaArray:
        raise RuntimeError(
            f"{name}: the memory of this {describe(target)} is read-only; clone it first"
        )
    if _is_expanded(array) or (
        recorded
        and target._base is not None
        and (_overlaps(array) or _is_expanded(target._base._array))
    ):
        raise RuntimeError(
            f"{name}: unsupported operation: elements of this {describe(target)} share a single "
            "memory location; clone() it first"
        )


def check_history(target: "Tensor", name: str, recorded: bool) -> None:
    """Check as `check_mutable` does, except for read-only memory and elements that share memory."""
    if target._storage.inference and not grad_mode.state.inference:
        raise RuntimeError(
            f"{name}: Inplace update to inference tensor outside InferenceMode, a "
            f"{describe(target)}; change its clone()"
        )
    if not grad_mode.state.grad_enabled:
        return
    if target._requires_grad and target._grad_fn is None:
        raise RuntimeError(
            f"{name}: a leaf Variable that requires grad is being used in an in-place operation, a "
            f"{describe(target)}; do it under no_grad(), or change a clone"
        )
    base, view_chain = base_of(target), target._view_chain
    if base is target or not (recorded or target._requires_grad or base._requires_grad):
        return
    if base._grad_fn is None and (base._requires_grad or target._requires_grad):
        raise RuntimeError(
            f"{name}: a view of a leaf Variable that requires grad is being used in an in-place "
            f"operation, a {describe(target)}; do it under no_grad(), or change a clone"
        )
    if view_chain is not None and view_chain.blocked_by is not None:
        raise RuntimeError(
            f"{name}: this {describe(target)} is a view and is being modified inplace. "
            f"{view_chain.blocked_by}"
        )


def increment_version(tensor: "Tensor | Iterable[Tensor]") -> None:
    """Increment the version of one or several tensors, as in-place operations do.

    For code that changes a tensor's memory without autograd, such as through ``numpy()``.
    """
    is_single = isinstance(tensor, TensorBase) or not isinstance(tensor, Iterable)
    for each in (tensor,) if is_single else tensor:
        if not isinstance(each, TensorBase):
            raise RuntimeError(f"increment_version takes tensors, got {type(each).__name__}")
        each._storage.write("increment_version")


@contextmanager
def _unsafe_preserve_version_counter(tensors: "Tensor | tuple[Tensor, ...]") -> Iterator[None]:
    """Let in-place changes of tensors in the block not count as changes.

    For code that knows that no saved tensor is affected: gradients are wrong otherwise.
    """
    each_one: Any = (tensors,) if isinstance(tensors, TensorBase) else tensors
    versions = [each._storage.version for each in each_one]
    try:
        yield
    finally:
        for each, version in zip(each_one, versions, strict=True):
            each._storage.version = version


def _is_expanded(array: Array) -> bool:
    """Return whether a dimension is expanded."""
    if 0 not in array.strides:
        return False
    pairs = zip(array.strides, array.shape, strict=True)
    return array.size > 0 and any(stride == 0 and size > 1 for stride, size in pairs)


def _overlaps(array: Array) -> bool:
    """Return whether elements may share memory: whether a dimension's stride is shorter than the
    span of the dimensions with smaller strides.
    """
    span = array.itemsize
    pairs = zip(array.strides, array.shape, strict=True)
    for stride, size in sorted((abs(stride), size) for stride, size in pairs if size > 1):
        if stride < span:
            return array.size > 0
        span += stride * (size - 1)
    return False


def rewrite_history(target: "Tensor", edge: "Edge") -> None:
    """Make `edge` the history of the changed `target`; if it is a view, rewrite its base's history.

    All views of the memory, including `target`, get their new history on next use.
    """
    with history_lock:
        base, view_chain = base_of(target), target._view_chain
        if base is target:
            set_history(target, *edge)
            base._generation += 1
            return
        assert view_chain is not None
        set_history(base, CopySlices.record(base, edge, view_chain), 0)
        base._generation += 1
    outputs = [] if edge[0] is None else [each for each in edge[0].saves() if each.is_output]
    if outputs:  # they are the view itself: their gradients go by way of its base
        view_edge = gradient_edge(target)
        for saved in outputs:
            saved.reach_by(view_edge)


class _Slices(Op):
    """An operation on a view of a base array; saves nothing.

    Args:
        view_chain: the operations that lead from the base to the view.
        strides: the strides of the base, in elements. Arrays are copied to this layout if need be,
            because some views exist in one layout only.
    """

    suffix = ""
    view_chain: ViewChain
    strides: tuple[int, ...]

    def parameters(self) -> dict[str, Any]:
        return {"view_chain": self.view_chain, "strides": self.strides}

    def lay_out(self, array: Array, view_chain: ViewChain, strides: tuple[int, ...]) -> Array:
        """Set the parameters; return `array`, or a copy if its layout is not that of the base."""
        self.view_chain, self.strides = view_chain, strides
        return array if _strides(array) == strides else self.copy_to_layout(array)

    def copy_to_layout(self, array: Array) -> Array:
        """Return a copy of `array` in the layout of the base."""
        strides = [abs(stride) for stride in self.strides]
        if not array.size:
            return memory.copy(array)
        pairs = zip(strides, array.shape, strict=True)
        extent = 1 + sum(stride * (size - 1) for stride, size in pairs)
        buffer: Array = memory.empty(extent, array.dtype)
        byte_strides = [stride * array.itemsize for stride in strides]
        out = np.lib.stride_tricks.as_strided(buffer, array.shape, byte_strides, True)
        flipped = tuple([axis for axis, stride in enumerate(self.strides) if stride < 0])
        if flipped:
            out = np.flip(out, flipped)
        np.copyto(out, array)
        return out


def _strides(array: Array) -> tuple[int, ...]:
    """Return the strides in elements, 0 for dimensions of at most one element."""
    pairs = zip(array.strides, array.shape, strict=True)
    return tuple([stride // array.itemsize if size > 1 else 0 for stride, size in pairs])


class CopySlices(_Slices):
    """A copy of a base with a tensor written over a view of it, as an in-place change of the view
    does.
    """

    @classmethod
    def record(cls, base: "Tensor", edge: "Edge", view_chain: ViewChain) -> "CopySlices":
        """Return the node for an in-place change that has happened: of a view of `base`, to the
        tensor with gradient edge `edge`.
        """
        node = cls()
        node.view_chain, node.strides = view_chain, _strides(base._array)
        node.needs_input_grad = base._requires_grad, edge[0] is not None
        node.next_functions = gradient_edge(base), edge
        node.output_metadata = ((base._array.shape, base._array.dtype),)
        return node

    def forward(self, base: Array, value: Array, **parameters: Any) -> Array:
        out = self.lay_out(base, **parameters)
        if np.may_share_memory(out, base):
            out = self.copy_to_layout(base)
        self.view_chain.take_array(out)[...] = value
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Return for the base the gradient outside the view, for the value the view of it."""
        need_base, need_value = self.needs_input_grad
        zero = wrap(np.zeros((), np.bool_))
        return (
            CopySlices.apply(grad, zero, **self.parameters()) if need_base else None,
            TakeSlices.apply(grad, **self.parameters()) if need_value else None,
        )


class TakeSlices(_Slices):
    """A copy of a view of a base."""

    def forward(self, base: Array, **parameters: Any) -> Array:
        self.shape, self.dtype = base.shape, base.dtype
        base = self.lay_out(base, **parameters)
        return memory.copy(self.view_chain.take_array(base))

    def backward(self, grad: "Tensor") -> Any:
        """Return zeros with the gradient written over the view."""
        zeros = wrap(memory.zeros(self.shape, self.dtype))
        return CopySlices.apply(zeros, grad, **self.parameters())
