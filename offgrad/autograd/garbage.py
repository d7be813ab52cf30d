"""The garbage collector beside a large graph.

A full collection walks all objects, and CPython begins one whenever a quarter more of them have
come. A graph that grows by some ten objects with each operation is walked again and again, though
nothing in it is garbage: at 50,000 operations that takes two thirds of the time of forward. So
while a graph grows large, full collections are due less often, until a backward pass has ended.
"""

import gc

NODES = 4096
"""After so many recorded operations without a backward pass, full collections become rarer."""

_RARE = 100  # collections of the second generation before a full one; ten by default


class _Collector:
    """The threshold of full collections.

    Attributes:
        usual: the program's, while it is raised; None otherwise.
        first_node: the sequence number of the first node after the last backward pass.
    """

    __slots__ = ("first_node", "usual")

    def __init__(self) -> None:
        self.usual: int | None = None
        self.first_node = 0

    def note_nodes(self, sequence_nr: int) -> None:
        """Raise the threshold if many nodes were recorded; called once for every `NODES`."""
        if sequence_nr - self.first_node < NODES or self.usual is not None:
            return
        first, second, usual = gc.get_threshold()
        if first and usual < _RARE:
            self.usual = usual
            gc.set_threshold(first, second, _RARE)

    def note_pass(self, sequence_nr: int) -> None:
        """A backward pass has ended: restore the threshold, unless the program has set one."""
        self.first_node = sequence_nr
        usual, self.usual = self.usual, None
        if usual is not None:
            first, second, now = gc.get_threshold()
            if now == _RARE:
                gc.set_threshold(first, second, usual)


collector = _Collector()
