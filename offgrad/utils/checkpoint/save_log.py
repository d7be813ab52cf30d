"""The log of a function's saves, by which checkpoints compare runs of the function."""

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from offgrad.autograd import anomaly, saved_tensor
from offgrad.autograd.saved_tensor import Save

# Non-contiguous arrays are copied for hashing in chunks of about this size.
_CHUNK_NBYTES = 1 << 20


class CheckpointError(RuntimeError):
    """A checkpointed function saved other tensors in backward than in forward."""


class SaveRecord(NamedTuple):
    """One saved tensor.

    Attributes:
        op: name of the node that saved it.
        slot: name under which the node saved it.
        shape: of the tensor.
        dtype: of the tensor.
        module: qualified name of the running module; ``""`` if module calls are not tracked.
        digest: of the content; None if contents are not compared.
        line: of the user's code; ``""`` unless in debug mode.
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


class SaveLog:
    """All saves of one run of a function, in order.

    Attributes:
        records: one for each save.
    """

    def __init__(self, debug: bool) -> None:
        self.records: list[SaveRecord] = []
        self._debug = debug
        self._digests: dict[Hashable, int] = {}

    def add(self, save: Save, with_digest: bool) -> SaveRecord:
        """Add the record of one save."""
        array = save.tensor._array
        record = SaveRecord(
            save.op,
            save.slot,
            array.shape,
            array.dtype,
            saved_tensor.current_module(),
            self._digest(save) if with_digest else None,
            anomaly.caller() if self._debug else "",
        )
        self.records.append(record)
        return record

    def forget_digests(self) -> None:
        """Drop the cache of digests at the end of the run."""
        self._digests.clear()

    def _digest(self, save: Save) -> int:
        """Return the digest, from the cache if the same tensor was saved before."""
        array, storage = save.tensor._array, save.tensor._storage
        address = array.__array_interface__["data"][0]
        key = (storage.uid, storage.version, address, array.dtype, array.shape, array.strides)
        if key not in self._digests:
            self._digests[key] = digest(array)
        return self._digests[key]

    def __str__(self) -> str:
        return "\n".join(f"  {number}: {record}" for number, record in enumerate(self.records))


def digest(array: NDArray[Any]) -> int:
    """Return XXH3-64 of the elements in logical order, for any memory layout."""
    hasher = xxhash.xxh3_64()
    if array.flags.c_contiguous:
        chunks = [array]
    else:
        rows = max(1, _CHUNK_NBYTES * len(array) // max(1, array.nbytes))
        chunks = [array[begin : begin + rows] for begin in range(0, len(array), rows)]
    for chunk in chunks:
        if chunk.size:
            hasher.update(np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data)
    return hasher.intdigest()


def difference(number: int, forward: SaveLog, recomputed: SaveLog) -> str:
    """Describe how save `number` differs between two runs; ``""`` if it does not.

    Contents are compared if both runs have a digest.
    """
    before, now = forward.records[number], recomputed.records[number]
    if (before.op, before.slot) != (now.op, now.slot):
        aspect = "operation"
    elif before.shape != now.shape:
        aspect = "shape"
    elif before.dtype != now.dtype:
        aspect = "dtype"
    elif None not in (before.digest, now.digest) and before.digest != now.digest:
        aspect = "content"
    else:
        return ""
    return f"the {aspect} of tensor {number} it saved differs: {now}, was {before} in forward"
