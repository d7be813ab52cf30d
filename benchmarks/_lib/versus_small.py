"""Costs beside arithmetic: small operations and models, module calls, a long chain of nodes."""

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks._lib.translated import import_for
from benchmarks._lib.versus_rows import MODES, OPERATIONS, TENTH


class _Small:
    """What the worker asks for; ``lib`` is the framework."""

    def __init__(self, lib: Any, *_: Any) -> None:
        self._lib = lib

    def prepare(self) -> None:
        """Make what is measured."""

    def gradients(self, folder: str) -> dict[str, Any]:
        """Write gradients into files; here, none."""
        return {}


class Operations(_Small):
    """Seconds per operation on 10x10 matrices, in chains of LENGTH operations.

    Both operands require gradients. Recorded chains run forward and backward; under hooks, pack and
    unpack are Python functions that return their argument; unrecorded ones run forward in no_grad.
    """

    LENGTH, REPEATS, SIZE = 100, 5, 10

    def prepare(self) -> None:
        """Make the operands; the right one is orthogonal, so that products stay bounded."""
        random = np.random.default_rng(0)
        left, square = random.standard_normal((2, self.SIZE, self.SIZE))
        right = np.linalg.qr(square)[0]
        self._left, self._right = (
            self._lib.tensor(each.astype(np.float32), requires_grad=True) for each in (left, right)
        )
        self._grad = self._lib.ones(self.SIZE, self.SIZE)

    def gradients(self, folder: str) -> dict[str, Any]:
        """Write the gradients of both operands after a chain of each operation."""
        for name in OPERATIONS:
            self._chain(name).backward(self._grad)
            for side, operand in (("left", self._left), ("right", self._right)):
                if operand.grad is not None:
                    np.save(Path(folder, f"{name} {side}.npy"), operand.grad.numpy())
                operand.grad = None
        return {}

    def _chain(self, name: str) -> Any:
        lib, result, right = self._lib, self._left, self._right
        if name == "tanh":
            for _ in range(self.LENGTH):
                result = lib.tanh(result)
        else:
            operation = getattr(lib, name)
            for _ in range(self.LENGTH):
                result = operation(result, right)
        return result

    def turn(self) -> dict[str, float]:
        """Return the seconds per operation, of each operation and mode."""
        return {
            f"{name} {mode}": statistics.median(
                self._seconds(name, mode) for _ in range(self.REPEATS)
            )
            for name in OPERATIONS
            for mode in MODES
        }

    def _seconds(self, name: str, mode: str) -> float:
        lib = self._lib
        hooks = lib.autograd.graph.saved_tensors_hooks
        if mode == "unrecorded":
            with lib.no_grad():
                began = time.perf_counter()
                self._chain(name)
                return (time.perf_counter() - began) / self.LENGTH
        with nullcontext() if mode == "recorded" else hooks(lambda x: x, lambda x: x):
            began = time.perf_counter()
            self._chain(name).backward(self._grad)
            seconds = time.perf_counter() - began
        self._left.grad = self._right.grad = None
        return seconds / self.LENGTH


class SmallModels(_Small):
    """Seconds of training steps with Adam, of models whose tensors are small."""

    STEPS = 40

    def prepare(self) -> None:
        """Make the models with the same weights and data in each framework."""
        nn, functional = self._lib.nn, self._lib.nn.functional
        mlp = nn.Sequential(
            nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
        )
        cnn = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 10)
        )
        lstm = nn.LSTM(8, 16, batch_first=True)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        random = np.random.default_rng(0)

        def tensor(*shape: int) -> Any:
            return self._lib.tensor(random.standard_normal(shape).astype(np.float32))

        rows, images, sequences, tokens = (
            tensor(32, 4), tensor(8, 1, 14, 14), tensor(4, 10, 8), tensor(4, 8, 32)
        )  # fmt: skip
        labels = self._lib.tensor(random.integers(0, 2, 32))
        self._losses: dict[str, tuple[Any, Callable[[], Any]]] = {
            "MLP": (mlp, lambda: functional.cross_entropy(mlp(rows), labels)),
            "CNN": (cnn, lambda: functional.cross_entropy(cnn(images), labels[:8])),
            "LSTM": (lstm, lambda: lstm(sequences)[0].square().mean()),
            "transformer layer": (layer, lambda: (layer(tokens) * tokens).mean()),
        }
        self._optimizers = {}
        for name, (model, _) in self._losses.items():
            for each in model.parameters():
                each.data.copy_(tensor(*each.shape) * 0.1)
            self._optimizers[name] = self._lib.optim.Adam(model.parameters(), lr=1e-4)

    def gradients(self, folder: str) -> dict[str, Any]:
        """Write the gradients of all parameters."""
        for name, (model, loss) in self._losses.items():
            loss().backward()
            for number, each in enumerate(model.parameters()):
                np.save(Path(folder, f"{name} {number}.npy"), each.grad.numpy())
            self._optimizers[name].zero_grad()
        return {}

    def turn(self) -> dict[str, float]:
        """Return the seconds of a step of each model."""
        return {name: self._seconds(name) for name in self._losses}

    def _seconds(self, name: str) -> float:
        (_, loss), optimizer = self._losses[name], self._optimizers[name]
        times = []
        for _ in range(self.STEPS):
            began = time.perf_counter()
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            times.append(time.perf_counter() - began)
        return statistics.median(times)


