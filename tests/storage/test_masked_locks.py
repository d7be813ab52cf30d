"""The death of a masked lock, at which SIGINT may arrive."""

from __future__ import annotations

import sys
from types import FrameType

from offgrad_storage import interrupts
from offgrad_storage.interrupts import MaskedLock


def test_no_python_code_runs_when_a_lock_dies() -> None:
    """Python drops a KeyboardInterrupt that is raised in the callback of a weak reference."""
    known = len(interrupts._locks)
    lock = MaskedLock()
    assert len(interrupts._locks) == known + 1
    called: list[str] = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_qualname)

    sys.setprofile(profile)
    del lock
    sys.setprofile(None)
    assert called == []
    assert len(interrupts._locks) == known
