"""Random programs under each policy, perturbed at random: the bits of a run that keeps all."""

import functools
import gc
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

import offgrad
from offgrad.utils import checkpoint  # noqa: F401 (programs use it by its qualified name)
from tests.interrupts import Interrupt
from tests.parity.programs import INPLACE, SEVERAL, VIEWS
from tests.parity.test_random_programs import copying
from tests.stress.counters import Baseline, Difference, check_idle, require
from tests.stress.interrupted_sessions import check_session
from tests.stress.interrupts import LIBRARY, dropped_exceptions
from tests.stress.perturbations import Perturbation, fork, in_threads
from tests.stress.policies import LOSSY, POLICIES, Stores, session, stores_of_process
from tests.stress.programs import Outcome, Program, StressRun, difference, outcome
from tests.stress.stores import Drive

try:
    import torch
    from torch.utils import checkpoint as _  # noqa: F401
except ImportError:
    torch = None

CASES = (*POLICIES, *LOSSY)

CLOSES_EVERY = 16
"""After so many programs, and after faults, the stores are closed, and others opened."""


@functools.cache
def _stores() -> Stores:
    return stores_of_process()


@functools.cache
def _baseline() -> Baseline:
    return Baseline(str(_stores().folder))


def attempt(case: str, number: int, counts: Counter[str]) -> bool:
    """Run program `number` under a policy, and compare it with torch and with a run that keeps.

    Raises:
        Difference: other bits, an error, or a counter that is not back.
    """
    random = Random(f"{case} {number}")
    program, perturbation = Program.random(random), Perturbation.random(random)
    _baseline()
    with dropped_exceptions() as dropped:
        try:
            trial = _Trial(case, program, perturbation, random, counts)
            trial.run()
            counts["programs"] += 1
            ends = number % CLOSES_EVERY == 0 or trial.drive.faults > 0
            del trial
            if ends:
                _stores().close(failures=True)
            for name, store in _stores().items():
                check_idle(store, keeps=_stores().keeps(name))
            _baseline().check(stores_closed=ends)
        except AssertionError as error:
            raise Difference(f"{error}\n{perturbation}\n{program}") from error
    require(not dropped, lambda: f"dropped by Python: {dict(dropped)}\n{perturbation}\n{program}")
    return True


