"""Models, worker processes and interleaved steps for the benchmarks of sessions.

Environment variables configure them: see `benchmarks.bench_sessions`.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks._lib.session_variants import variants
from benchmarks._lib.training_turns import Figures, Worker
from offgrad.cli.bench_storage.bare_file import BareFile

QUICK = os.environ.get("OFFGRAD_BENCH_SESSIONS") == "quick"
MIB = 1 << 20


def _setting(name: str, usual: str, quick: str) -> list[float]:
    text = os.environ.get(f"OFFGRAD_BENCH_{name}", quick if QUICK else usual)
    return [float(each) for each in text.replace(",", " ").split()]


ROUNDS = int(_setting("ROUNDS", "4", "1")[0])
LIMIT = os.environ.get("OFFGRAD_BENCH_LIMIT", "48MiB" if QUICK else "1GiB")
"""Memory limit of the search for the largest batch."""


@dataclass(frozen=True)
class Model:
    """A model, its sizes in the order of `Worker`, and batch sizes."""

    name: str
    sizes: list[float]
    batch: int
    batches: list[int]

    @property
    def title(self) -> str:
        """Model and sizes as text."""
        if self.name != "gpt":
            return f"ResNet-18, width {self.sizes[0]:g}, 32 x 32 images"
        layers, width, heads, context, dropout = self.sizes
        return (
            f"GPT, {layers:g} layers, width {width:g}, {heads:g} heads, context {context:g}, "
            f"dropout {dropout:g}"
        )


def models() -> list[Model]:
    """Return both models."""
    gpt = _setting("GPT", "6 512 8 512 4 0.1", "2 64 2 64 2 0.1")
    batch = int(gpt.pop(4))
    resnet = _setting("RESNET", "64 64", "4 2")
    return [
        Model("gpt", gpt, batch, [int(n) for n in _setting("BATCHES_GPT", "1 2 4 8", "1 2")]),
        Model(
            "resnet",
            resnet[:1],
            int(resnet[1]),
            [int(n) for n in _setting("BATCHES_RESNET", "8 16 32", "1 2")],
        ),
    ]


class Processes:
    """Worker processes of a model's variants, started at their first step."""

    def __init__(self, model: Model, folder: Path) -> None:
        self.model, self.folder = model, folder
        self._stack = ExitStack()
        self._workers: dict[str, Worker] = {}

    def step(self, variant: str, batch: int) -> Figures:
        """Train for one step and return its figures.

        Args:
            variant: framework and variant, such as ``"offgrad disk"``. Each variant has its own
                process; in quick runs each framework has one.
            batch: number of samples.
        """
        framework, text = variant.split(maxsplit=1)
        key = framework if QUICK else variant
        if key not in self._workers:
            self._workers[key] = self._stack.enter_context(self._worker(framework))
        return self._workers[key].step(text, batch)

    @contextmanager
    def new_process(self, variant: str, max_nbytes: int) -> Iterator[Callable[[int], Figures]]:
        """Yield a function that trains a step with a batch size, in a new process with a limit."""
        framework, text = variant.split(maxsplit=1)
        with self._worker(framework, max_nbytes) as worker:
            yield lambda batch: worker.step(text, batch)

    def _worker(self, framework: str, max_nbytes: int | None = None) -> Worker:
        return Worker(framework, self.model.name, self.model.sizes, self.folder, max_nbytes)

    def stop(self) -> None:
        """End the workers to free their memory; the next step restarts them."""
        if not QUICK:
            self.close()

    def close(self) -> None:
        """End the workers."""
        self._workers.clear()
        self._stack.close()


@dataclass
class Steps:
    """The figures of the steps of all variants, round by round; the first round is a warm-up.

    Attributes:
        saved_nbytes: bytes that `keep` saves, without parameters.
        texts: framework and variant, by name.
        replies: figures by variant and round.
        rates: bytes per second of bare loops, by name and round; empty without O_DIRECT.
    """

    saved_nbytes: int
    texts: dict[str, str]
    replies: dict[str, list[Figures]]
    rates: dict[str, list[float]] = field(default_factory=dict)

    def seconds(self, name: str) -> list[float]:
        """Return the times of the variant's steps."""
        return [reply["seconds"] for reply in self.replies[name][1:]]

    def median(self, name: str) -> float:
        """Return the median time of the variant's steps."""
        return statistics.median(self.seconds(name))

    def per_step(self, name: str, figure: str) -> float:
        """Return the median of a figure over the steps."""
        median: float = statistics.median(reply[figure] for reply in self.replies[name][1:])
        return median

    def offgrad(self) -> list[str]:
        """Return the names of offgrad's variants."""
        return [name for name in self.replies if name.startswith("offgrad")]


def saved_nbytes_of(processes: Processes, batch: int) -> int:
    """Return the bytes that `keep` saves in a step, each once, without parameters."""
    nbytes: int = processes.step("offgrad saved", batch)["unique_nbytes"]
    processes.stop()
    return nbytes


def measure(processes: Processes) -> Steps:
    """Run rounds of one step of each variant and of bare loops over a file, interleaved."""
    batch = processes.model.batch
    saved = saved_nbytes_of(processes, batch)
    texts = variants(saved)
    found = Steps(saved, texts, {name: [] for name in texts})
    try:
        file = BareFile.unnamed(processes.folder, (32 if QUICK else 256) * MIB)
    except OSError:
        loops = {}
    else:
        loops = file.variants(16 * MIB, 1, 2)
    for _ in range(1 + ROUNDS):
        for name, variant in texts.items():
            found.replies[name].append(processes.step(variant, batch))
        for name, loop in loops.items():
            began = time.perf_counter()
            nbytes = loop()
            found.rates.setdefault(name, []).append(nbytes / (time.perf_counter() - began))
    if loops:
        file.close()
    return found


def peak_of(replies: list[Figures]) -> int:
    """Return the peak of tensor memory over all steps."""
    peak: int = max(reply["peak_nbytes"] for reply in replies)
    return peak
