"""In-place forms: compute out of place, overwrite the target, give it the result's history."""

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad._dtype import type_name
from offgrad.autograd import grad_mode, saved_tensor
from offgrad.autograd.float_errors import ignore_float_errors, restore_float_errors
from offgrad.autograd.forward_mode import changes_tangent, rewrite_for_tangents
from offgrad.autograd.mutation import check_history, check_mutable, rewrite_history
from offgrad.autograd.node import gradient_edge
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, describe
from offgrad.autograd.views import base_of, is_stale, turn_into_view
from offgrad.memory.meta import meters
from offgrad.ops._core.direct import MAX_NUMBER
from offgrad.ops._core.dtypes import as_tensor_of, category, number_array

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = ["copy_", "inplace", "inplace_view"]


def inplace(operation: Callable[..., Any], target: "Tensor", *args: Any, **kwargs: Any) -> "Tensor":
    """Overwrite `target` with ``operation(target, *args, **kwargs)``.

    Raises:
        RuntimeError: as `overwrite`; nothing has changed then.
    """
    name = f"{operation.__name__.lstrip('_')}_" if operation.__name__ != "apply" else "copy_"
    check_mutable(target, name, recorded=False)
    ufunc = direct_ufuncs.get(operation)
    if ufunc is not None and _compute_directly(ufunc, target, name, args, kwargs):
        return target
    targets, thread, version = saved_tensor.targets, get_ident(), target._storage.version
    outer = targets.get(thread)
    try:
        targets[thread] = target._storage, target, name
        result: Tensor = operation(_as_operand(target), *args, **kwargs)
    finally:
        if outer is None:
            targets.pop(thread, None)
        else:
            targets[thread] = outer
    if result is target and target._storage.version != version:
        return target  # which an `Update` has changed
    if target._requires_grad and not result._requires_grad and grad_mode.state.grad_enabled:
        # The operation is not differentiable (a comparison): gradient zero, as after a copy.
        return copy_(target, result, name=name)
    return overwrite(target, result, name)


direct_ufuncs: dict[Callable[..., Any], Any] = {}
"""Operations that may write where they read, and NumPy's functions of the same arithmetic."""


