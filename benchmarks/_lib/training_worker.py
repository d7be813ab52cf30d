"""The worker process: trains a model, one step per request.

`benchmarks._lib.training_turns` starts it with its job as JSON. Each line of JSON on its standard
input asks for a step of one variant and batch size; the reply is a line of figures.
"""

import gc
import json
import resource
import time
from importlib import import_module
from typing import Any

import numpy as np
import psutil

from benchmarks._lib.json_worker import serve
from benchmarks._lib.translated import import_for
from benchmarks._lib.variants import Variants
from offgrad.cli.compare.process_memory import is_out_of_memory, peak_rss

Figures = dict[str, Any]


class Trainer:
    """A model of one framework, its optimizer, and its steps.

    A tiny model trains one step first, so that libraries are loaded and threads run. Memory is
    counted from then on.

    Args:
        framework: ``"offgrad"`` or ``"torch"``.
        model: ``"gpt"`` (`offgrad.cli.compare.gpt`) or ``"resnet"`` (`offgrad.cli.compare.models`).
        sizes: layers, width, heads, context and dropout of a GPT; the width of a ResNet.
        folder: where stores and hooks write.
        max_nbytes: bytes of memory for the model and its training; the operating system refuses
            more (Linux's RLIMIT_DATA). None for no limit.
    """

    def __init__(
        self,
        framework: str,
        model: str,
        sizes: list[float],
        folder: str,
        max_nbytes: int | None = None,
    ) -> None:
        self._lib = import_module(framework)
        self._folder, self._max_nbytes = folder, max_nbytes
        self._base = 0
        self._make(model, [1, 128, 2, 128, sizes[-1]] if model == "gpt" else [8])
        self.step("keep", 4)
        gc.collect()
        now = psutil.Process().memory_info()
        self._base = now.rss
        if max_nbytes is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (now.data + max_nbytes, hard))
        self._make(model, sizes)

    def _make(self, model: str, sizes: list[float]) -> None:
        lib = self._lib
        lib.manual_seed(0)
        if model == "gpt":
            gpt = import_for(lib, "offgrad.cli.compare.gpt")
            *numbers, dropout = sizes
            self._model = gpt.GPT(gpt.GPTConfig(*map(int, numbers), dropout))
            self._shape: tuple[int, ...] = (int(numbers[-1]) + 1,)
        else:
            models = import_for(lib, "offgrad.cli.compare.models.resnet")
            self._model = models.ResNet18(int(sizes[0]))
            self._shape = (3, 32, 32)
        self._optimizer = lib.optim.AdamW(self._model.parameters(), lr=1e-3)
        self._variants = Variants(lib, self._model, self._folder)

    def step(self, variant: str, batch: int) -> Figures:
        """Train for a step and return its figures.

        The figures include the peak of resident memory above that before the model. For offgrad
        they add tensor memory: the peaks of the step and of its forward pass, and the values at
        the begin and after the forward pass; and the counts of the variant. If the memory limit
        is too low, ``"out_of_memory"`` is the only figure.

        Args:
            variant: see `benchmarks._lib.variants`.
            batch: number of samples.
        """
        try:
            return self._step(variant, self._inputs(batch))
        except (MemoryError, OSError, RuntimeError) as error:
            if self._max_nbytes is None or not _ran_out_of_memory(error):
                raise
            message = f"{type(error).__name__}: {error}"
        return {"out_of_memory": message}

    def _step(self, variant: str, inputs: Any) -> Figures:
        memory: Any = None if self._lib.__name__ == "torch" else self._lib.memory
        figures: Figures = {}
        before = self._variants.figures(variant)
        began = time.perf_counter()
        self._optimizer.zero_grad()
        if memory is not None:
            memory.reset_peak()
            figures["begin_nbytes"] = memory.allocated()
        with self._variants.context(variant):
            loss = self._model.loss(*inputs)
        if memory is not None:
            figures["forward_nbytes"] = memory.allocated()
            figures["forward_peak_nbytes"] = memory.max_allocated()
        loss.backward()
        self._optimizer.step()
        figures["seconds"] = time.perf_counter() - began
        if memory is not None:
            figures["peak_nbytes"] = memory.max_allocated()
        figures["loss"] = loss.item()
        figures["peak_rss_nbytes"] = peak_rss()
        figures["peak_over_base_nbytes"] = peak_rss() - self._base
        after = self._variants.figures(variant)
        return figures | {key: after[key] - before.get(key, 0) for key in after}

    def _inputs(self, batch: int) -> Any:
        random = np.random.default_rng(0)
        if len(self._shape) == 1:
            tokens = random.integers(0, 256, (batch, *self._shape))
            parts: tuple[Any, Any] = tokens[:, :-1], tokens[:, 1:]
        else:
            images = random.standard_normal((batch, *self._shape), np.float32)
            parts = images, random.integers(0, 10, batch)
        return [self._lib.tensor(np.ascontiguousarray(part)) for part in parts]


def _ran_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out; PyTorch and oneDNN have no exception type for that."""
    messages = ("memory", "could not create a primitive")
    return is_out_of_memory(error) or any(text in str(error) for text in messages)


def main(job: str) -> None:
    """Serve the requests on standard input until it ends."""
    serve(Trainer(**json.loads(job)).step)
