"""Linear layers, and sums of a tensor and a product."""

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offgrad import kernels, memory
from offgrad.autograd.float_errors import ignore_float_errors, restore_float_errors
from offgrad.autograd.op import Array, Op
from offgrad.autograd.tensor_base import describe, wrap
from offgrad.ops._core.autocast import lower_precision
from offgrad.ops._core.broadcasting import (
    broadcast_shape,
    conj,
)
from offgrad.ops._core.dtypes import (
    as_factor,
    category,
    check_tensor,
    from_old,
    number_of,
    shape_error,
)
from offgrad.ops._core.inplace_forms import inplace_form
from offgrad.ops._core.sparse_data import SparseRefusalError, of_sparse
from offgrad.ops._linalg.products import (
    check_factors,
    for_blas,
    inner_sizes_error,
    matmul,
    outer,
    product,
    times,
)
from offgrad.ops._reduction.sums import sum_to_size

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "addbmm",
    "addmm",
    "addmv",
    "addmv_",
    "addr",
    "baddbmm",
    "linear",
]


class LinearWithoutBias(Op):
    """x W^T over the last dimension; keeps x and W where their partner needs a gradient.

    PyTorch multiplies the rows of x by a transposed view of W. Here neither is made, but the
    `_saved_` attributes show the same.
    """

    backward_takes_arrays = True
    # PyTorch's name for the rows of x.
    rows: ClassVar[str] = "self"
    shape: tuple[int, ...]
    columns: int

    torch_name = "MmBackward0"

    def forward(self, x: Array, weight: Array) -> Array:
        return self.product(x, weight, None, *self.needs_input_grad)

    def product(
        self, x: Array, weight: Array, bias: Array | None, need_x: bool, need_weight: bool
    ) -> Array:
        """Save the factors that gradients need; return the affine map."""
        self.save(**{self.rows: x if need_weight else None, "mat2": weight if need_x else None})
        self.shape, self.columns = x.shape, weight.shape[0]
        count = prod(x.shape[:-1])
        rows = memory.contiguous(x).reshape(count, x.shape[-1])
        out = memory.empty((*x.shape[:-1], weight.shape[0]), x.dtype)
        flat = out.reshape(count, weight.shape[0])
        kernels.matmul(rows, for_blas(weight).T, flat, bias)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """dx = G W, dW = G^H x."""
        if self.is_plain(grad):
            return self.gradients(grad, False, *self.needs_input_grad)[1:]
        rows = grad.reshape(prod(self.shape[:-1]), self.columns)
        return self.factors(rows, *self.needs_input_grad)

    def gradients(
        self, grad: "Tensor", need_bias: bool, need_x: bool, need_weight: bool
    ) -> "tuple[Tensor | None, ...]":
        """Return the gradients of the bias, x and W without an operation for each of its steps."""
        rows = self._matrix(grad._array, self.columns)
        grad_bias = grad_x = grad_weight = None
        if need_bias:
            grad_bias = wrap(_without_warnings(sum_of_rows, rows))
        if need_weight:
            x = conj(self.saved(self.rows))
            factors = rows.T, self._matrix(x._array, self.shape[-1])
            grad_weight = wrap(_without_warnings(product, *factors))
            del x, factors  # perhaps recomputed: it makes room for the next product
        if need_x:
            weight = conj(self.saved("mat2"))
            found = _without_warnings(product, rows, weight._array)
            grad_x = wrap(found.reshape(self.shape))
        return grad_bias, grad_x, grad_weight

    def _matrix(self, array: Array, columns: int) -> Array:
        if array.ndim == 2:
            return array
        return memory.contiguous(array).reshape(prod(self.shape[:-1]), columns)

    def factors(self, rows: "Tensor", need_x: bool, need_weight: bool) -> Any:
        """Return the gradients of x and W from the rows of the incoming gradient."""
        grad_x = grad_weight = None
        if need_weight:
            x = conj(self.saved(self.rows)).reshape(prod(self.shape[:-1]), self.shape[-1])
            grad_weight = times(rows.mT, x)
            del x  # perhaps recomputed: it makes room for the next product
        if need_x:
            grad_x = times(rows, conj(self.saved("mat2"))).reshape(self.shape)
        return grad_x, grad_weight

    def _as_rows(self) -> "Tensor":
        x = self.saved(self.rows)
        return x if len(self.shape) == 2 else x.reshape(prod(self.shape[:-1]), self.shape[-1])

    def __getattr__(self, name: str) -> Any:
        if name == f"_saved_{self.rows}" and self.rows in self._saved:
            return self._as_rows()
        if name == "_saved_mat2" and "mat2" in self._saved:
            return self.saved("mat2").t()
        if name == f"_saved_{self.rows}_sym_sizes":
            return prod(self.shape[:-1]), self.shape[-1]
        if name == "_saved_mat2_sym_sizes":
            return self.shape[-1], self.columns
        return super().__getattr__(name)


