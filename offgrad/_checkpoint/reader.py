"""Reading checkpoints: zip files of PyTorch since 1.6, and the older format."""

import errno
import io
import mmap
import os
import pickle
import pickletools
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from offgrad import memory
from offgrad._checkpoint.names import StorageType
from offgrad._checkpoint.rebuild import LoadedStorage
from offgrad._checkpoint.unpickler import TrustingUnpickler, WeightsOnlyUnpickler
from offgrad.ops._core.device import is_meta

_LEGACY_START = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
_CHUNK = 16 << 20

_OF_CORRUPT_ARCHIVES = (
    NotImplementedError,
    OverflowError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
)

check_sums = True
"""Whether reading compares the checksums of records; mapping never does."""


class Options:
    """How to load.

    Args:
        map_location: None, a device, a mapping of locations, or a function of storage and location.
        weights_only: whether to make tensors and plain data only.
        encoding: of text by Python 2.
    """

    def __init__(self, map_location: Any, weights_only: bool, encoding: str) -> None:
        self._map = map_location
        self._encoding = encoding
        self._kind: Any = WeightsOnlyUnpickler if weights_only else TrustingUnpickler
        if not callable(map_location) and not isinstance(map_location, dict):
            _is_meta(map_location)

    def unpickle(self, file: BinaryIO, persistent: Callable[[Any], Any]) -> Any:
        """Return the next object of a stream of pickles."""
        return self._kind(file, persistent, self._encoding).load()

    def place(self, storage: LoadedStorage, location: str) -> None:
        """Note whether the storage goes to "meta"; raise for other devices than the CPU."""
        target: Any = self._map
        if isinstance(target, dict):
            target = target.get(location, location)
        elif callable(target):
            target = location if target(storage, location) is None else None
        elif target is None:
            target = location
        storage.on_meta = _is_meta(target)


def _is_meta(target: Any) -> bool:
    if str(target or "cpu").startswith("cuda"):
        raise RuntimeError(
            "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is "
            "False: offgrad has the CPU only; load with map_location='cpu'"
        )
    return is_meta("cpu" if target is None else target)


def corrupt(why: str) -> RuntimeError:
    """Return the error for a file that is not whole."""
    return RuntimeError(
        f"the checkpoint cannot be read, since the file is truncated or corrupt: {why}"
    )


def read(file: BinaryIO, options: Options, path: str | None, mapped: bool) -> Any:
    """Return the object in an open file; `path` and `mapped` tell whether to map its storages."""
    start = file.tell()
    head = file.read(4)
    file.seek(start)
    if not head:
        raise EOFError("Ran out of input: the checkpoint is an empty file")
    if head != b"PK\x03\x04":
        if mapped:
            raise RuntimeError("mmap can only be used with a zip file")
        return _read_legacy(file, options)
    try:
        archive = zipfile.ZipFile(file)
    except _OF_CORRUPT_ARCHIVES as error:
        raise corrupt(str(error)) from error
    with archive:
        return _Archive(archive, file, options, path if mapped else None).read()


class _Archive:
    """A zip file of records: a pickle, and the bytes of each storage."""

    def __init__(
        self, archive: zipfile.ZipFile, file: BinaryIO, options: Options, mapped: str | None
    ) -> None:
        self._archive = archive
        self._file = file
        self._options = options
        self._storages: dict[str, LoadedStorage] = {}
        self._mapping: NDArray[np.uint8] | None = None
        self._nbytes = file.seek(0, os.SEEK_END)
        if mapped is not None:
            self._mapping = _map(mapped)
        names = archive.namelist()
        pickles = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
        if not pickles:
            raise corrupt("it has no record data.pkl")
        self._folder = pickles[0].removesuffix("data.pkl")
        if self._folder + "constants.pkl" in names:
            raise RuntimeError(
                "the file is a TorchScript archive, which offgrad cannot run; save the "
                "state_dict() of the module with PyTorch instead"
            )
        order = "little"
        if self._folder + "byteorder" in names:
            order = self._bytes("byteorder").tobytes().decode("ascii", "replace")
        self._swap = order != sys.byteorder

    def read(self) -> Any:
        """Return the object."""
        stream = io.BytesIO(self._bytes("data.pkl").tobytes())
        return self._options.unpickle(stream, self._storage)

    def _storage(self, pid: Any) -> LoadedStorage:
        _, kind, key, location, _ = _checked(pid)
        if key not in self._storages:
            data = self._bytes(f"data/{key}", can_map=True)
            dtype = kind.dtype if isinstance(kind, StorageType) else None
            if self._swap and dtype is not None and dtype.itemsize > 1:
                data = data.view(dtype).byteswap().view(np.uint8)
            storage = LoadedStorage(data, dtype, external=self._mapping is not None)
            self._options.place(storage, location)
            self._storages[key] = storage
        return self._storages[key]

    def _bytes(self, name: str, can_map: bool = False) -> NDArray[np.uint8]:
        """Return a record, mapped or read."""
        try:
            entry = self._archive.getinfo(self._folder + name)
        except KeyError:
            raise corrupt(f"it has no record {name}") from None
        if entry.compress_type != zipfile.ZIP_STORED:
            raise corrupt(f"record {name} is compressed, which checkpoints never are")
        file, nbytes = self._file, entry.file_size
        if not 0 <= entry.header_offset <= self._nbytes - nbytes:
            raise corrupt(f"record {name} lies outside the file")
        file.seek(entry.header_offset)
        header = file.read(30)
        if len(header) < 30 or header[:4] != b"PK\x03\x04":
            raise corrupt(f"record {name} has no header")
        start = entry.header_offset + 30
        start += int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        if start + nbytes > self._nbytes:
            raise corrupt(f"record {name} ends after the file")
        if can_map and self._mapping is not None:
            return self._mapping[start : start + nbytes]
        file.seek(start)
        data: Any = memory.empty(nbytes, np.uint8)
        if read_into(file, data) != entry.CRC and check_sums:
            raise corrupt(f"record {name} has another checksum")
        return np.asarray(data)


