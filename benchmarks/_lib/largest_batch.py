"""The largest batch of which a training step fits into a room: a search of few trials.

Each trial is a process that the operating system gives no more memory than that over what it had
with its libraries loaded (RLIMIT_DATA), so all frameworks are under the same limit. It trains for a
step of one sample, which makes the optimizer's state, and for one of the batch.
"""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks._lib.session_steps import Processes
from benchmarks._lib.training_turns import WorkerError

_MOST = 1 << 20
"""It is taken for a batch that does not fit."""


class Largest(NamedTuple):
    """What was found: a batch that trains, 0 if none does, and a larger one that does not."""

    trains: int
    fails: int


def largest_batch(processes: Processes, variant: str, room: int) -> Largest:
    """Return the largest batch that trains in `room` bytes; beyond 10 to within a tenth."""

    def peaks(batch: int) -> tuple[int, int] | None:
        with processes.fresh(variant, room) as step:
            replies = [step(1)]
            try:
                replies.append(step(batch))
            except WorkerError:  # not every library survives a refusal
                return None
        if any("out_of_memory" in reply for reply in replies):
            return None
        one, all_ = (int(reply["peak_over_base_nbytes"]) for reply in replies)
        return one, all_

    return search(peaks, room)


def search(peaks: Callable[[int], tuple[int, int] | None], room: int) -> Largest:
    """Return the largest batch that fits.

    First comes a guess on the line through two peaks of memory. It mostly falls short, for caches
    shrink near the limit; from there on steps are large, as trials that fail are cheap: they end
    early. Between one that trains and one that fails it goes by halves.

    Args:
        peaks: of one sample and of so many, None if these do not fit.
        room: what the peaks have to stay below.
    """
    fitting: list[tuple[int, int]] = []
    trains, fails = 0, _MOST
    while fails - trains > max(1, trains // 10):
        if fails == _MOST:
            guess = max(_guess(fitting, room), trains + max(1, trains // 2))
        else:
            guess = (trains + fails) // 2
        found = peaks(guess)
        if found is None:
            fails = guess
        else:
            fitting = [fitting[-1] if fitting else (1, found[0]), (guess, found[1])]
            trains = guess
    return Largest(trains, fails)


def _guess(fitting: list[tuple[int, int]], room: int) -> int:
    if not fitting:
        return 4
    (batch_1, peak_1), (batch_2, peak_2) = fitting
    if peak_2 <= peak_1:
        return 4 * batch_2
    more = (room - peak_2) * (batch_2 - batch_1) // (peak_2 - peak_1)
    return min(batch_2 + more, 8 * batch_2)
