"""Products of matrices."""

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe
from offgrad.ops.arithmetic import conj
from offgrad.ops.convert import check_tensor, shape_error
from offgrad.ops.reduce import sum_to_size

if TYPE_CHECKING:
    from offgrad.tensor import Tensor


def _for_blas(array: Array) -> Array:
    """Return `array`, copied unless BLAS can read its matrices: the same bits whatever the
    strides.
    """
    if array.ndim < 2:
        return memory.contiguous(array)
    rows, columns = array.strides[-2:]
    item = array.itemsize
    for inner, outer, size in (
        (columns, rows, array.shape[-1]),
        (rows, columns, array.shape[-2]),
    ):
        if inner == item and outer >= item * size and outer % item == 0:
            return array
    return memory.copy(array)


def product(a: Array, b: Array) -> Array:
    """Return ``a @ b`` of arrays of at least two dimensions, in tensor memory."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = memory.empty((*batch, a.shape[-2], b.shape[-1]), a.dtype)
    np.matmul(_for_blas(a), _for_blas(b), out=out)
    return out


class Matmul(Op):
    """Matrix product over batches; keeps each factor whose partner needs a gradient."""

    def name(self) -> str:
        """Return PyTorch's name: by the number of dimensions."""
        return "MmBackward0" if self.is_plain else "UnsafeViewBackward0"

    def forward(self, a: Array, b: Array) -> Array:
        """Return the product."""
        need_a, need_b = self.needs_input_grad
        self.save(self=a if need_b else None, mat2=b if need_a else None)
        self.shapes = a.shape, b.shape
        self.is_plain = a.ndim == b.ndim == 2
        return product(a, b)

    def backward(self, grad: "Tensor") -> Any:
        """dA = G B^H, dB = A^H G."""
        need_a, need_b = self.needs_input_grad
        grad_a = grad_b = None
        if need_b:
            grad_b = sum_to_size(conj(self.saved("self")).mT @ grad, self.shapes[1])
        if need_a:
            grad_a = sum_to_size(grad @ conj(self.saved("mat2")).mT, self.shapes[0])
        return grad_a, grad_b


class Linear(Op):
    """x W^T + b over the last dimension; keeps x and W where their partner needs a gradient."""

    def name(self) -> str:
        """Return PyTorch's name."""
        return "AddmmBackward0"

    def forward(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """Return the affine map."""
        need_x, need_weight = self.needs_input_grad[:2]
        self.save(input=x if need_weight else None, weight=weight if need_x else None)
        self.shape = x.shape
        count = prod(x.shape[:-1])
        rows = memory.contiguous(x).reshape(count, x.shape[-1])
        out = memory.empty((*x.shape[:-1], weight.shape[0]), x.dtype)
        flat = out.reshape(count, weight.shape[0])
        np.matmul(rows, _for_blas(weight).T, out=flat)
        if bias is not None:
            np.add(flat, bias, out=flat)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """dx = G W, dW = G^H x, db = sum of G over rows."""
        need_x, need_weight, need_bias = self.needs_input_grad
        grad_x = grad_weight = grad_bias = None
        count = prod(self.shape[:-1])
        rows = grad.reshape(count, grad.shape[-1])
        if need_weight:
            grad_weight = rows.mT @ conj(self.saved("input")).reshape(count, self.shape[-1])
        if need_x:
            grad_x = (rows @ conj(self.saved("weight"))).reshape(self.shape)
        if need_bias:
            grad_bias = SumRows.apply(rows)
        return grad_x, grad_weight, grad_bias


class SumRows(Op):
    """The sum of the rows of a matrix; keeps nothing."""

    def forward(self, x: Array) -> Array:
        """Return the column sums."""
        self.shape = x.shape
        out = memory.empty(x.shape[1], x.dtype)
        kernels.sum_rows(memory.contiguous(x), out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """Every row gets the gradient."""
        return grad.expand(self.shape)


def matmul(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return the matrix product, over batches of matrices; a vector counts as a row or a column.

    Raises:
        RuntimeError: if the inner sizes or the dtypes differ.
    """
    a, b = check_tensor(input, "matmul"), check_tensor(other, "matmul")
    if a._array.dtype != b._array.dtype:
        raise shape_error("matmul", "dtypes must be equal", a, b)
    if not a._array.ndim or not b._array.ndim:
        raise shape_error("matmul", "both need at least one dimension", a, b)
    row, column = a._array.ndim == 1, b._array.ndim == 1
    if a._array.shape[-1] != b._array.shape[0 if column else -2]:
        raise shape_error("matmul", "the inner sizes must be equal", a, b)
    left = a.unsqueeze(0) if row else a
    right = b.unsqueeze(1) if column else b
    try:
        np.broadcast_shapes(left._array.shape[:-2], right._array.shape[:-2])
    except ValueError:
        raise shape_error("matmul", "the batch sizes must broadcast", a, b) from None
    if left._array.ndim > 2 and right._array.ndim == 2:
        # One large product beats many small ones, and its gradient needs no sum over batches.
        flat = Matmul.apply(left.reshape(prod(left.shape[:-1]), left.shape[-1]), right)
        result = flat.reshape(*left.shape[:-1], right.shape[-1])
    else:
        result = Matmul.apply(left, right)
    if row:
        result = result.squeeze(-2)
    return result.squeeze(-1) if column else result


def mm(input: "Tensor", mat2: "Tensor") -> "Tensor":
    """Return the product of two matrices."""
    if input._array.ndim != 2 or mat2._array.ndim != 2:
        raise shape_error("mm", "two matrices are needed; use matmul() for batches", input, mat2)
    return matmul(input, mat2)


def bmm(input: "Tensor", mat2: "Tensor") -> "Tensor":
    """Return the products of two equal batches of matrices."""
    if (
        input._array.ndim != 3
        or mat2._array.ndim != 3
        or input._array.shape[0] != mat2._array.shape[0]
    ):
        raise shape_error("bmm", "two batches [b, n, m] and [b, m, p] are needed", input, mat2)
    return matmul(input, mat2)


def dot(input: "Tensor", other: "Tensor") -> "Tensor":
    """Return the inner product of two vectors."""
    if input._array.ndim != 1 or other._array.ndim != 1:
        raise shape_error("dot", "two vectors are needed", input, other)
    return matmul(input, other)


def outer(input: "Tensor", vec2: "Tensor") -> "Tensor":
    """Return the outer product of two vectors."""
    if input._array.ndim != 1 or vec2._array.ndim != 1:
        raise shape_error("outer", "two vectors are needed", input, vec2)
    return input.unsqueeze(1) * vec2


def linear(input: "Tensor", weight: "Tensor", bias: "Tensor | None" = None) -> "Tensor":
    """Return ``input @ weight.T + bias``: [..., n] by [m, n] and [m] to [..., m].

    Raises:
        RuntimeError: if the sizes or dtypes do not fit.
    """
    check_tensor(input, "linear")
    if not input._array.ndim or weight._array.ndim != 2:
        raise shape_error("linear", "input [..., n] and weight [m, n] are needed", input, weight)
    if input._array.shape[-1] != weight._array.shape[1]:
        raise shape_error("linear", "the last sizes must be equal", input, weight)
    for other in (weight, bias):
        if other is not None and other._array.dtype != input._array.dtype:
            raise shape_error("linear", "dtypes must be equal", input, other)
    if bias is not None and bias._array.shape != (weight._array.shape[0],):
        raise RuntimeError(
            f"linear: the bias must have the shape [{weight._array.shape[0]}] of the output, got a "
            f"{describe(bias)}"
        )
    return Linear.apply(input, weight, bias)
