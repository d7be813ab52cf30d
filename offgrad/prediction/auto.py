"""offload("auto"): a session that records two steps, chooses a plan by replays, then tries it."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from offgrad import memory
from offgrad._warning import warn_program
from offgrad.autograd.saved_tensor import Save
from offgrad.policies import Budget, Placement, Policy, SaveContext
from offgrad.prediction.choosing import choose
from offgrad.prediction.known_machines import measured
from offgrad.prediction.machine import Machine, parse_rate
from offgrad.prediction.plan import Plan
from offgrad.prediction.recorder import SaveRecorder
from offgrad.prediction.trial import Trial
from offgrad.session.scope import active_hooks
from offgrad.session.session import OffloadSession

if TYPE_CHECKING:
    from types import TracebackType

    from offgrad.nn import Module

_STEPS = 2  # the first compiles and warms up
_MAX_SEARCH_SECONDS = 10.0
_MAX_BEGINNINGS = 5  # of sessions in a row that record a first step, and no second
_MAX_STRANGE_STEPS = 20  # of another size than the one recorded, before the trial is given up


class AutoPolicy(Policy):
    """The policy of `AutoSession`: a budget until the plan is chosen, then the plan.

    Attributes:
        nbytes: the bound of the memory held for backward.
        plan: None until it is chosen.
    """

    def __init__(self, budget: int | str) -> None:
        self.nbytes = memory.parse_nbytes(budget)
        self.plan: Plan | None = None
        self._safe = Budget(self.nbytes)

    def place(self, context: SaveContext) -> Placement | None:
        return (self._safe if self.plan is None else self.plan).place(context)

    @property
    def recomputes(self) -> bool:
        return self.plan is not None and self.plan.recomputes

    def __str__(self) -> str:
        return f"auto, {self._safe}" if self.plan is None else str(self.plan)


class AutoSession(OffloadSession):
    """A session that records two steps, and then chooses for each class of saved tensors.

    Up to the end of the second backward pass the recorder holds what is saved, within the bound;
    what is above it goes to the disk. As the third step begins, in the same block or in another,
    a plan is chosen by replays, which takes some seconds; the drive is measured once for each
    device, and remembered. The steps after that run under the plan and under the fixed policies in
    turn, two to twenty each, and the fastest one stays: see `Trial`. A step lasts from its first
    save to the end of its backward pass; those that save more or fewer tensors than the one
    recorded do not count. All results have the same bits as without a session.

    A session is made once, before the loop, and entered at each step: a new one would record anew.

    The bound is of all memory held for backward, whether it is kept, being written, or read ahead.
    Not counted are parameters, tensors that the program or the operation under way holds, and what
    is computed again for an operation.

    Args:
        policy: ``"auto"``.
        budget: the bound of the memory held for backward.
        module, model, directory, prefetch_nbytes: see `OffloadSession`.
        bandwidth: of the drive, instead of measuring it; bytes per second, or text as ``"1GB/s"``.
            Steps are not measured, either: the plan stays.

    Raises:
        ValueError: if there is no budget, or a size or rate is none.
    """

    _beginnings = 0

    def __init__(
        self,
        policy: Any = "auto",
        *,
        budget: int | str | None = None,
        module: "Module | None" = None,
        model: "Module | None" = None,
        directory: str | None = None,
        prefetch_nbytes: int | str = 32 << 20,
        bandwidth: float | str | None = None,
    ) -> None:
        if budget is None:
            raise ValueError(
                "auto needs the bound of the memory held for backward, as in "
                "offload('auto', budget='512MiB')"
            )
        self._auto = AutoPolicy(budget)
        self._rate = None if bandwidth is None else parse_rate(bandwidth)
        self._directory = directory
        super().__init__(
            self._auto,
            module=module,
            model=model,
            directory=directory,
            prefetch_nbytes=prefetch_nbytes,
        )
        self._recorder: SaveRecorder | None = None
        self._recorded = 0
        self._is_choosing = False
        self._trial: Trial | None = None
        self._is_trying = False
        self._saves = 0  # of the recorded step
        self._tried_saves = 0  # of the step that is tried
        self._began = 0.0
        self._strange_steps = 0

    @property
    def chosen(self) -> Plan | None:
        """The best plan so far; None until one is chosen."""
        return self._auto.plan if self._trial is None else self._trial.best

    @property
    def is_settled(self) -> bool:
        """Whether `chosen` stays as it is."""
        return self._auto.plan is not None and (self._trial is None or self._trial.is_over)

    def explain(self) -> str:
        """Return what was chosen, and why, as lines of text."""
        if self.chosen is None:
            return f"nothing chosen yet: {self._recorded} of {_STEPS} steps are recorded"
        tried = [] if self._trial is None else self._trial.lines()
        return "\n".join([self.chosen.explain(), *tried])

    def __enter__(self) -> "AutoSession":
        if not self._blocks.are_running:
            self._tried_saves = 0
            if self.chosen is None:
                self._begin_step()
        super().__enter__()
        return self

    def pack(self, save: Save, policy: Policy, recomputes: bool = True) -> Any:
        # A block around several steps: the recorder has ended inside it.
        if self._recorded >= _STEPS and self.chosen is None and not self._is_choosing:
            self._choose()
            self._renew()
        if self._is_trying:
            if not self._tried_saves:
                self._begin_trial()
            self._tried_saves += 1
            recomputes = self._auto.recomputes
        return super().pack(save, policy, recomputes)

    def plan(self, packed: Sequence[Any]) -> Callable[[], None]:
        end = super().plan(packed)
        return (lambda: self._end_trial(end)) if self._is_trying else end

    def _renew(self) -> None:
        """Let the hooks of this thread follow the plan."""
        for hooks in active_hooks(self):
            hooks.renew()

    def _begin_trial(self) -> None:
        """Turn to the plan of the step that begins."""
        assert self._trial is not None
        with self._lock:  # the pass of another thread may end
            self._auto.plan = self._trial.plan
            self._is_trying = not self._trial.is_over
        self._renew()
        self._began = time.perf_counter()

    def _end_trial(self, end: Callable[[], None]) -> None:
        """End a pass, and note the step that ends with it, if it is like the one recorded."""
        end()
        seconds = time.perf_counter() - self._began
        with self._lock:
            saves, self._tried_saves = self._tried_saves, 0
            trial = self._trial
            if trial is None or trial.is_over or not saves:
                return
            if saves == self._saves:
                trial.note(seconds)
            else:
                self._strange_steps += 1
                if self._strange_steps == _MAX_STRANGE_STEPS:
                    trial.end()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: "TracebackType | None",
    ) -> None:
        super().__exit__(kind, error, traceback)
        recorder = self._recorder
        if recorder is not None and (kind is not None or not recorder.has_saves):
            recorder.stop()

    def _begin_step(self) -> None:
        """Record the step that begins, or choose the plan."""
        if self._recorder is not None:
            self._recorder.stop()  # of a step without a backward pass
        if self._recorded < _STEPS:
            if self._recorder is None:
                self._recorder = SaveRecorder(self._auto.nbytes, self._model, session=self)
                self._recorder.on_pass_end = self._on_pass_end
                self._note_beginning()
            elif self._recorded:
                AutoSession._beginnings = 0
            self._recorder.start()
        else:
            self._choose()

    @staticmethod
    def _note_beginning() -> None:
        AutoSession._beginnings += 1
        if AutoSession._beginnings == _MAX_BEGINNINGS:
            warn_program(
                f"offload('auto') chooses from {_STEPS} steps of a session, and {_MAX_BEGINNINGS} "
                "sessions in a row have begun with their first: make the session once, as "
                "session = offgrad.offload('auto', budget=...), and enter it at each step"
            )

    def _choose(self) -> None:
        """Choose the plan for the step recorded last. Until it is chosen the bound holds."""
        recorder = self._recorder
        if recorder is None or self._is_choosing:
            return
        self._is_choosing = True
        AutoSession._beginnings = 0
        try:
            machine = Machine() if self._rate is not None else measured(self._directory)
            if self._rate is not None:
                machine = machine.with_bandwidth(self._rate)
            self._auto.plan = choose(
                recorder.recording,
                self._auto.nbytes,
                machine=machine,
                max_seconds=_MAX_SEARCH_SECONDS,
            )
            self._saves = len(recorder.recording.saves)
            # Below the bound all is kept, whatever the plan; a given rate is of another drive.
            if self._rate is None and recorder.recording.saved_nbytes > self._auto.nbytes:
                self._trial, self._is_trying = Trial(self._auto.plan), True
            self._recorder = None
        finally:
            self._is_choosing = False

    def _on_pass_end(self) -> None:
        recorder = self._recorder
        if recorder is None or not recorder.is_running:
            return
        self._recorded += recorder.has_saves
        recorder.step()
        # A block may have more steps: the next one begins.
        if self._recorded >= _STEPS or not self._blocks.are_running:
            recorder.stop()


AutoSession.__init__.__qualname__ = "offload"  # as of OffloadSession
