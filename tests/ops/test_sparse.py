"""Sparse matrices times dense ones, compared with PyTorch."""

import copy
import io
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad.autograd import gradcheck, gradgradcheck

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse:UserWarning", "ignore:torch.sparse.SparseTensor:UserWarning"
)

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


def layouts(m: Any) -> dict[str, Any]:
    x = matrix(m)
    return {
        "coo": x,
        "csr": x.to_sparse_csr(),
        "csc": x.to_sparse_csc(),
        "bsr": x.to_dense().to_sparse_bsr((3, 2)),
    }


def dense(x: Any) -> Any:
    return x if x.layout in (offgrad.strided, torch.strided) else x.to_dense()


OPERATIONS: dict[str, Any] = {
    "add": lambda m, x: x + x.clone() * 2,
    "add other indices": lambda m, x: matrix(m).coalesce() + matrix(m, is_coalesced=False) * 2,
    "add to dense": lambda m, x: m.ones(3, 4) + x,
    "add to dense by function": lambda m, x: m.add(m.ones(3, 4), x),
    "sub": lambda m, x: x - 2 * matrix(m),
    "mul": lambda m, x: x * x,
    "mul by dense": lambda m, x: x * m.arange(12.0).reshape(3, 4),
    "mul by number": lambda m, x: m.mul(x, 3),
    "div": lambda m, x: x / 4,
    "pow": lambda m, x: x**2,
    "sqrt": lambda m, x: m.sqrt(x),
    "in place": lambda m, x: x.clone().mul_(2).add_(x),
    "sum": lambda m, x: m.sum(x),
    "sum over rows": lambda m, x: m.sparse.sum(x, 0),
    "sum over columns": lambda m, x: m.sparse.sum(x, [1]),
    "sum over all": lambda m, x: m.sparse.sum(x, [0, 1]),
    "norm": lambda m, x: x.norm(),
    "transpose": lambda m, x: m.transpose(x, 0, 1),
    "permute": lambda m, x: x.permute(1, 0),
    "unsqueeze": lambda m, x: x.unsqueeze(1),
    "row": lambda m, x: x[2],
    "column": lambda m, x: x.select(1, 0),
    "one": lambda m, x: x[2, 0],
    "index_select": lambda m, x: m.index_select(x, 0, m.tensor([2, 0, 2])),
    "cat": lambda m, x: m.cat([x, x], 1),
    "stack": lambda m, x: m.stack([x, x]),
    "softmax": lambda m, x: m.sparse.softmax(x, 1),
    "log_softmax": lambda m, x: m.sparse.log_softmax(x.coalesce(), 0),
    "from the right": lambda m, x: m.ones(2, 3) @ x,
    "both": lambda m, x: x @ x.t(),
    "mv": lambda m, x: x.mv(m.arange(4.0)),
    "addmm": lambda m, x: m.sparse.addmm(m.ones(3, 2), x, m.ones(4, 2), beta=2, alpha=3),
    "smm": lambda m, x: m.smm(x, m.ones(4, 2)),
    "hspmm": lambda m, x: m.hspmm(x, m.ones(4, 2)),
    "sspaddmm": lambda m, x: m.sspaddmm(x, matrix(m) @ matrix(m).t(), m.ones(3, 4), beta=2),
    "mask": lambda m, x: m.arange(12.0).reshape(3, 4).sparse_mask(x.coalesce()),
    "zeros_like": lambda m, x: m.zeros_like(x),
    "dtype": lambda m, x: x.double(),
    "hybrid": lambda m, x: (x.to_dense().to_sparse(1) * 2)[2],
    "diagonals": lambda m, x: m.sparse.spdiags(m.ones(2, 3), m.tensor([0, 1]), (3, 3)),
    "zeros": lambda m, x: m.zeros(2, 3, layout=m.sparse_coo) + m.eye(2, 3).to_sparse(),
    "add to dense in place": lambda m, x: m.ones(3, 4).add_(x, alpha=2),
    "sub from dense in place": lambda m, x: m.ones(3, 4).sub_(x),
    "add with alpha": lambda m, x: m.ones(3, 4).add(x, alpha=3),
    "method of the left": lambda m, x: m.ones(2, 3).mm(x) + m.ones(2, 3).matmul(x),
    "addmm in place": lambda m, x: m.ones(3, 2).addmm_(x, m.ones(4, 2), beta=2),
    "addmm by function": lambda m, x: m.addmm(m.ones(3, 2), x, m.ones(4, 2), alpha=2),
    "legacy type": lambda m, x: m.sparse.FloatTensor(
        m.tensor([[0, 1], [1, 0]]), m.tensor([1.0, 2.0]), m.Size([2, 2])
    ),
    "resized": lambda m, x: x.clone().sparse_resize_((4, 5), 2, 0),
    "deepcopy": lambda m, x: copy.deepcopy(x),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str) -> None:
    mine, theirs = (OPERATIONS[name](m, matrix(m)) for m in (offgrad, torch))
    assert str(mine.layout) == str(theirs.layout)
    assert str(mine.dtype) == str(theirs.dtype)
    same(dense(mine), dense(theirs))


