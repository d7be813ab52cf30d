"""A suite that fails in each way, for the test of the driver."""

import os
import signal
import threading
from collections import Counter

from tests.stress.counters import Difference

CASES = ("differs", "hangs", "crashes", "raises", "ends")


def attempt(case: str, number: int, counts: Counter[str]) -> bool:
    """Fail as the case says at number 1; there are three attempts."""
    counts["attempts"] += 1
    if number == 1:
        if case == "differs":
            raise Difference("other bits")
        if case == "hangs":
            threading.Lock().acquire()
            threading.Event().wait()
        if case == "crashes":
            os.kill(os.getpid(), signal.SIGSEGV)
        if case == "raises":
            raise ZeroDivisionError
        threading.Thread(target=threading.Event().wait).start()  # the interpreter waits for it
    return number < 3
