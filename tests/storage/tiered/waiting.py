"""Whether a thread waits in a store."""

from __future__ import annotations

import sys
import threading
import time

MAIN = threading.main_thread().ident or 0


def waits(thread: int = MAIN) -> bool:
    """Whether the thread, the main one by default, waits in a store, and not just for a moment."""
    for _ in range(3):
        frame = sys._current_frames().get(thread)
        while frame is not None and not (
            "wait" in frame.f_code.co_name and "offgrad_storage" in frame.f_code.co_filename
        ):
            frame = frame.f_back
        if frame is None:
            return False
        time.sleep(0.01)
    return True
