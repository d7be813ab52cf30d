"""Models for predictions: each is trained step by step, and recorded."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import offgrad
from offgrad import memory, nn, optim
from offgrad.cli.compare.gpt import GPT, VOCABULARY, GPTConfig
from offgrad.nn import functional as F
from offgrad.prediction import Recording, SaveRecorder

_EXAMPLES = Path(__file__).parents[2] / "examples" / "models"


@dataclass
class Training:
    """A model in training.

    Attributes:
        name: of the model.
        loss: runs the forward pass.
        optimizer: of its parameters.
    """

    name: str
    loss: Callable[[], Any]
    optimizer: Any

    def step(self, session: Any) -> tuple[float, int]:
        """Train one step with the forward pass in `session`; return its seconds and its peak."""
        memory.reset_peak()
        began = time.perf_counter()
        with session:
            loss = self.loss()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - began, memory.max_allocated()

    def record(self, steps: int = 3) -> Recording:
        """Return the recording of the fastest of some steps."""
        found: list[Recording] = []
        session = offgrad.offload("keep")
        with SaveRecorder() as recorder:
            for _ in range(steps):
                self.step(session)
                recorder.step()
                found.append(recorder.recording)
        return min(found[1:] or found, key=lambda each: each.seconds)


def gpt(layers: int = 6, width: int = 256, context: int = 256, batch: int = 8) -> Training:
    """Return the GPT of ``offgrad compare``."""
    offgrad.manual_seed(0)
    model = GPT(GPTConfig(layers, width, 8, context, dropout=0.1))
    sample = np.random.default_rng(0).integers(0, VOCABULARY, (batch, context + 1))
    tokens, targets = offgrad.tensor(sample[:, :-1]), offgrad.tensor(sample[:, 1:])
    return _training("gpt", model, lambda: model.loss(tokens, targets))


def mlp(width: int = 1024, layers: int = 10, batch: int = 1024) -> Training:
    """Return a chain of linear layers, norms and GELUs."""
    offgrad.manual_seed(0)
    parts: list[Any] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
    model = nn.Sequential(*parts)
    x = offgrad.randn(batch, width)
    return _training("mlp", model, lambda: model(x).square().mean())


def resnet(width: int = 32, blocks: int = 2, batch: int = 64, size: int = 32) -> Training:
    """Return the ResNet of ``examples/models/image_classifier.py``."""
    sys.path.insert(0, str(_EXAMPLES))
    try:
        from image_classifier import ResNet  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(_EXAMPLES))
    offgrad.manual_seed(0)
    model = ResNet(width, blocks)
    images = offgrad.randn(batch, 1, size, size)
    labels = offgrad.randint(0, 10, (batch,))
    return _training("resnet", model, lambda: F.cross_entropy(model(images), labels))


def _training(name: str, model: Any, loss: Callable[[], Any]) -> Training:
    return Training(name, loss, optim.AdamW(model.parameters(), lr=1e-3))


MODELS: dict[str, Callable[[], Training]] = {"gpt": gpt, "mlp": mlp, "resnet": resnet}

SMALL: dict[str, Callable[[], Training]] = {
    "gpt": lambda: gpt(layers=4, width=128, context=128, batch=8),
    "mlp": lambda: mlp(width=512, layers=6, batch=1024),
    "resnet": lambda: resnet(width=16, blocks=1, batch=64),
}
