"""ZarrStore: arrays in a folder that any reader of Zarr 3 opens, at the disk's speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offgrad_storage.backend_store import BackendStore
from offgrad_storage.base import Allocate
from offgrad_storage.checks import check_count
from offgrad_storage.errors import as_store_error
from offgrad_storage.files.spill_directory import PathLike, local_folder, spill_directory
from offgrad_storage.zarr.codec import ZarrCodec
from offgrad_storage.zarr.objects import ObjectBackend, is_remote
from offgrad_storage.zarr.shards import ShardBackend


class ZarrStore(BackendStore):
    """Keeps arrays in the arrays of a Zarr 3 group: one for each kind of array, that is, dtype and
    shape.

    Each array put is a slot along the first axis of the Zarr array of its kind. The attributes
    given to ``put`` are lists in the attribute ``slots``, with an item for each slot. What Zarr 3
    has no dtype for (bfloat16, structured, text, ...) is stored as unsigned integers, with the
    dtype in the attribute ``offgrad_dtype``. Writing goes past zarr and the page cache; zarr writes
    the metadata, at ``publish``, and at ``close`` if the folder is kept: of a process that was
    killed before, a kept folder stays that no reader understands, and one not kept is swept.

    There is an open file for each dtype and shape that is in use: where shapes vary a lot, prefer a
    DiskStore, or raise the limit on open files.

    Where ``directory`` is no local folder, zarr does it all, one array at a time: slower. The root
    group goes with the store's own if the store made it, unless there is something else in it.

    Args:
        directory: where the folder is made, also as a ``file://`` URL; None for
            ``spill_directory()``. Or another URL, or a store of zarr's: the group is made in it.
        codec: "auto" packs the bits of masks and leaves the rest as it is. Lossless for all arrays:
            "none", "zstd", or "blosc-NAME" with NAME one of lz4, lz4hc, zstd, zlib, blosclz, and
            optionally "-shuffle" (the default), "-bitshuffle" or "-noshuffle". Lossy, and as "auto"
            for all other arrays: "bfloat16" rounds float32 to that, |error| <= |x| / 2**8; others
            read float32 all the same. "int8" and "int4" round float16, float32 and float64 at
            random to integers with a scale for each 128 numbers, |error| <= m / 127 * (1 + 2**-12)
            or m / 7 * (1 + 2**-12), with m the largest |x| of the 128, plus m / 2**11 + 2**-25 if
            float16; others read the integers, and the scales beside them: see ``dequantize``.
        seed: of "int8" and "int4": the same array and seed give the same bits.
        keep: leave the folder, with the arrays of dead handles too; else it goes with the store.
        quota: most stored bytes; None for no bound. A pending array counts as not encoded.
        inflight_nbytes: most bytes of arrays whose write is pending; ``put`` waits when spent.
        threads: most I/O threads; at least 1.
        direct: go past the page cache, by O_DIRECT where the file system takes it; False to go
            through it, as other programs do, and have it dropped behind.
        allocate: where arrays that are read back come from; None for a BufferPool of its own.

    Attributes:
        path: the folder of the group, for ``zarr.open_group``; or the zarr group itself, elsewhere.

    Raises:
        StoreError: the folder or group cannot be made; nothing is left of it.
        ValueError: an argument below its least, a codec that does not exist or needs a local
            folder, a URL of a folder on another host, or a store that cannot delete, without
            ``keep``.
    """

    path: Any

    def __init__(
        self,
        directory: PathLike | Any | None = None,
        *,
        codec: str = "auto",
        seed: int = 0,
        keep: bool = False,
        quota: int | None = None,
        inflight_nbytes: int = 128 << 20,
        threads: int = 3,
        direct: bool = True,
        allocate: Allocate | None = None,
    ) -> None:
        check_count("threads", threads, minimum=1)
        check_count("inflight_nbytes", inflight_nbytes)  # said before there is a folder
        check_count("seed", seed)
        encoder = ZarrCodec(codec)
        if isinstance(directory, str):
            directory = local_folder(directory)
        elsewhere = is_remote(directory)
        try:
            if elsewhere:
                backend: ObjectBackend | ShardBackend = ObjectBackend(
                    directory, encoder, keep, quota
                )
            else:
                folder: Path = spill_directory(directory)
                backend = ShardBackend(folder, encoder, keep, quota, direct)
        except OSError as error:
            failure = as_store_error(error, "making the folder", store="ZarrStore", opening=True)
            raise failure from error
        self.path = backend.path
        super().__init__(
            backend,
            threads=threads,
            inflight_nbytes=inflight_nbytes,
            codec="none" if elsewhere else encoder,
            seed=seed,
            allocate=allocate,
        )

    def publish(self) -> None:
        """Write what is pending and the metadata: others may read what is stored until more is put.

        Raises:
            StoreError: the metadata cannot be written.
        """
        self._executor.publish()
