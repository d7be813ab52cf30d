"""Small models whose weights are as large as a page must be, and runs of them."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

import offgrad
from offgrad import nn
from offgrad.nn import functional as F

WIDTH = 128  # a weight is 64 KiB
WINDOW = 5 * WIDTH * WIDTH * 4  # pages that stay: fewer than a step uses
PLACEMENTS = ["disk", "pool", "zarr", f"budget:{WINDOW},spill=disk"]


def mlp(depth: int = 4) -> nn.Sequential:
    """Return linear layers with GELU between them."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 5))


class Tied(nn.Module):
    """An embedding whose weight is the output layer's as well, and a block used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WIDTH + 40, WIDTH)
        self.block = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH + 40, bias=False)
        self.head.weight = self.embedding.weight  # type: ignore[assignment]

    def forward(self, x: Any) -> Any:
        hidden = self.block(self.embedding(x))
        return self.head(self.block(F.gelu(hidden)))


class Result(NamedTuple):
    """What a run leaves behind, as NumPy arrays."""

    losses: list[float]
    parameters: list[Any]
    gradients: list[Any]
    states: list[Any]


def batches(count: int = 4) -> Iterator[tuple[Any, Any]]:
    """Yield inputs and targets for `mlp`."""
    generator = offgrad.Generator().manual_seed(7)
    for _ in range(count):
        yield (
            offgrad.randn(6, WIDTH, generator=generator),
            offgrad.randint(0, 5, (6,), generator=generator),
        )


def paging(placement: Any, **options: Any) -> Any:
    """Return the context that pages parameters, or one that does nothing."""
    if placement is None:
        return nullcontext()
    return offgrad.offload_model(placement, **{"window": WINDOW, **options})


def result_of(losses: list[float], model: nn.Module, optimizer: Any = None) -> Result:
    """Return the parameters, gradients and states of a model and its optimizer."""
    parameters = [*model.parameters()]
    states = []
    if optimizer is not None:
        known = [optimizer.state[each] for each in parameters if each in optimizer.state]
        states = [np.array(each) for values in known for each in values.values()]
    return Result(
        losses,
        [each.detach().numpy().copy() for each in parameters],
        [None if each.grad is None else each.grad.numpy().copy() for each in parameters],
        states,
    )


def assert_same(found: Result, expected: Result) -> None:
    """Compare bit for bit."""
    assert found.losses == expected.losses
    for kind in ("parameters", "gradients", "states"):
        ours, theirs = getattr(found, kind), getattr(expected, kind)
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=kind)


def train(
    placement: str | None,
    make: Callable[[], nn.Module] = mlp,
    optimizer: Callable[[Any], Any] = offgrad.optim.AdamW,
    steps: int = 4,
    change: Callable[[nn.Module, Any], None] = lambda model, optimizer: None,
) -> Result:
    """Train a model; `change` is called after each backward pass."""
    offgrad.manual_seed(3)
    with paging(placement):
        model = make()
    step = optimizer(model.parameters())
    losses = []
    for x, y in batches(steps):
        step.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        change(model, step)
        step.step()
        losses.append(loss.item())
    return result_of(losses, model, step)
