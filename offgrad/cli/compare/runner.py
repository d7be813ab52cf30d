"""Run workers that take turns step by step, and collect their reports.

So other load on the machine slows all of them alike. A worker that waits for its turn blocks on a
pipe, and its threads are idle.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import IO, Any

from offgrad_storage.files.spill_directory import spill_directory, sweep

from offgrad.cli.compare.config import Config
from offgrad.cli.compare.dataset import Bytes
from offgrad.cli.compare.progress import Display
from offgrad.cli.compare.results import CRASHED, FINISHED, OUT_OF_MEMORY, STOPPED, Run

_GRACE_SECONDS = 8.0
_WORKER_CODE = (
    "import sys; sys.path[:] = sys.argv[1:]; from offgrad.cli.compare.worker import main; main()"
)


class Refused(Exception):
    """What is asked for cannot be trained; the message is one line."""


class LimitTooLow(Exception):
    """The memory limit is below the bytes of the model itself.

    Attributes:
        model_nbytes: of parameters, gradients and the optimizer's state.
    """

    def __init__(self, model_nbytes: int) -> None:
        self.model_nbytes = model_nbytes


def run_workers(
    runs: Sequence[Run],
    config: Config,
    text: Bytes,
    display: Display,
    lowest_limit: int | None = None,
    max_seconds: float | None = None,
) -> None:
    """Fill in `runs`, each by its own worker process.

    In the first round each worker starts; in each further one it does a step. The order of a round
    is random, so that none always follows the same one. All workers have ended when this returns or
    raises; runs that a signal stops have the steps they made. No run goes on if the model itself
    takes more than `lowest_limit`. After `max_seconds` the workers are killed.

    Raises:
        Refused: a worker cannot train at all.
        LimitTooLow: no policy can train within the limit.
    """
    workers = [_Worker(run, config) for run in runs]
    training = list(workers)
    timer = threading.Timer(max_seconds or 0, _kill, [workers])
    timer.daemon = True
    if max_seconds is not None:
        timer.start()
    try:
        for worker in workers:
            display.begin(worker.run)
            worker.start(text)
            _finish_turn(worker, training, display)
            _check_limit(worker.run, lowest_limit)
        random = Random(config.seed)
        while training:
            for worker in random.sample(training, len(training)):
                worker.begin_turn()
                _finish_turn(worker, training, display)
                _check_limit(worker.run, lowest_limit)
    finally:
        timer.cancel()
        _stop(workers)


def _check_limit(run: Run, lowest_limit: int | None) -> None:
    """Compare the limit with what the model needs, known from a run without one."""
    if not run.limited and lowest_limit is not None and lowest_limit < run.model_nbytes:
        raise LimitTooLow(run.model_nbytes)


def _finish_turn(worker: "_Worker", training: "list[_Worker]", display: Display) -> None:
    """Wait until the worker has used its turn; if it ended in it, take it out of `training`."""
    if not worker.finish_turn(display.update):
        training.remove(worker)
        display.end(worker.run)


class _Worker:
    """A worker process. Its standard input closes, and so it ends, when this object dies."""

    def __init__(self, run: Run, config: Config) -> None:
        self.run, self._config = run, config
        self.process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)

    def start(self, text: Bytes) -> None:
        """Start the process; this is its first turn."""
        self.run.status = STOPPED  # until it ends in another way
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WORKER_CODE, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Ctrl-C must reach only this process, which then ends the workers.
            start_new_session=True,
        )
        job = {
            "config": self._config.as_dict(),
            "policy": self.run.policy,
            "library": self.run.library,
            "limited": self.run.limited,
            "text_nbytes": text.nbytes,
        }
        self._send(json.dumps(job).encode() + b"\n", text.data)

    def begin_turn(self) -> None:
        """Let it do its next step, or its last report after the last step."""
        self._send(b"\n")

    def finish_turn(self, on_report: Callable[[Run], None]) -> bool:
        """Wait for the end of its turn; return whether it has further ones."""
        assert self.process is not None
        assert self.process.stdout is not None
        ended = False
        for line in iter(self.process.stdout.readline, b""):
            if not line.endswith(b"\n"):
                break  # it died while writing a report
            report = json.loads(line)
            event = report.pop("event")
            _store_report(self.run, event, report)
            on_report(self.run)
            if event in ("ready", "step"):
                return True
            ended |= event == "end"
        code = self.process.wait()
        if code or not ended:
            self.run.status = CRASHED
            self.run.error = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
            self.run.message = _tail(self._errors)
        return False

    def close(self) -> None:
        """Close the pipes and the file of errors; the process has ended."""
        pipes = (self.process.stdin, self.process.stdout) if self.process is not None else ()
        for each in (*pipes, self._errors):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.close()

    def _send(self, *parts: Any) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died; `finish_turn` says how
            for part in parts:
                self.process.stdin.write(part)
            self.process.stdin.flush()


def _store_report(run: Run, event: str, report: dict[str, Any]) -> None:
    if event in ("ready", "model"):
        run.parameter_nbytes = report["parameter_nbytes"]
        run.model_nbytes = report["model_nbytes"]
    elif event == "refused":
        raise Refused(report["message"])
    elif event == "hard limit":
        run.address_space_nbytes = report["nbytes"]
    elif event == "profile":
        run.add_profile(report.pop("step"), report)
    elif event == "warning":
        run.warnings.append(report["message"])
    elif event == "not comparable":
        run.is_comparable = False
        run.warnings.append(report["message"])
    elif event == "step":
        run.steps.append(report)
    elif event == "out of memory":
        run.status = OUT_OF_MEMORY
        run.failed_step, run.failed_peak_nbytes = report["step"], report["peak_nbytes"]
        run.error, run.message = report["error"], report["message"]
    elif event == "end":
        if run.status != OUT_OF_MEMORY:
            run.status = FINISHED
        run.ledger, run.peak_rss_nbytes = report["ledger"], report["peak_rss_nbytes"]
        run.base_rss_nbytes = report["base_rss_nbytes"]


def _kill(workers: "Sequence[_Worker]") -> None:
    for worker in workers:
        if worker.process is not None:
            worker.process.kill()


def _stop(workers: Sequence[_Worker]) -> None:
    """End all workers, by SIGTERM first, so that they can clean up, and processes of theirs."""
    processes = [each.process for each in workers if each.process is not None]
    running = [each for each in processes if each.poll() is None]
    for process in running:
        process.terminate()
    deadline = time.monotonic() + _GRACE_SECONDS
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what its program has started and left
    if any(each.returncode for each in processes):
        # One may have left spilled data.
        with contextlib.suppress(OSError):
            sweep(spill_directory())
    for worker in workers:
        worker.close()


def _tail(errors: IO[bytes], max_nbytes: int = 10_000) -> str:
    """Return the end of the worker's standard error."""
    size = errors.seek(0, 2)
    errors.seek(max(0, size - max_nbytes))
    return errors.read().decode(errors="replace").strip()
