"""How does a training step of the GPT compare with PyTorch's, in time and in memory?

    pytest benchmarks/bench_gpt.py -s

The model is `offgrad.cli.gpt`, the very same source for both. Each variant runs in a process of
its own and they take turns step by step, so that neither threads nor noise of one fall on another
alone. Medians, quartiles, ratios to torch and peak RSS are printed and are in ``extra_info`` (and
in the JSON of ``--benchmark-json``). OFFGRAD_BENCH_GPT="layers width heads context batch dropout"
sets the model. No time is asserted.

`torch disk` is the example of PyTorch's documentation: each saved tensor to a file by torch.save.
"""

import inspect
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import types
import uuid
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

ROUNDS = 12
VARIANTS = ("torch", "torch disk", "offgrad keep", "offgrad disk", "offgrad zarr")


def test_step(benchmark: Any) -> None:
    """One round is a step of each variant, in turn."""
    pytest.importorskip("torch", reason="compares with torch, which is not installed")
    workers = {
        name: subprocess.Popen(
            [sys.executable, __file__, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in VARIANTS
    }
    replies: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}

    def every_variant() -> None:
        for name, worker in workers.items():
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write("step\n")
            worker.stdin.flush()
            replies[name].append(json.loads(worker.stdout.readline()))

    try:
        benchmark.pedantic(every_variant, rounds=ROUNDS, warmup_rounds=2)
    finally:
        for worker in workers.values():
            worker.communicate()
    base = statistics.median(reply["seconds"] for reply in replies["torch"][2:])
    for name in VARIANTS:
        seconds = [reply["seconds"] for reply in replies[name][2:]]
        figures = {
            "median_seconds": statistics.median(seconds),
            "quartiles_seconds": np.quantile(seconds, (0.25, 0.75)).tolist(),
            "ratio_to_torch": statistics.median(seconds) / base,
            "peak_rss_mib": replies[name][-1]["peak_rss_kib"] / 1024,
            "first_loss": replies[name][0]["loss"],
        }
        benchmark.extra_info[name] = figures
        print(name, json.dumps(figures))


class _File:
    """A file that goes when nothing refers to it any more."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, str(uuid.uuid4()))

    def __del__(self) -> None:
        os.remove(self.path)


def _torch_disk(torch: Any, folder: str) -> AbstractContextManager[Any]:
    def pack(tensor: Any) -> Any:
        file = _File(folder)
        torch.save(tensor, file.path)
        return file

    hooks: AbstractContextManager[Any] = torch.autograd.graph.saved_tensors_hooks(
        pack, lambda file: torch.load(file.path)
    )
    return hooks


def _work(variant: str, folder: str) -> None:
    framework, _, policy = variant.partition(" ")
    from offgrad.cli import gpt

    module: Any = gpt
    around: Any = nullcontext()
    if framework == "torch":
        import torch

        module = types.ModuleType("torch_gpt")
        source = inspect.getsource(gpt).replace("import offgrad as torch", "import torch")
        exec(source.replace("from offgrad", "from torch"), module.__dict__)
        if policy:
            around = _torch_disk(torch, folder)
        lib: Any = torch
    else:
        import offgrad as lib

        around = lib.offload(policy)
    *sizes, dropout = os.environ.get("OFFGRAD_BENCH_GPT", "12 128 4 256 16 0.1").split()
    layers, width, heads, context, batch = map(int, sizes)
    lib.manual_seed(0)
    model = module.GPT(module.GPTConfig(layers, width, heads, context, float(dropout)))
    optimizer = lib.optim.AdamW(model.parameters(), lr=1e-3)
    sample = np.random.default_rng(0).integers(0, module.VOCABULARY, (batch, context + 1))
    tokens, targets = (
        lib.tensor(np.ascontiguousarray(part)) for part in (sample[:, :-1], sample[:, 1:])
    )
    for _ in sys.stdin:
        began = time.perf_counter()
        optimizer.zero_grad()
        with around:
            loss = model.loss(tokens, targets)
        loss.backward()
        optimizer.step()
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            json.dumps({"seconds": seconds, "loss": loss.item(), "peak_rss_kib": peak}), flush=True
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        _work(sys.argv[1], folder)