def _compute_directly(
    ufunc: Any, target: "Tensor", name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Compute a result that is not recorded in one pass over the target's memory.

    Return False, and change nothing, where the general way must: for other arguments, dtypes or
    shapes, for large arrays in the same memory, for pages, and for shapes without memory.
    """
    if len(args) != 1 or is_general(target):
        return False
    alpha = kwargs.get("alpha", 1)
    if kwargs and (
        kwargs.keys() - {"alpha"}
        or type(alpha) not in (int, float)
        or abs(alpha) > MAX_NUMBER
        or ufunc not in (np.add, np.subtract)
    ):
        return False
    array, other = target._array, args[0]
    dtype = array.dtype
    is_large = kernels.is_large(array.size)
    if dtype.char not in "fd":
        is_exact = dtype.kind == "i" and ufunc is not np.divide and type(other) is not float
        if is_large or kwargs or not is_exact:
            return False
    is_number = type(other) is float or type(other) is int
    if not (is_number or isinstance(other, TensorBase)):
        return False
    if is_recorded(target, other):
        return False
    if is_large and not array.flags.c_contiguous:
        return False
    if is_number:
        values = number_array(other, dtype, name)
    elif other._storage.is_paged:
        return False
    else:
        values = other._array
        if type(values) is not np.ndarray:
            return False
        if is_large:
            if not kernels.may_be_in_place(array, values):
                return False
        elif values.dtype != dtype or values.shape != array.shape:
            return False
    target._storage.write(name)  # which may move the memory into pages
    array = target._array
    if is_large:
        kernels.in_place(ufunc, array, values, alpha)
    else:
        previous = ignore_float_errors()
        try:
            ufunc(array, values if alpha == 1 else values * dtype.type(alpha), out=array)
        finally:
            restore_float_errors(previous)
    return True


def is_general(target: "Tensor") -> bool:
    """Return whether memory that is paged, metered or absent needs the general way of a change."""
    return bool(meters) or target._storage.is_paged or type(target._array) is not np.ndarray


def is_recorded(target: "Tensor", value: Any) -> bool:
    """Return whether an in-place change of `target` by `value` is part of the graph."""
    if not grad_mode.state.grad_enabled:
        return changes_tangent(target, value)
    return (
        target._requires_grad
        or base_of(target)._requires_grad
        or (isinstance(value, TensorBase) and (value._requires_grad or is_stale(value)))
    )


def inplace_view(
    operation: Callable[..., Any], target: "Tensor", *args: Any, **kwargs: Any
) -> "Tensor":
    """Turn `target` into the view that ``operation(target, *args, **kwargs)`` returns.

    Raises:
        RuntimeError: if `target` must not be changed in place (see `check_mutable`).
    """
    name = f"{operation.__name__}_"
    check_history(target, name, recorded=False)
    # Recorded even under no_grad: the history of the values needs the change of shape.
    view: Tensor = grad_mode.call(True, operation, target, *args, **kwargs)
    if view is target:
        return target
    # Saved tensors that share the memory have the old shape: count a new version.
    target._storage.write(name)
    if target._requires_grad and target._grad_fn is None:
        target._share(view)
    else:
        turn_into_view(target, view)
    return target


def _as_operand(target: "Tensor") -> "Tensor":
    """Return `target`; for a view with a history, another view like it.

    Hooks of the view stay with its old value, which is no longer part of the graph.
    """
    base, view_chain = base_of(target), target._view_chain
    if base is target or not (base._requires_grad and grad_mode.state.grad_enabled):
        return target
    assert view_chain is not None
    return view_chain.take(base)


def overwrite(target: "Tensor", result: "Tensor", name: str) -> "Tensor":
    """Write `result` into the memory of `target` and move `target` to its place in the graph.

    Raises:
        RuntimeError: if `target` must not be changed in place (see `check_mutable`); if the shapes
            differ or the dtype of the result does not convert.
    """
    array = target._array
    base = base_of(target)
    recorded = result._requires_grad or base._requires_grad
    if not grad_mode.state.grad_enabled:
        recorded = recorded and changes_tangent(target, result)
    check_mutable(target, name, recorded)
    if result._array.shape != array.shape:
        raise RuntimeError(
            f"{name}: output with shape {list(array.shape)} doesn't match the broadcast shape "
            f"{list(result._array.shape)}: the result must have the target's shape, got a "
            f"{describe(result)} for a {describe(target)}"
        )
    if category(result._array.dtype) > category(array.dtype):
        raise RuntimeError(
            f"{name}: result type {type_name(result._array.dtype)} can't be cast to the desired "
            f"output type {type_name(array.dtype)}: got a {describe(result)} for a "
            f"{describe(target)}; use the out-of-place form"
        )
    if recorded:
        result = as_tensor_of(result, array.dtype, name)
    target._storage.write(name)
    _write(target._array, result._array)
    if recorded:
        edge = gradient_edge(result)
        (rewrite_history if grad_mode.state.grad_enabled else rewrite_for_tangents)(target, edge)
    return target


def _write(array: Array, values: Array) -> None:
    """Write values, broadcast and converted, into `array`."""
    if values.dtype != array.dtype:
        previous = ignore_float_errors()  # numbers that overflow are infinite
        try:
            np.copyto(array, values, casting="unsafe")
        finally:
            restore_float_errors(previous)
    elif kernels.is_large(array.size) and not np.may_share_memory(array, values):
        kernels.copy_into(array, np.broadcast_to(values, array.shape))
    else:
        np.copyto(array, values)


class CopyBackwards(Op):
    """A copy of the source in the target's shape and dtype; keeps nothing."""

    suffix = ""

    def forward(self, target: Array, source: Array) -> Array:
        self.shape = source.shape
        out = memory.empty(target.shape, target.dtype)
        _write(out, source)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """The overwritten target gets zeros, the source the gradient."""
        need_target, need_source = self.needs_input_grad
        return (
            grad.new_zeros(grad.shape) if need_target else None,
            grad.sum_to_size(self.shape) if need_source else None,
        )


def copy_(
    target: "Tensor", source: Any, non_blocking: bool = False, *, name: str = "copy_"
) -> "Tensor":
    """Write `source`, a tensor or a number, broadcast and converted, over `target`.

    Raises:
        RuntimeError: as `overwrite`; the message names the operation `name`.
    """
    if not isinstance(source, TensorBase) and not is_recorded(target, source):
        check_mutable(target, name, recorded=False)
        values = number_array(source, target._array.dtype, name)
        target._storage.write(name)
        _write(target._array, values)
        return target
    value = as_tensor_of(source, target._array.dtype, name)
    if value._array.ndim and value._array.shape != target._array.shape:
        try:
            np.broadcast_to(value._array, target._array.shape)
        except ValueError:
            raise RuntimeError(
                f"{name}: the source must broadcast to the target, got a {describe(value)} for a "
                f"{describe(target)}"
            ) from None
    if is_recorded(target, value):
        check_mutable(target, name, recorded=True)
        # A view's old value gets no gradient: CopySlices passes it to the rest of the base.
        overwritten = target if target._base is None else target.detach()
        return overwrite(target, CopyBackwards.apply(overwritten, value), name)
    check_mutable(target, name, recorded=False)
    target._storage.write(name)
    _write(target._array, value._array)
    return target


def inplace_form(operation: Callable[..., Any]) -> "Callable[..., Tensor]":
    """Return the function that writes the result of `operation` over its first argument.

    It serves as a method, too. PyTorch has some in-place forms as functions, and all as methods:
    an operation's file defines the former, `offgrad._tensor.inplace` the rest.
    """

    def run(self: "Tensor", *args: Any, **kwargs: Any) -> "Tensor":
        return inplace(operation, self, *args, **kwargs)

    run.__name__ = f"{operation.__name__}_"
    run.__doc__ = f"Compute `{operation.__name__}` in place; return the tensor."
    return run


def inplace_view_form(operation: Callable[..., Any]) -> "Callable[..., Tensor]":
    """Return the function that turns its first argument into the view `operation` returns."""

    def run(self: "Tensor", *args: Any, **kwargs: Any) -> "Tensor":
        return inplace_view(operation, self, *args, **kwargs)

    run.__name__ = f"{operation.__name__}_"
    run.__doc__ = f"Compute `{operation.__name__}` in place; return the tensor."
    return run
