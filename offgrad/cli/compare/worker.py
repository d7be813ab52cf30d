"""The worker: one training under one policy, in a process of its own.

It reads its job, a line of JSON and the text, from standard input and reports by lines of JSON on
standard output. Standard input stays open as long as the parent lives: its end tells the worker to
go.
"""

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NoReturn

import numpy as np

from offgrad import memory
from offgrad.cli.compare.config import Config
from offgrad.cli.compare.dataset import Bytes
from offgrad.cli.compare.process_memory import is_out_of_memory, limit_address_space, peak_rss
from offgrad.cli.compare.training import Training, warm_up
from offgrad.profiler import MemoryProfile
from offgrad.session import offload

_GRACE_SECONDS = 10.0
_TIMELINE_POINTS = 3000


def main() -> None:
    """Do the job that standard input says."""
    # What libraries print must not come between the reports.
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, _leave)
    job = json.loads(sys.stdin.buffer.readline())
    text = np.frombuffer(sys.stdin.buffer.read(job["text_nbytes"]), np.uint8)
    threading.Thread(target=_watch_parent, name="watch-parent", daemon=True).start()

    def report(event: str, **values: Any) -> None:
        reports.write(json.dumps({"event": event, **values}) + "\n")
        reports.flush()

    try:
        _work(job, text, report)
    except (KeyboardInterrupt, BrokenPipeError):
        # Stopped, or nobody listens any more.
        sys.exit(128 + signal.SIGTERM)
    finally:
        # The cleaning up at exit must not be broken off.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _work(job: dict[str, Any], text: Bytes, report: Callable[..., None]) -> None:
    config = Config.from_dict(job["config"])
    limit = config.memory_limit if job["limited"] else None
    warm_up(job["policy"])
    if config.hard_limit and limit is not None:
        allowed = limit_address_space(limit)
        report("hard limit", nbytes=allowed)
    session = offload(job["policy"])
    training = None
    shown = min(1, config.steps - 1)
    step = 0
    try:
        with nullcontext() if limit is None else memory.limit(limit):
            training = Training(config, text, session)
            report("ready", parameter_nbytes=training.parameter_nbytes)
            for step, result in enumerate(training.steps()):
                report("step", step=step, **dataclasses.asdict(result))
                if step == shown and training.profile is not None:
                    report("profile", step=step, **_figures(training.profile))
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
            report("profile", step=step, **_figures(training.profile))
    report("end", ledger=session.ledger.as_dict(), peak_rss_nbytes=peak_rss())


def _figures(profile: MemoryProfile) -> dict[str, Any]:
    return profile.as_dict(max_points=_TIMELINE_POINTS)


def _leave(signum: int, frame: object) -> NoReturn:
    # Once is enough. Kernels know this exception, and wait for their threads.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _watch_parent() -> None:
    """Leave, the clean way if possible, when the parent is gone."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
