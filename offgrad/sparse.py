"""``torch.sparse``: functions of sparse tensors."""

import typing as _typing

from offgrad import _dtype
from offgrad import ops as _ops
from offgrad._dtype import DType as _DType
from offgrad._missing import missing as _missing
from offgrad._tensor.sparse import constructors as _constructors
from offgrad._tensor.sparse import products as _products
from offgrad._tensor.tensor import Tensor as _Tensor
from offgrad.autograd.tensor_base import wrap as _wrap
from offgrad.ops._core.sparse_data import is_sparse as _is_sparse


def mm(
    mat1: _typing.Any, mat2: _typing.Any, reduce: str | None = None, *, out: _typing.Any = None
) -> _typing.Any:
    """Return the product of two matrices of which one is sparse, or both.

    Raises:
        NotImplementedError: for a `reduce` other than the sum.
    """
    if reduce not in (None, "sum"):
        raise NotImplementedError(f"sparse.mm: reduce must be 'sum', got {reduce!r}")
    product = mat1.matmul(mat2) if _is_sparse(mat1) else _products.rmatmul(mat2, mat1)
    return product if out is None else out.copy_(product)


def addmm(
    mat: _typing.Any, mat1: _typing.Any, mat2: _typing.Any, *, beta: float = 1, alpha: float = 1
) -> _typing.Any:
    """Return ``beta * mat + alpha * (mat1 @ mat2)`` for a sparse `mat1`."""
    return _products.plus_product(mat, mat1, mat2, beta=beta, alpha=alpha)


def sum(input: _typing.Any, dim: _typing.Any = None, dtype: _typing.Any = None) -> _typing.Any:
    """Return the sum of the elements of a sparse tensor; dense if no sparse dimension remains."""
    return input.sum(dim, dtype=dtype)


def softmax(input: _typing.Any, dim: int, *, dtype: _typing.Any = None) -> _typing.Any:
    """Return the softmax over the stored elements along `dim`."""
    return input.softmax(dim, dtype)


def log_softmax(input: _typing.Any, dim: int, *, dtype: _typing.Any = None) -> _typing.Any:
    """Return the logarithm of `softmax`."""
    return input.log_softmax(dim, dtype)


def sampled_addmm(
    input: _typing.Any,
    mat1: _Tensor,
    mat2: _Tensor,
    *,
    beta: float = 1.0,
    alpha: float = 1.0,
    out: _typing.Any = None,
) -> _typing.Any:
    """Return ``beta * input + alpha * (mat1 @ mat2)`` at the stored elements of `input` alone."""
    rows, columns = input._coo()._index._array
    products = (mat1[_wrap(rows)] * mat2.t()[_wrap(columns)]).sum(-1)
    coo = input._coo()
    result = input._from_coo(coo._with(coo._value * beta + products * alpha))
    return result if out is None else out.copy_(result)


def spdiags(
    diagonals: _Tensor, offsets: _Tensor, shape: _typing.Any, layout: _typing.Any = None
) -> _typing.Any:
    """Return the sparse matrix [n, m] whose diagonals are rows of `diagonals`.

    The element in column j of a row goes to column j of the matrix.

    Args:
        diagonals: their elements [k, at least m], or one row.
        offsets: of each diagonal, above the main one if positive [k].
        shape: n and m.
        layout: of the result; that of coordinates by default.
    """
    rows_of = diagonals.unsqueeze(0) if diagonals.ndim == 1 else diagonals
    shifts = offsets.reshape(-1)._array
    if len(shifts) != rows_of.shape[0] or len({*shifts.tolist()}) != len(shifts):
        raise RuntimeError(
            "spdiags: there must be one offset for each diagonal, none twice, got "
            f"{shifts.tolist()} for {rows_of.shape[0]}"
        )
    height, width = shape
    indices, values = [], []
    for number, shift in enumerate(shifts.tolist()):
        first = max(shift, 0)
        last = max(min(width, height + shift, rows_of.shape[1]), first)
        columns = _ops.arange(first, last)
        indices.append(_ops.stack([columns - shift, columns]))
        values.append(rows_of[number, first:last])
    made = _constructors.sparse_coo_tensor(_ops.cat(indices, 1), _ops.cat(values), (height, width))
    return made if layout is None else made.to_sparse(layout=layout)


class check_sparse_tensor_invariants:
    """Whether new sparse tensors are checked: always; the switch is accepted, as in PyTorch.

    Also a context manager, and a decorator.
    """

    _enabled = False

    @classmethod
    def is_enabled(cls) -> bool:
        """Return the state of the switch."""
        return cls._enabled

    @classmethod
    def enable(cls) -> None:
        """Switch on."""
        check_sparse_tensor_invariants._enabled = True

    @classmethod
    def disable(cls) -> None:
        """Switch off; indices are checked all the same."""
        check_sparse_tensor_invariants._enabled = False

    def __init__(self, enable: bool = True) -> None:
        self.state = enable
        self.saved_state: bool | None = None

    def __enter__(self) -> None:
        if self.saved_state is not None:
            raise RuntimeError("this context manager is entered already; make another one")
        self.saved_state = self.is_enabled()
        check_sparse_tensor_invariants._enabled = self.state

    def __exit__(self, *_: object) -> None:
        check_sparse_tensor_invariants._enabled = bool(self.saved_state)
        self.saved_state = None

    def __call__(self, function: _typing.Callable[..., _typing.Any]) -> _typing.Any:
        def run(*args: _typing.Any, **options: _typing.Any) -> _typing.Any:
            with type(self)(self.state):
                return function(*args, **options)

        return run


def _of_type(name: str, dtype: _DType) -> _typing.Any:
    def make(*args: _typing.Any, device: _typing.Any = None) -> _typing.Any:
        if len(args) == 1 or not args:
            sizes = args[0] if args else (0,)
            return _constructors.sparse_coo_tensor(sizes, dtype=dtype, device=device)
        if len(args) > 3 or not isinstance(args[0], _Tensor):
            return _constructors.sparse_coo_tensor(args, dtype=dtype, device=device)
        return _constructors.sparse_coo_tensor(*args, dtype=dtype, device=device)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"Return a sparse tensor of {dtype}: of indices, values and size, or of sizes."
    return make


BFloat16Tensor = _of_type("BFloat16Tensor", _dtype.bfloat16)
ByteTensor, CharTensor = _of_type("ByteTensor", _dtype.uint8), _of_type("CharTensor", _dtype.int8)
DoubleTensor = _of_type("DoubleTensor", _dtype.float64)
FloatTensor = _of_type("FloatTensor", _dtype.float32)
HalfTensor, IntTensor = _of_type("HalfTensor", _dtype.float16), _of_type("IntTensor", _dtype.int32)
LongTensor = _of_type("LongTensor", _dtype.int64)
ShortTensor = _of_type("ShortTensor", _dtype.int16)

__getattr__ = _missing("offgrad.sparse")

__all__ = [
    "BFloat16Tensor",
    "ByteTensor",
    "CharTensor",
    "DoubleTensor",
    "FloatTensor",
    "HalfTensor",
    "IntTensor",
    "LongTensor",
    "ShortTensor",
    "addmm",
    "check_sparse_tensor_invariants",
    "log_softmax",
    "mm",
    "sampled_addmm",
    "softmax",
    "spdiags",
    "sum",
]
