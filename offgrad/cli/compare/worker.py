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

from offgrad import memory
from offgrad.cli.compare.config import Config
from offgrad.cli.compare.dataset import Bytes
from offgrad.cli.compare.process_memory import is_out_of_memory, limit_address_space, peak_rss
from offgrad.cli.compare.training import Training, warm_up
from offgrad.session import offload

_GRACE_SECONDS = 10.0
_MAX_TIMELINE_POINTS = 3000


def main() -> None:
    """Run the job from standard input."""
    # Output of libraries goes to standard error, so that it does not mix with the reports.
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, _interrupt)
    job = json.loads(sys.stdin.buffer.readline())
    text = np.frombuffer(sys.stdin.buffer.read(job["text_nbytes"]), np.uint8)
    turns: SimpleQueue[None] = SimpleQueue()
    threading.Thread(target=_watch_parent, args=(turns,), name="watch-parent", daemon=True).start()

    def report(event: str, **values: Any) -> None:
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
    config = Config.from_dict(job["config"])
    limit = config.memory_limit if job["limited"] else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tiny model may lack modules that rules name
        warm_up(job["policy"])
    warnings.showwarning = lambda message, *_: report("warning", message=str(message))
    if config.hard_limit and limit is not None:
        allowed = limit_address_space(limit)
        report("hard limit", nbytes=allowed)
    session = offload(job["policy"])
    training = None
    step = 0
    try:
        with nullcontext() if limit is None else memory.limit(limit):
            training = Training(config, text, session)
            report("ready", parameter_nbytes=training.parameter_nbytes)
            for step in range(config.steps):
                turns.get()
                result = training.step(step)
                report("profile", step=step, **_figures(training))
                report("step", **dataclasses.asdict(result))
        turns.get()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        report(
            "out of memory",
            step=step,
            error=type(error).__name__,
            message=str(error),
            peak_nbytes=memory.max_allocated(),
        )
        if training is not None and training.profile is not None:
            report("profile", step=step, **_figures(training))
    report("end", ledger=session.ledger.as_dict(), peak_rss_nbytes=peak_rss())


def _figures(training: Training) -> dict[str, Any]:
    assert training.profile is not None
    return training.profile.as_dict(max_points=_MAX_TIMELINE_POINTS)


def _interrupt(signum: int, frame: object) -> NoReturn:
    # Only once. KeyboardInterrupt, because kernels then wait for their threads.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _watch_parent(turns: "SimpleQueue[None]") -> None:
    """Pass on the turns that the parent gives. End this process when the parent has died, with
    clean-up if that succeeds in time.
    """
    while os.read(0, 1):
        turns.put(None)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
