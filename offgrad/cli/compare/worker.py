"""The worker process: one training under one policy.

It reads its job, a line of JSON and the text, from standard input and writes its reports, lines of
JSON, to standard output. Then each byte of standard input is a turn: for one step, and for the last
report. When standard input ends, the parent has died, and the worker ends.
"""

import dataclasses
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any, NoReturn

import numpy as np
import psutil

from offgrad import memory
from offgrad.cli.compare.config import Config
from offgrad.cli.compare.dataset import Bytes
from offgrad.cli.compare.process_memory import is_out_of_memory, limit_address_space, peak_rss
from offgrad.cli.compare.programs import NotTrainable, Script, StepFunction
from offgrad.cli.compare.training import Step, Training, load_kernels, warm_up
from offgrad.session import offload

_GRACE_SECONDS = 10.0
_MAX_TIMELINE_POINTS = 3000
_SEVERAL_THREADS = (
    "steps come from several threads, so which one makes a step first is a race, and losses and "
    "gradients cannot be compared"
)
_UNUSED = (
    "the policy got no tensor, so these figures compare nothing: offload sessions and saved-tensor "
    "hooks of the program itself come first; take them out of it to compare policies"
)


def main() -> None:
    """Run the job from standard input."""
    # Output of libraries goes to standard error, so that it does not mix with the reports.
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, _interrupt)
    job = json.loads(sys.stdin.buffer.readline())
    text = np.frombuffer(sys.stdin.buffer.read(job["text_nbytes"]), np.uint8)
    orders = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a script may read from it
    turns: SimpleQueue[None] = SimpleQueue()
    threading.Thread(
        target=_watch_parent, args=(orders, turns), name="watch-parent", daemon=True
    ).start()

    pid = os.getpid()

    def report(event: str, **values: Any) -> None:
        if os.getpid() != pid:
            return  # of a process that the program forked
        reports.write(json.dumps({"event": event, **values}) + "\n")
        reports.flush()

    try:
        _work(job, text, report, turns)
    except (KeyboardInterrupt, BrokenPipeError):
        # Stopped by a signal, or the parent has closed the pipe.
        sys.exit(128 + signal.SIGTERM)
    finally:
        # A second signal must not interrupt the clean-up at exit.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _work(
    job: dict[str, Any], text: Bytes, report: Callable[..., None], turns: "SimpleQueue[None]"
) -> None:
    config, library = Config.from_dict(job["config"]), job["library"]
    limit = config.memory_limit if job["limited"] else None
    if config.is_model:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the tiny model may lack modules that rules name
            warm_up(job["policy"], config, library)
    elif library == "offgrad":
        load_kernels()
    warnings.showwarning = lambda message, *_: report("warning", message=str(message))
    if config.hard_limit and limit is not None:
        allowed = limit_address_space(limit)
        report("hard limit", nbytes=allowed)
    worker = _Worker(config, report, psutil.Process().memory_info().rss)
    session = offload(job["policy"]) if library == "offgrad" else None
    try:
        with nullcontext() if limit is None else memory.limit(limit):
            worker.make(text, session, library)
            report("ready", **worker.sizes())
            worker.train(turns.get)
            worker.report_missing_steps()
    except NotTrainable as error:
        report("refused", message=str(error))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        worker.report_failure(error)
    ledger = {} if session is None else session.ledger.as_dict()
    if session is not None and worker.has_trained and not session.ledger.saves:
        report("warning", message=_UNUSED)
    worker.report_threads()
    report("end", ledger=ledger, peak_rss_nbytes=peak_rss(), base_rss_nbytes=worker.base_rss_nbytes)


class _Worker:
    """Reports each step of what it trains."""

    def __init__(self, config: Config, report: Callable[..., None], base_rss_nbytes: int) -> None:
        self._config, self._report = config, report
        self.base_rss_nbytes = base_rss_nbytes
        self._trained: Training | Script | StepFunction | None = None
        self._num_steps = 0
        self._is_comparable = True

    def make(self, text: Bytes, session: Any, library: str) -> None:
        """Make what is trained."""
        if self._config.is_model:
            self._trained = Training(self._config, text, session, library)
        else:
            kind = Script if self._config.is_script else StepFunction
            self._trained = kind(self._config, session)

    @property
    def has_trained(self) -> bool:
        """Whether a step ended."""
        return self._num_steps > 0

    def sizes(self) -> dict[str, int]:
        """Return bytes of the parameters and of all that belongs to the model; 0 if not known."""
        assert self._trained is not None
        return {
            "parameter_nbytes": self._trained.parameter_nbytes,
            "model_nbytes": self._trained.model_nbytes,
        }

    def train(self, turn: Callable[[], None]) -> None:
        """Train all steps."""
        assert self._trained is not None
        self._trained.train(turn, self._done)

    def report_missing_steps(self) -> None:
        """Report that a script ended before the last step."""
        steps = self._config.steps
        if self._num_steps < steps:
            made = f"after {self._num_steps} of {steps} steps"
            self._report("warning", message=f"{self._config.target} ended by itself {made}")

    def report_failure(self, error: Exception) -> None:
        """Report that memory ran out."""
        self._report(
            "out of memory",
            step=self._num_steps,
            error=type(error).__name__,
            message=str(error),
            peak_nbytes=memory.max_allocated(),
        )
        self._report_profile()

    def report_threads(self) -> None:
        """Report, once, that a script makes steps in several threads."""
        trained = self._trained
        if not self._is_comparable or not isinstance(trained, Script):
            return
        if trained.has_steps_in_several_threads:
            self._is_comparable = False
            self._report("not comparable", message=_SEVERAL_THREADS)

    def _done(self, step: Step) -> None:
        if self._num_steps < 2 and not self._config.is_model:  # twice, for a second optimizer
            self._report("model", **self.sizes())
        self.report_threads()
        self._report_profile()
        self._report("step", **dataclasses.asdict(step))
        self._num_steps += 1

    def _report_profile(self) -> None:
        profile = None if self._trained is None else self._trained.profile
        if profile is not None:
            figures = profile.as_dict(max_points=_MAX_TIMELINE_POINTS)
            self._report("profile", step=self._num_steps, **figures)


def _interrupt(signum: int, frame: object) -> NoReturn:
    # Only once. KeyboardInterrupt, because kernels then wait for their threads.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _watch_parent(orders: int, turns: "SimpleQueue[None]") -> None:
    """Pass on the turns that the parent gives. End this process when the parent has died, with
    clean-up if that succeeds in time.
    """
    while os.read(orders, 1):
        turns.put(None)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
