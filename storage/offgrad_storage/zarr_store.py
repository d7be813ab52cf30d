"""ZarrStore: compressed arrays in a folder that any reader of Zarr 3 opens."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backend import Backend
from .base import Allocate
from .buffers import BufferPool
from .directory import PathLike, SpillFolder, spill_directory
from .entry import Entry, bytes_of, checksum, verify
from .errors import CorruptionError, MissingDataError, as_store_error
from .store import BackendStore

_CHUNK_LIMIT = 64 << 20
_OVERHEAD = 4096  # of the metadata and of a codec that finds nothing to save

Array = NDArray[Any]


class ZarrStore(BackendStore):
    """Keeps each array as a Zarr 3 array, named by its number, in one group.

    Attributes given to ``put`` become attributes of the array. What Zarr 3 has no dtype for
    (bfloat16, big-endian, structured, ...) is stored as unsigned integers, with the dtype in the
    attribute ``offgrad_dtype``.

    Args:
        directory: where the folder is made; None for ``spill_directory()``.
        codec: "none", "zstd", or "blosc-NAME" with NAME one of lz4, lz4hc, zstd, zlib, blosclz, and
            optionally "-shuffle" (the default), "-bitshuffle" or "-noshuffle".
        keep: leave the folder, with the arrays of dead handles too; else it goes with the store.
        quota: most stored bytes; None for no bound. A pending array counts as uncompressed.
        inflight_nbytes: most bytes of arrays whose write is pending; ``put`` waits when spent.
        threads: most I/O threads.
        allocate: where arrays that are read back come from; None for a BufferPool of its own.

    Attributes:
        path: the folder of the group, for ``zarr.open_group``.
    """

    def __init__(
        self,
        directory: PathLike | None = None,
        *,
        codec: str = "blosc-lz4",
        keep: bool = False,
        quota: int | None = None,
        inflight_nbytes: int = 64 << 20,
        threads: int = 2,
        allocate: Allocate | None = None,
    ) -> None:
        if threads < 1:
            raise ValueError(f"a ZarrStore needs at least one I/O thread, got threads={threads}")
        try:
            backend = _ZarrBackend(spill_directory(directory), codec, keep, quota)
        except OSError as error:
            raise as_store_error(error, "making the folder", store="ZarrStore") from error
        self.path: Path = backend.path
        super().__init__(
            backend, threads=threads, inflight_nbytes=inflight_nbytes, allocate=allocate
        )


class _ZarrBackend(Backend):
    """The place of an entry is the name of its array; it has none until its write begins.

    zarr's own threads let go of an array a little after they are done with it. So that this delays
    nobody's memory, they only ever see buffers of this backend.
    """

    def __init__(self, directory: Path, codec: str, keep: bool, quota: int | None) -> None:
        # A codec's first use imports it in a thread; a process forked just then would inherit the
        # import lock, and wait for it for ever.
        import multiprocessing.synchronize  # noqa: F401

        import zarr  # takes half a second, so only who wants it pays

        super().__init__(f"ZarrStore in {directory}", quota)
        self._buffers = BufferPool()
        self._compressor = _compressor(codec)
        self.keeps = keep
        self._folder = None if keep else SpillFolder(directory)
        if self._folder is None:
            self.path = _new_folder(directory)
        else:
            self.path = self._folder.path / "arrays.zarr"
            self.path.mkdir(mode=0o700)
        try:
            self._group = zarr.open_group(self.path, mode="a", zarr_format=3)
        except BaseException:
            self.close()
            raise

    def reserve(self, entry: Entry) -> int:
        nbytes = entry.nbytes + _OVERHEAD
        if self.quota is not None and self.used_nbytes + nbytes > self.quota:
            raise self.over_quota(entry, nbytes)
        return nbytes

    def write(self, entry: Entry, array: Array) -> int:
        copied = self._buffers.empty(array.shape, array.dtype)
        np.copyto(copied, array)
        entry.checksum = checksum(copied)
        raw = _storable(copied)
        attributes = _json(entry.attributes) | {"offgrad_xxh3_64": f"{entry.checksum:016x}"}
        if raw.dtype != array.dtype:
            attributes["offgrad_dtype"] = str(array.dtype)
        entry.place = name = f"{entry.serial:08d}"
        stored = self._group.create_array(
            name,
            shape=raw.shape,
            dtype=raw.dtype,
            chunks=_chunks(raw.shape, raw.itemsize),
            compressors=self._compressor,
            attributes=attributes,
            # By default every chunk is compared with the fill value: slower than writing it.
            config={"write_empty_chunks": True},
        )
        if raw.size:
            stored[...] = raw
        return sum(path.stat().st_size for path in self._files(name))

    def read(self, entry: Entry, out: Array) -> None:
        from zarr.core.buffer.cpu import NDBuffer

        if not out.size:
            return
        if not (self.path / entry.place / "zarr.json").exists():
            raise self._missing(entry)
        read = self._buffers.empty(out.shape, out.dtype)
        raw = _storable(read)
        try:
            stored = self._group[entry.place]
            stored.get_basic_selection(Ellipsis, out=NDBuffer.from_numpy_array(raw))
        except (OSError, MemoryError):
            raise
        except Exception as error:
            raise CorruptionError(
                f"the chunks cannot be decoded ({type(error).__name__}: {error})",
                store=self.name,
                handle=str(entry),
                fix="Something else wrote to the folder, or the drive is faulty",
            ) from error
        try:
            verify(checksum(read), entry, self.name)
        except CorruptionError:
            chunks = _chunks(raw.shape, raw.itemsize)
            expected = math.prod(-(-n // c) for n, c in zip(raw.shape, chunks, strict=True))
            # Zarr reads a chunk that is not there as zeros.
            if len(self._files(entry.place)) < expected + 1:
                raise self._missing(entry) from None
            raise
        np.copyto(out, read)

    def free(self, entry: Entry) -> Callable[[], object] | None:
        if entry.place is None:
            return None
        assert self._folder is not None
        return functools.partial(_remove, self.path / entry.place, self._folder.path / entry.place)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.remove()

    def _files(self, name: str) -> list[Path]:
        return [
            Path(folder, file) for folder, _, files in os.walk(self.path / name) for file in files
        ]

    def _missing(self, entry: Entry) -> MissingDataError:
        return MissingDataError(
            f"files of {self.path / entry.place} are gone",
            store=self.name,
            handle=str(entry),
            fix="Keep the folder while the store is open",
        )


def _new_folder(directory: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for count in itertools.count():
        path = directory / f"offgrad-{stamp}-{os.getpid()}-{count}.zarr"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return path
    raise AssertionError


def _remove(path: Path, aside: Path) -> None:
    # Out of the group in one step: a reader takes half an array for something it does not know.
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        shutil.rmtree(aside)


def _compressor(codec: str) -> Any:
    from zarr.codecs import BloscCodec, ZstdCodec

    if codec == "none":
        return None
    if codec == "zstd":
        return ZstdCodec(level=1)
    family, _, rest = codec.partition("-")
    name, _, shuffle = rest.partition("-")
    if (
        family != "blosc"
        or name not in ("lz4", "lz4hc", "zstd", "zlib", "blosclz")
        or shuffle not in ("", "shuffle", "bitshuffle", "noshuffle")
    ):
        raise ValueError(
            f"unknown codec {codec!r}; there are none, zstd, and blosc-NAME[-SHUFFLE] with NAME of "
            "lz4, lz4hc, zstd, zlib, blosclz and SHUFFLE of shuffle, bitshuffle, noshuffle"
        )
    return BloscCodec(cname=name, clevel=1, shuffle=shuffle or "shuffle")


def _storable(array: Array) -> Array:
    """A C-contiguous array as Zarr 3 can store it: itself, or a view as unsigned integers.

    Items of 2, 4 and 8 bytes become integers of that size, others gain an axis of their bytes.
    """
    dtype, size = array.dtype, array.itemsize
    if dtype.isbuiltin == 1 and dtype.isnative and dtype.char in "?bBhHiIlLqQefdFD":
        return array.view(dtype.str)  # zarr does not know that "q" is "l"
    if size in (2, 4, 8):
        return bytes_of(array).view(f"u{size}").reshape(array.shape)
    return bytes_of(array).reshape(*array.shape, size)


def _chunks(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """One chunk, unless that is past the limit: then cut along the first axes."""
    chunks = [max(1, n) for n in shape]
    for axis in range(len(chunks)):
        if math.prod(chunks) * itemsize <= _CHUNK_LIMIT:
            break
        rest = math.prod(chunks[axis + 1 :]) * itemsize
        chunks[axis] = max(1, _CHUNK_LIMIT // rest)
    return tuple(chunks)


def _json(value: Any) -> Any:
    """``value`` as JSON can say it: NumPy numbers as numbers, what it does not know as text."""
    if isinstance(value, Mapping):
        return {str(key): _json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
