"""Sparse matrices times dense ones, compared with PyTorch."""

from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad.autograd import gradcheck, gradgradcheck

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")

INDICES = [[0, 1, 2, 2, 0], [1, 0, 2, 0, 1]]  # one is given twice
VALUES = [1.0, 2.0, 3.0, 4.0, 5.0]


def matrix(m: Any, **options: Any) -> Any:
    return m.sparse_coo_tensor(m.tensor(INDICES), m.tensor(VALUES), (3, 4), **options)


def same(mine: Any, theirs: Any) -> None:
    np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), 1e-6)


def test_products_and_their_gradients() -> None:
    results = []
    for m in (offgrad, torch):
        values = m.tensor(VALUES, requires_grad=True)
        dense = m.arange(8.0).reshape(4, 2).requires_grad_()
        sparse = m.sparse_coo_tensor(m.tensor(INDICES), values, (3, 4))
        outs = m.spmm(sparse, dense), m.sparse.mm(sparse, dense), sparse @ dense
        out = sum(each * each for each in outs)
        out.sum().backward()
        results.append((out, values.grad, dense.grad, m.mm(sparse, dense), sparse.matmul(dense)))
    for mine, theirs in zip(*results, strict=True):
        same(mine, theirs)


def test_conversions() -> None:
    for name in ("to_dense", "coalesce", "t"):
        mine, theirs = getattr(matrix(offgrad), name)(), getattr(matrix(torch), name)()
        assert tuple(mine.shape) == tuple(theirs.shape)
        if name == "coalesce":
            same(mine.indices(), theirs.indices())
            same(mine.values(), theirs.values())
        else:
            same(mine if name == "to_dense" else mine.to_dense(), theirs.to_dense())
    x = offgrad.tensor([[0.0, 2], [3, 0]])
    assert offgrad.equal(x.to_sparse().to_dense(), x)
    assert x.to_sparse()._nnz() == 2


def test_attributes() -> None:
    mine, theirs = matrix(offgrad), matrix(torch)
    assert mine.is_sparse
    assert mine.shape == tuple(theirs.shape)
    assert mine.size(1) == theirs.size(1) == 4
    assert mine._nnz() == theirs._nnz() == 5
    assert mine.is_coalesced() is theirs.is_coalesced() is False
    assert str(mine.dtype) == str(theirs.dtype)
    assert mine.dim() == theirs.dim() == 2


def test_derivatives() -> None:
    index = offgrad.tensor(INDICES)

    def product(values: Any, dense: Any) -> Any:
        return offgrad.sparse_coo_tensor(index, values, (3, 4)) @ dense

    values = offgrad.tensor(VALUES, dtype=offgrad.float64, requires_grad=True)
    dense = offgrad.randn(4, 2, dtype=offgrad.float64, requires_grad=True)
    assert gradcheck(product, (values, dense))
    assert gradgradcheck(product, (values, dense))


@pytest.mark.parametrize("policy", ["disk", "recompute"])
def test_policies_keep_the_bits(policy: str) -> None:
    def gradient(policy: str) -> Any:
        dense = offgrad.ones(4, 2, requires_grad=True)
        with offgrad.offload(policy):
            loss = (matrix(offgrad) @ dense).exp().sum()
        loss.backward()
        assert dense.grad is not None
        return dense.grad.numpy().tobytes()

    assert gradient(policy) == gradient("keep")


def test_errors() -> None:
    with pytest.raises(RuntimeError, match="outside"):
        offgrad.sparse_coo_tensor([[0, 5]], [1.0, 2.0], (3,))
    for m in (offgrad, torch):
        with pytest.raises(RuntimeError):
            matrix(m) @ m.ones(3, 2)
        with pytest.raises(RuntimeError):
            matrix(m).indices()
