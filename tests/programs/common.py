"""What programs share: the table, and weights, data and training steps that are reproducible."""

from collections.abc import Callable
from typing import Any

import numpy as np

Program = Callable[[Any], list[float]]

PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """Add a program: it gets the module `torch` or `offgrad`, and returns numbers to compare."""
    PROGRAMS[function.__name__] = function
    return function


def seed_params(torch: Any, model: Any, seed: int = 0) -> None:
    """Give matrices and kernels the same values in both libraries, and biases zeros."""
    generator = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                values = generator.standard_normal(tuple(parameter.shape)) * 0.2
                parameter.copy_(torch.tensor(values, dtype=parameter.dtype))
            elif "bias" in name:
                parameter.zero_()


def data(torch: Any, *shape: int, seed: int = 1) -> Any:
    values = np.random.default_rng(seed).standard_normal(shape)
    return torch.tensor(values, dtype=torch.float32)


def train(optimizer: Any, loss_of: Callable[[], Any], steps: int = 3) -> list[float]:
    """Take steps, and return the loss of each."""
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def fit(
    torch: Any, model: Any, x: Any, y: Any, criterion: Any, optimizer: Any = None
) -> list[float]:
    """Train a model from weights by `seed_params`; by default with SGD."""
    seed_params(torch, model)
    model.train()
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    return train(optimizer, lambda: criterion(model(x), y))
