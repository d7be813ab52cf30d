"""The events of a tape: tuples of a kind, a time, and what the kind needs."""

from threading import current_thread, get_ident, local
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from offgrad.autograd.op import Op

(
    ADD, DIE, LAND, SHAPE, ROLE, SAVE, RELEASE, USE, NAME, FLY, OP, ENTER, EXIT, NODE, PHASE, STEP,
    IO, TOTAL,
) = range(18)  # fmt: skip
"""The kinds of events, the first item of each; the second is the time."""

Event = tuple[Any, ...]
MAX_EVENTS = 20_000
"""More events than these are not left waiting, unless a thread is just handling them."""


class Thread(NamedTuple):
    """A thread of the program, or of a store."""

    ident: int
    name: str


class Running(local):
    """A thread, and what it is doing: the class of the running operation, or the node of a pass.

    Of the node there are name and origin: events must not keep what a node has saved.
    """

    op: "type[Op] | None" = None
    node: tuple[str, Any] | None = None

    def __init__(self) -> None:
        self.thread = Thread(get_ident(), current_thread().name)
