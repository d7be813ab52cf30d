"""What stands in a sparse tensor for the array of a dense one."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from offgrad.autograd.tensor_base import TensorBase

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


class SparseRefusalError(NotImplementedError):
    """An operation on dense arrays got a sparse tensor."""


# Tracebacks show PyTorch's class.
SparseRefusalError.__module__, SparseRefusalError.__name__ = "builtins", "NotImplementedError"
SparseRefusalError.__qualname__ = "NotImplementedError"


class SparseArray:
    """Shape and dtype of a sparse tensor; whatever needs the elements in an array raises.

    So an operation on dense arrays refuses a sparse tensor instead of computing nonsense.
    """

    __slots__ = ("dtype", "shape")
    # Never small: backward passes run on arrays where gradients are.
    nbytes = itemsize = 1 << 62
    # For errors.
    what, instead = "a sparse", "to_dense()"

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = tuple(shape), dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements, stored or not."""
        return int(np.prod(self.shape, dtype=np.int64))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise SparseRefusalError(
            f"this operation needs all elements in an array, but got {self.what} {self.dtype.name} "
            f"tensor of shape {list(self.shape)}; convert it with {self.instead}"
        )

    __array__ = __getitem__ = __setitem__ = __len__ = __iter__ = __bool__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what copying and inspecting look up
            raise AttributeError(name)
        self._refuse()


def is_sparse(tensor: Any) -> bool:
    """Return whether it is a sparse tensor of any layout."""
    return isinstance(tensor, TensorBase) and isinstance(tensor._array, SparseArray)


def sparse_gradient(rows: "Tensor", values: "Tensor", shape: tuple[int, ...]) -> Any:
    """Return the sparse tensor of `values` [n, ...] at the indices `rows` [d, n].

    The class is above the operations, and imported when the first is made.
    """
    return TensorBase.tensor_class._sparse(rows, values, shape)


def sparse_module(name: str) -> Any:
    """Return a module of sparse tensors, which few programs load."""
    return import_module(f"offgrad._tensor.sparse.{name}")


def of_sparse(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Tensor":
    """Return the result of a function that has refused a sparse tensor: that of its method.

    Raises:
        SparseRefusalError: if sparse tensors have no such method.
    """
    result: Tensor = _of_method(name, args, kwargs)
    return result


def _of_method(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = args if args else tuple(kwargs.values())[:1]
    first = given[0]
    if isinstance(first, (tuple, list)):
        shapes = sparse_module("shapes")
        if name in ("cat", "concat", "concatenate", "stack"):
            return (shapes.stack if name == "stack" else shapes.cat)(*args, **kwargs)
    elif is_sparse(first):
        method = getattr(type(first), name, None)
        if method is not None and method is not getattr(TensorBase.tensor_class, name, None):
            return method(*args, **kwargs)
    elif name == "addmm" and is_sparse(args[1]):
        return sparse_module("products").plus_product(*args, **kwargs)
    elif len(args) == 2 and name in _REFLECTED and is_sparse(args[1]):
        return getattr(args[1], _REFLECTED[name])(first, **kwargs)
    raise  # the error that the caller handles


_REFLECTED = {
    "add": "__radd__",
    "sub": "__rsub__",
    "mul": "__rmul__",
    "matmul": "__rmatmul__",
    "mm": "__rmatmul__",
}
