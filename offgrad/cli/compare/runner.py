"""Run workers, one after the other, and collect their reports."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import IO, Any

from offgrad_storage.files.spill_directory import spill_directory, sweep

from offgrad.cli.compare.config import Config
from offgrad.cli.compare.dataset import Bytes

_GRACE_SECONDS = 8.0
_WORKER_CODE = (
    "import sys; sys.path[:] = sys.argv[1:]; from offgrad.cli.compare.worker import main; main()"
)

FINISHED, OUT_OF_MEMORY, CRASHED = "finished", "out of memory", "crashed"


@dataclass
class Run:
    """One row of the comparison: a policy, with or without the limit, and its results.

    Attributes:
        name: of the row.
        policy: as text, for `offgrad.offload`.
        limited: whether it runs under the memory limit.
        lossless: whether loss and gradients must equal the reference's bit for bit.
        status: `FINISHED`, `OUT_OF_MEMORY` or `CRASHED`.
        steps: for each finished step its loss, seconds, peak bytes and digest of gradients.
        profile: memory over time within one step, the failed one if there is one.
        ledger: the session's figures over all steps.
        peak_rss_nbytes: of the worker; None if it crashed before its last report.
        failed_step: the step that ran out of memory, counted from 0.
        failed_peak_nbytes: the peak of that step.
        error: the exception's name, or the exit status or signal of the worker.
        message: the exception's text, or the worker's standard error.
        parameter_nbytes: bytes of the model's parameters.
        address_space_nbytes: allowed by the hard limit; None without one.
        equal: whether loss and gradients of all steps equal the reference's bit for bit; None if
            one of the two did not finish.
    """

    name: str
    policy: str
    limited: bool
    lossless: bool = True
    status: str = CRASHED
    steps: list[dict[str, Any]] = field(default_factory=list)
    profile: dict[str, Any] | None = None
    ledger: dict[str, Any] = field(default_factory=dict)
    peak_rss_nbytes: int | None = None
    failed_step: int | None = None
    failed_peak_nbytes: int = 0
    error: str = ""
    message: str = ""
    parameter_nbytes: int = 0
    address_space_nbytes: int | None = None
    equal: bool | None = None

    @property
    def final_loss(self) -> float | None:
        """The loss of the last step; None if the training did not finish."""
        return self.steps[-1]["loss"] if self.status == FINISHED else None

    @property
    def peak_nbytes(self) -> int | None:
        """Maximum bytes of tensors; None if no step began."""
        peaks = [step["peak_nbytes"] for step in self.steps] + [self.failed_peak_nbytes]
        return max(peaks) or None

    @property
    def median_seconds(self) -> float | None:
        """The median time of a step, without the first one, which warms up."""
        seconds = [step["seconds"] for step in self.steps]
        return median(seconds[1:] or seconds) if seconds and self.status == FINISHED else None

    def per_step(self, figure: str) -> float | None:
        """Return a figure of the ledger per step; None if the training did not finish."""
        if self.status != FINISHED or figure not in self.ledger:
            return None
        value: float = self.ledger[figure] / len(self.steps)
        return value

    @property
    def differs(self) -> bool:
        """Whether its bits differ from the reference's although it is lossless."""
        return self.equal is False and self.lossless

    def compare(self, reference: "Run") -> None:
        """Set `equal` by comparing losses and gradients of all steps with the reference's."""
        if self.status != FINISHED or reference.status != FINISHED:
            self.equal = None
        else:
            self.equal = [_comparable(step) for step in self.steps] == [
                _comparable(step) for step in reference.steps
            ]


def _comparable(step: dict[str, Any]) -> tuple[str, str]:
    # As text, NaN equals NaN.
    return repr(step["loss"]), step["gradients"]


def run_worker(run: Run, config: Config, text: Bytes, on_report: Callable[[Run], None]) -> None:
    """Fill in `run` by a worker process; call ``on_report(run)`` after each report.

    The worker has ended when this returns or raises.
    """
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _WORKER_CODE, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            # Ctrl-C must reach only this process, which then ends the worker.
            start_new_session=True,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            ended = False
            with contextlib.suppress(BrokenPipeError):
                job = {
                    "config": config.as_dict(),
                    "policy": run.policy,
                    "limited": run.limited,
                    "text_nbytes": text.nbytes,
                }
                process.stdin.write(json.dumps(job).encode() + b"\n")
                process.stdin.write(text.data)
                process.stdin.flush()
            for line in process.stdout:
                if not line.endswith(b"\n"):
                    break  # it died while writing a report
                ended |= _store_report(run, json.loads(line))
                on_report(run)
            code = process.wait()
        finally:
            _stop(process)
        if code or not ended:
            run.status = CRASHED
            run.error = f"killed by signal {-code}" if code < 0 else f"exit status {code}"
            run.message = _tail(errors)


def _store_report(run: Run, report: dict[str, Any]) -> bool:
    """Store one report in `run`; return whether it is the last."""
    event = report.pop("event")
    if event == "ready":
        run.parameter_nbytes = report["parameter_nbytes"]
    elif event == "hard limit":
        run.address_space_nbytes = report["nbytes"]
    elif event == "step":
        run.steps.append(report)
    elif event == "profile":
        run.profile = report
    elif event == "out of memory":
        run.status = OUT_OF_MEMORY
        run.failed_step, run.failed_peak_nbytes = report["step"], report["peak_nbytes"]
        run.error, run.message = report["error"], report["message"]
    elif event == "end":
        if run.status != OUT_OF_MEMORY:
            run.status = FINISHED
        run.ledger, run.peak_rss_nbytes = report["ledger"], report["peak_rss_nbytes"]
        return True
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the worker, by SIGTERM first, so that it can clean up."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.returncode:
        # It may have left spilled data.
        with contextlib.suppress(OSError):
            sweep(spill_directory())
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _tail(errors: IO[bytes], max_nbytes: int = 10_000) -> str:
    """Return the end of the worker's standard error."""
    size = errors.seek(0, 2)
    errors.seek(max(0, size - max_nbytes))
    return errors.read().decode(errors="replace").strip()
