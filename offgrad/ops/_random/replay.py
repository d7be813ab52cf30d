"""The random numbers that a thread draws, recorded and replayed.

A draw is a seed, an offset and a count, so recording costs next to nothing. Replaying reads no
generator: other threads may draw from the same ones meanwhile.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple


class Draw(NamedTuple):
    """Numbers taken from a generator.

    Attributes:
        seed: the generator's seed.
        offset: the position of the first number.
        size: the number of numbers.
    """

    seed: int
    offset: int
    size: int


class _Replay:
    def __init__(self, draws: Sequence[Draw], make_error: Callable[[str], Exception]) -> None:
        self._draws = draws
        self._make_error = make_error
        self._next = 0

    def take(self, size: int) -> Draw:
        """Return the next draw, which must have this size."""
        index, self._next = self._next, self._next + 1
        if index >= len(self._draws):
            raise self._make_error(
                f"it drew {size} random numbers more, after the {len(self._draws)} draws of forward"
            )
        draw = self._draws[index]
        if draw.size != size:
            raise self._make_error(
                f"it drew {size} random numbers where it had drawn {draw.size}, in draw {index} of "
                f"{len(self._draws)}"
            )
        return draw


class _State(threading.local):
    recordings: tuple[list[Draw], ...] = ()
    replay: _Replay | None = None


_state = _State()


def is_replaying() -> bool:
    """Return whether this thread replays draws: generators keep their state then."""
    return _state.replay is not None


def take(size: int, draw_new: Callable[[], Draw]) -> Draw:
    """Return the replayed draw, or a new one, and record it."""
    replay = _state.replay
    draw = draw_new() if replay is None else replay.take(size)
    for recording in _state.recordings:
        recording.append(draw)
    return draw


@contextmanager
def recording() -> Iterator[list[Draw]]:
    """Record this thread's draws in the block, from any generator."""
    draws: list[Draw] = []
    outer, _state.recordings = _state.recordings, (*_state.recordings, draws)
    try:
        yield draws
    finally:
        _state.recordings = outer


@contextmanager
def replaying(draws: Sequence[Draw], make_error: Callable[[str], Exception]) -> Iterator[None]:
    """Give this thread's draws in the block the results of `draws`, in this order.

    Seeding a generator has no effect in the block, and enclosing `recording` blocks record nothing.

    Raises:
        Exception: ``make_error(message)``, if a draw has another size or there are more draws.
    """
    outer = _state.recordings, _state.replay
    _state.recordings, _state.replay = (), _Replay(draws, make_error)
    try:
        yield
    finally:
        _state.recordings, _state.replay = outer
