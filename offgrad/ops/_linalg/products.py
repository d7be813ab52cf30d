"""Products of matrices and vectors."""

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import TensorBase, metadata
from offgrad.ops._core.autocast import lower_precision
from offgrad.ops._core.broadcasting import (
    broadcast_shape,
    conj,
)
from offgrad.ops._core.direct import Direct, direct_result
from offgrad.ops._core.dtypes import check_tensor, not_implemented, shape_error
from offgrad.ops._core.sparse_data import SparseRefusalError, of_sparse
from offgrad.ops._reduction.sums import sum_to_size
from offgrad.ops._shape.reshaping import UnsafeView

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "bmm",
    "dot",
    "ger",
    "matmul",
    "mm",
    "mv",
    "outer",
    "vdot",
]


def for_blas(array: Array) -> Array:
    """Return `array`, copied unless BLAS can read it: results do not depend on strides.

    A copy keeps the memory order of the last two dimensions, as a copy in a store does, so that
    BLAS gets the same orientation and gives the same bits for either.
    """
    flags = array.flags
    if flags.c_contiguous:
        return array
    if array.ndim < 2 or 1 in array.shape[-2:]:
        return memory.copy(array)
    if array.ndim == 2 and flags.f_contiguous:
        return array
    rows, columns = array.strides[-2:]
    item = array.itemsize
    for inner, outer, size in (
        (columns, rows, array.shape[-1]),
        (rows, columns, array.shape[-2]),
    ):
        if inner == item and outer >= item * size and outer % item == 0:
            return array
    if abs(rows) < abs(columns):
        return memory.copy(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    return memory.copy(array)


def product(a: Array, b: Array, bias: Array | None = None) -> Array:
    """Return ``a @ b`` of arrays of at least two dimensions, in tensor memory.

    Each row of a product of two matrices has the `bias` added.
    """
    if a.ndim == b.ndim == 2:
        shape: tuple[int, ...] = (a.shape[0], b.shape[1])
    else:
        batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
        shape = (*batch, a.shape[-2], b.shape[-1])
    out = memory.empty(shape, a.dtype)
    kernels.matmul(for_blas(a), for_blas(b), out, bias)
    return out


def times(a: Any, b: Any) -> Any:
    """Return ``a @ b`` of tensors or, in a `backward` that runs on arrays, of arrays."""
    return product(a, b) if isinstance(a, np.ndarray) else a @ b


class _Product(Op):
    """A product of matrices; keeps each factor whose partner needs a gradient."""

    def forward(self, a: Array, b: Array) -> Array:
        need_a, need_b = self.needs_input_grad
        self.save(self=a if need_b else None, mat2=b if need_a else None)
        self.self_sym_sizes, self.mat2_sym_sizes = a.shape, b.shape
        return product(a, b)

    def backward(self, grad: "Tensor") -> Any:
        """dA = G B^H, dB = A^H G."""
        need_a, need_b = self.needs_input_grad
        grad_a = grad_b = None
        if need_b:
            grad_b = sum_to_size(conj(self.saved("self")).mT @ grad, self.mat2_sym_sizes)
        if need_a:
            grad_a = sum_to_size(grad @ conj(self.saved("mat2")).mT, self.self_sym_sizes)
        return grad_a, grad_b


class Mm(_Product):
    """The product of two matrices; keeps each factor whose partner needs a gradient."""

    backward_takes_arrays = True

    def backward(self, grad: "Tensor") -> Any:
        """dA = G B^H, dB = A^H G."""
        need_a, need_b = self.needs_input_grad
        grad_b = times(conj(self.saved("self")).mT, grad) if need_b else None
        grad_a = times(grad, conj(self.saved("mat2")).mT) if need_a else None
        return grad_a, grad_b


class Bmm(_Product):
    """Products over broadcast batches; keeps each factor whose partner needs a gradient."""


class Mv(Op):
    """A matrix times a vector; keeps each factor whose partner needs a gradient."""

    def forward(self, a: Array, vec: Array) -> Array:
        need_a, need_vec = self.needs_input_grad
        self.save(self=a if need_vec else None, vec=vec if need_a else None)
        out = memory.empty(a.shape[0], a.dtype)
        np.matmul(for_blas(a), memory.contiguous(vec), out=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """dA = g v^H, dv = A^H g."""
        need_a, need_vec = self.needs_input_grad
        return (
            outer(grad, conj(self.saved("vec"))) if need_a else None,
            conj(self.saved("self")).mT @ grad if need_vec else None,
        )


class Dot(Op):
    """The sum of the products of two vectors; keeps each factor whose partner needs a gradient."""

    def forward(self, a: Array, b: Array) -> Array:
        need_a, need_b = self.needs_input_grad
        self.save(self=a if need_b else None, tensor=b if need_a else None)
        return np.asarray(np.dot(memory.contiguous(a), memory.contiguous(b)))

    def backward(self, grad: "Tensor") -> Any:
        """da = g conj(b), db = g conj(a)."""
        need_a, need_b = self.needs_input_grad
        return (
            grad * conj(self.saved("tensor")) if need_a else None,
            grad * conj(self.saved("self")) if need_b else None,
        )


class Vdot(Op):
    """The sum of conj(a) b over two vectors; keeps each factor whose partner needs a gradient."""

    def forward(self, a: Array, b: Array) -> Array:
        need_a, need_b = self.needs_input_grad
        self.save(self=a if need_b else None, other=b if need_a else None)
        return np.asarray(np.vdot(a, b), a.dtype)

    def backward(self, grad: "Tensor") -> Any:
        """da = conj(g) b, db = g a."""
        need_a, need_b = self.needs_input_grad
        return (
            conj(grad) * self.saved("other") if need_a else None,
            grad * self.saved("self") if need_b else None,
        )


def inner_sizes_error(
    where: str, a: "Tensor", b: "Tensor", transposed: bool = False
) -> RuntimeError:
    """Return the error for factors whose inner sizes differ; `transposed` is about `b`."""
    rule = "the inner sizes must be equal"
    if b._array.ndim == 2 and a._array.ndim and (transposed or a._array.ndim <= 2):
        *batch, columns = a._array.shape
        rows = prod(batch)
        n, m = reversed(b._array.shape) if transposed else b._array.shape
        rule += f": mat1 and mat2 shapes cannot be multiplied ({rows}x{columns} and {n}x{m})"
    elif where == "dot":
        rule += ": inconsistent tensor size"
    elif where == "bmm":
        expected, got = [a._array.shape[0], a._array.shape[2]], list(b._array.shape[:2])
        rule += ": Expected size for first two dimensions of batch2 tensor to be: "
        rule += f"{expected} but got: {got}"
    elif b._array.ndim == 1 and a._array.ndim == 2:
        (n, m), size = a._array.shape, b._array.size
        rule += f": size mismatch, got input ({n}), mat ({n}x{m}), vec ({size})"
    return shape_error(where, rule, a, b)


_ONE_DTYPE = "factors must have the same dtype"


def check_factors(where: str, *tensors: "Tensor") -> None:
    """Raise unless tensors can be multiplied as matrices.

    Raises:
        RuntimeError: if the dtypes differ.
        NotImplementedError: for bools.
    """
    first = metadata(check_tensor(tensors[0], where)).dtype
    for each in tensors[1:]:
        dtype = metadata(check_tensor(each, where)).dtype
        if dtype is not first and dtype != first:
            rule = "expected both vectors to have same dtype" if "dot" in where else _ONE_DTYPE
            raise shape_error(where, rule, tensors[0], each)
    if first == np.bool_:
        raise not_implemented(where, first, "convert to a number")


def _are_small_factors(a: Any, b: Any) -> bool:
    return (
        type(a) is type(b)
        and a.ndim == b.ndim == 2
        and a.shape[1] == b.shape[0]
        and a.shape[0] * b.size <= kernels.DIRECT_COST
        and max(a.shape[0] * b.shape[1], b.size) * a.itemsize < memory.POOL_THRESHOLD
        and a.flags.c_contiguous
        and b.flags.c_contiguous
    )


_MATMUL = Direct(Mm, _are_small_factors, np.matmul, takes_dtype=False)


@lower_precision
def matmul(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return the matrix product over batches; a vector counts as a row or a column.

    Raises:
        RuntimeError: if the inner sizes or the dtypes differ.
    """
    if (result := direct_result(_MATMUL, input, other)) is not None:
        return result
    try:
        return _product(input, other, "matmul")
    except SparseRefusalError:
        return of_sparse("matmul", (input, other), {})


def _product(a: "Tensor", b: "Tensor", where: str) -> "Tensor":
    check_factors(where, a, b)
    if not a._array.ndim or not b._array.ndim:
        rule = f"both arguments to {where} need to be at least 1D"
        raise shape_error(where, rule, a, b)
    row, column = a._array.ndim == 1, b._array.ndim == 1
    if a._array.shape[-1] != b._array.shape[0 if column else -2]:
        raise inner_sizes_error(where, a, b)
    if a._array.ndim == b._array.ndim == 2:
        return Mm.apply(a, b)
    if row and column:
        return Dot.apply(a, b)
    if column:
        if a._array.ndim == 2:
            return Mv.apply(a, b)
        batch_shape = a._array.shape[:-1]
        flat = Mv.apply(a.reshape(prod(batch_shape), a._array.shape[-1]), b)
        return UnsafeView.apply(flat, shape=batch_shape)
    left = a.unsqueeze(0) if row else a
    try:
        broadcast_shape(left._array.shape[:-2], b._array.shape[:-2])
    except ValueError:
        raise shape_error(where, "the batch sizes must broadcast", a, b) from None
    result: Tensor
    if b._array.ndim > 2:
        result = Bmm.apply(left, b)
    elif left._array.ndim == 2:
        result = Mm.apply(left, b)
    else:
        # One large product is faster than many small ones; its gradient needs no sum over batches.
        batch_shape, inner = left._array.shape[:-1], left._array.shape[-1]
        flat = Mm.apply(left.reshape(prod(batch_shape), inner), b)
        result = UnsafeView.apply(flat, shape=(*batch_shape, b._array.shape[-1]))
    return result.squeeze(-2) if row else result


def _of_dims(where: str, rule: str, a: "Tensor", b: "Tensor", *ndims: int) -> None:
    check_tensor(a, where)
    check_tensor(b, where)
    for each, ndim in zip((a, b), ndims, strict=True):
        if not isinstance(each, TensorBase):
            raise TypeError(f"{where} takes tensors, got {type(each).__name__}")
        if each._array.ndim != ndim:
            if where == "bmm":
                rule = f"batch{1 if each is a else 2} must be a 3D tensor: {rule}"
            raise shape_error(where, rule, a, b)


@lower_precision
def mm(input: "Tensor", mat2: "Tensor") -> "Tensor":
    """Return the product of two matrices."""
    rule = "both arguments, self and mat2, must be a matrix; use matmul() for batches"
    _of_dims("mm", rule, input, mat2, 2, 2)
    try:
        return _product(input, mat2, "mm")
    except SparseRefusalError:
        return of_sparse("mm", (input, mat2), {})


@lower_precision
def bmm(input: "Tensor", mat2: "Tensor") -> "Tensor":
    """Return the products of two equal batches of matrices."""
    rule = "two batches [b, n, m] and [b, m, p] are needed"
    _of_dims("bmm", rule, input, mat2, 3, 3)
    if input._array.shape[0] != mat2._array.shape[0]:
        raise inner_sizes_error("bmm", input, mat2)
    return _product(input, mat2, "bmm")


def mv(input: "Tensor", vec: "Tensor") -> "Tensor":
    """Return the product of a matrix and a vector."""
    _of_dims("mv", "vector + matrix @ vector expected", input, vec, 2, 1)
    return _product(input, vec, "mv")


def dot(input: "Tensor", tensor: "Tensor") -> "Tensor":
    """Return the sum of the products of two vectors, neither conjugated."""
    _of_dims("dot", "1D tensors expected", input, tensor, 1, 1)
    return _product(input, tensor, "dot")


def vdot(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return the inner product of two vectors, the first conjugated."""
    _of_dims("vdot", "1D tensors expected", input, other, 1, 1)
    check_factors("vdot", input, other)
    if input._array.shape != other._array.shape:
        raise shape_error("vdot", "inconsistent tensor size", input, other)
    return Vdot.apply(input, other)


def outer(input: "Tensor", vec2: "Tensor") -> "Tensor":
    """Return the outer product of two vectors."""
    _of_dims("outer", "Expected 1-D argument self and vec2", input, vec2, 1, 1)
    return input.reshape(input._array.size, 1) * vec2


def ger(input: "Tensor", vec2: "Tensor") -> "Tensor":
    """Return the outer product of two vectors; another name for `outer`."""
    return outer(input, vec2)
