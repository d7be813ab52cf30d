"""The training that each policy runs, with the figures of each step."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

import offgrad
from offgrad import memory
from offgrad.cli.compare.config import Config
from offgrad.cli.compare.dataset import Bytes, batch
from offgrad.cli.compare.gpt import GPT, GPTConfig
from offgrad.optim import AdamW
from offgrad.profiler import MemoryProfile, profile_memory
from offgrad.session import OffloadSession


@dataclass(frozen=True)
class Step:
    """The figures of one step.

    Attributes:
        loss: of its batch, before the update.
        seconds: of forward, backward and update.
        peak_nbytes: maximum bytes of tensors.
        gradients: digest of the bytes of all gradients.
    """

    loss: float
    seconds: float
    peak_nbytes: int
    gradients: str


class Training:
    """Trains a GPT on batches of a text by AdamW, with the forward pass in a session.

    Weights, batches and dropout depend only on `config`.

    Attributes:
        profile: the memory of the latest step, a failed one included.
        parameter_nbytes: bytes of all parameters.
    """

    def __init__(self, config: Config, text: Bytes, session: OffloadSession) -> None:
        self._config, self._text, self._session = config, text, session
        offgrad.manual_seed(config.seed)
        sizes = GPTConfig(config.layers, config.width, config.heads, config.context, config.dropout)
        self._model = GPT(sizes)
        self._parameters = list(self._model.parameters())
        self._optimizer = AdamW(self._parameters, lr=config.lr)
        self.parameter_nbytes = sum(each.nbytes for each in self._parameters)
        self.profile: MemoryProfile | None = None

    def step(self, step: int) -> Step:
        """Train on the batch number `step`."""
        tokens, targets = batch(
            self._text, step, self._config.batch, self._config.context, self._config.seed
        )
        memory.reset_peak()
        with profile_memory() as self.profile:
            return self._step(tokens, targets)

    def _step(self, tokens: Any, targets: Any) -> Step:
        start = time.perf_counter()
        with self._session:
            loss = self._model.loss(offgrad.from_numpy(tokens), offgrad.from_numpy(targets))
        loss.backward()
        backward_end = time.perf_counter()
        gradients = self._digest()
        digest_end = time.perf_counter()
        self._optimizer.step()
        self._optimizer.zero_grad()
        seconds = time.perf_counter() - digest_end + backward_end - start
        return Step(loss.item(), seconds, memory.max_allocated(), gradients)

    def _digest(self) -> str:
        digest = xxhash.xxh3_128()
        for parameter in self._parameters:
            assert parameter.grad is not None
            digest.update(np.ascontiguousarray(parameter.grad.numpy()).data)
        return digest.hexdigest()


def warm_up(policy: Any) -> None:
    """Run one tiny step, so that kernels are compiled and threads started."""
    config = Config(layers=1, width=64, heads=1, context=128, batch=8, steps=1, dropout=0.1)
    text = np.arange(1000, dtype=np.uint8)
    Training(config, text, OffloadSession(policy)).step(0)
