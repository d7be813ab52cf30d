"""ZarrStore: arrays in a folder that any reader of Zarr 3 opens, at the speed of the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offgrad_storage._checks import check_count
from offgrad_storage.backend_store import BackendStore
from offgrad_storage.base import Allocate
from offgrad_storage.errors import as_store_error
from offgrad_storage.files.spill_directory import PathLike, local_folder, spill_directory
from offgrad_storage.zarr.codec import ZarrCodec
from offgrad_storage.zarr.objects import ObjectBackend, is_url_or_zarr_store
from offgrad_storage.zarr.shards import ShardBackend


class ZarrStore(BackendStore):
    """Keeps arrays in a Zarr 3 group: one Zarr array for each dtype and shape.

    Each put fills a slot along the first axis of such a Zarr array. The attributes of ``put`` are
    lists in its attribute ``slots``, with an item for each slot. Dtypes unknown to Zarr 3
    (bfloat16, structured, text, ...) are stored as unsigned integers, with the dtype in the
    attribute ``offgrad_dtype``. The store writes the data itself, bypassing zarr and the page
    cache; zarr writes the metadata, at ``publish``, and at ``close`` if the folder is kept. If the
    process is killed before, a kept folder has no metadata; another one is removed by ``sweep``.

    A file is open for each dtype and shape in use: if shapes vary a lot, prefer a DiskStore, or
    raise the limit on open files.

    If ``directory`` is not a local folder, zarr also writes the data, one array at a time: slower.
    A root group that the store made is removed with the store's group, if otherwise empty.

    Args:
        directory: parent of the folder, also as a ``file://`` URL; None for ``spill_directory()``.
            Or another URL, or a zarr store: the group is made in it.
        codec: "auto" packs the bits of masks and stores other arrays as they are. Lossless for all
            arrays: "none", "zstd", or "blosc-NAME" with NAME one of lz4, lz4hc, zstd, zlib,
            blosclz, and optionally "-shuffle" (the default), "-bitshuffle" or "-noshuffle". Lossy,
            and as "auto" for all other arrays: "bfloat16" rounds float32, |error| <= |x| / 2**8;
            other programs still read float32. "int8" and "int4" round float16, float32 and float64
            at random to integers with a scale for each 128 numbers, |error| <= m / 127 * (1 +
            2**-12) or m / 7 * (1 + 2**-12), with m the largest |x| of the 128, plus m / 2**11 +
            2**-25 if float16; other programs read the integers, and the scales in a second array:
            see ``dequantize``.
        seed: of "int8" and "int4": bits depend on the array and the seed alone.
        keep: whether the folder stays, also with arrays of dead handles; else it is removed with
            the store.
        quota: bound of the stored bytes; None for none. Pending arrays count as not encoded.
        inflight_nbytes: bound of the bytes of arrays with a pending write; ``put`` waits when it is
            reached.
        threads: bound of the I/O threads; at least 1.
        direct: bypass the page cache, by O_DIRECT where the file system supports it; False to use
            the cache, and drop written pages from it.
        allocate: allocates arrays that are read back; None for a separate BufferPool.
        hold: allocates the memory of packs, and copies of arrays whose write failed; None for a
            separate BufferPool.
        max_pack_nbytes: bound of the bytes of a pack; 0 for no packs.
        timeout_seconds: ``close`` gives up after so many seconds in which no read or write has
            ended.

    Attributes:
        path: the folder of the group, for ``zarr.open_group``; without a local folder, the zarr
            group itself.

    Raises:
        StoreError: the folder or group cannot be made; nothing is left of it.
        ValueError: an argument below its minimum, a codec that is unknown or needs a local folder,
            a URL of a folder on another host, or a zarr store that cannot delete, without ``keep``.
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
        hold: Allocate | None = None,
        max_pack_nbytes: int = 4 << 20,
        timeout_seconds: float = 60.0,
    ) -> None:
        check_count("threads", threads, minimum=1)
        check_count("inflight_nbytes", inflight_nbytes)  # before making a folder
        check_count("seed", seed)
        encoder = ZarrCodec(codec)
        if isinstance(directory, str):
            directory = local_folder(directory)
        in_zarr_store = is_url_or_zarr_store(directory)
        try:
            if in_zarr_store:
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
            codec="none" if in_zarr_store else encoder,
            seed=seed,
            allocate=allocate,
            hold=hold,
            max_pack_nbytes=max_pack_nbytes,
            timeout_seconds=timeout_seconds,
        )

    def publish(self) -> None:
        """Write pending arrays and the metadata: other programs may read them until the next put.

        Raises:
            StoreError: the metadata cannot be written.
        """
        self._executor.publish()
