"""What a checkpoint knows of what its function saved, to see whether it does so again."""

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from offgrad.autograd import anomaly, saved_tensor
from offgrad.autograd.saved_tensor import Save

# Rows are copied, where they have to be, in pieces of about this size.
_PIECE_NBYTES = 1 << 20


class CheckpointError(RuntimeError):
    """A checkpointed function did something else in backward than in forward."""


class Fact(NamedTuple):
    """One save.

    Attributes:
        op: the node that saved.
        slot: what the tensor is to it.
        shape: of the tensor.
        dtype: of the tensor.
        module: the name of the module that was running, as far as it is known.
        digest: of the content; None if nobody wants to know.
        line: of the user's code; known in debug mode only.
    """

    op: str
    slot: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    module: str
    digest: int | None
    line: str

    def __str__(self) -> str:
        where = f" in {self.module}" if self.module else ""
        line = f" at {self.line}" if self.line else ""
        return f"{self.op}.{self.slot}, a {self.dtype.name} {list(self.shape)}{where}{line}"


class Facts:
    """All that one run of a function saved, in order.

    Attributes:
        known: a fact for each save.
    """

    def __init__(self, debug: bool) -> None:
        self.known: list[Fact] = []
        self._debug = debug
        self._digests: dict[Hashable, int] = {}

    def note(self, save: Save, content: bool) -> Fact:
        """Add the fact about one save, with a digest if `content`."""
        array = save.tensor._array
        fact = Fact(
            save.op,
            save.slot,
            array.shape,
            array.dtype,
            saved_tensor.current_module(),
            self._digest(save) if content else None,
            anomaly.caller() if self._debug else "",
        )
        self.known.append(fact)
        return fact

    def forget_digests(self) -> None:
        """The run is over: no tensor of it will be saved again."""
        self._digests.clear()

    def _digest(self, save: Save) -> int:
        """Return the digest, from before if the tensor was saved before."""
        array, storage = save.tensor._array, save.tensor._storage
        address = array.__array_interface__["data"][0]
        key = (storage.uid, storage.version, address, array.dtype, array.shape, array.strides)
        if key not in self._digests:
            self._digests[key] = digest(array)
        return self._digests[key]

    def __str__(self) -> str:
        return "\n".join(f"  {number}: {fact}" for number, fact in enumerate(self.known))


def digest(array: NDArray[Any]) -> int:
    """Return XXH3-64 of the elements in logical order, wherever they lie in memory."""
    whole = xxhash.xxh3_64()
    if array.flags.c_contiguous:
        pieces = [array]
    else:
        rows = max(1, _PIECE_NBYTES * len(array) // max(1, array.nbytes))
        pieces = [array[begin : begin + rows] for begin in range(0, len(array), rows)]
    for piece in pieces:
        if piece.size:
            whole.update(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
    return whole.intdigest()


def difference(number: int, forward: Facts, again: Facts) -> str:
    """Return what differs between the saves of this number in two runs; nothing if all is equal.

    Contents are compared where both runs have a digest.
    """
    before, now = forward.known[number], again.known[number]
    if (before.op, before.slot) != (now.op, now.slot):
        what = "operation"
    elif before.shape != now.shape:
        what = "shape"
    elif before.dtype != now.dtype:
        what = "dtype"
    elif None not in (before.digest, now.digest) and before.digest != now.digest:
        what = "content"
    else:
        return ""
    return f"the {what} of tensor {number} it saved differs: {now}, was {before} in forward"
