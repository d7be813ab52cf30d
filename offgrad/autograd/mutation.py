"""In-place changes: what may be changed, and the history that changed memory gets."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import memory
from offgrad.autograd import grad_mode
from offgrad.autograd.node import gradient_edge
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.autograd.views import (
    ViewChain,
    base_of,
    history_lock,
    set_history,
)

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.autograd.node import Edge


def check_mutable(target: "Tensor", name: str, recorded: bool) -> None:
    """Raise unless operation `name` may change `target` in place.

    Args:
        target: the tensor.
        name: of the operation, for the message.
        recorded: whether the change will be part of the graph.

    Raises:
        RuntimeError: for read-only memory; for elements that share memory; for inference tensors
            outside inference mode; in grad mode for leaves that require grad and their views, and
            for views whose history cannot follow the change.
    """
    check_history(target, name, recorded)
    array = target._array
    if not array.flags.writeable:
        raise RuntimeError(
            f"{name}: the memory of this {describe(target)} is read-only; clone it first"
        )
    if _repeats(array) or (
        recorded
        and target._base is not None
        and (_overlaps(array) or _repeats(target._base._array))
    ):
        raise RuntimeError(
            f"{name}: elements of this {describe(target)} share memory; clone() it first"
        )


def check_history(target: "Tensor", name: str, recorded: bool) -> None:
    """Raise as `check_mutable` does, but for what lies in the memory itself."""
    if target._storage.inference and not grad_mode.state.inference:
        raise RuntimeError(
            f"{name}: an inference tensor can be changed in place only in inference_mode(), got a "
            f"{describe(target)}; change a clone()"
        )
    if not grad_mode.state.grad_enabled:
        return
    if target._requires_grad and target._grad_fn is None:
        raise RuntimeError(
            f"{name}: a leaf that requires grad cannot be changed in place, got a "
            f"{describe(target)}; do it under no_grad(), or change a clone"
        )
    base, view_chain = base_of(target), target._view_chain
    if base is target or not (recorded or target._requires_grad or base._requires_grad):
        return
    if base._grad_fn is None and (base._requires_grad or target._requires_grad):
        raise RuntimeError(
            f"{name}: a view of a leaf that requires grad cannot be changed in place, got a "
            f"{describe(target)}; do it under no_grad(), or change a clone"
        )
    if view_chain is not None and view_chain.blocked_by is not None:
        raise RuntimeError(
            f"{name}: this {describe(target)} is a view that cannot be changed in place, because "
            f"{view_chain.blocked_by}"
        )


def increment_version(tensor: "Tensor | Iterable[Tensor]") -> None:
    """Count the version of one tensor or several up, as if an operation had changed them in place.

    For code that changes memory behind autograd's back, such as through ``numpy()``.
    """
    single = isinstance(tensor, TensorBase) or not isinstance(tensor, Iterable)
    for each in (tensor,) if single else tensor:
        if not isinstance(each, TensorBase):
            raise RuntimeError(f"versions are of tensors, got {type(each).__name__}")
        each._storage.write("increment_version")


def _repeats(array: Array) -> bool:
    """Return whether a dimension was expanded."""
    repeats = zip(array.strides, array.shape, strict=True)
    return array.size > 0 and any(step == 0 and size > 1 for step, size in repeats)


def _overlaps(array: Array) -> bool:
    """Return whether elements share memory, or may: whether a step of a dimension ends within what
    the dimensions with smaller steps span.
    """
    span = array.itemsize
    pairs = zip(array.strides, array.shape, strict=True)
    for step, size in sorted((abs(step), size) for step, size in pairs if size > 1):
        if step < span:
            return array.size > 0
        span += step * (size - 1)
    return False


def rewrite_history(target: "Tensor", edge: "Edge") -> None:
    """Have `target`, whose memory was changed, lead to `edge`; of a view the base leads there, too.

    All views of the memory follow when they are used next.
    """
    with history_lock:
        base, view_chain = base_of(target), target._view_chain
        if base is target:
            set_history(target, *edge)
        else:
            assert view_chain is not None
            set_history(base, CopySlices.record(base, edge, view_chain), 0)
        base._generation += 1


class _Slices(Op):
    """An operation on the part of an array that is a view of a base; keeps nothing.

    Args:
        view_chain: how the view is taken.
        strides: those of the base, in elements: arrays are laid out so, because some views exist
            in one layout only.
    """

    suffix = ""
    view_chain: ViewChain
    strides: tuple[int, ...]

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the operation."""
        return {"view_chain": self.view_chain, "strides": self.strides}

    def lay_out(self, array: Array, view_chain: ViewChain, strides: tuple[int, ...]) -> Array:
        """Remember the parameters; return `array`, if need be a copy, in the layout of the base."""
        self.view_chain, self.strides = view_chain, strides
        return array if _strides(array) == strides else self.copied(array)

    def copied(self, array: Array) -> Array:
        """Return a copy in the layout of the base."""
        steps = [abs(step) for step in self.strides]
        if not array.size:
            return memory.copy(array)
        extent = 1 + sum(step * (size - 1) for step, size in zip(steps, array.shape, strict=True))
        buffer: Array = memory.empty(extent, array.dtype)
        nbytes = [step * array.itemsize for step in steps]
        out = np.lib.stride_tricks.as_strided(buffer, array.shape, nbytes)
        backwards = tuple([axis for axis, step in enumerate(self.strides) if step < 0])
        if backwards:
            out = np.flip(out, backwards)
        np.copyto(out, array)
        return out


def _strides(array: Array) -> tuple[int, ...]:
    """Return the steps in elements, 0 where there is nothing to step to."""
    pairs = zip(array.strides, array.shape, strict=True)
    return tuple([step // array.itemsize if size > 1 else 0 for step, size in pairs])


class CopySlices(_Slices):
    """A base with a tensor written over a view of it: what changing a view in place does."""

    @classmethod
    def record(cls, base: "Tensor", edge: "Edge", view_chain: ViewChain) -> "CopySlices":
        """Return the node for a change of memory that has happened: of what leads to `edge`."""
        node = cls()
        node.view_chain, node.strides = view_chain, _strides(base._array)
        node.needs_input_grad = base._requires_grad, edge[0] is not None
        node.next_functions = gradient_edge(base), edge
        node.output_metadata = ((base._array.shape, base._array.dtype),)
        return node

    def forward(self, base: Array, value: Array, **parameters: Any) -> Array:
        """Return the changed copy."""
        out = self.lay_out(base, **parameters)
        if np.may_share_memory(out, base):
            out = self.copied(base)
        self.view_chain.take_array(out)[...] = value
        return out

    def backward(self, grad: "Tensor") -> Any:
        """What was written gets the view of the gradient, the base the gradient elsewhere."""
        need_base, need_value = self.needs_input_grad
        nothing = wrap(np.zeros((), np.bool_))
        return (
            CopySlices.apply(grad, nothing, **self.parameters()) if need_base else None,
            TakeSlices.apply(grad, **self.parameters()) if need_value else None,
        )


class TakeSlices(_Slices):
    """A copy of the view of a base."""

    def forward(self, base: Array, **parameters: Any) -> Array:
        """Return the copy."""
        self.shape, self.dtype = base.shape, base.dtype
        base = self.lay_out(base, **parameters)
        return memory.copy(self.view_chain.take_array(base))

    def backward(self, grad: "Tensor") -> Any:
        """Put the gradient where the view is, in zeros."""
        zeros = wrap(memory.zeros(self.shape, self.dtype))
        return CopySlices.apply(zeros, grad, **self.parameters())
