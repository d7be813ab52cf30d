"""How large a GPT trains in a process of 1 GiB, with each policy and with other libraries?

    python -m benchmarks.bench_largest_model [--limit 1GiB] [--only "torch eager"] [--json FILE]

Layers are added at a fixed width, one sequence a step, until the process fails. Each trial is a
process of its own. Its libraries load first; then the operating system limits all its private
writable memory, that of the libraries included, to the given bytes (RLIMIT_DATA), and it makes the
model and trains two steps with AdamW in float32. The losses must be finite. RLIMIT_DATA does not
count files mapped into memory as shared; the peak of resident memory, which does, is in the table.
Each process has one thread, since each takes memory of its own. glibc's malloc has one arena and
returns freed tensors at once; with its defaults PyTorch trains up to a fifth less.

Rows that write the model to files are tried first with as many layers as `--files` bytes hold: if
that trains, the row says "at least". A trial of more than `--seconds` fails: CPython runs for ever
where it finds no memory for the exception that says so. Rows whose library is not installed are
left out; `--json` keeps the rows of earlier runs. `python -m benchmarks.largest_model FILE
docs/largest-model.png` draws them.
"""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from benchmarks._lib.json_worker import JsonWorker, WorkerError
from benchmarks._lib.options import checked
from offgrad import memory

_WORKER = "benchmarks._lib.largest_model_worker"
_MIB = 1 << 20
WIDTH, HEADS, CONTEXT = 512, 8, 512
_TOLERANCE = 30  # a row's error is at most one layer, or a 30th
_LIBRARIES_NBYTES = 300 * _MIB  # for the first guess
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(128 << 10),
}


class Row(NamedTuple):
    """A library and how it trains; `options` are those of its training.

    Attributes:
        package: that must be installed.
        nbytes: bytes in memory for each parameter, about, activations included: the first guess.
        file_nbytes: bytes in files for each parameter, without those of activations.
    """

    name: str
    package: str
    library: str
    options: dict[str, Any]
    nbytes: float
    file_nbytes: int = 0


_STATE = {"activations": "disk", "state": "disk", "window": "64MiB"}
_ALL = {"activations": "disk", "placement": "disk"}
_NOW = {"in_backward": True}
ROWS = [
    Row("offgrad keep", "offgrad", "offgrad", {}, 17),
    Row("offgrad recompute", "offgrad", "offgrad", {"activations": "recompute"}, 16.5),
    Row("offgrad checkpoint", "offgrad", "offgrad", {"checkpoint": True}, 16),
    Row("offgrad disk", "offgrad", "offgrad", {"activations": "disk"}, 16),
    Row(
        "offgrad disk, step in backward", "offgrad", "offgrad", {"activations": "disk", **_NOW}, 12
    ),
    Row("offgrad state on disk", "offgrad", "offgrad", _STATE, 9),
    Row("offgrad state on disk, step in backward", "offgrad", "offgrad", {**_STATE, **_NOW}, 5),
    Row("offgrad all on disk", "offgrad", "offgrad", _ALL, 0, 16),
    Row("offgrad all on disk, step in backward", "offgrad", "offgrad", {**_ALL, **_NOW}, 0, 12),
    Row("torch eager", "torch", "plain", {}, 18),
    Row("torch checkpoint", "torch", "plain", {"checkpoint": True}, 17),
    Row("torch checkpoint, step in backward", "torch", "plain", {"checkpoint": True, **_NOW}, 11),
    Row("accelerate disk_offload", "accelerate", "accelerated", {}, 20),
    Row("deepspeed ZeRO-3, cpu", "deepspeed", "deepspeed", {"device": "cpu"}, 20),
    Row("deepspeed ZeRO-3, nvme", "deepspeed", "deepspeed", {"device": "nvme"}, 0, 20),
]


def parameters(layers: int) -> int:
    """Return the number of parameters of the GPT."""
    block = 12 * WIDTH * WIDTH + 13 * WIDTH
    return layers * block + (256 + CONTEXT + 2) * WIDTH


