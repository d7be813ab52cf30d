"""The tests. Importing this package before offgrad keeps forked children from coverage's lock."""

import os
import sys
import threading


def _free_lock_of_coverage() -> None:
    """In a forked child: another thread may have held it, and coverage.py does not free it."""
    module = sys.modules.get("coverage.collector")
    for collector in module.Collector._collectors if module is not None else ():
        collector.data_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # before the functions that offgrad registers are traced
    os.register_at_fork(after_in_child=_free_lock_of_coverage)
