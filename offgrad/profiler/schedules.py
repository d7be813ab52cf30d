"""Which steps of a profile count, as in PyTorch's profiler."""

import os
import socket
import time
from collections.abc import Callable
from enum import Enum, auto
from math import inf
from typing import Any

Schedule = Callable[[int], "ProfilerAction"]


class ProfilerActivity(Enum):
    """What a profile records; there is only the CPU."""

    CPU = auto()
    XPU = auto()
    MTIA = auto()
    CUDA = auto()
    HPU = auto()
    PrivateUse1 = auto()


class ProfilerAction(Enum):
    """What a profile does with a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


_RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)


def supported_activities() -> set[ProfilerActivity]:
    """Return what can be recorded: the CPU."""
    return {ProfilerActivity.CPU}


def schedule(
    *,
    wait: int,
    warmup: int,
    active: int,
    repeat: int = 0,
    skip_first: int = 0,
    skip_first_wait: int = 0,
) -> Schedule:
    """Return a schedule: cycles of steps that wait, warm up and count.

    Args:
        wait: steps at the begin of a cycle that do not count.
        warmup: steps after them that do not count, either.
        active: steps after them that do; after the last one the trace is ready.
        repeat: the number of cycles; 0 for any.
        skip_first: steps before the first cycle.
        skip_first_wait: whether the first cycle does not wait, if `skip_first` is above 0.

    Raises:
        ValueError: for negative numbers, or no active step.
    """
    if min(wait, warmup, repeat, skip_first, skip_first_wait) < 0 or active <= 0:
        raise ValueError(
            "a profiler schedule needs numbers of steps from 0 on, and active above 0, got "
            f"wait={wait}, warmup={warmup}, active={active}, repeat={repeat}, "
            f"skip_first={skip_first}, skip_first_wait={skip_first_wait}"
        )
    length = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        if step < skip_first:
            return ProfilerAction.NONE
        step -= skip_first
        if skip_first_wait and skip_first:
            step += wait
        if repeat and step // length >= repeat:
            return ProfilerAction.NONE
        place = step % length
        if place < wait:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if place < length - 1 else ProfilerAction.RECORD_AND_SAVE

    return action


def tensorboard_trace_handler(
    dir_name: str, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[Any], None]:
    """Return an ``on_trace_ready`` that writes each trace into a file of a folder.

    Args:
        dir_name: the folder; it is made if it does not exist.
        worker_name: begins the files' names; by default the machine and the process.
        use_gzip: refused.

    Raises:
        NotImplementedError: for `use_gzip`.
    """
    if use_gzip:
        raise NotImplementedError("traces are written as JSON; compress the file with gzip")
    worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"

    def write(prof: Any) -> None:
        os.makedirs(dir_name, exist_ok=True)
        name = f"{worker}.{time.time_ns()}.pt.trace.json"
        prof.export_chrome_trace(os.path.join(dir_name, name))

    return write


class Window:
    """The steps of a profile that count now, or counted last.

    Args:
        plan: of `schedule`; None: all steps count.
        now: the time of the begin.

    Attributes:
        began: when the first of the steps began; infinite if none has.
        ended: when the last one ended; infinite before.
        action: what happens with the running step.
    """

    def __init__(self, plan: Schedule | None, now: float) -> None:
        self._plan = plan
        self._step = 0
        self.action = ProfilerAction.RECORD if plan is None else plan(0)
        self.began, self.ended = (now, inf) if self.action in _RECORDING else (inf, inf)

    def step(self, now: float) -> bool:
        """Go to the next step; return whether a trace is ready. Then call `begin`."""
        before = self.action
        self._step += 1
        if self._plan is not None:
            self.action = self._plan(self._step)
        is_ready = before is ProfilerAction.RECORD_AND_SAVE
        if is_ready or (before in _RECORDING and self.action not in _RECORDING):
            self.ended = now
        return is_ready

    def begin(self, now: float) -> None:
        """Let the step count that begins, if it shall."""
        if self.action in _RECORDING and (self.began == inf or self.ended != inf):
            self.began, self.ended = now, inf

    def end(self) -> bool:
        """Return whether a trace is ready at the end of the recording."""
        return self.action in _RECORDING
