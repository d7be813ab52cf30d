"""Work in a forked child of the test process."""

import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable

SECONDS = 60.0
"""The time after which a child counts as hanging."""


def run_in_child(work: Callable[[], object]) -> None:
    """Fork; run `work` in the child, with its output on stderr; wait for its end.

    Raises:
        AssertionError: the work raised an exception, or hangs.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads, Python 3.12
        child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    wait_for(child)


def wait_for(child: int) -> None:
    """Wait for the end of a child; assert that it comes, with status 0."""
    deadline = time.monotonic() + SECONDS
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError("the child hangs")
        time.sleep(0.001)
    assert not ended[1], "the child failed"
