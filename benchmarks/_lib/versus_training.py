"""Training steps of one framework, for `benchmarks.bench_vs_torch`."""

import gc
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks._lib.translated import import_for
from benchmarks._lib.variants import Variants

_PART = 1 << 16  # elements


class _Steps:
    """A model, its data and its optimizer; subclasses make the model.

    Args:
        lib: the framework.
        compiles: whether torch.compile compiles the loss.
        variant: see `benchmarks._lib.variants`.
        folder: where stores and hooks write.
        sizes: of the model and the batch; "autocast" is the dtype of autocast, none without it;
            "precision" that of products of float32, "highest" without it.
    """

    def __init__(
        self, lib: Any, compiles: bool, variant: str, folder: str, sizes: dict[str, Any]
    ) -> None:
        self._lib, self._compiles, self._variant = lib, compiles, variant
        self._folder, self._sizes = folder, sizes

    def _make(self, sizes: dict[str, Any]) -> tuple[Any, Any, Sequence[Any]]:
        """Return a model, its loss as a function of the data, and the data."""
        raise NotImplementedError

    def _tiny(self) -> dict[str, Any]:
        """Return the sizes of a tiny model."""
        raise NotImplementedError

    def _autocast(self) -> Any:
        lib, name = self._lib, self._sizes.get("autocast")
        return lib.autocast("cpu", dtype=getattr(lib, name or "bfloat16"), enabled=name is not None)

    def prepare(self, sizes: dict[str, Any] | None = None) -> None:
        """Make the model, with the same weights and data in all frameworks."""
        lib = self._lib
        lib.manual_seed(0)
        lib.set_float32_matmul_precision(self._sizes.get("precision", "highest"))
        self._model, loss, self._data = self._make(sizes or self._sizes)
        self._loss = lib.compile(loss) if self._compiles else loss
        random = np.random.default_rng(0)
        with lib.no_grad():
            for _, parameter in sorted(self._model.named_parameters()):
                # In parts: freed arrays of megabytes stay in the C library's heap.
                for part in parameter.view(-1).split(_PART):
                    values = random.standard_normal(part.shape[0], np.float32) * 0.02
                    part.copy_(lib.tensor(values + (parameter.ndim < 2)))
        fused = {"fused": True} if lib.__name__ == "torch" else {}
        self._optimizer = lib.optim.AdamW(self._model.parameters(), lr=1e-3, **fused)
        self._variants = Variants(lib, self._model, self._folder)

    def gradients(self, folder: str) -> dict[str, Any]:
        """Write the gradients of a step without dropout into files, and return the loss."""
        if self._sizes.get("dropout"):
            self._model.eval()
        with self._variants.context(self._variant), self._autocast():
            loss = self._loss(*self._data)
        loss.backward()
        for name, parameter in self._model.named_parameters():
            np.save(Path(folder, f"{name}.npy"), parameter.grad.numpy())
        self._model.train()
        self._optimizer.zero_grad()
        return {"loss": loss.item()}

    def turn(self) -> dict[str, float]:
        """Train for a step and return its seconds."""
        began = time.perf_counter()
        self._optimizer.zero_grad()
        with self._variants.context(self._variant), self._autocast():
            loss = self._loss(*self._data)
        loss.backward()
        self._optimizer.step()
        return {"step": time.perf_counter() - began}

    def peak(self) -> dict[str, int]:
        """Train for three steps; return the peak of resident memory, and memory before them.

        Before them, a tiny model trains, so that libraries are loaded and threads run.
        """
        self.prepare(self._tiny())
        self.turn()
        gc.collect()
        before = psutil.Process().memory_info().rss
        self.prepare()
        for _ in range(3):
            self.turn()
        memory = import_for(self._lib, "offgrad.cli.compare.process_memory")
        return {"before_nbytes": before, "peak_nbytes": memory.peak_rss()}


class GPTSteps(_Steps):
    """Steps of the GPT of `offgrad compare`, the same source for both frameworks."""

    def _make(self, sizes: dict[str, Any]) -> tuple[Any, Any, Sequence[Any]]:
        gpt = import_for(self._lib, "offgrad.cli.compare.gpt")
        numbers = (sizes[each] for each in ("layers", "width", "heads", "context", "dropout"))
        model = gpt.GPT(gpt.GPTConfig(*numbers))
        shape = sizes["batch"], sizes["context"] + 1
        tokens = np.random.default_rng(1).integers(0, 256, shape)
        parts = tokens[:, :-1], tokens[:, 1:]
        return model, model.loss, [self._lib.tensor(np.ascontiguousarray(each)) for each in parts]

    def _tiny(self) -> dict[str, Any]:
        return {**self._sizes, "layers": 1, "width": 128, "heads": 2, "context": 128, "batch": 4}


class MLPSteps(_Steps):
    """Steps of linear layers with ReLU between them, and cross-entropy."""

    def _make(self, sizes: dict[str, Any]) -> tuple[Any, Any, Sequence[Any]]:
        nn = self._lib.nn
        widths = sizes["widths"]
        layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
        model = nn.Sequential(*layers[:-1])
        random = np.random.default_rng(1)
        x = random.standard_normal((sizes["batch"], widths[0]), np.float32)
        labels = random.integers(0, widths[-1], sizes["batch"])
        cross_entropy = nn.functional.cross_entropy

        def loss(x: Any, labels: Any) -> Any:
            return cross_entropy(model(x), labels)

        return model, loss, [self._lib.tensor(each) for each in (x, labels)]

    def _tiny(self) -> dict[str, Any]:
        return {"widths": [64, 128, 10], "batch": 64}


class ModelSteps(_Steps):
    """Steps of a model of `benchmarks._lib.models`, the same source for both frameworks."""

    def _make(self, sizes: dict[str, Any]) -> tuple[Any, Any, Sequence[Any]]:
        models = import_for(self._lib, "benchmarks._lib.models").MODELS
        make, measure, data = models[sizes["model"]]
        model = make(
            sizes, lambda name: import_for(self._lib, f"offgrad.cli.compare.models.{name}")
        )

        def loss(x: Any, target: Any) -> Any:
            return measure(model(x), target)

        return model, loss, [self._lib.tensor(each) for each in data(sizes)]

    def _tiny(self) -> dict[str, Any]:
        return {**self._sizes, **self._sizes["tiny"]}
