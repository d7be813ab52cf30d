"""The garbage collector beside a graph that grows.

An operation makes some ten objects or more that the collector walks, though nothing in a graph is
garbage: with the usual thresholds after every few operations. Objects that survive two collections
are old, and CPython begins a full collection, of everything that the program and its libraries have
made, whenever a quarter more objects have become old: for a model of a few hundred operations, at
every third step. So while a graph grows, collections are due less often, until a backward pass has
ended, and with it most of these objects. Cycles that a program makes meanwhile are collected then.

A program may record operations and never run backward. So in a graph that has become large, or
after many small ones without a pass, only full collections are due less often.
"""

import gc

NODES = 64
"""After so many recorded operations without a backward pass, collections become rarer."""

LARGE = 64 * NODES
"""After so many, full collections alone."""

_MANY = 50_000  # objects more than at the last collection before one of new objects, by default 700
_RARE = 100  # collections of new objects before one of older ones, by default ten; and so on

Thresholds = tuple[int, int, int]


class _Collector:
    """The thresholds of collections.

    Attributes:
        usual: the program's thresholds while others are set; None otherwise.
        raised: the thresholds since then.
        is_large: whether they are those of a large graph.
        first_node: the sequence number of the first node after the last backward pass.
    """

    __slots__ = ("first_node", "is_large", "raised", "usual")

    def __init__(self) -> None:
        self.usual: Thresholds | None = None
        self.raised: Thresholds = (0, 0, 0)
        self.is_large = False
        self.first_node = 0

    def note_nodes(self, sequence_nr: int) -> None:
        """Raise the thresholds if many nodes were recorded; called once for every `NODES`."""
        grown, now = sequence_nr - self.first_node, gc.get_threshold()
        usual, is_large = self.usual, grown >= LARGE
        if usual is None:
            usual = now
        elif now != self.raised or self.is_large or not is_large:
            return
        first, second, third = usual
        if grown < NODES or not first:
            return
        raised = first, second, max(third, _RARE)
        if not is_large:
            raised = max(first, _MANY), max(second, _RARE), raised[2]
        if raised != now:
            self.usual, self.raised, self.is_large = usual, raised, is_large
            gc.set_threshold(*raised)

    def note_pass(self, sequence_nr: int) -> None:
        """A backward pass has ended: restore the thresholds, unless the program has set some."""
        self.first_node = sequence_nr
        usual, self.usual = self.usual, None
        self.is_large = False
        if usual is not None and gc.get_threshold() == self.raised:
            gc.set_threshold(*usual)


collector = _Collector()
