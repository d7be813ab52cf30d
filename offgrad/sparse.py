"""Sparse matrices times dense ones: what graph networks use of ``torch.sparse``."""

import typing as _typing

from offgrad._missing import missing as _missing
from offgrad._tensor.tensor import Tensor as _Tensor
from offgrad.ops._linalg.sparse import spmm as mm


def addmm(
    mat: _Tensor, mat1: _typing.Any, mat2: _Tensor, *, beta: float = 1, alpha: float = 1
) -> _Tensor:
    """Return ``beta * mat + alpha * (mat1 @ mat2)`` for a sparse `mat1`."""
    return mat * beta + mm(mat1, mat2) * alpha


def sum(input: _typing.Any, dim: _typing.Any = None, dtype: _typing.Any = None) -> _Tensor:
    """Return the sum of the elements of a sparse tensor, dense."""
    dense: _Tensor = input.to_dense()
    return dense.sum(dtype=dtype) if dim is None else dense.sum(dim, dtype=dtype)


__getattr__ = _missing("offgrad.sparse")

__all__ = ["addmm", "mm", "sum"]
