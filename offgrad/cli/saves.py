"""What the steps of a script save for backward, recorded without a change to it."""

import os
from types import TracebackType
from typing import Self

from offgrad.cli.steps import StepEnds
from offgrad.optim.hooks import register_optimizer_step_post_hook
from offgrad.prediction import Recording, SaveRecorder
from offgrad.session.scope import share_hooks


class StepSaves:
    """Records all threads inside the block. Steps end as `StepEnds` tells.

    The steps of a process that the script forked are its own: they neither count nor end it.

    Args:
        max_nbytes: how much memory that only backward needs may stay, the rest goes to the disk;
            None for no bound.
        max_steps: after so many steps the optimizer raises SystemExit; None for no bound.
    """

    def __init__(self, max_nbytes: int | None = None, max_steps: int | None = None) -> None:
        self._recorder = SaveRecorder(max_nbytes)
        self._max_steps, self._steps = max_steps, 0
        self._ends, self._pid = StepEnds(), os.getpid()

    @property
    def recording(self) -> Recording | None:
        """Of the step that saved most; None without any."""
        return self._recorder.recording if self._recorder.has_recording else None

    @property
    def has_enough(self) -> bool:
        """Whether `max_steps` steps were made; what ends the script then is no failure of it."""
        return self._max_steps is not None and self._steps >= self._max_steps

    def __enter__(self) -> Self:
        self._recorder.start()
        share_hooks()
        self._handle = register_optimizer_step_post_hook(self._after_update)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._handle.remove()
        self._recorder.step()  # of a script without an optimizer
        self._recorder.stop()
        share_hooks()

    def _after_update(self, optimizer: object, *_: object) -> None:
        if self._ends.ends(optimizer) and self._recorder.has_saves:  # else no step of training
            self._recorder.step()
            if os.getpid() != self._pid:
                return
            self._steps += 1
            if self.has_enough:
                raise SystemExit  # a thread ends by it without a traceback
