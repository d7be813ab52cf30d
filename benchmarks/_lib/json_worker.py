"""A worker process that answers requests: a line of JSON in, a line of JSON out."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from threading import Timer
from typing import Any, Self

from benchmarks._lib.memory_cgroup import MemoryCgroup

_START = (
    "import sys; from importlib import import_module; sys.path[:] = sys.argv[3:]; "
    "import_module(sys.argv[1]).main(sys.argv[2])"
)

Reply = dict[str, Any]


class WorkerError(RuntimeError):
    """A worker process has died."""


class JsonWorker:
    """A process that runs ``main(job)`` of a module, with the job as JSON.

    It ends with the ``with`` block.

    Args:
        module: the module's name; its ``main`` calls `serve`.
        job: what the worker works on.
        environment: the variables of the process; None for those of this one.
        cgroup: limits the memory of the process; None for no limit.
    """

    def __init__(
        self,
        module: str,
        job: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        cgroup: MemoryCgroup | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, module, json.dumps(job), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        if cgroup is not None:
            cgroup.add(self._process.pid)

    def ask(self, *, max_seconds: float | None = None, **request: Any) -> Reply:
        """Send a request and return the reply.

        Args:
            max_seconds: after that the process is killed; None for no limit.
            request: the arguments of the worker's function.

        Raises:
            WorkerError: if the process has died; its standard error shows the reason.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = None if max_seconds is None else Timer(max_seconds, self._process.kill)
        if timer is not None:
            timer.start()
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            if timer is not None:
                timer.cancel()
        if not line:
            raise WorkerError(f"the worker exited with {self._process.wait()} at request {request}")
        reply: Reply = json.loads(line)
        return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate()


def serve(answer: Callable[..., Reply]) -> None:
    """Answer the requests on standard input, each with ``answer(**request)``, until it ends.

    What libraries print to standard output goes to standard error.
    """
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        replies.write(json.dumps(answer(**json.loads(line))) + "\n")
        replies.flush()
