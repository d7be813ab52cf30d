"""Child processes in which Ctrl-C works, however the test run itself was started."""

import subprocess
import sys
from typing import Any

# Shells start background jobs with SIGINT ignored. Children inherit that, and Python then installs
# no handler. A preexec_fn could reset it, too, but forks a process that has threads.
_DEFAULT_SIGINT = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def start_python(code: str, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
    """Start a Python process that runs `code`, with text streams.

    Args:
        code: source; SIGINT raises KeyboardInterrupt in it.
        arguments: its ``sys.argv[1:]``.
        options: of `subprocess.Popen`.
    """
    return subprocess.Popen(
        [sys.executable, "-c", _DEFAULT_SIGINT + code, *arguments],
        text=True,
        encoding="utf-8",
        **options,
    )
