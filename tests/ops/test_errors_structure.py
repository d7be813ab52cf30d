"""Misuse of views, indices, products, activations and losses raises torch's error."""

from collections.abc import Callable
from typing import Any

import pytest

import offgrad
from tests.ops.calls import call

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

# Warnings of torch do not matter here.
pytestmark = pytest.mark.filterwarnings("ignore")


def ones(m: Any, *sizes: int, dtype: str = "float32") -> Any:
    return m.ones(sizes, dtype=getattr(m, dtype))


def ids(m: Any, *values: int) -> Any:
    return m.tensor(list(values))


def of(name: str, dtype: str, count: int = 1) -> Callable[[Any], Any]:
    """Return the case of a function with arguments of a dtype."""
    return lambda m: call(m, f"F.{name}", *[ones(m, 2, dtype=dtype)] * count)


CASES: dict[str, Callable[[Any], Any]] = {
    "unflatten product": lambda m: m.unflatten(ones(m, 2, 6), 1, (4, 2)),
    "unflatten nothing": lambda m: m.unflatten(ones(m, 2, 6), 1, ()),
    "movedim count": lambda m: m.movedim(ones(m, 2, 3), (0, 1), (0,)),
    "movedim twice": lambda m: m.movedim(ones(m, 2, 3), (0, 0), (0, 1)),
    "movedim range": lambda m: m.movedim(ones(m, 2, 3), 0, 2),
    "swapaxes range": lambda m: m.swapaxes(ones(m, 2, 3), 0, 2),
    "diagonal same": lambda m: m.diagonal(ones(m, 2, 3), 0, 1, -1),
    "diagonal range": lambda m: m.diagonal(ones(m, 2, 3), 0, 0, 2),
    "diagonal of a vector": lambda m: m.diagonal(ones(m, 2)),
    "diag of 3 dims": lambda m: m.diag(ones(m, 2, 2, 2)),
    "diag_embed same": lambda m: m.diag_embed(ones(m, 2), 0, 1, 1),
    "trace of a vector": lambda m: m.trace(ones(m, 2)),
    "unfold size": lambda m: call(m, "unfold", ones(m, 4), 0, 5, 1),
    "unfold step": lambda m: call(m, "unfold", ones(m, 4), 0, 2, 0),
    "unfold range": lambda m: call(m, "unfold", ones(m, 4), 1, 2, 1),
    "as_strided outside": lambda m: m.as_strided(ones(m, 2, 2), (3,), (2,)),
    "as_strided before": lambda m: m.as_strided(ones(m, 2, 2), (1,), (1,), -1),
    "as_strided count": lambda m: m.as_strided(ones(m, 2, 2), (2,), (1, 1)),
    "as_strided negative": lambda m: m.as_strided(ones(m, 2, 2), (2,), (-1,), 3),
    "broadcast_tensors": lambda m: m.broadcast_tensors(ones(m, 2), ones(m, 3)),
    "meshgrid dims": lambda m: m.meshgrid(ones(m, 2, 2), indexing="ij"),
    "meshgrid indexing": lambda m: m.meshgrid(ones(m, 2), indexing="yx"),
    "split_with_sizes": lambda m: call(m, "split_with_sizes", ones(m, 4), [1, 2]),
    "tensor_split none": lambda m: m.tensor_split(ones(m, 4), 0),
    "hsplit divisor": lambda m: m.hsplit(ones(m, 5), 2),
    "vsplit of a vector": lambda m: m.vsplit(ones(m, 4), 2),
    "dsplit of a matrix": lambda m: m.dsplit(ones(m, 4, 4), 2),
    "unbind 0-dim": lambda m: m.unbind(m.tensor(1.0)),
    "slice_scatter shape": lambda m: m.slice_scatter(ones(m, 4), ones(m, 3), 0, 0, 2),
    "slice_scatter step": lambda m: m.slice_scatter(ones(m, 4), ones(m, 3), 0, 0, 3, 0),
    "select_scatter shape": lambda m: m.select_scatter(ones(m, 2, 3), ones(m, 2), 0, 0),
    "select_scatter range": lambda m: m.select_scatter(ones(m, 2, 3), ones(m, 3), 0, 2),
    "diagonal_scatter shape": lambda m: m.diagonal_scatter(ones(m, 2, 3), ones(m, 3)),
    "as_strided_scatter outside": lambda m: m.as_strided_scatter(
        ones(m, 2), ones(m, 3), (3,), (1,)
    ),
    "roll shifts": lambda m: m.roll(ones(m, 2, 3), (1, 2), 0),
    "roll range": lambda m: m.roll(ones(m, 2, 3), 1, 2),
    "rot90 dims": lambda m: m.rot90(ones(m, 2, 3), 1, (0, 0)),
    "rot90 of a vector": lambda m: m.rot90(ones(m, 2), 1, (0, 1)),
    "fliplr of a vector": lambda m: m.fliplr(ones(m, 2)),
    "flipud of a scalar": lambda m: m.flipud(m.tensor(1.0)),
    "repeat few": lambda m: call(m, "repeat", ones(m, 2, 3), 2),
    "repeat negative": lambda m: call(m, "repeat", ones(m, 2), -1),
    "repeat_interleave negative": lambda m: m.repeat_interleave(ones(m, 2), -1),
    "repeat_interleave count": lambda m: m.repeat_interleave(ones(m, 2), ids(m, 1, 2, 3)),
    "repeat_interleave float": lambda m: m.repeat_interleave(ones(m, 2), ones(m, 2)),
    "block_diag dims": lambda m: m.block_diag(ones(m, 2, 2, 2)),
    "too many indices": lambda m: ones(m, 2)[ids(m, 0), :],
    "select of a scalar": lambda m: m.select(m.tensor(1.0), 0, 0),
    "narrow of a scalar": lambda m: m.narrow(m.tensor(1.0), 0, 0, 1),
    "narrow start": lambda m: m.narrow(ones(m, 2), 0, 3, 0),
    "index_put dtype": lambda m: m.index_put(ones(m, 2), (ids(m, 0),), ones(m, 2, 2)),
    "index_select matrix": lambda m: m.index_select(ones(m, 2), 0, m.tensor([[0]])),
    "index_select float": lambda m: m.index_select(ones(m, 2), 0, ones(m, 1)),
    "index_select range": lambda m: m.index_select(ones(m, 2), 0, ids(m, 2)),
    "index_add range": lambda m: m.index_add(ones(m, 2), 0, ids(m, 2), ones(m, 1)),
    "index_add shape": lambda m: m.index_add(ones(m, 2), 0, ids(m, 0, 1), ones(m, 3)),
    "index_add dtype": lambda m: m.index_add(ones(m, 2), 0, ids(m, 0), ones(m, 1).double()),
    "index_copy range": lambda m: m.index_copy(ones(m, 2), 0, ids(m, 2), ones(m, 1)),
    "index_copy dtype": lambda m: m.index_copy(ones(m, 2), 0, ids(m, 0), ones(m, 1).double()),
    "index_fill range": lambda m: m.index_fill(ones(m, 2), 0, ids(m, 2), 1.0),
    "index_fill vector": lambda m: m.index_fill(ones(m, 2), 0, ids(m, 0), ones(m, 2)),
    "scatter range": lambda m: m.scatter(ones(m, 2), 0, ids(m, 2), 1.0),
    "scatter dtype": lambda m: m.scatter(ones(m, 2), 0, ids(m, 0), ones(m, 1).double()),
    "scatter size": lambda m: m.scatter(ones(m, 2), 0, ids(m, 0, 1), ones(m, 1)),
    "scatter dims": lambda m: m.scatter(ones(m, 2, 2), 0, ids(m, 0), 1.0),
    "take range": lambda m: m.take(ones(m, 2), ids(m, 2)),
    "take float": lambda m: m.take(ones(m, 2), ones(m, 1)),
    "put count": lambda m: call(m, "put", ones(m, 2), ids(m, 0, 1), ones(m, 1)),
    "put range": lambda m: call(m, "put", ones(m, 2), ids(m, 5), ones(m, 1)),
    "take_along_dim sizes": lambda m: m.take_along_dim(ones(m, 3, 4), m.tensor([[0], [1]]), 1),
    "take_along_dim dims": lambda m: m.take_along_dim(ones(m, 3, 4), ids(m, 0), 1),
    "masked_fill complex": lambda m: m.masked_fill(ones(m, 1), m.tensor([True]), 1j),
    "masked_fill vector": lambda m: m.masked_fill(ones(m, 2), m.tensor(True), ones(m, 2)),
    "masked_select mask": lambda m: m.masked_select(ones(m, 2), ids(m, 0, 1)),
    "masked_select shape": lambda m: m.masked_select(ones(m, 2), m.tensor([True] * 3)),
    "masked_scatter few": lambda m: m.masked_scatter(ones(m, 2), m.tensor(True), ones(m, 1)),
    "masked_scatter dtype": lambda m: m.masked_scatter(
        ones(m, 2), m.tensor(True), ones(m, 2).double()
    ),
    "mv sizes": lambda m: m.mv(ones(m, 2, 3), ones(m, 2)),
    "mv dims": lambda m: m.mv(ones(m, 2, 3), ones(m, 3, 1)),
    "dot dtypes": lambda m: m.dot(ones(m, 3), ones(m, 3).double()),
    "vdot sizes": lambda m: m.vdot(ones(m, 2), ones(m, 3)),
    "outer matrix": lambda m: m.outer(ones(m, 2, 2), ones(m, 3)),
    "matmul bools": lambda m: m.ones(2, 2, dtype=m.bool) @ m.ones(2, 2, dtype=m.bool),
    "addmm sizes": lambda m: m.addmm(ones(m, 2, 2), ones(m, 2, 3), ones(m, 2, 3)),
    "addmm input": lambda m: m.addmm(ones(m, 3, 3), ones(m, 2, 3), ones(m, 3, 2)),
    "addmm growing": lambda m: m.addmm(ones(m, 2, 2, 2), ones(m, 2, 3), ones(m, 3, 2)),
    "addmm dtypes": lambda m: m.addmm(ones(m, 2).double(), ones(m, 2, 3), ones(m, 3, 2)),
    "addmv sizes": lambda m: m.addmv(ones(m, 2), ones(m, 2, 3), ones(m, 2)),
    "addr input": lambda m: m.addr(ones(m, 3), ones(m, 2), ones(m, 2)),
    "baddbmm batch": lambda m: m.baddbmm(ones(m, 1), ones(m, 2, 2, 2), ones(m, 3, 2, 2)),
    "cross size": lambda m: m.cross(ones(m, 2, 4), ones(m, 2, 4), 1),
    "cross dims": lambda m: call(m, "linalg.cross", ones(m, 2, 3), ones(m, 3)),
    "tensordot sizes": lambda m: m.tensordot(ones(m, 2, 3), ones(m, 2, 3), 1),
    "tensordot counts": lambda m: m.tensordot(ones(m, 2, 3), ones(m, 3), ([0, 1], [0])),
    "inner sizes": lambda m: m.inner(ones(m, 2, 3), ones(m, 2)),
    "multi_dot one": lambda m: call(m, "linalg.multi_dot", [ones(m, 2, 2)]),
    "multi_dot sizes": lambda m: call(m, "linalg.multi_dot", [ones(m, 2, 3), ones(m, 2, 3)]),
    "einsum size": lambda m: m.einsum("ij,jk", ones(m, 2, 3), ones(m, 2, 3)),
    "einsum repeated": lambda m: m.einsum("ii", ones(m, 2, 3)),
    "einsum output": lambda m: m.einsum("ij->k", ones(m, 2, 3)),
    "einsum output twice": lambda m: m.einsum("ij->ii", ones(m, 2, 3)),
    "einsum operands": lambda m: m.einsum("ij,jk", ones(m, 2, 3)),
    "einsum dims": lambda m: m.einsum("ijk", ones(m, 2, 3)),
    "einsum few letters": lambda m: m.einsum("i", ones(m, 2, 3)),
    "einsum sign": lambda m: m.einsum("i1", ones(m, 2, 3)),
    "cdist columns": lambda m: m.cdist(ones(m, 2, 3), ones(m, 2, 4)),
    "cdist complex": lambda m: m.cdist(*[ones(m, 2, 3, dtype="complex64")] * 2),
    "cdist negative": lambda m: m.cdist(ones(m, 2, 3), ones(m, 2, 3), -1.0),
    "cdist mode": lambda m: m.cdist(ones(m, 2, 3), ones(m, 2, 3), 2.0, "fast"),
    "cdist batches": lambda m: m.cdist(ones(m, 2, 2, 3), ones(m, 3, 2, 3)),
    "softmax complex": lambda m: m.softmax(ones(m, 2, dtype="complex64"), 0),
    "softmax integers": lambda m: m.softmax(ones(m, 2, dtype="int64"), 0),
    "layer_norm complex": lambda m: call(m, "F.layer_norm", ones(m, 2, dtype="complex64"), (2,)),
    "attention complex": lambda m: call(
        m, "F.scaled_dot_product_attention", *[ones(m, 2, 2, dtype="complex64")] * 3
    ),
    **{
        f"{name} {dtype}": of(name, dtype)
        for name in (
            "relu", "gelu", "leaky_relu", "elu", "selu", "celu", "softplus", "hardtanh", "relu6",
            "hardsigmoid", "hardswish", "mish", "logsigmoid", "glu", "softshrink", "hardshrink",
        )
        for dtype in ("complex64", "bool")
    },
    **{
        f"{name} int64": of(name, "int64")
        for name in ("gelu", "silu", "leaky_relu", "elu", "softplus", "mish", "logsigmoid", "glu")
    },
    "glu odd": lambda m: call(m, "F.glu", ones(m, 3)),
    "glu of a scalar": lambda m: call(m, "F.glu", m.tensor(1.0)),
    "celu alpha": lambda m: call(m, "F.celu", ones(m, 2), 0.0),
    "softshrink negative": lambda m: call(m, "F.softshrink", ones(m, 2), -1.0),
    "prelu weights": lambda m: call(m, "F.prelu", ones(m, 2, 3), ones(m, 2)),
    "rrelu limits": lambda m: call(m, "F.rrelu", ones(m, 2), 0.5, 0.1),
    **{
        f"{name} complex": of(name, "complex64", 2)
        for name in (
            "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
            "binary_cross_entropy_with_logits", "kl_div", "hinge_embedding_loss",
        )
    },
    "cosine_similarity complex": lambda m: call(
        m, "F.cosine_similarity", *[ones(m, 2, 2, dtype="complex64")] * 2
    ),
    "mse_loss shapes": lambda m: call(m, "F.mse_loss", ones(m, 2), ones(m, 3)),
    "mse_loss reduction": lambda m: call(m, "F.mse_loss", ones(m, 2), ones(m, 2), reduction="x"),
    "smooth_l1 beta": lambda m: call(m, "F.smooth_l1_loss", ones(m, 2), ones(m, 2), beta=-1.0),
    "huber delta": lambda m: call(m, "F.huber_loss", ones(m, 2), ones(m, 2), delta=0.0),
    "bce shapes": lambda m: call(m, "F.binary_cross_entropy", ones(m, 2), ones(m, 1)),
    "bce outside": lambda m: call(m, "F.binary_cross_entropy", ones(m, 2) * 2, ones(m, 2)),
    "bce logits shapes": lambda m: call(
        m, "F.binary_cross_entropy_with_logits", ones(m, 2), ones(m, 1)
    ),
    "margin_ranking dims": lambda m: call(
        m, "F.margin_ranking_loss", ones(m, 2), ones(m, 2), ones(m, 2, 1)
    ),
    "cosine_embedding dims": lambda m: call(
        m, "F.cosine_embedding_loss", ones(m, 2, 3), ones(m, 2, 3), ones(m, 2, 1)
    ),
    "triplet margin": lambda m: call(
        m, "F.triplet_margin_loss", *[ones(m, 2, 3)] * 3, margin=-1.0
    ),
    "multi_margin p": lambda m: call(m, "F.multi_margin_loss", ones(m, 2, 3), ids(m, 0, 1), p=3),
    "multi_margin shape": lambda m: call(m, "F.multi_margin_loss", ones(m, 2, 3), ids(m, 0)),
    "gaussian_nll negative": lambda m: call(
        m, "F.gaussian_nll_loss", ones(m, 2), ones(m, 2), -ones(m, 2)
    ),
    "gaussian_nll shape": lambda m: call(
        m, "F.gaussian_nll_loss", ones(m, 2, 3), ones(m, 2, 3), ones(m, 3)
    ),
    "nll batch": lambda m: call(m, "F.nll_loss", ones(m, 2, 3), ids(m, 0)),
    "nll range": lambda m: call(m, "F.nll_loss", ones(m, 2, 3), ids(m, 0, 3)),
    "nll weight": lambda m: call(m, "F.nll_loss", ones(m, 2, 3), ids(m, 0, 1), ones(m, 2)),
    "nll images": lambda m: call(m, "F.nll_loss", ones(m, 2, 3, 2, 2), m.zeros(2, 1, 2).long()),
    "nll complex": lambda m: call(m, "F.nll_loss", ones(m, 2, 3, dtype="complex64"), ids(m, 0, 1)),
    "cross_entropy batch": lambda m: call(m, "F.cross_entropy", ones(m, 2, 3), ids(m, 0)),
    "cross_entropy images": lambda m: call(
        m, "F.cross_entropy", ones(m, 2, 3, 2, 2), m.zeros(2, 1, 2).long()
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_same_class_of_error(case: str) -> None:
    with pytest.raises(Exception) as theirs:
        CASES[case](torch)
    # NotImplementedError is a RuntimeError, so offgrad may raise it for torch's RuntimeError.
    kind = RuntimeError if issubclass(theirs.type, RuntimeError) else theirs.type
    with pytest.raises(kind) as mine:
        CASES[case](offgrad)
    assert len(str(mine.value)) > 15, "an error says what was wrong"
