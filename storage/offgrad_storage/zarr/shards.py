"""The folder of a ZarrStore: arrays of one kind in one shard, written like a spill file.

zarr itself is needed only to publish the folder: it writes the metadata.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.entry import Entry, Pack, State
from offgrad_storage.files.array_file import ArrayFile
from offgrad_storage.files.direct_file import DirectFile, create
from offgrad_storage.files.file_backend import FileBackend
from offgrad_storage.files.spill_directory import SpillFolder
from offgrad_storage.interrupts import masked
from offgrad_storage.memory.buffer_pool import round_up
from offgrad_storage.zarr.codec import ZarrCodec
from offgrad_storage.zarr.format import create as create_array
from offgrad_storage.zarr.format import layout, shard_index
from offgrad_storage.zarr.groups import Groups, remove_companions

_PACKS_BELOW = 1 << 20
_SLACK_NBYTES = 1 << 30  # free in files, besides the peak of bytes in use

Array = NDArray[Any]
Shape = tuple[int, ...]
DType = np.dtype[Any]


class _Kind:
    """Arrays of one shape, dtype and codec: the slots of one Zarr array, in one shard.

    Attributes:
        name: of the Zarr array.
        slot_nbytes: bytes of an array that is not encoded, padded to whole chunks.
        padded_nbytes: the same in whole pages, if there are several chunks; else 0.
        groups: their storage as integers and scales; None for other codecs.
    """

    def __init__(
        self,
        name: str,
        shape: Shape,
        dtype: DType,
        codec: str,
        groups: Groups | None,
        file: ArrayFile,
    ) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.codec = codec
        self.groups = groups
        self.file = file
        self.layout = layout(shape, dtype)
        self.chunks = math.prod(self.layout.grid)
        self.slot_nbytes = self.chunks * self.layout.chunk_nbytes if 0 not in shape else 0
        self.padded_nbytes = round_up(self.slot_nbytes) if self.chunks > 1 else 0

    def max_nbytes(self, entry: Entry) -> int:
        """Upper bound of the stored bytes of ``entry``."""
        if isinstance(entry, Pack):
            return entry.nbytes
        # Incompressible arrays grow a little: Blosc by 16 bytes, Zstandard by 1/256.
        return self.slot_nbytes + (entry.nbytes // 256 + 1024 if self.codec != "none" else 0)

    def index_entries(self, entry: Entry) -> list[tuple[int, int] | None]:
        """Offset and length of each chunk of ``entry`` in the file."""
        if not self.slot_nbytes:
            return [None]
        if entry.pack is not None:
            start = entry.pack.place[1] + entry.offset
        else:
            start = entry.place[1]
        if self.groups is not None:
            if entry.encoded_nbytes is None:
                return [None]  # all its numbers are in the array of exact groups
            parts = self.groups.parts
            return [(start + parts.scales_nbytes, parts.codes_nbytes)]
        if self.codec != "none":
            return [(start, entry.payload_nbytes)]
        each = self.layout.chunk_nbytes
        return [(start + number * each, each) for number in range(self.chunks)]


class ShardBackend(FileBackend):
    """Keeps the arrays of each kind in a separate file, in a new folder in ``directory``."""

    tracks_entries = True
    packs_below = _PACKS_BELOW

    def __init__(
        self, directory: Path, codec: ZarrCodec, keep: bool, quota: int | None, direct: bool
    ) -> None:
        super().__init__(f"ZarrStore in {directory}", quota)
        self.persistent = self.needs_executors = keep  # zarr writes the group's metadata
        self._codec = codec
        self._direct: bool | None = direct
        self._kinds: dict[tuple[Shape, str, Any], _Kind] = {}
        self._kinds_lock = threading.RLock()
        self._max_used_nbytes = 0
        self._last_kind: _Kind | None = None  # the last to get an extent, or about to get one
        self._folder = None if keep else SpillFolder(directory)
        if self._folder is None:
            self.path = _new_folder(directory)
        else:
            self.path = self._folder.path / "arrays.zarr"
            try:
                self.path.mkdir(mode=0o700)
            except BaseException:
                self._folder.remove()
                raise

    def prepare(self, entry: Entry) -> None:
        """Find the kind of ``entry``, or make its file."""
        with masked:
            entry.kind = self._find(entry.shape, entry.dtype)

    def reserve(self, entry: Entry) -> int:
        """Give ``entry`` an extent in the file of its kind."""
        kind = entry.kind
        assert isinstance(kind, _Kind)
        if kind.file not in self.files:  # it was just removed
            entry.kind = kind = self._find(kind.shape, kind.dtype)
        before = kind.file.end
        self._last_kind = kind
        nbytes = self.allocate(entry, kind.max_nbytes(entry), [kind.file])
        if kind.file.end > before:
            self._bound_free_space()
        return nbytes

    def release_each(self) -> list[bool]:
        """Remove kinds without arrays, and return free blocks of other files."""
        if not (self.persistent or self.is_publishing):
            for key, kind in list(self._kinds.items()):
                # Empty arrays exist only in the metadata of their kind.
                if kind.slot_nbytes and not self.files[kind.file] and kind is not self._last_kind:
                    self._remove_kind(key, kind)
        return super().release_each()

    def extent_nbytes(self, entry: Entry, array: Array) -> int:
        """Bytes of the chunks of ``array``, with the padding of the last."""
        kind = entry.kind
        assert isinstance(kind, _Kind)
        nbytes = super().extent_nbytes(entry, array)
        return nbytes if isinstance(entry, Pack) else max(nbytes, kind.padded_nbytes)

    def publish(self, entries: Iterable[Entry]) -> None:
        """Write the index of each shard, and have zarr write the metadata."""
        import zarr

        slots: dict[_Kind, list[Entry]] = {kind: [] for kind in [*self._kinds.values()]}
        for entry in entries:
            kind = entry.kind if entry.pack is None else entry.pack.kind
            assert isinstance(kind, _Kind)
            placed = entry if entry.pack is None else entry.pack
            if placed.state is State.STORED and kind in slots:
                slots[kind].append(entry)
        group = zarr.open_group(self.path, mode="a", zarr_format=3)
        for kind, stored in slots.items():
            self._publish(group, kind, stored)

    def close(self) -> None:
        """Close the files, and remove the folder unless it is kept."""
        super().close()
        if self._folder is not None:
            self._folder.remove()

    def _bound_free_space(self) -> None:
        """Where shapes vary, do not let each kind hold its peak of bytes for ever."""
        used = sum([*self.files.values()])
        self._max_used_nbytes = max(self._max_used_nbytes, used)
        if sum(file.end for file in [*self.files]) > 2 * self._max_used_nbytes + _SLACK_NBYTES:
            self.release_free()

    def _remove_kind(self, key: tuple[Shape, str, Any], kind: _Kind) -> None:
        with self._kinds_lock:
            del self._kinds[key], self.files[kind.file]
        kind.file.close()
        remove_companions(self.path, kind.name)
        with contextlib.suppress(OSError):
            for folder, _, files in os.walk(self.path / kind.name, topdown=False):
                for name in files:
                    os.unlink(os.path.join(folder, name))
                os.rmdir(folder)

    def _find(self, shape: Shape, dtype: DType) -> _Kind:
        key = (shape, dtype.str, dtype)
        kind = self._kinds.get(key)
        if kind is None:
            with self._kinds_lock:
                kind = self._kinds.get(key) or self._make(shape, dtype)
                self._kinds[key] = kind
        return kind

    def _make(self, shape: Shape, dtype: DType) -> _Kind:
        taken = {kind.name for kind in self._kinds.values()}
        sizes = "x".join(map(str, shape)) or "scalar"
        names = (f"{dtype.name}_{sizes}{suffix}" for suffix in _suffixes())
        codec = self._codec.kind(shape, dtype)
        groups = Groups(codec, shape, dtype) if codec in ("int8", "int4") else None
        stored_as = layout(shape, dtype) if groups is None else layout(*groups.integers)
        for name in names:
            with contextlib.suppress(FileExistsError):  # of a kind being removed
                if name not in taken:
                    (self.path / name).mkdir(mode=0o700)
                    break
        made = [self.path / name]
        try:
            for each in ("c", *["0"] * len(stored_as.shape)):
                path = made[-1] / each
                path.mkdir(mode=0o700)
                made.append(path)
            path = made[-1] / "0"
            descriptor = create(path)
            try:
                opened = DirectFile(descriptor, path.parent, self._direct)
            except BaseException:
                path.unlink()
                raise
        except BaseException:
            for folder in reversed(made):
                folder.rmdir()
            raise
        self._direct = None if opened.direct else False  # all files as the first
        file = ArrayFile(opened, self.name, self.buffers)
        self.files[file] = 0
        return _Kind(name, shape, dtype, codec, groups, file)

    def _publish(self, group: Any, kind: _Kind, stored: list[Entry]) -> None:
        # One slot more than needed: a read of all slots would make zarr read the holes as well.
        room = len(stored) + 1
        index = [each for entry in stored for each in kind.index_entries(entry)]
        index += [None] * (room * kind.chunks - len(index))
        with contextlib.suppress(FileNotFoundError):
            (self.path / kind.name / "zarr.json").unlink()  # of an earlier publish
        slots, shape, dtype = _columns(stored), kind.shape, kind.dtype
        attributes: dict[str, Any] = {"slots": slots}
        if kind.groups is not None:
            slots |= kind.groups.write_companions(group, self.path, kind.name, stored, self.buffers)
            attributes |= kind.groups.attributes(kind.name)
            shape, dtype = kind.groups.integers
        shard = create_array(
            group, kind.name, shape, dtype, len(stored), kind.codec, attributes, capacity=room
        )
        for metadata in (self.path / "zarr.json", self.path / kind.name / "zarr.json"):
            metadata.chmod(0o600)  # zarr uses the umask
        # The open file is for direct I/O, which cannot write the unaligned index at its end.
        with open(self.path / shard, "r+b", buffering=0) as file:
            file.seek(kind.file.end)
            file.write(shard_index(index))
            file.truncate()


def _suffixes() -> Iterable[str]:
    return itertools.chain([""], (f"_{number}" for number in itertools.count(1)))


def _columns(stored: list[Entry]) -> dict[str, list[Any]]:
    """The attributes and checksums of arrays, as lists with one item per slot."""
    names = dict.fromkeys(str(name) for entry in stored for name in entry.attributes)
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for entry in stored:
        facts = {str(name): value for name, value in entry.attributes.items()}
        for name, column in columns.items():
            column.append(as_json(facts.get(name)))
    columns["offgrad_xxh3_64"] = [f"{entry.checksum:016x}" for entry in stored]
    return columns


def as_json(value: Any) -> Any:
    """``value`` for JSON: NumPy numbers as numbers, unknown objects as text."""
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _new_folder(directory: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in _suffixes():
        path = directory / f"offgrad-{stamp}-{os.getpid()}{suffix}.zarr"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        return path
    raise AssertionError
