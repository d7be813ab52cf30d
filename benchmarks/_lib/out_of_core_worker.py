"""The worker process of `benchmarks.bench_out_of_core`: trains a GPT, one step per request."""

import json
import resource
import time
from contextlib import nullcontext
from typing import Any

import psutil

import offgrad
from benchmarks._lib.json_worker import serve
from benchmarks._lib.variants import checkpoint_blocks
from offgrad import memory
from offgrad.cli.compare.gpt import GPT, GPTConfig
from offgrad.cli.compare.process_memory import is_out_of_memory, peak_rss

Figures = dict[str, Any]


class Training:
    """A GPT, AdamW, and steps on random bytes.

    Args:
        sizes: layers, width, heads and context.
        batch: samples of a step.
        placement: the policy of parameters, None for none; see `offgrad.offload_model`.
        state: that of optimizer state; None for that of the parameters.
        window: bytes of memory for pages, or text.
        in_backward: whether backward updates the parameters.
        activations: the policy of tensors saved for backward; None for none.
        checkpoint: whether each block is a checkpoint.
        max_nbytes: the limit of the process's memory (Linux's RLIMIT_DATA); None for none.
        directory: where stores write.
    """

    def __init__(
        self,
        sizes: list[int],
        batch: int,
        placement: str | None = None,
        state: str | None = None,
        window: str = "256MiB",
        in_backward: bool = False,
        activations: str | None = None,
        checkpoint: bool = False,
        max_nbytes: int | None = None,
        directory: str | None = None,
    ) -> None:
        self._activations, self._checkpoint = activations, checkpoint
        self._directory = directory
        self._in_backward = in_backward
        self._batch, self._context = batch, sizes[-1]
        self._paging: Any = None
        self._make([1, 128, 2, sizes[-1]], None, None, window)
        self._step(0)  # libraries are loaded, threads run, kernels are compiled
        if max_nbytes is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (max_nbytes, hard))
        self._make(sizes, placement, state, window)

    def _make(
        self, sizes: list[int], placement: str | None, state: str | None, window: str
    ) -> None:
        offgrad.manual_seed(0)
        self._paging = None
        paging: Any = nullcontext()
        if placement is not None or state is not None:
            self._paging = paging = offgrad.offload_model(
                placement or "keep",
                gradients=placement or "keep",
                state=state,
                window=window,
                directory=self._directory,
            )
        with paging:
            self._model = GPT(GPTConfig(*sizes))
        if self._checkpoint:
            checkpoint_blocks(offgrad, self._model)
        self._optimizer = offgrad.optim.AdamW(self._model.parameters(), lr=3e-4)
        if self._in_backward:
            offgrad.optim.step_in_backward(self._optimizer)

    def answer(self, step: int) -> Figures:
        """Train one step; return its figures, or ``"out_of_memory"`` alone."""
        try:
            return self._step(step)
        except (MemoryError, OSError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return {"out_of_memory": str(error)}

    def _step(self, number: int) -> Figures:
        generator = offgrad.Generator().manual_seed(number)
        tokens = offgrad.randint(0, 256, (self._batch, self._context + 1), generator=generator)
        saving: Any = nullcontext()
        if self._activations is not None:
            saving = offgrad.offload(self._activations, directory=self._directory)
        before = self._io()
        memory.reset_peak()
        began = time.perf_counter()
        with saving:
            loss = self._model.loss(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        if not self._in_backward:
            self._optimizer.step()
            self._optimizer.zero_grad()
        seconds = time.perf_counter() - began
        after = self._io()
        return {
            "seconds": seconds,
            "loss": loss.item(),
            "peak_tensor_nbytes": memory.max_allocated(),
            "peak_rss_nbytes": peak_rss(),
            "data_nbytes": psutil.Process().memory_info().data,
            "parameters_nbytes": sum(each.nbytes for each in self._model.parameters()),
            **{name: after[name] - before[name] for name in after},
        }

    def _io(self) -> dict[str, float]:
        """Return what paging has read, written and waited for so far."""
        if self._paging is None:
            return {}
        ledger = self._paging.ledger
        return {
            "read_nbytes": ledger.read_nbytes,
            "written_nbytes": ledger.written_nbytes,
            "stall_seconds": ledger.stall_seconds,
        }


def main(job: str) -> None:
    """Serve the requests on standard input until it ends."""
    serve(Training(**json.loads(job)).answer)
