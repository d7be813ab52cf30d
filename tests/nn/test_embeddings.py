"""Tables of vectors, and linear and bilinear layers."""

from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import nn
from tests.nn.against_torch import Case, check, close

F = nn.functional


def _bag(**options: Any) -> Any:
    return lambda nn: nn.EmbeddingBag(4, 3, **options)


TOKENS = np.array([[0, 3, 1], [3, 3, 2]])
FLAT, OFFSETS = np.array([1, 2, 2, 0, 3]), np.array([0, 2, 2])
SHARES = np.random.default_rng(0).uniform(0.5, 1, (2, 3)).astype("f")

LAYERS: dict[str, Case] = {
    "Embedding": (lambda nn: nn.Embedding(4, 3), [TOKENS]),
    "Embedding padded": (lambda nn: nn.Embedding(4, 3, -1), [TOKENS]),
    "Embedding limited": (lambda nn: nn.Embedding(4, 3, max_norm=1.0), [TOKENS]),
    "Embedding by frequency": (
        lambda nn: nn.Embedding(4, 3, 0, 0.5, 1.0, scale_grad_by_freq=True),
        [TOKENS],
    ),
    **{f"EmbeddingBag {mode}": (_bag(mode=mode), [TOKENS]) for mode in ("sum", "mean", "max")},
    **{
        f"EmbeddingBag {mode} offsets": (
            _bag(mode=mode, padding_idx=3),
            [FLAT, OFFSETS],
        )
        for mode in ("sum", "mean", "max")
    },
    "EmbeddingBag last offset": (
        lambda nn: nn.EmbeddingBag(4, 3, 1.0, 2.0, False, "sum", include_last_offset=True),
        [FLAT, np.array([0, 0, 4, 5])],
    ),
    "Linear": (lambda nn: nn.Linear(4, 3), [(2, 4)]),
    "Linear by position": (lambda nn: nn.Linear(4, 3, False, "cpu", None), [(2, 4)]),
    "Bilinear": (lambda nn: nn.Bilinear(2, 3, 4), [(5, 2), (5, 3)]),
    "Bilinear no bias": (lambda nn: nn.Bilinear(2, 3, 4, False), [(2, 5, 2), (2, 5, 3)]),
    "Identity": (lambda nn: nn.Identity(3, unused=4), [(2, 4)]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    check(LAYERS[name], steps=2)


def test_weights_in_bags() -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    table = np.random.default_rng(0).standard_normal((4, 3)).astype("f")
    found = []
    for m in (offgrad, torch):
        shares = m.tensor(SHARES, requires_grad=True)
        layer = m.nn.EmbeddingBag.from_pretrained(m.tensor(table), freeze=False, mode="sum")
        y = layer(m.tensor(TOKENS), per_sample_weights=shares)
        (y * y).sum().backward()
        found.append((y, shares.grad, layer.weight.grad))
    for mine, theirs in zip(*found, strict=True):
        close(mine, theirs)


def test_pretrained_tables() -> None:
    table = offgrad.randn(4, 3)
    layer = nn.Embedding.from_pretrained(table)
    assert not layer.weight.requires_grad
    assert layer.weight._storage is table._storage
    assert nn.Embedding.from_pretrained(table, freeze=False, padding_idx=1).weight.requires_grad
    assert nn.Embedding(4, 3, _weight=table).weight.equal(table)
    assert nn.Embedding(4, 3, _freeze=True).weight.requires_grad is False


def test_limited_norms_count_as_a_change_in_place() -> None:
    layer = nn.Embedding(4, 3, max_norm=0.1)
    version = layer.weight._version
    used = (layer.weight * layer.weight).sum()
    layer(offgrad.tensor([0, 1]))
    assert layer.weight._version == version + 1
    norms = layer.weight.detach().norm(dim=1)
    assert (norms[:2] <= 0.1).all()
    with pytest.raises(RuntimeError, match="version"):
        used.backward()
    layer(offgrad.tensor([0, 1]))  # within the limit already
    assert layer.weight._version == version + 1


@pytest.mark.parametrize(
    ("error", "match", "run"),
    [
        (AssertionError, "padding_idx", lambda: nn.Embedding(3, 4, 5)),
        (AssertionError, "padding_idx",
         lambda: F.embedding(offgrad.tensor([0]), offgrad.ones(2, 2), 3)),
        (AssertionError, "shape of weight", lambda: nn.Embedding(3, 4, _weight=offgrad.ones(2, 2))),
        (AssertionError, "2 dim", lambda: nn.Embedding.from_pretrained(offgrad.ones(2))),
        (ValueError, "max mode does not support",
         lambda: nn.EmbeddingBag(3, 4, mode="max", sparse=True)(offgrad.tensor([[0]]))),
        (RuntimeError, "scale_grad_by_freq",
         lambda: nn.Embedding(3, 4, scale_grad_by_freq=True, sparse=True)(
             offgrad.tensor([0])).sum().backward()),
        (IndexError, "out of range", lambda: nn.Embedding(3, 4)(offgrad.tensor([3]))),
        (ValueError, "'sum', 'mean', 'max'",
         lambda: nn.EmbeddingBag(3, 4, mode="a")(offgrad.tensor([[0]]))),
        (ValueError, "offsets has to be a", lambda: nn.EmbeddingBag(3, 4)(offgrad.tensor([0]))),
        (ValueError, "offsets is for",
         lambda: nn.EmbeddingBag(3, 4)(offgrad.tensor([[0]]), offgrad.tensor([0]))),
        (ValueError, "1D or 2D Tensor", lambda: nn.EmbeddingBag(3, 4)(offgrad.tensor(0))),
        (RuntimeError, "offsets must begin",
         lambda: nn.EmbeddingBag(3, 4)(offgrad.tensor([0]), offgrad.tensor([1]))),
        (RuntimeError, "should be at least 1",
         lambda: nn.EmbeddingBag(3, 4, include_last_offset=True)(
             offgrad.tensor([0])[:0], offgrad.tensor([0])[:0])),
        (ValueError, "same shape",
         lambda: nn.EmbeddingBag(3, 4, mode="sum")(offgrad.tensor([[0]]), None, offgrad.ones(1))),
        (NotImplementedError, "mode='sum'",
         lambda: nn.EmbeddingBag(3, 4)(offgrad.tensor([[0]]), None, offgrad.ones(1, 1))),
        (ValueError, "scale_grad_by_freq",
         lambda: nn.EmbeddingBag(3, 4, mode="max", scale_grad_by_freq=True)(offgrad.tensor([[0]]))),
        (ValueError, "in1_features", lambda: nn.Bilinear(0, 1, 2)),
        (RuntimeError, "weight",
         lambda: nn.Bilinear(2, 3, 4)(offgrad.ones(1, 2), offgrad.ones(1, 2))),
        (AssertionError, "CUDA", lambda: nn.Linear(2, 3, True, "cuda")),
    ],
)  # fmt: skip
def test_errors(error: type[Exception], match: str, run: Any) -> None:
    with pytest.raises(error, match=match):
        run()


def test_normalized_into_a_tensor() -> None:
    x, out = offgrad.tensor([[3.0, 4.0]]), offgrad.empty(1, 2)
    assert F.normalize(x, out=out) is out
    assert out.allclose(offgrad.tensor([[0.6, 0.8]]))


def test_text_of_a_sparse_one() -> None:
    assert repr(nn.Embedding(4, 3, sparse=True)) == "Embedding(4, 3, sparse=True)"


def test_no_bags_take_no_rows() -> None:
    weight = offgrad.randn(5, 3, requires_grad=True)
    none = offgrad.tensor([], dtype=offgrad.int64)
    indices = offgrad.tensor([1, 2, 4])
    for offsets, last in ((none, False), (offgrad.tensor([0]), True)):
        for mode in ("sum", "mean"):
            result = F.embedding_bag(indices, weight, offsets, mode=mode, include_last_offset=last)
            assert result.shape == (0, 3)
            (grad,) = offgrad.autograd.grad(result.sum(), weight)
            assert not grad.any()


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradients_of_bags_scaled_by_frequency(mode: str) -> None:
    """By the documented formula: PyTorch 2.13 divides by the counts of other indices."""
    indices, sizes = np.array([2, 5, 2, 2, 0, 2]), np.array([4, 2])
    bag = nn.EmbeddingBag(6, 2, mode=mode, scale_grad_by_freq=True)
    bag(offgrad.tensor(indices), offgrad.tensor([0, 4])).sum().backward()
    share = np.repeat(1 / sizes if mode == "mean" else [1.0, 1.0], sizes)
    counts = np.bincount(indices, minlength=6)
    expected = np.bincount(indices, share, minlength=6) / np.maximum(counts, 1)
    gradient = bag.weight.grad
    assert gradient is not None
    np.testing.assert_allclose(gradient.numpy(), np.stack([expected, expected], 1), rtol=1e-6)