class Trials:
    """The trials of one row.

    Args:
        row: what trains.
        max_nbytes: the limit of the process.
        max_seconds: of a trial.
        directory: where libraries write.
    """

    def __init__(self, row: Row, max_nbytes: int, max_seconds: float, directory: Path) -> None:
        self._row, self._max_nbytes = row, max_nbytes
        self._max_seconds, self._directory = max_seconds, directory
        self.replies: dict[int, dict[str, Any]] = {}

    def trains(self, layers: int) -> bool:
        """Train a model and return whether that worked."""
        with TemporaryDirectory(dir=self._directory) as folder:
            job = {
                "library": self._row.library,
                "options": self._row.options,
                "sizes": [WIDTH, HEADS, CONTEXT],
                "max_nbytes": self._max_nbytes,
                "directory": folder,
            }
            with JsonWorker(_WORKER, job, os.environ | _ENVIRONMENT) as worker:
                try:
                    reply = worker.ask(max_seconds=self._max_seconds, layers=layers)
                except WorkerError as error:  # not every library survives a failed allocation
                    reply = {"failed": str(error)}
        self.replies[layers] = reply
        outcome = reply.get("failed", "trains")
        click.echo(f"{self._row.name}, {layers} layers: {outcome[:300]}", err=True)
        return "failed" not in reply

    def search(self, guess: int, fails: int | None) -> tuple[int, int]:
        """Return the largest number of layers that trains, 0 if none, and a larger that fails.

        Args:
            guess: the first trial.
            fails: layers that do not train, if known.
        """
        trains, layers = 0, max(1, guess)
        while fails is None or fails - trains > max(1, trains // _TOLERANCE):
            if self.trains(layers):
                trains = layers
            else:
                fails = layers
            if fails is None:
                layers = trains + max(1, trains // 8)
            else:
                layers = (trains + fails) // 2 if trains else max(1, fails * 7 // 8)
        return trains, fails


def measure(
    row: Row, max_nbytes: int, files_nbytes: int, max_seconds: float, directory: Path
) -> dict[str, Any]:
    """Return the largest model of a row: its figures, and those of the smallest that fails."""
    trials = Trials(row, max_nbytes, max_seconds, directory)
    most = None
    if row.file_nbytes:
        most = layers = max(1, _layers(files_nbytes / row.file_nbytes))
        fails = None
        if not trials.trains(most):
            layers, fails = trials.search(most // 2, most)
    else:
        layers, fails = trials.search(_layers((max_nbytes - _LIBRARIES_NBYTES) / row.nbytes), None)
    return {
        "name": row.name,
        "max_nbytes": max_nbytes,
        "layers": layers,
        "parameters": parameters(layers) if layers else 0,
        "is_at_least": fails is None,
        "next_fails": trials.replies[fails]["failed"] if fails else None,
        **trials.replies.get(layers, {}),
    }


def _layers(number: float) -> int:
    """Return how many layers have that many parameters."""
    return int((number - parameters(0)) / (parameters(1) - parameters(0)))


def _shown(figures: dict[str, Any]) -> list[str]:
    """Return the cells of a row of the table."""
    if not figures["layers"]:
        return [figures["name"], "none", "", "", "", figures["next_fails"][:160]]
    least = "at least " if figures["is_at_least"] else ""
    return [
        figures["name"],
        f"{least}{figures['parameters'] / 1e6:,.0f} M",
        str(figures["layers"]),
        f"{figures['peak_rss_nbytes'] / _MIB:.0f} MiB",
        f"{figures['seconds'][-1]:.1f} s",
        "",
    ]


_NBYTES = checked(memory.parse_nbytes)


@click.command()
@click.option("--limit", type=_NBYTES, default="1GiB", show_default=True, help="Memory it has.")
@click.option("--files", type=_NBYTES, default="20GB", show_default=True, help="Most for files.")
@click.option("--seconds", default=900.0, show_default=True, help="Most seconds of a trial.")
@click.option("--only", multiple=True, help="Rows of these names.")
@click.option("--directory", type=click.Path(path_type=Path), help="Where libraries write.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="File for all figures.")
def main(
    limit: int,
    files: int,
    seconds: float,
    only: tuple[str, ...],
    directory: Path | None,
    path: Path | None,
) -> None:
    """Search, and print a table."""
    if unknown := {*only} - {row.name for row in ROWS}:
        raise click.UsageError(f"no row {unknown}: --only takes {[row.name for row in ROWS]}")
    max_nbytes, files_nbytes = limit, files
    known = json.loads(path.read_text())["rows"] if path is not None and path.exists() else []
    for row in ROWS:
        if row.name in only and find_spec(row.package) is None:
            raise click.UsageError(f"{row.name} needs {row.package}, which is not installed")
    table = Table("row", "largest", "layers", "resident", "step", "why")
    for row in ROWS:
        if (only and row.name not in only) or find_spec(row.package) is None:
            continue
        with TemporaryDirectory(dir=directory) as folder:
            figures = measure(row, max_nbytes, files_nbytes, seconds, Path(folder))
        table.add_row(*_shown(figures))
        if path is not None:
            key = row.name, max_nbytes
            known = [each for each in known if (each["name"], each["max_nbytes"]) != key]
            known.append(figures)
            sizes = {"width": WIDTH, "heads": HEADS, "context": CONTEXT}
            path.write_text(json.dumps({"sizes": sizes, "rows": known}, indent=1))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
