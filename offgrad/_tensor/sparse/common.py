"""What sparse tensors of all layouts share: history is that of the values."""

import re
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from offgrad import ops
from offgrad._tensor.sparse import elementwise, products
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.handles import RemovableHandle
from offgrad.autograd.node import Node
from offgrad.autograd.override_state import disabled_torch_function
from offgrad.autograd.tensor_base import TensorBase, wrap


def _through_values(name: str) -> Callable[..., Any]:
    """Return the elementwise method that maps zero to zero: that of the coalesced values."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        whole = self.coalesce() if self.is_sparse else self
        return whole._with(getattr(whole._value, name)(*args, **options))

    method.__name__ = name
    method.__doc__ = f"Return `{name}` of the elements, which maps zero to zero."
    return method


def _in_place(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **options: Any) -> Any:
        return self._take(getattr(self, name)(*args, **options))

    method.__name__ = f"{name}_"
    method.__doc__ = f"Change the tensor to the result of `{name}`; return it."
    return method


def _as_dtype(name: str) -> Callable[..., Any]:
    def method(self: Any, memory_format: Any = None) -> Any:
        return self._with(getattr(self._value, name)())

    method.__name__ = name
    method.__doc__ = f"Return the tensor with values converted by `{name}`."
    return method


_ZERO_TO_ZERO = """
    abs absolute asin arcsin asinh arcsinh atan arctan atanh arctanh ceil deg2rad erf erfinv expm1
    floor frac log1p rad2deg relu round sgn sign sin sinh sqrt square tan tanh trunc isnan isinf
    isneginf isposinf signbit nan_to_num conj_physical angle