class _Trial:
    """One program under one policy, in several runs."""

    def __init__(
        self,
        case: str,
        program: Program,
        perturbation: Perturbation,
        random: Random,
        counts: Counter[str],
    ) -> None:
        self._case = case
        self._program = program
        self._perturbation = perturbation
        self._seed = random.random()
        self._counts = counts
        self.drive = Drive(random, perturbation.delay)

    def run(self) -> None:
        """Run the program without a session, and under the policy in each perturbed way."""
        self._right = outcome(StressRun(offgrad, self._program))
        if torch is not None:
            self._compare_with_torch()
        if self._case in LOSSY:
            self._right = outcome(StressRun(offgrad, self._program, self._open))
        under_test = self._shared()
        if self._perturbation.interrupt_at:
            self._run_interrupted(under_test)
        with self.drive.serving(_stores().own), self._perturbation.interpreter():
            in_threads(self._perturbation.threads, lambda number: self._run(under_test, number))
        self._counts["runs"] += self._perturbation.threads
        _stores().trim_kept()
        check_session(under_test.session)
        if self._perturbation.failures:
            self._run_with_faults(under_test)

    def _open(self, model: Any) -> Any:
        return session(
            self._case,
            _stores(),
            Random(self._seed),
            model,
            prefetch_nbytes=self._perturbation.prefetch_nbytes,
        )

    def _shared(self) -> "_Shared":
        return _Shared(self._open, self._case in ("by module", "in one module"))

    def _run(self, under_test: "_Shared", number: int) -> None:
        perturbation = self._perturbation
        open_session = under_test.open if perturbation.one_session else self._open
        steps = iter(range(100))

        def between() -> None:
            if next(steps) == perturbation.fork_at and number == 0:
                self._counts["forks"] += 1
                # In a thread of the child, since this one is inside the session.
                fork(lambda: in_threads(1, lambda _: self._run_in_child(under_test), own=True))

        found = outcome(StressRun(offgrad, self._program, open_session, between))
        self._require_right(found)

    def _run_in_child(self, under_test: "_Shared") -> None:
        # A store belongs to the process that made it: an error, but no wrong bits.
        found = outcome(StressRun(offgrad, self._program, under_test.open))
        self._require_right(found, may_fail="name" not in self._case)
        if self._case not in LOSSY:
            directory = str(_stores().folder)
            own = lambda model: offgrad.offload("disk,min=1", directory=directory)
            self._require_right(outcome(StressRun(offgrad, self._program, own)))

    def _run_interrupted(self, under_test: "_Shared") -> None:
        interrupt = Interrupt(self._perturbation.interrupt_at, LIBRARY)
        run = StressRun(offgrad, self._program, under_test.open)
        interrupt.run(lambda: outcome(run))
        self._counts["signals at points"] += bool(interrupt.where)
        self._counts["dropped by Python in a finalizer"] += interrupt.is_dropped
        self._end_block(run, interrupt.where)
        try:
            _baseline().check_settings()
        except Difference as error:
            raise Difference(f"SIGINT at {interrupt.where}: {error}") from error

    def _end_block(self, run: StressRun, where: str) -> None:
        """End a ``with`` block of the program that SIGINT left at the start of its exit.

        No context manager in Python can prevent that: see ADR 14.
        """
        frame, _, caller = where.partition(" < ")
        if not (frame.endswith(".__exit__+2") and ("tests/" in caller or "contextlib" in caller)):
            return
        self._counts["blocks left at the start of their exit"] += 1
        if run.session is not None and "OffloadSession" in frame:
            run.session.__exit__(None, None, None)
        else:
            offgrad.set_grad_enabled(True)

    def _run_with_faults(self, under_test: "_Shared") -> None:
        self.drive.failures = self._perturbation.failures
        with self.drive.serving(_stores().own):
            found = outcome(StressRun(offgrad, self._program, under_test.open))
            self.drive.failures = 0
        self._counts["faults injected"] += self.drive.faults
        self._require_right(found, may_fail=True)
        del found
        # The drive is well again, and no array of the failed run lives, also in caught errors.
        gc.collect()
        for store in _stores().own:
            store.flush()
        self._require_right(outcome(StressRun(offgrad, self._program, under_test.open)))

    def _require_right(self, found: Outcome, may_fail: bool = False) -> None:
        text = difference(found, self._right, self._program.steps, may_fail)
        require(not text, text)

    def _compare_with_torch(self) -> None:
        """Compare the run that keeps with torch: where it loses a value, torch does so too."""
        mine = StressRun(offgrad, self._program)
        plain, copied = StressRun(torch, self._program), StressRun(torch, self._program)
        outcomes = mine.execute()
        with copying(torch):
            right = copied.execute()
        allowed = plain.execute()
        self._counts["compared with torch"] += 1
        for step, *found in zip(self._program.steps, outcomes, right, allowed, strict=False):
            if found[0] not in found[1:]:
                self._explain(found[0], found[1], found[2], str(step))
            if len(set(found)) > 1:
                return
        results = zip(mine.results(), copied.results(), plain.results(), strict=True)
        for index, (one, theirs, lost) in enumerate(results):
            # With copies torch's checkpoints may differ from those of torch alone.
            same = one == lost if isinstance(one, str) else _close(one, theirs) or _close(one, lost)
            if not same:
                self._explain(one, theirs, lost, f"result {index}")
                return

    def _explain(self, mine: Any, copied: Any, plain: Any, where: str) -> None:
        """Count a difference from torch that is known and wanted.

        Raises:
            Difference: it is not known.
        """
        names = {name for name, _, _ in self._program.steps}
        # PyTorch rebuilds the histories of views, without their hooks, or refuses to: see ADR 8.
        is_unrecorded = any(each.startswith("no_grad") for each in names) or (
            "detach" in names and names & INPLACE.keys()
        )
        is_refused = isinstance(plain, str) and plain in ("RuntimeError", "refused")
        if mine == "RuntimeError" and "checkpoint" in names:
            # What it takes has changed: torch recomputes other values, without a word.
            self._counts["checkpoints that torch recomputes with other values"] += 1
        elif is_unrecorded and is_refused and names & SEVERAL.keys():
            self._counts["views that torch refuses after unrecorded changes"] += 1
        elif is_unrecorded and names & VIEWS.keys() and names & {"retain_grad", "hook"}:
            self._counts["hooks of views that torch loses after such changes"] += 1
        else:
            raise Difference(f"torch: {where}: {mine}, in torch {copied} or {plain}")


def _close(mine: Any, theirs: Any) -> bool:
    return not isinstance(theirs, str) and all(
        np.allclose(a, b, rtol=1e-5, atol=1e-8) for a, b in zip(mine, theirs, strict=True)
    )


class _Shared:
    """One session for all runs, unless it knows one model alone."""

    def __init__(self, open_session: Callable[[Any], Any], by_model: bool) -> None:
        self._open = open_session
        self._by_model = by_model
        self._model = StressRun(offgrad, Program((), (3, 4))).model
        self.session = open_session(self._model)

    def open(self, model: Any) -> Any:
        """Return the session for a model."""
        return self._open(model) if self._by_model else self.session
