"""The largest batch of which a training step fits into a room: a search of few trials.

Each trial is a process that the operating system gives no more memory than that over what it had
with its libraries loaded (RLIMIT_DATA), so all frameworks are under the same limit. It trains for a
step of one sample, which makes the optimizer's state, and for one of the batch.
"""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.session_steps import Processes
from benchmarks.training_turns import WorkerError

_MOST = 1 << 14
"""It is taken for a batch that does not fit."""


class Largest(NamedTuple):
    """What was found: a batch that trains, 0 if none does, and a larger one that does not."""

    trains: int
    fails: int


def largest_batch(processes: Processes, variant: str, room: int) -> Largest:
    """Return the largest batch that trains in `room` bytes; beyond 16 to within a sixteenth."""

    def peak(batch: int) -> int | None:
        with processes.fresh(variant, room) as step:
            replies = [step(1)]
            try:
                replies.append(step(batch))
            except WorkerError:  # not every library survives a refusal
                return None
        if any("out_of_memory" in reply for reply in replies):
            return None
        return int(replies[-1]["peak_over_base_nbytes"])

    return search(peak, room)


def search(peak: Callable[[int], int | None], room: int) -> Largest:
    """Return the largest batch whose `peak` is not None; what it is otherwise helps to guess.

    Guesses are on the line through the last two peaks. That falls short near the limit, where
    caches shrink, so while nothing has failed steps grow.
    """
    fitting: list[tuple[int, int]] = []
    trains, fails, step = 0, _MOST, 1
    while fails - trains > (gap := max(1, trains // 16)):
        least = trains + max(gap, step)
        guess = max(_guess(fitting, room), least)
        if guess >= fails:
            guess = (trains + fails) // 2
        found = peak(guess)
        if found is None:
            fails = guess
        else:
            fitting.append((guess, found))
            trains, step = guess, 2 * step if guess == least else 1
    return Largest(trains, fails)


def _guess(fitting: list[tuple[int, int]], room: int) -> int:
    if len(fitting) < 2:
        return 4 if fitting else 1
    (batch_1, peak_1), (batch_2, peak_2) = fitting[-2:]
    if peak_2 <= peak_1:
        return 4 * batch_2
    more = (room - peak_2) * (batch_2 - batch_1) // (peak_2 - peak_1)
    return min(batch_2 + more, 8 * batch_2)
