"""Worker processes that compile units side by side; each takes the next one when it is ready.

Processes, because Numba compiles on one thread of a process at a time.
"""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from queue import Empty, SimpleQueue
from typing import IO, NamedTuple

from offgrad.kernels._warmup import Compilation

_WORKER_CODE = (
    "import sys; sys.path[:] = sys.argv[1:]; from offgrad.cli.warmup.worker import main; main()"
)
_GRACE_SECONDS = 5.0


class Unit(NamedTuple):
    """A unit of work: a key of `offgrad.kernels._warmup.UNITS`, and a dtype."""

    name: str
    dtype: str


class Outcome(NamedTuple):
    """The end of a unit: what it took, or why it failed."""

    unit: Unit
    compilation: Compilation | None
    error: str | None = None


def compile_units(units: Sequence[Unit], processes: int) -> Generator[Outcome, None, None]:
    """Compile `units` in worker processes; yield each outcome as it comes.

    A unit whose worker crashes has failed, and the worker's place stays empty: units that no worker
    is left for have failed, too. All workers have ended when the iterator ends or is closed.
    """
    waiting: SimpleQueue[Unit] = SimpleQueue()
    for unit in units:
        waiting.put(unit)
    outcomes: SimpleQueue[Outcome | None] = SimpleQueue()
    workers: list[_Worker] = []
    try:
        for _ in range(min(processes, len(units))):
            workers.append(_Worker(waiting, outcomes))
        running = len(workers)
        while running:
            outcome = outcomes.get()
            if outcome is None:
                running -= 1
            else:
                yield outcome
        while not waiting.empty():
            yield Outcome(waiting.get(), None, "no worker process is left")
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process, and the thread that hands it units; None among the outcomes ends them."""

    def __init__(
        self, waiting: "SimpleQueue[Unit]", outcomes: "SimpleQueue[Outcome | None]"
    ) -> None:
        self._waiting, self._outcomes = waiting, outcomes
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER_CODE, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._thread = threading.Thread(target=self._run, name="offgrad-warmup", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        is_alive = True
        while is_alive:
            try:
                unit = self._waiting.get_nowait()
            except Empty:
                break
            reply = self._ask(unit)
            is_alive = reply is not None
            self._outcomes.put(reply or Outcome(unit, None, self._crash()))
        self._outcomes.put(None)

    def _ask(self, unit: Unit) -> Outcome | None:
        """Return the outcome of `unit`; None if the process has ended."""
        requests, replies = self._pipes()
        try:
            requests.write(json.dumps(unit) + "\n")
            requests.flush()
            line = replies.readline()
        except (BrokenPipeError, ValueError):  # it has ended, or stop() has closed the pipe
            return None
        if not line:
            return None
        reply = json.loads(line)
        if "error" in reply:
            return Outcome(unit, None, reply["error"])
        return Outcome(unit, Compilation(**reply))

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _crash(self) -> str:
        return f"the worker process ended with status {self._process.wait()}"

    def stop(self) -> None:
        """End the process, now if it still works on a unit."""
        if self._thread.is_alive():
            self._process.terminate()
        self._thread.join()
        for pipe in self._pipes():
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
