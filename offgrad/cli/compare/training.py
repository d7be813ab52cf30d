"""The training of a built-in model that each policy runs, with the figures of each step."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import xxhash

from offgrad import kernels, memory, ops
from offgrad.cli.compare.config import Config
from offgrad.cli.compare.dataset import Bytes, batch
from offgrad.cli.compare.models import MODELS, load
from offgrad.profiler import MemoryProfile, profile_memory
from offgrad.session import OffloadSession


@dataclass(frozen=True)
class Step:
    """The figures of one step.

    Attributes:
        loss: of its batch, before the update; None if it is not known.
        seconds: of forward, backward and update.
        peak_nbytes: maximum bytes of tensors; 0 if they are not counted.
        gradients: digest of the bytes of all gradients; empty if they are not compared.
    """

    loss: float | None
    seconds: float
    peak_nbytes: int
    gradients: str


class Training:
    """Trains a built-in model by AdamW, with the forward pass in a session.

    Weights, batches and dropout depend only on `config`. On PyTorch the weights are the same ones,
    and neither tensors nor gradients are compared.

    Attributes:
        profile: the memory of the latest step, a failed one included; None on PyTorch.
        parameter_nbytes: bytes of all parameters.
        model_nbytes: bytes of parameters, gradients and the optimizer's state.
    """

    def __init__(
        self, config: Config, text: Bytes, session: OffloadSession | None, library: str = "offgrad"
    ) -> None:
        self._config, self._text, self._session = config, text, session
        self._lib: Any = import_module(library)
        self._source = load(config.target, library)
        self._model = self._build(library)
        self._parameters = list(self._model.parameters())
        self._optimizer = self._lib.optim.AdamW(self._parameters, lr=config.lr)
        self.parameter_nbytes = sum(each.nbytes for each in self._parameters)
        self.model_nbytes = 4 * self.parameter_nbytes
        self.profile: MemoryProfile | None = None

    def train(self, turn: Callable[[], None], done: Callable[[Step], None]) -> None:
        """Train all steps; call `turn` before, and `done` after each."""
        for step in range(self._config.steps):
            turn()
            done(self.step(step))
        turn()

    def step(self, step: int) -> Step:
        """Train on the batch number `step`."""
        inputs, targets = map(self._lib.from_numpy, self._batch(step))
        if self._session is None:
            return self._step(inputs, targets)
        memory.reset_peak()
        with profile_memory() as self.profile:
            return self._step(inputs, targets)

    def _build(self, library: str) -> Any:
        # Also for PyTorch, since generators of random numbers differ.
        offgrad: Any = import_module("offgrad")
        offgrad.manual_seed(self._config.seed)
        model = load(self._config.target, "offgrad").build(self._config.sizes)
        if library == "offgrad":
            return model
        self._lib.manual_seed(self._config.seed)
        self._lib.set_num_threads(kernels.get_num_threads())
        twin = self._source.build(self._config.sizes)
        state = {name: np.array(value.detach()) for name, value in model.state_dict().items()}
        twin.load_state_dict({name: self._lib.tensor(value) for name, value in state.items()})
        return twin

    def _batch(self, step: int) -> tuple[Any, Any]:
        sizes, seed = self._config.sizes, self._config.seed
        if self._config.target == "gpt":
            return batch(self._text, step, sizes["batch"], sizes["context"], seed)
        random = np.random.default_rng([seed, step])
        found: tuple[Any, Any] = self._source.batch(random, sizes)
        return found

    def _step(self, inputs: Any, targets: Any) -> Step:
        start = time.perf_counter()
        with nullcontext() if self._session is None else self._session:
            loss = self._model.loss(inputs, targets)
        loss.backward()
        backward_end = time.perf_counter()
        gradients = "" if self._session is None else digest(self._parameters)
        digest_end = time.perf_counter()
        self._optimizer.step()
        self._optimizer.zero_grad()
        seconds = time.perf_counter() - digest_end + backward_end - start
        peak = 0 if self._session is None else memory.max_allocated()
        return Step(loss.item(), seconds, peak, gradients)


def digest(parameters: list[Any]) -> str:
    """Return a digest of the bytes of all gradients."""
    found = xxhash.xxh3_128()
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            found.update(b"none")
            continue
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        found.update(np.ascontiguousarray(gradient.numpy()).data)
    return found.hexdigest()


def warm_up(policy: Any, config: Config, library: str) -> None:
    """Run one step of a tiny model, so that kernels are compiled and threads started."""
    tiny = replace(
        config, **MODELS[config.target].tiny, steps=1, memory_limit=None, hard_limit=False
    )
    text = np.arange(1000, dtype=np.uint8)
    session = OffloadSession(policy) if library == "offgrad" else None
    Training(tiny, text, session, library).step(0)


def load_kernels() -> None:
    """Load Numba, whose memory is none of a program's, as other libraries are loaded."""
    ops.ones(300, 300, requires_grad=True).softmax(-1).sum().backward()