class Linear(LinearWithoutBias):
    """x W^T + b over the last dimension; keeps x and W where their partner needs a gradient."""

    rows = "mat1"

    torch_name = "AddmmBackward0"

    def forward(self, bias: Array, x: Array, weight: Array) -> Array:  # type: ignore[override]
        self.beta = self.alpha = 1
        return self.product(x, weight, bias, *self.needs_input_grad[1:])

    def backward(self, grad: "Tensor") -> Any:
        """dx = G W, dW = G^H x, db = sum of G over rows."""
        need_bias, need_x, need_weight = self.needs_input_grad
        if self.is_plain(grad):
            return self.gradients(grad, need_bias, need_x, need_weight)
        rows = grad.reshape(prod(self.shape[:-1]), self.columns)
        return (
            SumRows.compute(rows) if need_bias else None,
            *self.factors(rows, need_x, need_weight),
        )


def _without_warnings(function: Callable[..., Array], *arrays: Array) -> Array:
    """Call `function` as an operation's forward: NumPy warns of no infinities and NaN."""
    previous = ignore_float_errors()
    try:
        return function(*arrays)
    finally:
        restore_float_errors(previous)


def sum_of_rows(x: Array) -> Array:
    """Return the sum of the rows of a matrix, in tensor memory."""
    out = memory.empty(x.shape[1], x.dtype)
    kernels.sum_rows(memory.contiguous(x), out)
    return out


class SumRows(Op):
    """The sum of the rows of a matrix; keeps nothing."""

    torch_name = "SumBackward1"

    def forward(self, x: Array) -> Array:
        self.self_sym_sizes = x.shape
        return sum_of_rows(x)

    def backward(self, grad: "Tensor") -> Any:
        return grad.expand(self.self_sym_sizes)


class _AddProduct(Op):
    """beta x + alpha (a times b), x broadcast; keeps each factor whose partner needs a gradient."""

    slots: ClassVar[tuple[str, str]]

    def forward(self, x: Array, a: Array, b: Array, beta: Any, alpha: Any) -> Array:
        _, need_a, need_b = self.needs_input_grad
        first, second = self.slots
        self.save(**{first: a if need_b else None, second: b if need_a else None})
        self.shape, self.beta, self.alpha = x.shape, beta, alpha
        if b.ndim == 2 and x.shape == b.shape[1:] and beta == alpha == 1:
            return product(a, b, memory.contiguous(x))
        out = self.times(a, b)
        if alpha != 1:
            np.multiply(out, np.asarray(alpha, out.dtype), out=out)
        if beta == 0:
            return out
        if kernels.is_large(out.size) and kernels.may_be_in_place(out, x):
            kernels.in_place(np.add, out, x, beta)
        else:
            np.add(out, x if beta == 1 else x * np.asarray(beta, x.dtype), out=out)
        return out

    def backward(self, grad: "Tensor") -> Any:
        """dx = beta G, summed where x was broadcast; the factors' gradients times alpha."""
        need_x, need_a, need_b = self.needs_input_grad
        first, second = self.slots
        grad_x = None
        if need_x:
            grad_x = sum_to_size(grad if self.beta == 1 else grad * np.conj(self.beta), self.shape)
        scaled = grad if self.alpha == 1 else grad * np.conj(self.alpha)
        return (
            grad_x,
            self.first(scaled, conj(self.saved(second))) if need_a else None,
            self.second(scaled, conj(self.saved(first))) if need_b else None,
        )

    def times(self, a: Array, b: Array) -> Array:
        """Return the product in new memory."""
        return product(a, b)

    def first(self, grad: "Tensor", b: "Tensor") -> "Tensor":
        """Return the gradient of the first factor; `b` is conjugated."""
        return grad @ b.mT

    def second(self, grad: "Tensor", a: "Tensor") -> "Tensor":
        """Return the gradient of the second factor; `a` is conjugated."""
        return a.mT @ grad


