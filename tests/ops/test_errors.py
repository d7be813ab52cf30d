"""Misuse raises torch's error before anything is changed."""

from collections.abc import Callable
from typing import Any

import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

# Warnings of torch do not matter here.
pytestmark = pytest.mark.filterwarnings("ignore")


def F(m: Any) -> Any:
    return m.nn.functional


CASES: dict[str, Callable[[Any], Any]] = {
    "add shapes": lambda m: m.ones(2, 3) + m.ones(4),
    "eq shapes": lambda m: m.ones(2) == m.ones(3),
    "logical shapes": lambda m: m.ones(2).logical_and(m.ones(3)),
    "add None": lambda m: m.ones(2) + None,
    "add alpha": lambda m: m.add(m.ones(2, dtype=m.int64), m.ones(2, dtype=m.int64), alpha=1.5),
    "pow negative": lambda m: m.ones(2, dtype=m.int64) ** -1,
    "integers by zero": lambda m: m.ones(2, dtype=m.int64) // 0,
    "remainder by zero": lambda m: m.ones(2, dtype=m.int64) % 0,
    "neg bool": lambda m: -m.ones(2, dtype=m.bool),
    "sub bool": lambda m: m.ones(2, dtype=m.bool) - m.ones(2, dtype=m.bool),
    "and floats": lambda m: m.ones(2) & m.ones(2),
    "invert floats": lambda m: ~m.ones(2),
    "exp number": lambda m: m.exp(1.0),
    "sign complex": lambda m: m.ones(2, dtype=m.complex64).sign(),
    "less complex": lambda m: m.ones(2, dtype=m.complex64) < 1,
    "max complex": lambda m: m.ones(2, dtype=m.complex64).max(),
    "maximum complex": lambda m: m.maximum(m.ones(2), m.ones(2, dtype=m.complex64)),
    "floor complex": lambda m: m.ones(2, dtype=m.complex64).floor(),
    "erf complex": lambda m: m.ones(2, dtype=m.complex64).erf(),
    "relu complex": lambda m: m.relu(m.ones(2, dtype=m.complex64)),
    "clamp complex": lambda m: m.ones(2, dtype=m.complex64).clamp(0, 1),
    "clamp nothing": lambda m: m.ones(2).clamp(),
    "imag real": lambda m: m.imag(m.ones(2)),
    "matmul inner": lambda m: m.ones(2, 3) @ m.ones(2, 3),
    "matmul 0-dim": lambda m: m.ones(2, 3) @ m.tensor(1.0),
    "matmul dtypes": lambda m: m.ones(2, 2) @ m.ones(2, 2).double(),
    "matmul batches": lambda m: m.ones(2, 2, 2) @ m.ones(3, 2, 2),
    "mm vector": lambda m: m.mm(m.ones(2), m.ones(2, 2)),
    "bmm batches": lambda m: m.bmm(m.ones(2, 2, 2), m.ones(3, 2, 2)),
    "dot sizes": lambda m: m.dot(m.ones(2), m.ones(3)),
    "sum dim": lambda m: m.ones(2, 3).sum(2),
    "sum dim of 0-dim": lambda m: m.tensor(1.0).sum(1),
    "sum dim twice": lambda m: m.ones(2, 3).sum((0, 0)),
    "mean integers": lambda m: m.ones(2, dtype=m.int64).mean(),
    "max empty": lambda m: m.ones(0).max(),
    "max empty dim": lambda m: m.ones(0, 2).max(0),
    "amax empty dim": lambda m: m.ones(0, 2).amax(0),
    "argmax empty": lambda m: m.ones(0).argmax(),
    "argmax dim": lambda m: m.ones(2).argmax(1),
    "view size": lambda m: m.ones(2, 3).view(4),
    "view two unknown": lambda m: m.ones(2, 3).view(-1, -1),
    "view strides": lambda m: m.ones(2, 3).t().view(6),
    "reshape size": lambda m: m.ones(2, 3).reshape(-1, 4),
    "reshape unknown of none": lambda m: m.ones(0, 3).reshape(0, -1),
    "permute twice": lambda m: m.ones(2, 3).permute(0, 0),
    "permute few": lambda m: m.ones(2, 3).permute(0),
    "permute range": lambda m: m.ones(2, 3).permute(0, 5),
    "transpose range": lambda m: m.ones(2, 3).transpose(0, 2),
    "t of 3-dim": lambda m: m.ones(2, 2, 2).t(),
    "mT of 1-dim": lambda m: m.ones(2).mT,
    "tril of 1-dim": lambda m: m.tril(m.ones(2)),
    "expand size": lambda m: m.ones(2, 3).expand(4, 3),
    "expand fewer": lambda m: m.ones(2, 3).expand(3),
    "expand new unknown": lambda m: m.ones(3).expand(-1, 3),
    "squeeze range": lambda m: m.ones(2, 3).squeeze(4),
    "unsqueeze range": lambda m: m.ones(2, 3).unsqueeze(4),
    "flatten order": lambda m: m.ones(2, 3).flatten(1, 0),
    "cat dims": lambda m: m.cat([m.ones(2, 3), m.ones(2)]),
    "cat dims, the last": lambda m: m.cat([m.ones(2, 3, 4), m.ones(2, 3)], 2),
    "cat sizes": lambda m: m.cat([m.ones(2, 3), m.ones(2, 4)]),
    "cat 0-dim": lambda m: m.cat([m.tensor(1.0), m.tensor(2.0)]),
    "cat number": lambda m: m.cat([m.ones(2), 1]),
    "stack sizes": lambda m: m.stack([m.ones(2), m.ones(3)]),
    "stack none": lambda m: m.stack([]),
    "split sections": lambda m: m.ones(4).split([1, 2]),
    "split negative": lambda m: m.ones(4).split(-1),
    "split 0-dim": lambda m: m.tensor(1.0).split(1),
    "chunk none": lambda m: m.ones(4).chunk(0),
    "index range": lambda m: m.ones(2)[5],
    "index too many": lambda m: m.ones(2)[0, 0],
    "index float tensor": lambda m: m.ones(2)[m.tensor([1.0])],
    "index tensor range": lambda m: m.ones(2)[m.tensor([5])],
    "index negative step": lambda m: m.ones(4)[::-1],
    "index mask shape": lambda m: m.ones(2)[m.tensor([True, False, True])],
    "index shapes": lambda m: m.ones(3, 3)[m.tensor([0, 1]), m.tensor([0, 1, 2])],
    "setitem shape": lambda m: m.ones(2).__setitem__(slice(None), m.ones(3)),
    "setitem range": lambda m: m.ones(2).__setitem__(7, 1.0),
    "gather range": lambda m: m.ones(2, 2).gather(0, m.tensor([[5, 0]])),
    "gather float": lambda m: m.ones(2, 2).gather(0, m.tensor([[1.0, 0.0]])),
    "gather dims": lambda m: m.ones(2, 2).gather(0, m.tensor([0])),
    "gather size": lambda m: m.ones(2, 2).gather(0, m.tensor([[0, 0, 1]])),
    "scatter_add dtype": lambda m: m.ones(2).scatter_add(0, m.tensor([0]), m.ones(1).double()),
    "scatter_add range": lambda m: m.ones(2).scatter_add(0, m.tensor([2]), m.ones(1)),
    "scatter_add size": lambda m: m.ones(2).scatter_add(0, m.tensor([0, 1, 1]), m.ones(2)),
    "index_select range": lambda m: m.ones(2).index_select(0, m.tensor([2])),
    "narrow range": lambda m: m.ones(2).narrow(0, 1, 2),
    "select range": lambda m: m.ones(2).select(0, 2),
    "masked_fill mask": lambda m: m.ones(2).masked_fill(m.tensor([1, 0]), 0.0),
    "masked_fill shape": lambda m: m.ones(2).masked_fill(m.tensor([True, False, True]), 0.0),
    "where shape": lambda m: m.where(m.tensor([True, False, True]), m.ones(2), m.ones(2)),
    "item": lambda m: m.ones(2).item(),
    "truth": lambda m: bool(m.ones(2)),
    "float()": lambda m: float(m.ones(2)),
    "len of 0-dim": lambda m: len(m.tensor(1.0)),
    "iterate 0-dim": lambda m: list(m.tensor(1.0)),
    "float as index": lambda m: [1, 2][m.tensor(1.0)],
    "numpy of history": lambda m: m.ones(2, requires_grad=True).numpy(),
    "integers require grad": lambda m: m.ones(2, dtype=m.int64, requires_grad=True),
    "ragged": lambda m: m.tensor([[1, 2], [3]]),
    "text": lambda m: m.tensor("a"),
    "arange step": lambda m: m.arange(0, 5, 0),
    "arange direction": lambda m: m.arange(0, 5, -1),
    "linspace steps": lambda m: m.linspace(0, 1, -1),
    "randint empty": lambda m: m.randint(3, 3, (2,)),
    "linear sizes": lambda m: F(m).linear(m.ones(2, 3), m.ones(2, 2)),
    "linear bias": lambda m: F(m).linear(m.ones(2, 3), m.ones(2, 3), m.ones(3)),
    "embedding range": lambda m: F(m).embedding(m.tensor([5]), m.ones(2, 3)),
    "embedding float": lambda m: F(m).embedding(m.tensor([1.0]), m.ones(2, 3)),
    "layer_norm shape": lambda m: F(m).layer_norm(m.ones(2, 3), (2,)),
    "layer_norm weight": lambda m: F(m).layer_norm(m.ones(2, 3), (3,), m.ones(2)),
    "softmax dim": lambda m: m.softmax(m.ones(2), 1),
    "cross_entropy range": lambda m: F(m).cross_entropy(m.ones(2, 3), m.tensor([0, 3])),
    "cross_entropy negative": lambda m: F(m).cross_entropy(m.ones(2, 3), m.tensor([0, -1])),
    "cross_entropy shape": lambda m: F(m).cross_entropy(m.ones(2, 3), m.tensor([0, 1, 2])),
    "cross_entropy weight": lambda m: F(m).cross_entropy(
        m.ones(2, 3), m.tensor([0, 1]), weight=m.ones(2)
    ),
    "cross_entropy reduction": lambda m: F(m).cross_entropy(
        m.ones(2, 3), m.tensor([0, 1]), reduction="x"
    ),
    "dropout p": lambda m: F(m).dropout(m.ones(2), 2.0),
    "attention sizes": lambda m: F(m).scaled_dot_product_attention(
        m.ones(1, 2, 3), m.ones(1, 2, 4), m.ones(1, 2, 4)
    ),
    "attention heads": lambda m: F(m).scaled_dot_product_attention(
        m.ones(2, 4, 6, 8), m.ones(2, 2, 6, 8), m.ones(2, 2, 6, 8)
    ),
    "attention dtypes": lambda m: F(m).scaled_dot_product_attention(
        m.ones(1, 2, 3), m.ones(1, 2, 3).double(), m.ones(1, 2, 3)
    ),
    "backward of several": lambda m: m.ones(2, requires_grad=True).mul(2).backward(),
    "backward of constant": lambda m: m.ones(1).backward(),
    "backward shape": lambda m: m.ones(2, requires_grad=True).mul(2).backward(m.ones(3)),
    "in place on a leaf": lambda m: m.ones(2, requires_grad=True).add_(1),
    "in place shape": lambda m: m.ones(2).add_(m.ones(3)),
    "in place growing": lambda m: m.ones(2).add_(m.ones(2, 2)),
    "in place dtype": lambda m: m.ones(2, dtype=m.int64).add_(1.5),
    "in place integer division": lambda m: m.ones(2, dtype=m.int64).div_(2),
    "in place expanded": lambda m: m.ones(1).expand(3).add_(1),
    "copy_ shape": lambda m: m.ones(2).copy_(m.ones(3)),
    "grad of another shape": lambda m: setattr(m.ones(2), "grad", m.ones(3)),
    "deepcopy of a result": lambda m: __import__("copy").deepcopy(
        m.ones(2, requires_grad=True) * 2
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_same_class_of_error(case: str) -> None:
    with pytest.raises(Exception) as theirs:
        CASES[case](torch)
    # NotImplementedError is a RuntimeError, so offgrad may raise it for torch's RuntimeError.
    kind = RuntimeError if issubclass(theirs.type, RuntimeError) else theirs.type
    with pytest.raises(kind) as mine:
        CASES[case](offgrad)
    assert len(str(mine.value)) > 15, "an error says what was wrong"


VALUES: dict[str, Callable[[Any], Any]] = {
    "uint8 index is a mask": lambda m: m.arange(2.0)[m.tensor([1, 0], dtype=m.uint8)],
    "bool index": lambda m: m.ones(2)[True],
    "0-dim bool index": lambda m: m.ones(2)[m.tensor(False)],
    "0-dim index": lambda m: m.arange(3.0)[m.tensor(1)],
    "integers clamped to floats": lambda m: m.arange(3).clamp(0.5, 1.5),
    "Integers to negative integer powers": lambda m: m.full((2,), 2) ** m.tensor([-1, 2]),
    "cumsum of integers": lambda m: m.ones(2, dtype=m.int32).cumsum(0),
    "cumsum of bools": lambda m: m.ones(3, dtype=m.bool).cumsum(0),
    "logsumexp over nothing": lambda m: m.ones(2, 0).logsumexp(1),
    "logsumexp of -inf": lambda m: m.full((2,), float("-inf")).logsumexp(0),
    "std of one": lambda m: m.ones(1).std(),
    "mean of nothing": lambda m: m.ones(0).mean(),
    "first of equals": lambda m: m.tensor([1.0, 3.0, 3.0]).argmax(),
    "nan is the largest": lambda m: m.tensor([1.0, float("nan"), 3.0]).max(0)[1],
    "nan maximum": lambda m: m.maximum(m.tensor(float("nan")), m.tensor(1.0)),
    "uint8 wraps": lambda m: m.tensor([200], dtype=m.uint8) + m.tensor([100], dtype=m.uint8),
    "number beyond uint8": lambda m: m.tensor([200], dtype=m.uint8) + 300,
    "number beyond int32": lambda m: m.tensor([1], dtype=m.int32) * 2**40,
    "floor division": lambda m: m.tensor([-7, 7]) // m.tensor([2, -2]),
    "remainder": lambda m: m.tensor([-7.0, 7.0]) % m.tensor([2.0, -2.0]),
    "remainder of integers": lambda m: m.tensor([-7, 7]) % m.tensor([2, -2]),
    "truncated division": lambda m: m.div(m.tensor([-7, 7]), 2, rounding_mode="trunc"),
    "division by zero": lambda m: m.tensor([1.0, -1.0, 0.0]) / 0,
    "float floor by zero": lambda m: m.tensor([1.0, -1.0]) // 0.0,
    "round half to even": lambda m: m.round(m.tensor([0.5, 1.5, 2.5, -0.5])),
    "all ignored": lambda m: F(m).cross_entropy(m.ones(2, 3), m.full((2,), -100)),
    "no rows": lambda m: F(m).cross_entropy(m.ones(0, 3), m.ones(0, dtype=m.int64)),
    "empty joins anything": lambda m: m.cat([m.ones(0), m.ones(2, 3)]),
    "cat of two dtypes": lambda m: m.cat([m.ones(2), m.ones(2, dtype=m.int64)]),
    "tensor of tensors": lambda m: m.tensor([m.tensor(1.0), m.tensor(2.0)]),
    "float64 from a list": lambda m: m.tensor([0.1, 1 / 3], dtype=m.float64),
    "complex128 from a number": lambda m: m.tensor(0.1 + 0.2j, dtype=m.complex128),
    "integers from floats": lambda m: m.tensor([16777217.0, -1.9], dtype=m.int64),
    "float64 full": lambda m: m.full((2,), 0.1, dtype=m.float64),
    "double tensor times number": lambda m: m.ones(2, dtype=m.float64) * 0.1,
    "bool sum": lambda m: m.ones(3, dtype=m.bool).sum(),
    "all rows masked": lambda m: m.softmax(m.full((1, 2), float("-inf")), -1),
    "sqrt of a negative": lambda m: m.tensor([-1.0]).sqrt(),
    "int sum wraps not": lambda m: m.full((3,), 100, dtype=m.int8).sum(),
}  # fmt: skip


@pytest.mark.parametrize("case", VALUES)
def test_same_value(case: str) -> None:
    mine, theirs = VALUES[case](offgrad), VALUES[case](torch)
    assert tuple(mine.shape) == tuple(theirs.shape)
    assert str(mine.dtype) == str(theirs.dtype)
    assert mine.numpy().tobytes() == theirs.numpy().tobytes() or mine.tolist() == pytest.approx(
        theirs.tolist(), nan_ok=True, rel=1e-6 if mine.dtype == offgrad.float32 else 1e-15
    )


def test_comparison_with_something_else_is_not_equal() -> None:
    x: Any = offgrad.ones(2)
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True
