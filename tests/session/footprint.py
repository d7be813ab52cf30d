"""The resources that a process holds, counted in many ways and compared with an earlier count."""

import gc
import os
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from offgrad import memory
from tests.session.helpers import open_stores, wait_until


class Footprint(NamedTuple):
    """The resources of an idle process.

    Attributes:
        handles: arrays alive in the stores.
        stored_nbytes, inflight_nbytes: bytes of those arrays, stored and with a pending write.
        tensor_nbytes: bytes of tensors.
        pool_nbytes: bytes of the tensors' pool that are in use.
        descriptors, files: of the process; files are those in the spill folder.
        threads: of the process, without the I/O threads of stores, which start when needed and live
            as long as their store.
        objects: objects that the garbage collector tracks.
        blocks: Python's memory blocks, including those of untracked objects.
    """

    handles: int
    stored_nbytes: int
    inflight_nbytes: int
    tensor_nbytes: int
    pool_nbytes: int
    descriptors: int
    threads: int
    files: int
    objects: int
    blocks: int

    def more_than(self, before: "Footprint", **slack: int) -> dict[str, int]:
        """Return by how much each figure has grown, where that is more than its slack."""
        growth = {name: getattr(self, name) - getattr(before, name) for name in Footprint._fields}
        return {name: grown for name, grown in growth.items() if grown > slack.get(name, 0)}


def footprint(folder: str, *stores: Any) -> Footprint:
    """Return the resources held after all writes, by the named stores in `folder` and by `stores`.

    If no array is alive, wait until the I/O threads have removed its files.
    """
    every = [*open_stores(folder), *stores]
    gc.collect()
    for store in every:
        wait_until(lambda store=store: not store.stats().inflight_nbytes, "writes are pending")  # type: ignore[misc]
    if not any(store.stats().live_handles for store in every):
        wait_until(lambda: not list(Path(folder).glob("*/*.zarr/0*")), "arrays are left")
    stats = [store.stats() for store in every]
    return Footprint(
        handles=sum(each.live_handles for each in stats),
        stored_nbytes=sum(each.stored_nbytes for each in stats),
        inflight_nbytes=sum(each.inflight_nbytes for each in stats),
        tensor_nbytes=memory.allocated(),
        pool_nbytes=memory.pool.in_use_nbytes,
        descriptors=len(os.listdir("/dev/fd")),
        threads=sum(" I/O " not in each.name for each in threading.enumerate()),
        files=sum(1 for _ in Path(folder).rglob("*")),
        objects=len(gc.get_objects()),
        blocks=sys.getallocatedblocks(),
    )