class ModuleCalls(_Small):
    """Seconds of a module call beyond its forward, which returns its argument."""

    CALLS = 10_000

    def prepare(self) -> None:
        """Make a module for each measure."""
        self._forward = self._identity().forward
        self._plain = self._identity()
        self._hooked = self._identity("register_forward_hook")
        self._pre_hooked = self._identity("register_forward_pre_hook")
        is_torch = self._lib.__name__ == "torch"
        self._session = nullcontext() if is_torch else self._lib.offload("keep")

    def _identity(self, *hooks: str) -> Any:
        class Identity(self._lib.nn.Module):  # type: ignore[misc,name-defined]
            def forward(self, x: Any) -> Any:
                return x

        module = Identity()
        for name in hooks:
            getattr(module, name)(lambda *_: None)
        return module

    def turn(self) -> dict[str, float]:
        """Return the seconds per call, by measure; torch has no sessions."""
        forward = self._seconds(self._forward)
        seconds = {
            "without hooks": self._seconds(self._plain),
            "with a forward hook": self._seconds(self._hooked),
            "with a forward pre-hook": self._seconds(self._pre_hooked),
        }
        with self._session:
            seconds["in a session"] = self._seconds(self._plain)
        return {name: each - forward for name, each in seconds.items()}

    def _seconds(self, call: Callable[[Any], Any]) -> float:
        began = time.perf_counter()
        for _ in range(self.CALLS):
            call(1)
        return (time.perf_counter() - began) / self.CALLS


class Chain(_Small):
    """Seconds of a chain of additions to one element, by phase; and of one a tenth as long."""

    def __init__(self, lib: Any, compiles: bool, variant: str, folder: str, sizes: Any) -> None:
        super().__init__(lib)
        self._nodes: int = sizes["nodes"]

    def _forward(self, nodes: int) -> tuple[Any, Any]:
        start = result = self._lib.ones(1, requires_grad=True)
        for _ in range(nodes):
            result = result + 1
        return start, result

    def gradients(self, folder: str) -> dict[str, Any]:
        """Write the gradient of the chain's start."""
        start, end = self._forward(100)
        end.backward()
        np.save(Path(folder, "start.npy"), start.grad.numpy())
        return {}

    def turn(self) -> dict[str, float]:
        """Return the seconds of each phase, and of those of the chain a tenth as long."""
        tenth = {name + TENTH: each for name, each in self._phases(self._nodes // 10).items()}
        return {**self._phases(self._nodes), **tenth}

    def _phases(self, nodes: int) -> dict[str, float]:
        times = [time.perf_counter()]
        _, end = self._forward(nodes)
        times.append(time.perf_counter())
        end.backward()
        times.append(time.perf_counter())
        _, end = self._forward(nodes)
        before_free = time.perf_counter()
        del _, end
        free = time.perf_counter() - before_free
        return {"forward": times[1] - times[0], "backward": times[2] - times[1], "free": free}

    def peak(self) -> dict[str, int]:
        """Run the chain forward and backward; return the peak of memory, and memory before."""
        self._phases(100)
        gc.collect()
        before = psutil.Process().memory_info().rss
        _, end = self._forward(self._nodes)
        end.backward()
        memory = import_for(self._lib, "offgrad.cli.compare.process_memory")
        return {"before_nbytes": before, "peak_nbytes": memory.peak_rss()}
