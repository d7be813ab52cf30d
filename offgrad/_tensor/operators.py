"""The operators of tensors."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from offgrad import ops
from offgrad._tensor import overrides
from offgrad._tensor.inplace import InPlaceMethods
from offgrad.autograd.tensor_base import TensorBase, describe

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor


def _comparable(other: object) -> TypeGuard[Any]:
    return isinstance(other, (TensorBase, bool, int, float, complex, np.generic))


def _operator(
    operation: Callable[..., "Tensor"], reflected: bool = False
) -> Callable[..., "Tensor"]:
    """Return the method of an operator, with NotImplemented for other types."""

    def method(self: Any, other: Any) -> "Tensor":
        try:
            return operation(self, other)
        except TypeError:
            if _comparable(other):
                raise
            if overrides.is_overriding(type(other)):
                overrides.install()
                return operation(self, other)
            return NotImplemented

    def reflected_method(self: Any, other: Any) -> "Tensor":
        try:
            return operation(other, self)
        except TypeError:
            if _comparable(other):
                raise
            return NotImplemented

    return reflected_method if reflected else method


def _reflected_div(self: Any, other: Any) -> "Tensor":
    """Return ``other / self``; arrays divide by a tensor, as in PyTorch."""
    if isinstance(other, np.ndarray):
        other = ops.from_numpy(other)
    return _divide_number(self, other)


_divide_number = _operator(ops.div, reflected=True)


class Operators(TensorBase):
    """``+``, ``==``, ``[]`` and the like; other types than tensors and numbers may answer first."""

    __radd__ = _operator(ops.add, reflected=True)
    __rsub__ = _operator(ops.sub, reflected=True)
    __rmul__ = _operator(ops.mul, reflected=True)
    __rtruediv__ = _reflected_div
    __rfloordiv__ = _operator(ops.floor_divide, reflected=True)
    __rmod__ = _operator(ops.remainder, reflected=True)
    __rpow__ = _operator(ops.pow, reflected=True)

    def __eq__(self: Any, other: object) -> "Tensor":  # type: ignore[override]
        if isinstance(other, np.ndarray):
            other = ops.from_numpy(other)
        return ops.eq(self, other) if _comparable(other) else NotImplemented

    def __ne__(self: Any, other: object) -> "Tensor":  # type: ignore[override]
        if isinstance(other, np.ndarray):
            other = ops.from_numpy(other)
        return ops.ne(self, other) if _comparable(other) else NotImplemented

    __hash__ = object.__hash__

    def __pos__(self: Any) -> "Tensor":
        if self._array.dtype == np.bool_:
            raise RuntimeError(f"the operator `+` takes no bool tensor, got a {describe(self)}")
        return self

    def __delitem__(self, index: Any) -> None:
        raise TypeError("Tensor does not support deleting items; index those to keep")

    __getitem__ = ops.getitem
    __setitem__ = ops.setitem
    __neg__ = ops.neg
    __abs__ = ops.abs
    __add__ = _operator(ops.add)
    __sub__ = _operator(ops.sub)
    __mul__ = _operator(ops.mul)
    __truediv__ = _operator(ops.div)
    __floordiv__ = _operator(ops.floor_divide)
    __mod__ = _operator(ops.remainder)
    __pow__ = _operator(ops.pow)
    __matmul__ = _operator(ops.matmul)
    __rmatmul__ = _operator(ops.matmul, reflected=True)
    __lt__ = _operator(ops.lt)
    __le__ = _operator(ops.le)
    __gt__ = _operator(ops.gt)
    __ge__ = _operator(ops.ge)
    __and__ = __rand__ = _operator(ops.bitwise_and)
    __or__ = __ror__ = _operator(ops.bitwise_or)
    __xor__ = __rxor__ = _operator(ops.bitwise_xor)
    __lshift__ = _operator(ops.bitwise_left_shift)
    __rshift__ = _operator(ops.bitwise_right_shift)
    __rlshift__ = _operator(ops.bitwise_left_shift, reflected=True)
    __rrshift__ = _operator(ops.bitwise_right_shift, reflected=True)
    __invert__ = ops.bitwise_not
    __iadd__ = InPlaceMethods.add_
    __isub__ = InPlaceMethods.sub_
    __imul__ = InPlaceMethods.mul_
    __itruediv__ = InPlaceMethods.div_
    __ifloordiv__ = InPlaceMethods.floor_divide_
    __imod__ = InPlaceMethods.remainder_
    __ipow__ = InPlaceMethods.pow_
    __iand__ = InPlaceMethods.bitwise_and_
    __ior__ = InPlaceMethods.bitwise_or_
    __ixor__ = InPlaceMethods.bitwise_xor_
    __ilshift__ = InPlaceMethods.bitwise_left_shift_
    __irshift__ = InPlaceMethods.bitwise_right_shift_


# By these names a `__torch_function__` tells what is called, as in PyTorch.
ops.getitem.__name__, ops.setitem.__name__ = "__getitem__", "__setitem__"
