"""The events of a tape: tuples of a kind, a time, and what the kind needs."""

from threading import current_thread, get_ident, local
from typing import TYPE_CHECKING, Any, NamedTuple

from offgrad.nn.hooks.call_stack import Call

if TYPE_CHECKING:
    from offgrad.autograd.op import Op

(
    ADD, DIE, LAND, SHAPE, ROLE, SAVE, USE, NAME, FLY, OP, ENTER, EXIT, NODE, PHASE, STEP, IO,
    TOTAL, MARK,
) = range(18)  # fmt: skip
"""The kinds of events, the first item of each; the second is the time."""

Event = tuple[Any, ...]
MAX_EVENTS = 20_000
"""More events than these are not left waiting, unless a thread is just handling them."""


class Thread(NamedTuple):
    """A thread of the program, or of a store."""

    ident: int
    name: str


class Place(NamedTuple):
    """A call of a module. Events hold it instead of the module, which may die.

    Attributes:
        name: the qualified name.
        type_name: the name of the class.
        caller: the call around it; None for the outermost.
    """

    name: str
    type_name: str
    caller: "Place | None"


def place_of(call: Call | None) -> Place | None:
    """Return the place of a call; the same one each time."""
    if call is None or call.noted is not None:
        return None if call is None else call.noted
    place = Place(call.name(None), type(call.module).__name__, place_of(call.caller))
    call.noted = place
    return place


class Running:
    """What a thread is doing.

    Attributes:
        thread: itself.
        op: the class of the running operation.
        found: what `find_site` has found for it; None if nobody has asked.
        node: name and origin of the running node of a pass: events must not keep what it has saved.
    """

    __slots__ = ("found", "node", "op", "thread")

    def __init__(self) -> None:
        self.thread = Thread(get_ident(), current_thread().name)
        self.op: type[Op] | None = None
        self.found: Any = None
        self.node: tuple[str, Any] | None = None


class Threads(local):
    """What each thread is doing."""

    def __init__(self) -> None:
        self.running = Running()
