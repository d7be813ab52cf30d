"""Measures a row of `benchmarks.bench_vs_torch`: gradients, seconds in turns, then memory."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks._lib.json_worker import JsonWorker, Reply, WorkerError
from benchmarks._lib.training_turns import quartiles
from benchmarks._lib.versus_rows import TOLERANCE, Row

BASE = "torch"
WARM_UPS = 2
_NEGLIGIBLE = 1e-6
"""Norm of a distance, by the norm of all gradients, that is rounding: some gradients are 0."""

_PAUSE = 0.03
"""Seconds before each turn, so that the threads of the turn before have gone to sleep."""


class GradientsDiffer(AssertionError):
    """Gradients are not those of torch: times would compare different work."""


class Failed(RuntimeError):
    """A request to a worker failed."""


@dataclass(frozen=True)
class Contender:
    """A framework, with torch.compile or not, and what it does with saved tensors."""

    framework: str
    compiles: bool = False
    variant: str = "default"

    @property
    def name(self) -> str:
        """The heading of its column."""
        kind = f"{self.framework}.compile" if self.compiles else self.framework
        return kind if self.variant == "default" else f"{kind} {self.variant}"


def contenders(row: Row, compiles: bool, policies: Sequence[str]) -> list[Contender]:
    """Return torch, offgrad, and for training steps torch.compile and the policies."""
    found = [Contender("torch"), Contender("offgrad")]
    if not row.compiles:
        return found
    found += [Contender("offgrad", variant=policy) for policy in policies]
    found += [Contender("torch", variant="disk")] if "disk" in policies else []
    return found + ([Contender("torch", compiles=True)] if compiles else [])


@dataclass
class Measurement:
    """How a row is measured.

    Attributes:
        row: the row.
        threads: number of threads of each process.
        rounds: rounds that count.
        contenders: what takes turns; the first is torch.
        environment: variables of the processes.
        say: is called with each line of progress.
    """

    row: Row
    threads: int
    rounds: int
    contenders: Sequence[Contender]
    environment: Mapping[str, str]
    say: Callable[[str], None]

    def run(self) -> dict[str, Any]:
        """Compare gradients, time the rounds, and measure memory.

        Raises:
            GradientsDiffer: if gradients are not torch's.
            Failed: if torch or offgrad fails; other contenders are skipped instead.
        """
        figures: dict[str, Any] = {
            "row": self.row.name,
            "threads": self.threads,
            "skipped": {},
            "targets": dict(self.row.targets),
            "peak_target": self.row.peak,
        }
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            workers = self._prepared(stack, Path(folder), figures)
            figures["seconds"] = self._rounds(workers, figures)
            figures["libraries"] = {
                each.name: _ask(worker, "libraries") for each, worker in workers.items()
            }
        figures["ratios"] = _ratios(figures["seconds"])
        if self.row.has_peak:
            # Not of torch.compile, whose compiler takes more than the steps.
            alone = [each for each in workers if not each.compiles]
            figures["peak"] = {each.name: self._peak(each) for each in alone}
        return figures

    def _worker(self, contender: Contender, folder: Path) -> JsonWorker:
        job = {
            "framework": contender.framework,
            "compiles": contender.compiles,
            "variant": contender.variant,
            "threads": self.threads,
            "job": self.row.job,
            "sizes": dict(self.row.sizes),
            "folder": str(folder),
        }
        names = ("OMP", "MKL", "OPENBLAS", "OFFGRAD")
        counts = {f"{name}_NUM_THREADS": str(self.threads) for name in names}
        return JsonWorker("benchmarks._lib.versus_worker", job, {**self.environment, **counts})

    def _prepared(
        self, stack: ExitStack, folder: Path, figures: dict[str, Any]
    ) -> dict[Contender, JsonWorker]:
        """Start the workers, compare their gradients, and warm them up."""
        workers: dict[Contender, JsonWorker] = {}
        for contender in self.contenders:
            self.say(f"{contender.name}: starting")
            worker = stack.enter_context(self._worker(contender, folder))
            path = folder / contender.name
            path.mkdir()
            try:
                _ask(worker, "prepare")
                # Without dropout, whose random numbers differ; compiled code would be another.
                if not (contender.compiles and self.row.sizes.get("dropout")):
                    figures.setdefault("losses", {})[contender.name] = _ask(
                        worker, "gradients", folder=str(path)
                    ).get("loss")
                    if contender.name != BASE:
                        compare_gradients(path, folder / BASE, self.row.tolerance)
                for _ in range(WARM_UPS):
                    _ask(worker, "turn")
            except (Failed, WorkerError) as error:
                if contender.variant == "default" and not contender.compiles:
                    raise Failed(f"{self.row.name}: {contender.name} failed: {error}") from error
                figures["skipped"][contender.name] = str(error)
                self.say(f"{contender.name}: skipped: {error}")
            else:
                workers[contender] = worker
        return workers

    def _rounds(
        self, workers: dict[Contender, JsonWorker], figures: dict[str, Any]
    ) -> dict[str, dict[str, list[float]]]:
        """Return seconds by contender and measure: a list with a value per round."""
        seconds: dict[str, dict[str, list[float]]] = {each.name: {} for each in workers}
        order = list(workers)
        random = Random(0)
        for number in range(self.rounds):
            random.shuffle(order)  # so that none always follows the same one
            for contender in order:
                time.sleep(_PAUSE)
                for measure, value in _ask(workers[contender], "turn").items():
                    seconds[contender.name].setdefault(measure, []).append(value)
            self.say(f"round {number + 1}/{self.rounds}")
        return seconds

    def _peak(self, contender: Contender) -> Reply:
        """Return memory of a fresh process that runs alone."""
        self.say(f"{contender.name}: memory")
        with (
            tempfile.TemporaryDirectory() as folder,
            self._worker(contender, Path(folder)) as worker,
        ):
            reply = _ask(worker, "peak")
        return {**reply, "over_libraries_nbytes": reply["peak_nbytes"] - reply["before_nbytes"]}


def _ask(worker: JsonWorker, do: str, **arguments: Any) -> Reply:
    reply = worker.ask(do=do, **arguments)
    if "error" in reply:
        raise Failed(reply["error"])
    return reply


def compare_gradients(folder: Path, reference: Path, tolerance: float = TOLERANCE) -> None:
    """Compare the files of gradients in two folders.

    Raises:
        GradientsDiffer: if names differ, or a gradient by more than rounding.
    """
    names = sorted(path.name for path in reference.iterdir())
    found = sorted(path.name for path in folder.iterdir())
    if found != names:
        raise GradientsDiffer(f"{folder.name} has gradients {found}, {reference.name} {names}")
    pairs = {name: (np.load(folder / name), np.load(reference / name)) for name in names}
    whole = sum(float(np.square(right, dtype=np.float64).sum()) for _, right in pairs.values())
    for name, (left, right) in pairs.items():
        distance = float(np.linalg.norm((left - right).astype(np.float64)))
        norm = float(np.linalg.norm(right.astype(np.float64)))
        if not distance <= tolerance * norm + _NEGLIGIBLE * whole**0.5:
            raise GradientsDiffer(
                f"the gradient {name} of {folder.name} is {distance:.3g} from that of "
                f"{reference.name}, whose norm is {norm:.3g}"
            )


def _ratios(seconds: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
    """Return quartiles of each round's ratios to torch, by contender and measure."""
    base = seconds[BASE]
    return {
        name: {
            measure: list(quartiles([a / b for a, b in zip(row, base[measure], strict=True)]))
            for measure, row in rows.items()
        }
        for name, rows in seconds.items()
    }
