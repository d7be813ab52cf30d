"""Attempts in child processes, which hang, crash and end on their own.

A suite makes numbered attempts at each of its cases; an attempt raises where a promise does not
hold. A child does one after the other and reports each; after a failure, a hang or a crash a new
child continues with the next number. So every failure is known by suite, case and number, which
reproduce it: ``python -m tests.stress --only SUITE --case CASE --number NUMBER``.
"""

import faulthandler
import gc
import importlib
import json
import os
import subprocess
import sys
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.processes import start_python
from tests.stress.counters import Difference

SUITES = {
    "programs": "tests.stress.random_programs",
    "stores": "tests.stress.interrupted_stores",
    "sessions": "tests.stress.interrupted_sessions",
    "signals": "tests.stress.random_signals",
    "failing": "tests.stress.failing",
}
"""By name, the module of each suite: its `CASES`, and `attempt(case, number, counts)`."""

MAX_FAILURES = 3
"""A case ends after so many failures."""

_CHILD = "from tests.stress import driver; driver.child()"


@dataclass(frozen=True)
class Work:
    """Attempts of one case: the numbers from `first`, by `step`, to before `stop`.

    Attributes:
        seconds: the limit of one attempt, a watchdog: far above what any takes.
    """

    suite: str
    case: str
    first: int
    stop: int
    step: int = 1
    seconds: float = 120.0


@dataclass(frozen=True)
class Failure:
    """An attempt that failed, hung or crashed."""

    suite: str
    case: str
    number: int
    text: str

    @property
    def reason(self) -> str:
        """One line: the difference, or the exit status."""
        lines = self.text.strip().splitlines()
        return lines[-1] if lines[0].startswith("Traceback") else lines[0]

    def __str__(self) -> str:
        which = f"--only {self.suite} --case {self.case!r} --number {self.number}"
        return (
            f"{self.suite}, {self.case}, {self.number}: {self.text.strip()}\n"
            f"python -m tests.stress {which}"
        )


@dataclass
class Report:
    """The result of all attempts.

    Attributes:
        attempts: number of attempts by suite and case.
        counts: number of events by suite and name.
        failures: in no order.
    """

    attempts: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)


def run(
    works: Sequence[Work],
    jobs: int = 1,
    batch: int = 8,
    show: Callable[[Report], object] = lambda report: None,
) -> Report:
    """Make all attempts.

    Args:
        works: the attempts.
        jobs: number of processes at once.
        batch: number of works for each process.
        show: called with the report so far when a process has ended.
    """
    report, lock = Report(), threading.Lock()
    batches = [works[start : start + batch] for start in range(0, len(works), batch)]
    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(lambda each: _run(each, report, lock, show), batches):
            pass
    return report


def _run(
    works: Sequence[Work],
    report: Report,
    lock: threading.Lock,
    show: Callable[[Report], object],
) -> None:
    left = deque(works)
    failures: Counter[str] = Counter()
    while left:
        result = _Child(list(left)).run()
        with lock:
            report.attempts.update(result.attempts)
            report.counts.update(result.counts)
            report.failures += result.failures
            show(report)
        if not result.failures:
            return
        (failure,) = result.failures
        while left and left[0].case != failure.case:
            left.popleft()
        if left:
            work = left.popleft()
            failures[work.case] += 1
            if failures[work.case] < MAX_FAILURES:
                left.appendleft(replace(work, first=failure.number + work.step))


class _Child:
    """A process that makes attempts until one fails."""

    def __init__(self, works: list[Work]) -> None:
        self._works = works
        self._at: tuple[str, str, int] = (works[0].suite, works[0].case, works[0].first)

    def run(self) -> Report:
        """Return the report, with one failure at most."""
        path = os.pathsep.join(str(Path(each).absolute()) for each in sys.path)
        process = start_python(
            _CHILD,
            json.dumps([asdict(each) for each in self._works]),
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            assert process.stdout is not None
            errors: list[str] = []
            drain = threading.Thread(target=lambda: errors.extend(process.stderr or ()))
            drain.start()
            report = self._follow(process.stdout)
            try:
                code = process.wait(2 * self._works[-1].seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            drain.join()
        if code and not report.failures:
            text = f"exit status {code}\n{''.join(errors[-80:])}"
            report.failures.append(Failure(*self._at, text))
        return report

    def _follow(self, lines: Iterable[str]) -> Report:
        report = Report()
        for line in lines:
            message: dict[str, Any] = json.loads(line)
            suite, case, number = self._at = message["at"]
            if message["kind"] == "begin":
                report.attempts[suite, case] += 1
            elif message["kind"] == "fail":
                report.failures.append(Failure(suite, case, number, message["text"]))
            for name, count in message.get("counts", {}).items():
                report.counts[suite, name] += count
        return report


def child() -> None:
    """Make the attempts in ``sys.argv``; the program of a child process."""
    works = [Work(**each) for each in json.loads(sys.argv[1])]
    suites = {each.suite: importlib.import_module(SUITES[each.suite]) for each in works}
    faulthandler.enable()
    for work in works:
        for number in range(work.first, work.stop, work.step):
            if number <= work.first + work.step:
                # Collections, of which there are many, scan only objects made after the imports,
                # also those of the first attempt.
                gc.collect()
                gc.freeze()
            if not _attempt(suites[work.suite], work, number):
                break
    faulthandler.dump_traceback_later(
        works[-1].seconds, exit=True
    )  # the interpreter must end as well


def _attempt(suite: Any, work: Work, number: int) -> bool:
    at = work.suite, work.case, number
    _tell(kind="begin", at=at)
    faulthandler.dump_traceback_later(work.seconds, exit=True)
    counts: Counter[str] = Counter()
    try:
        exists: bool = suite.attempt(work.case, number, counts)
    except BaseException as error:
        known = isinstance(error, Difference)
        text = f"{error}\n" if known else traceback.format_exc()
        _tell(kind="fail", at=at, text=text, counts=counts)
        os._exit(1)  # locks may be held, and threads may wait, for ever
    _tell(kind="end", at=at, counts=counts)
    return exists


def _tell(**message: Any) -> None:
    output = sys.__stdout__
    assert output is not None
    output.write(json.dumps(message) + "\n")
    output.flush()
