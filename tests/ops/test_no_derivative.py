"""Results that are not differentiable: samples, positions, counts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")


def leaf(m: Any) -> Any:
    return m.tensor([0.25, 0.5, 1.0], requires_grad=True)


SAMPLES: dict[str, Callable[[Any, Any], Any]] = {
    "bernoulli": lambda m, x: m.bernoulli(x),
    "poisson": lambda m, x: m.poisson(x),
    "normal of means": lambda m, x: m.normal(x, 2.0),
    "normal of deviations": lambda m, x: m.normal(1.0, x),
    "normal of both": lambda m, x: m.normal(x, x),
}


@pytest.mark.parametrize("case", SAMPLES)
def test_the_gradient_of_a_sample_is_zero(case: str) -> None:
    for m in (offgrad, torch):
        x = leaf(m)
        y = SAMPLES[case](m, x)
        assert y.requires_grad
        assert y.shape == x.shape
        assert y.dtype == x.dtype
        y.sum().backward()
        assert x.grad.tolist() == [0, 0, 0]
    names = [SAMPLES[case](m, leaf(m)).grad_fn.name() for m in (offgrad, torch)]
    assert names[0] == names[1]


RAISING: dict[str, Callable[[Any, Any], Any]] = {
    "bernoulli p": lambda m, x: m.bernoulli(x, 0.5),
    "unique": lambda m, x: m.unique(x),
    "unique with inverse": lambda m, x: m.unique(x, return_inverse=True)[0],
}


@pytest.mark.parametrize("case", RAISING)
def test_backward_raises_where_there_is_no_derivative(case: str) -> None:
    errors = []
    for m in (offgrad, torch):
        y = RAISING[case](m, leaf(m))
        assert y.requires_grad
        with pytest.raises(RuntimeError, match="derivative") as caught:
            y.sum().backward()
        errors.append((y.grad_fn.name().removeprefix("torch::autograd::"), caught.type))
        with m.no_grad():
            assert not RAISING[case](m, leaf(m)).requires_grad
    assert errors[0] == errors[1]


PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "multinomial": lambda m, x: m.multinomial(x, 2),
    "rand_like": lambda m, x: m.rand_like(x),
    "randn_like": lambda m, x: m.randn_like(x),
    "nonzero": lambda m, x: m.nonzero(x),
    "argwhere": lambda m, x: m.argwhere(x),
    "searchsorted": lambda m, x: m.searchsorted(x, x),
    "bucketize": lambda m, x: m.bucketize(x, x),
    "inverse": lambda m, x: m.unique(x, return_inverse=True)[1],
}


@pytest.mark.parametrize("case", PLAIN)
def test_not_recorded_at_all(case: str) -> None:
    for m in (offgrad, torch):
        assert not PLAIN[case](m, leaf(m)).requires_grad


def test_samples_follow_their_parameters() -> None:
    offgrad.manual_seed(1)
    many = offgrad.ones(20000)
    assert offgrad.bernoulli(many * 0.3).mean().item() == pytest.approx(0.3, abs=0.02)
    assert offgrad.bernoulli(many, 0.7).mean().item() == pytest.approx(0.7, abs=0.02)
    counts = offgrad.poisson(many * 3)
    assert counts.mean().item() == pytest.approx(3, abs=0.1)
    assert counts.var().item() == pytest.approx(3, abs=0.2)
    sample = offgrad.normal(many * 5, many * 2)
    assert sample.mean().item() == pytest.approx(5, abs=0.1)
    assert sample.std().item() == pytest.approx(2, abs=0.1)
    assert offgrad.normal(1.0, 0.0, (3,)).tolist() == [1, 1, 1]
    parts = offgrad.randn(20000, dtype=offgrad.complex64)
    assert parts.real.var().item() == pytest.approx(0.5, abs=0.02)
    assert parts.imag.var().item() == pytest.approx(0.5, abs=0.02)


MISUSE: dict[str, Callable[[Any], Any]] = {
    "bernoulli outside": lambda m: m.bernoulli(m.tensor([1.5])),
    "bernoulli integers": lambda m: m.bernoulli(m.ones(2, dtype=m.int64)),
    "bernoulli complex": lambda m: m.bernoulli(m.ones(2, dtype=m.complex64)),
    "bernoulli p outside": lambda m: m.bernoulli(m.ones(2), 2.0),
    "poisson negative": lambda m: m.poisson(m.tensor([-1.0])),
    "normal negative": lambda m: m.normal(m.ones(2), -1.0),
    "multinomial complex": lambda m: m.multinomial(m.ones(2, dtype=m.complex64), 1),
    "dropout complex": lambda m: m.nn.functional.dropout(m.ones(2, dtype=m.complex64)),
    "dropout integers": lambda m: m.nn.functional.dropout(m.ones(2, dtype=m.int64)),
    "rand integers": lambda m: m.rand(2, dtype=m.int64),
    "unique complex": lambda m: m.unique(m.ones(2, dtype=m.complex64)),
    "searchsorted rows": lambda m: m.searchsorted(m.ones(2, 3), m.ones(3, 3)),
    "searchsorted side": lambda m: m.searchsorted(m.ones(2), m.ones(2), side="middle"),
    "searchsorted complex": lambda m: m.searchsorted(
        m.ones(2, dtype=m.complex64), m.ones(2, dtype=m.complex64)
    ),
}


@pytest.mark.parametrize("case", MISUSE)
def test_same_class_of_error(case: str) -> None:
    with pytest.raises(Exception) as theirs:
        MISUSE[case](torch)
    with pytest.raises(RuntimeError if issubclass(theirs.type, RuntimeError) else theirs.type):
        MISUSE[case](offgrad)


FOUND: dict[str, Callable[[Any], Any]] = {
    "unique": lambda m: m.unique(m.tensor([3, 1, 3, 2]), return_inverse=True, return_counts=True),
    "unique of a matrix": lambda m: m.unique(m.tensor([[3, 1], [3, 2]]), return_inverse=True),
    "unique rows": lambda m: m.unique(
        m.tensor([[3, 1], [0, 2], [3, 1]]), return_inverse=True, return_counts=True, dim=0
    ),
    "unique of NaN": lambda m: m.unique(m.tensor([float("nan"), 1.0, float("nan")])),
    "nonzero": lambda m: m.nonzero(m.tensor([[0, 1], [2, 0]])),
    "nonzero as tuple": lambda m: m.nonzero(m.tensor([[0, 1], [2, 0]]), as_tuple=True),
    "nonzero of a scalar": lambda m: m.nonzero(m.tensor(3)),
    "nonzero of a scalar as tuple": lambda m: m.nonzero(m.tensor(3), as_tuple=True),
    "nonzero complex": lambda m: m.nonzero(m.tensor([0j, 1j])),
    "searchsorted": lambda m: m.searchsorted(m.tensor([1, 3, 5]), m.tensor([[3, 0], [6, 5]])),
    "searchsorted right": lambda m: m.searchsorted(
        m.tensor([1, 3, 5]), m.tensor([3, 0]), right=True, out_int32=True
    ),
    "searchsorted side": lambda m: m.searchsorted(
        m.tensor([1, 3, 5]), m.tensor([3, 0]), side="right"
    ),
    "searchsorted rows": lambda m: m.searchsorted(
        m.tensor([[1, 3, 5], [2, 4, 6]]), m.tensor([[3, 6], [3, 6]])
    ),
    "searchsorted number": lambda m: m.searchsorted(m.tensor([1.0, 3.0]), 2.0),
    "searchsorted sorter": lambda m: m.searchsorted(
        m.tensor([5, 1, 3]), m.tensor([3]), sorter=m.tensor([1, 2, 0])
    ),
    "bucketize": lambda m: m.bucketize(m.tensor([3, 6, 9]), m.tensor([1, 3, 5, 7, 9])),
    "tril_indices": lambda m: m.tril_indices(3, 4, -1),
    "triu_indices": lambda m: m.triu_indices(4, 3, 1),
    "linspace complex": lambda m: m.linspace(0, 1j, 3),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_values_are_torchs(case: str) -> None:
    mine, theirs = FOUND[case](offgrad), FOUND[case](torch)
    if not isinstance(mine, tuple):
        mine, theirs = (mine,), (theirs,)
    assert len(mine) == len(theirs)
    for have, want in zip(mine, theirs, strict=True):
        assert tuple(have.shape) == tuple(want.shape)
        assert str(have.dtype) == str(want.dtype)
        assert str(have.tolist()) == str(want.tolist())


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("classes", [1, 7, 30_000])
def test_multinomial_draws_in_proportion(rows: int, classes: int) -> None:
    offgrad.manual_seed(2)
    weights = offgrad.rand(rows, classes)
    weights[:, 0] = 2 * weights[:, 1:].sum(1) + 1  # more than two thirds
    weights[:, classes // 2 + 1 :] = 0
    sample = offgrad.multinomial(weights, 300, replacement=True).numpy()
    assert sample.shape == (rows, 300)
    assert sample.dtype == np.int64
    assert not (sample > classes // 2).any()
    assert ((sample == 0).mean(1) > 0.55).all()
    once = offgrad.multinomial(weights, 1).numpy()
    assert once.shape == (rows, 1)
    assert not (once > classes // 2).any()
    few = min(2, classes // 2 + 1)
    assert all(len({*row}) == few for row in offgrad.multinomial(weights, few).tolist())
