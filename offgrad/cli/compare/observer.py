"""The steps of a program that knows nothing of `offgrad compare`, seen by its optimizers."""

import time
from typing import Any

from offgrad import Tensor, memory
from offgrad.cli.compare.training import Step, digest
from offgrad.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from offgrad.profiler import MemoryProfile, profile_memory


class Observer:
    """Measures steps from `begin` to `end`, in this whole process from now on.

    The loss of a step is that of its last call of ``backward`` on a tensor of one element. The
    gradients are those that its optimizers see. The time leaves out what the digest of them takes.

    Attributes:
        profile: the memory of the latest step, an unfinished one included.
        parameter_nbytes: bytes of the parameters of all optimizers that have stepped.
        model_nbytes: bytes in memory of these, their gradients and the optimizers' state.
    """

    def __init__(self) -> None:
        self.profile: MemoryProfile | None = None
        self.parameter_nbytes = self.model_nbytes = 0
        self._profiling: Any = None
        self._optimizers: dict[int, Optimizer] = {}
        self._reset()
        register_optimizer_step_pre_hook(self._before_update)
        register_optimizer_step_post_hook(self._after_update)
        self._watch_losses()

    def begin(self) -> None:
        """Begin a step."""
        self._reset()
        memory.reset_peak()
        self._profiling = profile_memory()
        self.profile = self._profiling.__enter__()
        self._began = time.perf_counter()

    def end(self, loss: float | None = None) -> Step:
        """End the step and return its figures; `loss` is known better than from ``backward``."""
        seconds = time.perf_counter() - self._began - self._paused
        self.stop()
        self._measure()
        return Step(
            self._loss if loss is None else loss,
            seconds,
            memory.max_allocated(),
            "".join(self._digests),
        )

    def stop(self) -> None:
        """End the recording of a step, a failed one included."""
        if self._profiling is not None:
            self._profiling.__exit__(None, None, None)
            self._profiling = None

    def _reset(self) -> None:
        self._began, self._paused = time.perf_counter(), 0.0
        self._loss: float | None = None
        self._digests: list[str] = []

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        began = time.perf_counter()
        self._digests.append(digest(_parameters(optimizer)))
        self._paused += time.perf_counter() - began

    def _after_update(self, optimizer: Optimizer, *_: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer

    def _measure(self) -> None:
        parameters = {id(p): p for each in self._optimizers.values() for p in _parameters(each)}
        held = [*parameters.values()]
        held += [p.grad for p in parameters.values() if p.grad is not None]
        for optimizer in self._optimizers.values():
            for state in optimizer.state.values():
                held += [each for each in state.values() if isinstance(each, Tensor)]
        self.parameter_nbytes = sum(each.nbytes for each in parameters.values())
        # Those that a program pages out of memory do not count.
        self.model_nbytes = min(sum(each.nbytes for each in held), memory.allocated())

    def _watch_losses(self) -> None:
        backward = Tensor.backward

        def watched(loss: Tensor, *arguments: Any, **options: Any) -> None:
            backward(loss, *arguments, **options)
            began = time.perf_counter()
            self._loss = loss.item() if loss.numel() == 1 else None
            self._paused += time.perf_counter() - began

        Tensor.backward = watched  # type: ignore[assignment, method-assign]


def _parameters(optimizer: Optimizer) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]
