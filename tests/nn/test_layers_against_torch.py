"""Layers with the same weights as torch's give the same results and gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from tests.nn.against_torch import close

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

LAYERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "Linear": (lambda nn: nn.Linear(5, 3), (4, 5)),
    "Linear without bias": (lambda nn: nn.Linear(5, 3, bias=False), (2, 4, 5)),
    "LayerNorm": (lambda nn: nn.LayerNorm(5), (4, 5)),
    "LayerNorm of two": (lambda nn: nn.LayerNorm((4, 5), eps=1e-3), (3, 4, 5)),
    "LayerNorm without bias": (lambda nn: nn.LayerNorm(5, bias=False), (4, 5)),
    "LayerNorm plain": (lambda nn: nn.LayerNorm(5, elementwise_affine=False), (4, 5)),
    "GELU": (lambda nn: nn.GELU(), (4, 5)),
    "GELU tanh": (lambda nn: nn.GELU(approximate="tanh"), (4, 5)),
    "ReLU": (lambda nn: nn.ReLU(), (4, 5)),
    "SiLU": (lambda nn: nn.SiLU(), (4, 5)),
    "Tanh": (lambda nn: nn.Tanh(), (4, 5)),
    "Sigmoid": (lambda nn: nn.Sigmoid(), (4, 5)),
    "Softmax": (lambda nn: nn.Softmax(dim=1), (4, 5)),
    "Identity": (lambda nn: nn.Identity(), (4, 5)),
    "Dropout in evaluation": (lambda nn: nn.Dropout(0.5).eval(), (4, 5)),
    "Sequential": (
        lambda nn: nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)),
        (4, 5),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layer(name: str) -> None:
    make, shape = LAYERS[name]
    mine, theirs = make(offgrad.nn), make(torch.nn)
    assert [n for n, _ in mine.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    assert [tuple(p.shape) for p in mine.parameters()] == [
        tuple(p.shape) for p in theirs.parameters()
    ]
    state = theirs.state_dict()
    mine.load_state_dict({key: offgrad.tensor(value.numpy()) for key, value in state.items()})
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x, y = offgrad.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)
    a, b = mine(x), theirs(y)
    close(a, b)
    (a * a).sum().backward()
    (b * b).sum().backward()
    close(x.grad, y.grad)
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        close(p.grad, q.grad)


@pytest.mark.parametrize("padding", [None, 0, -1])
def test_embedding(padding: int | None) -> None:
    mine = offgrad.nn.Embedding(4, 3, padding_idx=padding)
    theirs = torch.nn.Embedding(4, 3, padding_idx=padding)
    assert mine.padding_idx == theirs.padding_idx
    state = theirs.state_dict()
    mine.load_state_dict({key: offgrad.tensor(value.numpy()) for key, value in state.items()})
    tokens = [[0, 3, 3], [1, 0, 3]]
    a, b = mine(offgrad.tensor(tokens)), theirs(torch.tensor(tokens))
    close(a, b)
    (a**3).sum().backward()
    (b**3).sum().backward()
    close(mine.weight.grad, theirs.weight.grad)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ignore_index": 1},
        {"reduction": "sum"},
        {"reduction": "none", "label_smoothing": 0.1},
        {"weight": [1.0, 2.0, 0.5]},
    ],
    ids=str,
)
def test_losses(options: dict[str, Any]) -> None:
    array = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    found = []
    for m in (offgrad, torch):
        chosen = {k: m.tensor(v) if k == "weight" else v for k, v in options.items()}
        x = m.tensor(array, requires_grad=True)
        losses = m.nn.CrossEntropyLoss(**chosen)(x, m.tensor([0, 1, 2, 1]))
        losses.sum().backward()
        found.append((losses, x.grad))
    close(found[0][0], found[1][0])
    close(found[0][1], found[1][1])


def test_dropout_in_training() -> None:
    x = offgrad.ones(200, 200, requires_grad=True)
    y = offgrad.nn.Dropout(0.25)(x)
    y.sum().backward()
    values = y.detach().numpy()
    assert set(np.unique(values)) == {0.0, np.float32(1 / 0.75)}
    assert (values == 0).mean() == pytest.approx(0.25, abs=0.01)
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), values)
    assert not offgrad.nn.Dropout(1.0)(x).any().item()
    with pytest.raises(ValueError, match="probability"):
        offgrad.nn.Dropout(-0.1)
