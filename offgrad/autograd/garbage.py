"""The garbage collector beside a graph that grows.

An operation makes some ten objects or more that the collector walks, though nothing in a graph is
garbage: with the usual thresholds after every few operations. Objects that survive two collections
are old, and CPython begins a full collection, of everything that the program and its libraries have
made, whenever a quarter more objects have become old: for a model of a few hundred operations, at
every third step. So while a graph grows, collections are due less often, until a backward pass has
ended, and with it most of these objects. Cycles that a program makes meanwhile are collected then.
"""

import gc

NODES = 64
"""After so many recorded operations without a backward pass, collections become rarer."""

_MANY = 50_000  # objects more than at the last collection before one of new objects, by default 700
_RARE = 100  # collections of new objects before one of older ones, by default ten; and so on


class _Collector:
    """The thresholds of collections.

    Attributes:
        usual: all of the program's thresholds while these are raised; None otherwise.
        raised: the thresholds since then.
        first_node: the sequence number of the first node after the last backward pass.
    """

    __slots__ = ("first_node", "raised", "usual")

    def __init__(self) -> None:
        self.usual: tuple[int, int, int] | None = None
        self.raised = (0, 0, 0)
        self.first_node = 0

    def note_nodes(self, sequence_nr: int) -> None:
        """Raise the thresholds if many nodes were recorded; called once for every `NODES`."""
        if sequence_nr - self.first_node < NODES or self.usual is not None:
            return
        first, second, third = usual = gc.get_threshold()
        raised = max(first, _MANY), max(second, _RARE), max(third, _RARE)
        if first and raised != usual:
            self.usual, self.raised = usual, raised
            gc.set_threshold(*raised)

    def note_pass(self, sequence_nr: int) -> None:
        """A backward pass has ended: restore the thresholds, unless the program has set some."""
        self.first_node = sequence_nr
        usual, self.usual = self.usual, None
        if usual is not None and gc.get_threshold() == self.raised:
            gc.set_threshold(*usual)


collector = _Collector()
