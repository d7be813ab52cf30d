"""The random numbers a thread draws: noted as they are drawn, and drawn again.

A draw is a seed, an offset and a count, so noting one costs next to nothing, and repeating it
touches no generator: other threads may draw from the same ones meanwhile.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple


class Draw(NamedTuple):
    """Numbers taken from a generator.

    Attributes:
        seed: of the generator.
        offset: of the first number.
        size: how many.
    """

    seed: int
    offset: int
    size: int


class _Repetition:
    def __init__(self, draws: Sequence[Draw], differs: Callable[[str], Exception]) -> None:
        self._draws = draws
        self._differs = differs
        self._next = 0

    def take(self, size: int) -> Draw:
        """Return the next draw."""
        index, self._next = self._next, self._next + 1
        if index >= len(self._draws):
            raise self._differs(
                f"it drew {size} random numbers more, after the {len(self._draws)} draws of forward"
            )
        draw = self._draws[index]
        if draw.size != size:
            raise self._differs(
                f"it drew {size} random numbers where it had drawn {draw.size}, in draw {index} of "
                f"{len(self._draws)}"
            )
        return draw


class _State(threading.local):
    notes: tuple[list[Draw], ...] = ()
    repetition: _Repetition | None = None


_state = _State()


def is_repeating() -> bool:
    """Return whether this thread draws what it drew before: then generators stay as they are."""
    return _state.repetition is not None


def take(size: int, fresh: Callable[[], Draw]) -> Draw:
    """Return the draw to be repeated, or a `fresh` one, and note it."""
    repetition = _state.repetition
    draw = fresh() if repetition is None else repetition.take(size)
    for notes in _state.notes:
        notes.append(draw)
    return draw


@contextmanager
def noted() -> Iterator[list[Draw]]:
    """Note what this thread draws in the block, from whichever generators."""
    notes: list[Draw] = []
    before, _state.notes = _state.notes, (*_state.notes, notes)
    try:
        yield notes
    finally:
        _state.notes = before


@contextmanager
def repeated(draws: Sequence[Draw], differs: Callable[[str], Exception]) -> Iterator[None]:
    """Have this thread draw in the block what `draws` says, in this order.

    Seeding a generator there has no effect, and no block around notes anything.

    Raises:
        Exception: what `differs` makes of a message, if other sizes, or more, are asked for.
    """
    before = _state.notes, _state.repetition
    _state.notes, _state.repetition = (), _Repetition(draws, differs)
    try:
        yield
    finally:
        _state.notes, _state.repetition = before
