"""The largest batch that trains within a memory limit, found in few trials.

Each trial is a process. The operating system limits its memory (RLIMIT_DATA) to the given bytes
above the memory in use once its libraries are loaded, so all frameworks have the same limit. It
trains one step with one sample, which allocates the optimizer's state, and one with the batch.
"""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks._lib.json_worker import WorkerError
from benchmarks._lib.session_steps import Processes

_MAX_BATCH = 1 << 20
"""Upper end of the search, assumed not to fit."""


class Largest(NamedTuple):
    """The largest batch known to train (0 if none does), and a larger one that does not fit."""

    trains: int
    fails: int


def largest_batch(processes: Processes, variant: str, max_nbytes: int) -> Largest:
    """Return the largest batch that trains in `max_nbytes`; beyond 10 to within a tenth."""

    def peaks(batch: int) -> tuple[int, int] | None:
        with processes.new_process(variant, max_nbytes) as step:
            replies = [step(1)]
            try:
                replies.append(step(batch))
            except WorkerError:  # not every library survives a failed allocation
                return None
        if any("out_of_memory" in reply for reply in replies):
            return None
        one, whole = (int(reply["peak_over_base_nbytes"]) for reply in replies)
        return one, whole

    return search(peaks, max_nbytes)


def search(peaks: Callable[[int], tuple[int, int] | None], max_nbytes: int) -> Largest:
    """Return the largest batch that fits.

    The first guesses lie on the line through two memory peaks. They are mostly too low, because
    caches shrink near the limit. The steps from there are large, because failing trials end early
    and are cheap. Between a batch that trains and one that fails the search is a bisection.

    Args:
        peaks: returns the memory peaks of one sample and of the given batch, None if the batch
            does not fit.
        max_nbytes: upper bound of the peaks.
    """
    fitting: list[tuple[int, int]] = []
    trains, fails = 0, _MAX_BATCH
    while fails - trains > max(1, trains // 10):
        if fails == _MAX_BATCH:
            guess = max(_guess(fitting, max_nbytes), trains + max(1, trains // 2))
        else:
            guess = (trains + fails) // 2
        found = peaks(guess)
        if found is None:
            fails = guess
        else:
            fitting = [fitting[-1] if fitting else (1, found[0]), (guess, found[1])]
            trains = guess
    return Largest(trains, fails)


def _guess(fitting: list[tuple[int, int]], max_nbytes: int) -> int:
    if not fitting:
        return 4
    (batch_1, peak_1), (batch_2, peak_2) = fitting
    if peak_2 <= peak_1:
        return 4 * batch_2
    more = (max_nbytes - peak_2) * (batch_2 - batch_1) // (peak_2 - peak_1)
    return min(batch_2 + more, 8 * batch_2)
