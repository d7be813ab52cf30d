"""The worker process: compiles one unit per line of standard input, and replies with a line each.

When standard input ends, so does the worker.
"""

import json
import os
import signal
import sys
from typing import Any

from offgrad.kernels import _warmup


def main() -> None:
    """Serve the requests on standard input."""
    # The parent process handles Ctrl-C, and ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Output of libraries goes to standard error, so that it does not mix with the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        replies.write(json.dumps(_reply(*json.loads(line))) + "\n")
        replies.flush()


def _reply(name: str, dtype: str) -> dict[str, Any]:
    try:
        return _warmup.compile_unit(name, dtype)._asdict()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
