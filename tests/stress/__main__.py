"""The stress run: ``python -m tests.stress``, from the root of the repository.

Four suites look for promises that do not hold:

- ``programs``: random programs under every policy and store, compared bit for bit with a run that
  keeps all, and with torch where it is installed. Perturbed at random: threads, collections,
  switches of threads, late and failing drives, forks, exceptions, signals, prefetch windows.
- ``stores``: SIGINT at every point of each operation of each store.
- ``sessions``: SIGINT at every point of a training step under each policy.
- ``signals``: SIGINT from another process at random moments of training.

After each, the same store and session and new ones give the right bits, and all counters are back:
live handles, bytes, locks, threads, files, grad mode, hooks. A process that hangs or crashes is a
failure as well. The table at the end counts all of it. Each failure is printed with the command
that reproduces it.

    python -m tests.stress --programs 20000 --seed 0
    python -m tests.stress --programs 0 --points 1 --signals 1000
    python -m tests.stress --only stores --case "disk; put" --number 17

The tests of this folder make a few attempts of each suite. OFFGRAD_STRESS=N makes them run N
programs, every 7th point and N/20 signals instead.
"""

import argparse
import random
import re
import sys
import time
from collections.abc import Sequence

from tests.stress import driver
from tests.stress.table import table
from tests.stress.works import points, programs, signals

SUITES = ("programs", "stores", "sessions", "signals")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites, print the table and return the exit status: 1 after a failure."""
    options = _parse(arguments)
    began = time.monotonic()

    shown = 0

    def show(report: driver.Report) -> None:
        nonlocal shown
        for failure in report.failures[shown:]:
            print(f"\n{failure}\n", flush=True)
        shown = len(report.failures)
        attempts = sum(report.attempts.values())
        print(
            f"{time.monotonic() - began:.0f} s: {attempts} attempts, {shown} failures", flush=True
        )

    works = _works(options)
    report = driver.run(works, options.jobs, options.batch, show)
    print(table(report))
    print(f"{time.monotonic() - began:.0f} s, seed {options.seed}")
    return 1 if report.failures else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress", description="Look for promises that do not hold."
    )
    parser.add_argument("--programs", type=int, default=2000, help="random programs in all")
    parser.add_argument(
        "--points", type=int, default=0, help="interrupt each N-th point; 0 for none, 1 for every"
    )
    parser.add_argument("--signals", type=int, default=0, help="signals at random moments, in all")
    parser.add_argument("--seed", type=int, default=0, help="of the random choices")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--batch", type=int, default=8, help="cases for each process")
    parser.add_argument(
        "--only", choices=[each for each in driver.SUITES if each != "failing"], help="one suite"
    )
    parser.add_argument("--case", help="one case of --only, or a pattern of cases")
    parser.add_argument("--number", type=int, help="one attempt of --case")
    return parser.parse_args(arguments)


def _works(options: argparse.Namespace) -> list[driver.Work]:
    if options.number is not None:
        return [driver.Work(options.only, options.case, options.number, options.number + 1)]
    choice = random.Random(options.seed)
    works = programs(options.programs, options.seed) if options.programs else []
    if options.points:
        works += points("stores", options.points, choice)
        works += points("sessions", options.points, choice)
    if options.signals:
        works += signals(options.signals, options.seed)
    if options.only:
        works = [each for each in works if each.suite == options.only]
    if options.case:
        works = [each for each in works if re.search(options.case, each.case)]
    choice.shuffle(works)
    return works


if __name__ == "__main__":
    sys.exit(main())