class Addmm(_AddProduct):
    """beta x + alpha A B; keeps each factor whose partner needs a gradient."""

    slots = "mat1", "mat2"


class Baddbmm(_AddProduct):
    """beta x + alpha A B over a batch; keeps each factor whose partner needs a gradient."""

    slots = "batch1", "batch2"


class Addbmm(_AddProduct):
    """beta x + alpha times the sum of A B over a batch; keeps each factor whose partner needs a
    gradient.
    """

    slots = "batch1", "batch2"

    def times(self, a: Array, b: Array) -> Array:
        """Return the sum of products."""
        out = memory.empty((a.shape[1], b.shape[2]), a.dtype)
        return kernels.sum_axes(product(a, b), (0,), out=out)


class Addmv(_AddProduct):
    """beta x + alpha A v; keeps each factor whose partner needs a gradient."""

    slots = "mat", "vec"

    def times(self, a: Array, b: Array) -> Array:
        return product(a, b[:, None])[:, 0]

    def first(self, grad: "Tensor", b: "Tensor") -> "Tensor":
        """Return g v^H."""
        return outer(grad, b)


class Addr(_AddProduct):
    """beta x + alpha times an outer product; keeps each vector whose partner needs a gradient."""

    slots = "vec1", "vec2"

    def times(self, a: Array, b: Array) -> Array:
        """Return the outer product."""
        out = memory.empty((a.size, b.size), a.dtype)
        kernels.elementwise(np.multiply, out, a[:, None], b)
        return out

    def first(self, grad: "Tensor", b: "Tensor") -> "Tensor":
        """Return G conj(b)."""
        return grad @ b

    def second(self, grad: "Tensor", a: "Tensor") -> "Tensor":
        """Return G^T conj(a)."""
        return grad.mT @ a


@lower_precision
def linear(input: "Tensor", weight: "Tensor", bias: "Tensor | None" = None) -> "Tensor":
    """Return ``input @ weight.T + bias``: [..., n] by [m, n] and [m] to [..., m].

    A weight [n] and a bias without dimensions give [...].

    Raises:
        RuntimeError: if the sizes or dtypes do not fit.
    """
    check_tensor(input, "linear")
    if weight._array.ndim == 1:
        result: Tensor = matmul(input, weight)
        return result if bias is None else result + bias
    if not input._array.ndim or weight._array.ndim != 2:
        raise shape_error("linear", "input [..., n] and weight [m, n] are needed", input, weight)
    if input._array.shape[-1] != weight._array.shape[1]:
        raise inner_sizes_error("linear", input, weight, transposed=True)
    check_factors("linear", input, weight, *([] if bias is None else [bias]))
    if bias is None:
        return LinearWithoutBias.apply(input, weight)
    if bias._array.shape != (weight._array.shape[0],):
        raise RuntimeError(
            f"linear: the bias must have the shape [{weight._array.shape[0]}] of the output, got a "
            f"{describe(bias)}"
        )
    return Linear.apply(bias, input, weight)


def _add_product(
    op: type[Op],
    where: str,
    input: "Tensor",
    a: "Tensor",
    b: "Tensor",
    ndims: tuple[int, int],
    shape: Any,
    beta: Any,
    alpha: Any,
) -> "Tensor":
    check_factors(where, input, a, b)
    dims = a._array.ndim, b._array.ndim
    if dims != ndims:
        raise shape_error(where, f"factors of {ndims[0]} and {ndims[1]} dimensions", a, b)
    expected = shape(a._array.shape, b._array.shape)
    if expected is None:
        raise inner_sizes_error(where, a, b)
    try:
        fits = broadcast_shape(input._array.shape, expected) == expected
    except ValueError:
        fits = False
    if not fits:
        raise RuntimeError(
            f"{where}: the input must broadcast to the shape {list(expected)} of the product, got "
            f"a {describe(input)}"
        )
    beta, alpha = number_of(beta, where), number_of(alpha, where)
    for factor in (beta, alpha):
        if category(input._array.dtype) < 2 and not isinstance(factor, (int, np.integer)):
            raise RuntimeError(f"{where}: beta and alpha of integers must be integers")
    beta, alpha = (as_factor(each, input._array.dtype, where) for each in (beta, alpha))
    return op.apply(input, a, b, beta=beta, alpha=alpha)