def _map(path: str) -> NDArray[np.uint8]:
    """Return the bytes of a file, whose changes stay in memory.

    Where the system promises no memory for changes, the array is read-only.
    """
    with open(path, "rb") as file:
        try:
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(whole, np.uint8)


def _checked(pid: Any) -> tuple[Any, ...]:
    """Return the reference to a storage: a mark, its type, key, location, number of elements."""
    if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage":
        raise corrupt(f"{pid!r} is no storage")
    return pid[:5]


def read_into(file: BinaryIO, data: Any) -> int:
    """Fill `data` from the file; return the checksum.

    Raises:
        RuntimeError: the file ends before.
    """
    view = memoryview(data).cast("B") if data.nbytes else memoryview(b"")
    done = checksum = 0
    while done < data.nbytes:
        part = view[done : done + _CHUNK]
        if hasattr(file, "readinto"):
            count = file.readinto(part)
        else:
            content = file.read(len(part))
            count = len(content)
            part[:count] = content
        if not count:
            raise corrupt(f"it ends {data.nbytes - done} bytes too early")
        if check_sums:
            checksum = zlib.crc32(part[:count], checksum)
        done += count
    return checksum


def _read_legacy(file: BinaryIO, options: Options) -> Any:
    """Read the format before 1.6: five pickles in a row, and the storages one after the other."""
    storages: dict[str, LoadedStorage] = {}

    def storage(pid: Any) -> LoadedStorage:
        _, kind, key, location, count = _checked(pid)
        if key not in storages:
            if not isinstance(kind, StorageType) or kind.dtype is None:
                raise corrupt(f"{pid!r} is no storage")
            data: Any = memory.empty(count * kind.dtype.itemsize, np.uint8)
            storages[key] = LoadedStorage(data, kind.dtype, external=False)
            options.place(storages[key], location)
        if len(pid) > 5 and pid[5] is not None:
            raise pickle.UnpicklingError("views of storages, of the oldest files, are not read")
        return storages[key]

    start = file.tell()
    if file.read(len(_LEGACY_START)) != _LEGACY_START:
        raise pickle.UnpicklingError(
            "Weights only load failed: the file is no checkpoint, neither a zip file nor one of "
            "PyTorch's older format"
        )
    file.seek(start)
    options.unpickle(file, storage)
    options.unpickle(file, storage)  # the version of the format
    system = options.unpickle(file, storage)
    result = options.unpickle(file, storage)
    for key in options.unpickle(file, storage):
        if key not in storages:
            raise corrupt(f"no tensor uses storage {key!r}")
        loaded = storages[key]
        count = np.zeros(1, "<i8")
        read_into(file, count)
        dtype = loaded.dtype
        assert dtype is not None
        if int(count[0]) * dtype.itemsize != loaded.data.nbytes:
            raise corrupt(f"storage {key} has another length")
        read_into(file, loaded.data)
        if system.get("little_endian", True) != (sys.byteorder == "little"):
            loaded.data.view(dtype).byteswap(inplace=True)
    return result


def open_file(file: Any) -> tuple[BinaryIO, str | None]:
    """Return the open file and, if `file` is one, the path.

    Raises:
        AttributeError: `file` can neither be opened nor read.
    """
    if isinstance(file, (str, os.PathLike)):
        path = os.fspath(file)
        return open(path, "rb"), str(path)
    missing = [name for name in ("read", "seek", "tell") if not hasattr(file, name)]
    if missing:
        raise AttributeError(
            "You can only torch.load from a file that is seekable: a path or an open file with "
            f"read, seek and tell, got {type(file).__name__} without {missing[0]}; put its content "
            "into io.BytesIO"
        )
    return file, None


def names_in(file: Any) -> list[str]:
    """Return the full names of classes and functions that a zip file refers to, sorted."""
    opened, path = open_file(file)
    try:
        with zipfile.ZipFile(opened) as archive:
            record = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            content = archive.read(record)
    finally:
        if path is not None:
            opened.close()
    found, texts = set(), [""]
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name == "GLOBAL":
            found.add(str(argument).replace(" ", ".").replace("__builtin__.", "builtins."))
        elif opcode.name == "STACK_GLOBAL":
            found.add(".".join(texts[-2:]))
        elif isinstance(argument, str):
            texts.append(argument)
    return sorted(found)
