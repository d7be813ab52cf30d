"""The steps of a program that knows nothing of them."""

from collections.abc import Callable
from typing import Any
from weakref import ref


class StepEnds:
    """Tells which calls of ``step()`` of optimizers end a step of a program.

    They are those of the optimizer that was the first to make one, so that a step of two models
    that train in turn is a step of both. An optimizer that makes two calls in a row takes its
    place: the other one may belong to a part of the program that is over.
    """

    def __init__(self) -> None:
        self._counted: Callable[[], Any] = _nothing
        self._last_other: Callable[[], Any] = _nothing

    def ends(self, optimizer: object) -> bool:
        """Return whether a call of ``optimizer.step()``, which has just been made, ends a step."""
        counted = self._counted()
        if counted is None or counted is optimizer or self._last_other() is optimizer:
            self._counted, self._last_other = ref(optimizer), _nothing
            return True
        self._last_other = ref(optimizer)
        return False


def _nothing() -> None:
    return None