_NUMBERS = ("beta", "alpha")


@lower_precision
def addmm(
    input: "Tensor", mat1: "Tensor", mat2: "Tensor", *old: Any, beta: Any = 1, alpha: Any = 1
) -> "Tensor":
    """Return ``beta * input + alpha * (mat1 @ mat2)``; with beta 0 a NaN in `input` has no effect.

    Raises:
        RuntimeError: if the sizes or dtypes do not fit.
    """
    if old:
        input, mat1, mat2, beta, alpha = from_old("addmm", 3, _NUMBERS, input, mat1, mat2, *old)

    def shape(a: Any, b: Any) -> Any:
        return (a[0], b[1]) if a[1] == b[0] else None

    try:
        return _add_product(Addmm, "addmm", input, mat1, mat2, (2, 2), shape, beta, alpha)
    except SparseRefusalError:
        return of_sparse("addmm", (input, mat1, mat2), {"beta": beta, "alpha": alpha})


def addmv(
    input: "Tensor", mat: "Tensor", vec: "Tensor", *old: Any, beta: Any = 1, alpha: Any = 1
) -> "Tensor":
    """Return ``beta * input + alpha * (mat @ vec)``."""
    if old:
        input, mat, vec, beta, alpha = from_old("addmv", 3, _NUMBERS, input, mat, vec, *old)

    def shape(a: Any, b: Any) -> Any:
        return (a[0],) if a[1] == b[0] else None

    return _add_product(Addmv, "addmv", input, mat, vec, (2, 1), shape, beta, alpha)


def addr(
    input: "Tensor", vec1: "Tensor", vec2: "Tensor", *old: Any, beta: Any = 1, alpha: Any = 1
) -> "Tensor":
    """Return ``beta * input + alpha * outer(vec1, vec2)``."""
    if old:
        input, vec1, vec2, beta, alpha = from_old("addr", 3, _NUMBERS, input, vec1, vec2, *old)
    return _add_product(Addr, "addr", input, vec1, vec2, (1, 1), lambda a, b: (*a, *b), beta, alpha)


def _batch(a: Any, b: Any) -> Any:
    return (a[0], a[1], b[2]) if a[0] == b[0] and a[2] == b[1] else None


@lower_precision
def baddbmm(
    input: "Tensor", batch1: "Tensor", batch2: "Tensor", *old: Any, beta: Any = 1, alpha: Any = 1
) -> "Tensor":
    """Return ``beta * input + alpha * (batch1 @ batch2)`` of batches of matrices."""
    if old:
        input, batch1, batch2, beta, alpha = from_old(
            "baddbmm", 3, _NUMBERS, input, batch1, batch2, *old
        )
    return _add_product(Baddbmm, "baddbmm", input, batch1, batch2, (3, 3), _batch, beta, alpha)


@lower_precision
def addbmm(
    input: "Tensor", batch1: "Tensor", batch2: "Tensor", *old: Any, beta: Any = 1, alpha: Any = 1
) -> "Tensor":
    """Return ``beta * input + alpha * (batch1 @ batch2).sum(0)`` of batches of matrices."""
    if old:
        input, batch1, batch2, beta, alpha = from_old(
            "addbmm", 3, _NUMBERS, input, batch1, batch2, *old
        )

    def shape(a: Any, b: Any) -> Any:
        full = _batch(a, b)
        return None if full is None else full[1:]

    return _add_product(Addbmm, "addbmm", input, batch1, batch2, (3, 3), shape, beta, alpha)


addmv_ = inplace_form(addmv)