COMPRESSED: dict[str, Any] = {
    "itself": lambda m, x: x,
    "matrix": lambda m, x: x @ m.arange(8.0).reshape(4, 2),
    "vector": lambda m, x: x @ m.arange(4.0),
    "transposed": lambda m, x: x.t(),
    "scaled": lambda m, x: -x * 2,
    "coordinates": lambda m, x: x.to_sparse(),
    "values": lambda m, x: x.values(),
}


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr"])
@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed(name: str, layout: str) -> None:
    # PyTorch has no such products of blocks.
    has_form = layout != "bsr" or name not in ("scaled", "matrix", "vector")
    mine = COMPRESSED[name](offgrad, layouts(offgrad)[layout])
    theirs = COMPRESSED[name](torch, layouts(torch)[layout if has_form else "csr"])
    assert not has_form or str(mine.layout) == str(theirs.layout)
    same(dense(mine), dense(theirs))
    if name in ("itself", "transposed"):
        assert repr(mine) == repr(theirs)


def test_compressed_from_parts() -> None:
    for name in ("sparse_csr_tensor", "sparse_csc_tensor"):
        parts = [0, 2, 3], [0, 1, 1], [1.0, 2.0, 3.0]
        mine, theirs = (getattr(m, name)(*parts) for m in (offgrad, torch))
        assert repr(mine) == repr(theirs)
        same(mine.to_dense(), theirs.to_dense())
        for m in (offgrad, torch):
            with pytest.raises(RuntimeError):
                getattr(m, name)([0, 3, 2], *parts[1:], check_invariants=True)
    assert offgrad.crow_indices_copy(layouts(offgrad)["csr"]).tolist() == [0, 1, 2, 4]
    sampled = [
        m.sparse.sampled_addmm(layouts(m)["csr"], m.ones(3, 2), m.ones(2, 4), beta=0.5)
        for m in (offgrad, torch)
    ]
    same(sampled[0].to_dense(), sampled[1].to_dense())


def test_gradients_of_sparse_leaves() -> None:
    for layout in ("coo", "csr"):
        found = []
        for m in (offgrad, torch):
            x = layouts(m)[layout].detach().requires_grad_()
            (m.sparse.mm(x, m.arange(8.0).reshape(4, 2)) ** 2).sum().backward()
            assert x.grad.layout == x.layout
            found.append(x.grad.to_dense())
        same(*found)


def test_text() -> None:
    def texts(m: Any) -> list[str]:
        x = matrix(m)
        hybrid = x.to_dense().to_sparse(1)
        return [*map(repr, (x, x.coalesce(), x.double(), hybrid, m.zeros_like(x), x.long()))]

    assert texts(offgrad) == texts(torch)


def test_what_needs_all_elements_raises() -> None:
    for call in (
        lambda x: x.exp(),
        lambda x: x + 1,
        lambda x: x == x,
        lambda x: x.view(4, 3),
        lambda x: np.asarray(x),
        lambda x: offgrad.nn.functional.gelu(x),
        lambda x: x + offgrad.ones(3, 4),
        lambda x: x[0:1],
    ):
        with pytest.raises((NotImplementedError, RuntimeError, TypeError)):
            call(matrix(offgrad))


TABLES: dict[str, Any] = {
    "embedding": lambda m, w: m.nn.functional.embedding(m.tensor([[0, 2], [0, 1]]), w, sparse=True),
    "padding": lambda m, w: m.nn.functional.embedding(m.tensor([0, 2, 0]), w, 0, sparse=True),
    "non-leaf": lambda m, w: m.nn.functional.embedding(m.tensor([0, 2, 0]), w * 2, sparse=True),
    "bag": lambda m, w: m.nn.functional.embedding_bag(
        m.tensor([0, 2, 0]), w, m.tensor([0, 2]), sparse=True
    ),
    "gather": lambda m, w: m.gather(w, 1, m.tensor([[0, 1], [1, 1]]), sparse_grad=True),
}


@pytest.mark.parametrize("name", TABLES)
def test_sparse_gradients(name: str) -> None:
    found: list[list[Any]] = []
    for m in (offgrad, torch):
        w = m.arange(8.0).reshape(4, 2).requires_grad_()
        grads = []
        for dense_too in (False, False, True, False):
            out = (TABLES[name](m, w) * 3).sum()
            (out + w.sum() if dense_too else out).backward()
            grads.append((str(w.grad.layout), repr(w.grad.to_dense())))
        (grad,) = m.autograd.grad(TABLES[name](m, w).sum(), w)
        found.append([*grads, str(grad.layout)])
    assert found[0] == found[1]


def test_sparse_gradients_of_every_order() -> None:
    found = []
    for m in (offgrad, torch):
        w = m.ones(3, 2, requires_grad=True)
        out = m.nn.functional.embedding(m.tensor([0, 2, 0]), w, sparse=True)
        (grad,) = m.autograd.grad((out**3).sum(), w, create_graph=True)
        found.append(m.autograd.grad(grad.to_dense().pow(2).sum(), w)[0].to_dense())
    same(*found)


def test_files() -> None:
    for layout in ("coo", "csr", "csc", "bsr"):
        files = {}
        for m in (offgrad, torch):
            x = layouts(m)[layout]
            file = io.BytesIO()
            m.save({"x": x, "layout": m.sparse_coo}, file)
            files[m] = file.getvalue()
        for writer, reader in ((offgrad, offgrad), (offgrad, torch), (torch, offgrad)):
            loaded = reader.load(io.BytesIO(files[writer]))
            assert loaded["layout"] is reader.sparse_coo
            assert str(loaded["x"].layout) == f"torch.sparse_{layout}"
            same(loaded["x"].to_dense(), layouts(offgrad)["coo"].to_dense())
