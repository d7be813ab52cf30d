"""Methods of tensors that PyTorch has as functions, too."""

from typing import Any

from offgrad._tensor.rare_methods import eig, lstsq, matrix_rank, solve, symeig
from offgrad._tensor.storages import TypedStorage, UntypedStorage
from offgrad.autograd.tensor_base import TensorBase
from offgrad.ops._core.dtypes import check_tensor

__all__ = [
    "as_strided_",
    "eig",
    "fill",
    "get_device",
    "is_conj",
    "is_distributed",
    "is_inference",
    "is_neg",
    "is_nonzero",
    "is_same_size",
    "is_signed",
    "is_storage",
    "is_tensor",
    "lstsq",
    "matrix_rank",
    "numel",
    "resize_as_",
    "resolve_neg",
    "solve",
    "symeig",
]


def _function(name: str) -> Any:
    """Return the function that calls a method of its first argument, a tensor."""

    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(check_tensor(input, name), name)(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__module__ = __name__
    call.__doc__ = f"Return ``input.{name}()``; see `Tensor.{name}`."
    return call


as_strided_ = _function("as_strided_")
get_device = _function("get_device")
is_conj = _function("is_conj")
is_distributed = _function("is_distributed")
is_inference = _function("is_inference")
is_neg = _function("is_neg")
is_nonzero = _function("is_nonzero")
is_same_size = _function("is_same_size")
is_signed = _function("is_signed")
numel = _function("numel")
resize_as_ = _function("resize_as_")
resolve_neg = _function("resolve_neg")


def is_tensor(obj: Any) -> Any:
    """Return whether `obj` is a tensor."""
    return isinstance(obj, TensorBase)


def is_storage(obj: Any) -> bool:
    """Return whether `obj` is a storage of PyTorch's kind."""
    return isinstance(obj, (UntypedStorage, TypedStorage))


def fill(input: Any, value: Any) -> Any:
    """Return a tensor like `input` full of one number, with gradients as of `Tensor.fill_`."""
    return check_tensor(input, "fill").clone().fill_(value)