"""
_IN_PLACE = "add sub mul div neg " + _ZERO_TO_ZERO
_DTYPES = "float double half bfloat16 long int short char byte bool cfloat cdouble"


class SparseBase(Tensor):
    """A tensor that stores some of its elements in `_value`."""

    _value: Tensor
    __torch_function__ = staticmethod(disabled_torch_function)

    # The history is that of the values.

    @property
    def _requires_grad(self) -> bool:  # type: ignore[override]
        return self._value._requires_grad

    @property
    def _grad_fn(self) -> Node | None:  # type: ignore[override]
        return self._value._grad_fn

    @property
    def _output_nr(self) -> int:  # type: ignore[override]
        return self._value._output_nr

    @property
    def _grad(self) -> Any:  # type: ignore[override]
        return self.grad

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Set whether the values require grad; return the tensor."""
        self._value.requires_grad_(requires_grad)
        return self

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call ``hook(grad)`` with the gradient of the values."""
        return self._value.register_hook(hook)

    def retain_grad(self) -> None:
        """Make backward set ``.grad`` although the tensor is not a leaf."""
        self._value.retain_grad()

    def detach(self) -> Any:
        """Return a tensor with the same elements, without history."""
        return self._with(self._value.detach())  # type: ignore[attr-defined]

    def detach_(self) -> Any:
        """Drop the history; return the tensor."""
        self._value = self._value.detach()
        return self

    # Elements

    def _nnz(self) -> int:
        return int(self._value._array.shape[0])

    def _values(self) -> Tensor:
        return self._value

    def dense_dim(self) -> int:
        """Return the number of dense dimensions, the last ones."""
        return self.ndim - self.sparse_dim()

    def numpy(self, *, force: Any = False) -> NoReturn:
        """Raise: the elements lie in no array."""
        raise TypeError(
            "can't convert a sparse tensor to numpy: no array holds its elements; call to_dense() "
            "first"
        )

    def tolist(self) -> NoReturn:
        """Raise: a sparse tensor has no nested lists."""
        raise RuntimeError("tolist is for dense tensors; call to_dense() first")

    def item(self) -> Any:
        """Return the only element as a Python number."""
        return self.to_dense().item()

    def is_coalesced(self) -> bool:
        """Raise: only sparse tensors of coordinates are coalesced."""
        raise RuntimeError(
            f"is_coalesced is for sparse tensors of coordinates, got one of {self.layout}"
        )

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """Return True, as PyTorch does."""
        return True

    def contiguous(self, memory_format: Any = None) -> Any:
        """Return the tensor itself."""
        return self

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def __format__(self, spec: str) -> str:
        return object.__format__(self, spec)

    def _shown(self, part: Tensor, indent: int) -> str:
        """Return a part of the tensor for `repr`; `indent` is where it begins in its line."""
        if not part._array.size:
            return f"tensor([], size={tuple(part._array.shape)})"
        text = repr(wrap(part._array))
        if ", dtype=" in text:
            text = text.rsplit(", dtype=", 1)[0] + ")"
        return re.sub(r"\n(?=[^\n])", "\n" + " " * indent, text)

    def _with_suffix(self, text: str, new_line: bool = False) -> str:
        """Return the text of the parts, with what else `repr` shows, in lines of 80 characters."""
        dtype, node = self._value._array.dtype, self._value._grad_fn
        shown = [f"size={tuple(self.shape)}", f"nnz={self._nnz()}"]
        if dtype not in (ops.get_default_dtype(), np.int64, np.bool_, np.complex64):
            shown.append(f"dtype={self.dtype}")
        shown.append(f"layout={self.layout}")
        if node is not None:
            shown.append(f"grad_fn=<{node.name()}>")
        elif self._value._requires_grad:
            shown.append("requires_grad=True")
        width = 80 if new_line else len(text) - text.rfind("\n")
        text = text.removesuffix(",")
        for each in shown:
            if width + len(each) + 2 > 80:
                text, width = f"{text},\n       {each}", 7 + len(each)
            else:
                text, width = f"{text}, {each}", width + len(each) + 2
        return text + ")"

    # Conversions

    def to(self, *args: Any, **options: Any) -> Any:
        """Return the tensor with values in another dtype."""
        args = tuple(each._value if isinstance(each, SparseBase) else each for each in args)
        return self._with(self._value.to(*args, **options))  # type: ignore[attr-defined]

    def type(self, dtype: Any = None, non_blocking: Any = False, **_: Any) -> Any:
        """Return the name of the tensor's type, or the tensor in another dtype."""
        found = self._value.type(dtype)
        if dtype is None:
            return found.replace("torch.", "torch.sparse.")
        return self._with(found)  # type: ignore[attr-defined]

    def type_as(self, other: Any) -> Any:
        """Return the tensor with values of the dtype of `other`."""
        return self.to(other.dtype)

    def cpu(self, memory_format: Any = None) -> Any:
        """Return the tensor itself."""
        return self

    # Arithmetic

    def __neg__(self) -> Any:
        return self._with(-self._value)  # type: ignore[attr-defined]

    def neg(self) -> Any:
        """Return the negatives."""
        return -self

    def is_same_size(self, other: TensorBase) -> bool:
        """Return whether `other` has the same shape."""
        return bool(self._array.shape == other._array.shape)

    add, sub, mul, div, pow = (
        elementwise.add,  # type: ignore[assignment]
        elementwise.sub,  # type: ignore[assignment]
        elementwise.mul,
        elementwise.div,
        elementwise.pow,
    )
    multiply, subtract, divide, true_divide, negative = mul, sub, div, div, neg  # type: ignore[assignment]
    __add__, __sub__, __mul__, __truediv__, __pow__ = add, sub, mul, div, pow
    __iadd__, __isub__, __imul__, __itruediv__ = map(_in_place, ("add", "sub", "mul", "div"))
    __radd__, __rsub__ = elementwise.radd, elementwise.rsub
    __rmul__ = mul
    matmul = mm = __matmul__ = products.matmul  # type: ignore[assignment]
    mv, addmm, addmm_ = products.mv, products.addmm, products.addmm_  # type: ignore[assignment]
    __rmatmul__ = products.rmatmul

    __hash__ = object.__hash__


for _name in _ZERO_TO_ZERO.split():
    setattr(SparseBase, _name, _through_values(_name))
for _name in _IN_PLACE.split():
    setattr(SparseBase, f"{_name}_", _in_place(_name))
for _name in _DTYPES.split():
    setattr(SparseBase, _name, _as_dtype(_name))
SparseBase.__abs__ = _through_values("abs")
