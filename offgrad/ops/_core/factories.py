"""The keywords that all functions take that make tensors."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad._layout import sparse_coo
from offgrad.autograd.tensor_base import TensorBase, is_differentiable, wrap
from offgrad.memory.meta import MetaArray, as_meta, shapes_only
from offgrad.ops._core.device import CPU, check_device, is_meta
from offgrad.ops._core.dims import shape_of
from offgrad.ops._core.memory_formats import check_layout
from offgrad.ops._core.sparse_data import sparse_gradient

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def factory(make: "Callable[..., Tensor]") -> "Callable[..., Tensor]":
    """Return `make` with the keywords of factories, checked.

    `make` gets a ``dtype`` of NumPy's, or None, besides arguments of its own. The others are
    ``layout``, of which there is one, ``device``, ``pin_memory``, which is refused as in
    PyTorch without an accelerator, and ``requires_grad``.
    """
    where = make.__name__
    has_source = where.endswith("_like")

    @functools.wraps(make)
    def run(
        *args: Any,
        dtype: Any = None,
        layout: Any = None,
        device: Any = None,
        pin_memory: bool = False,
        requires_grad: bool = False,
        **options: Any,
    ) -> "Tensor":
        dtype = None if dtype is None else np.dtype(dtype)
        if layout is sparse_coo and where in ("empty", "zeros"):
            shape = new_shape(args, options.get("size"), where)
            index = TensorBase.tensor_class(np.empty((len(shape), 0))).long()
            stored = sparse_gradient(index, make(0, dtype=dtype), shape)
            return set_requires_grad(stored, requires_grad)
        check_options(where, layout, None, pin_memory)
        if device is None and has_source and args and isinstance(args[0], TensorBase):
            on_meta = type(args[0]._array) is MetaArray
        else:
            on_meta = is_meta(device)
        if on_meta:
            result = made_on_meta(make, *args, dtype=dtype, **options)
        elif device is not None and is_meta(None):
            with CPU:
                result = make(*args, dtype=dtype, **options)
        else:
            result = make(*args, dtype=dtype, **options)
        return set_requires_grad(result, requires_grad)

    return run


def made_on_meta(make: "Callable[..., Tensor]", *args: Any, **options: Any) -> "Tensor":
    """Return ``make(*args, **options)`` on the meta device, without memory."""
    with shapes_only():
        result = make(*args, **options)
    return wrap(as_meta(result._array))


def placed(tensor: "Tensor", device: Any) -> "Tensor":
    """Return a new tensor on `device`, None for the default: itself, or its geometry on "meta"."""
    return wrap(as_meta(tensor._array)) if is_meta(device) else tensor


def check_options(where: str, layout: Any, device: Any, pin_memory: Any) -> None:
    """Raise unless the options of a factory are those of tensors here."""
    if layout is not None:
        check_layout(layout, where)
    if device is not None:
        check_device(device)
    if pin_memory:
        raise RuntimeError(
            f"{where}: pinned memory is for transfers to an accelerator, and none is available; "
            "leave out pin_memory"
        )


def set_requires_grad(tensor: "Tensor", requires_grad: bool | None) -> "Tensor":
    """Return a new tensor after ``requires_grad_(requires_grad)``."""
    if requires_grad is False or requires_grad is None:
        return tensor
    return tensor.requires_grad_(requires_grad)


def new_shape(args: tuple[Any, ...], size: Any, where: str) -> tuple[int, ...]:
    """Return the shape of a new tensor, given by position or as ``size=``.

    Raises:
        TypeError: unless it is given once.
        RuntimeError: for negative sizes.
    """
    if size is None:
        return shape_of(args, where)
    if args:
        raise TypeError(f"{where}: the size is given twice, as {args} and as size={size}")
    return shape_of((size,), where)


def check_requires_grad(tensor: TensorBase) -> None:
    """Raise RuntimeError unless the dtype of `tensor` can require grad."""
    if not is_differentiable(tensor._array.dtype):
        raise RuntimeError(
            "Only Tensors of floating point and complex dtype can require gradients, got "
            f"{tensor._array.dtype.name}; convert with .float()"
        )
