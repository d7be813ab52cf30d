"""Writing checkpoints: a pickle, and the bytes of each storage, in an uncompressed zip file."""

import contextlib
import io
import os
import pickle
import re
import stat
import sys
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray
from offgrad_storage.interrupts import interruptible, masked

from offgrad import memory
from offgrad._checkpoint.names import STORAGE_TYPES, dtype_names, offgrad_module
from offgrad._layout import layout
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import TensorBase, alias, metadata
from offgrad.nn.parameter import Parameter
from offgrad.ops._core.sparse_data import is_sparse

if sys.platform != "win32":
    import fcntl

_ALIGNMENT = 64
_CHUNK = 16 << 20
_UNFINISHED = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{12}\.(?P<kind>tmp|new)")
_GRACE_SECONDS = 60.0
_TYPES = {dtype: name for name, dtype in STORAGE_TYPES.items()}
_PADDING = b"FB"  # the id of an extra field whose content readers ignore


class _Name:
    """A global that the pickle names whether or not its module can be imported here."""

    def __init__(self, module: str, name: str) -> None:
        self.text = f"{module}\n{name}\n".encode()

    def __call__(self) -> None:
        """Pickles take only callables as functions."""


_NAMES = {
    name: _Name(*name.rsplit(".", 1))
    for name in (
        "torch._utils._rebuild_tensor_v2",
        "torch._utils._rebuild_tensor_v3",
        "torch._utils._rebuild_meta_tensor_no_storage",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_sparse_tensor",
        "torch.serialization._get_layout",
        "torch._utils._rebuild_parameter_with_state",
        "torch._tensor._rebuild_from_type_v2",
        "torch.storage.UntypedStorage",
        "torch.Tensor",
        "torch.Size",
        "torch.device",
    )
}


def _name(full: str) -> _Name:
    if full not in _NAMES:
        _NAMES[full] = _Name(*full.rsplit(".", 1))
    return _NAMES[full]


class _StorageRef:
    """A storage, as the pickle refers to it."""

    def __init__(self, key: str, dtype: Any, nbytes: int, data: Callable[[], NDArray[Any]]) -> None:
        self.data = data  # paged memory is read when it is written to the file
        typed = dtype.name in _TYPES
        kind = _name("torch." + _TYPES[dtype.name] if typed else "torch.storage.UntypedStorage")
        count = nbytes // dtype.itemsize if typed else nbytes
        self.pid = ("storage", kind, key, "cpu", count)


# The pickler in Python, whose methods can be replaced.
_PythonPickler: Any = pickle._Pickler


class _Pickler(_PythonPickler):  # type: ignore[misc]
    """Replaces tensors, dtypes and the like by the names that PyTorch knows."""

    def __init__(self, file: BinaryIO, protocol: int) -> None:
        super().__init__(file, protocol)
        self.storages: list[_StorageRef] = []
        self._by_memory: dict[Any, _StorageRef] = {}
        self._types: dict[Any, str | None] = {}  # of storages
        package = offgrad_module()
        names = dtype_names().items()
        self._dtypes = {identity: _name(f"torch.{name}") for identity, name in names}
        self._size: Any = getattr(package, "Size", None)
        self._device = package.device

    def persistent_id(self, obj: Any) -> Any:
        return obj.pid if type(obj) is _StorageRef else None

    def save_global(self, obj: Any, name: Any = None) -> None:
        known = obj if type(obj) is _Name else self._dtypes.get(id(obj))
        if known is None:
            super().save_global(obj, name)
            return
        self.write(pickle.GLOBAL + known.text)
        self.memoize(obj)

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is _Name or id(obj) in self._dtypes:
            return ""  # `save_global` writes it
        if isinstance(obj, TensorBase):
            return self._reduce_tensor(obj)  # type: ignore[arg-type]
        if self._size is not None and kind is self._size:
            return _name("torch.Size"), (tuple(obj),)
        if kind is layout:
            return _name("torch.serialization._get_layout"), (repr(obj),)
        if kind is self._device:
            index = getattr(obj, "index", None)
            return _name("torch.device"), (obj.type,) if index is None else (obj.type, index)
        return NotImplemented

    def _reduce_tensor(self, tensor: Tensor) -> Any:
        arguments: Any
        if is_sparse(tensor):
            return _name("torch._utils._rebuild_sparse_tensor"), tensor._parts()  # type: ignore[attr-defined]
        if tensor.is_meta:
            dtype = _name(f"torch.{tensor._array.dtype.name}")
            arguments = dtype, (*tensor.shape,), tensor.stride(), tensor._requires_grad
            function = _name("torch._utils._rebuild_meta_tensor_no_storage")
        else:
            arguments = self._tensor_arguments(tensor)
            version = "v3" if len(arguments) > 6 else "v2"
            function = _name(f"torch._utils._rebuild_tensor_{version}")
        own = {
            name: value
            for name, value in tensor.__dict__.items()
            if name not in TensorBase.__annotations__
        }
        kind = type(tensor)
        if kind is Parameter:
            data = alias(tensor)
            flags: Any = tensor._requires_grad, OrderedDict()
            if own:
                return _name("torch._utils._rebuild_parameter_with_state"), (data, *flags, own)
            return _name("torch._utils._rebuild_parameter"), (data, *flags)
        is_ours = kind.__module__.partition(".")[0] == "offgrad"
        if is_ours and not own:
            return function, arguments
        named = _name("torch.Tensor") if is_ours else kind
        return _name("torch._tensor._rebuild_from_type_v2"), (function, named, arguments, own)

    def _tensor_arguments(self, tensor: Tensor) -> Any:
        """Return the storage, offset, shape, strides and flags of a tensor."""
        spec, storage = metadata(tensor), tensor._storage
        dtype = spec.dtype
        memory_of = _paged_memory(tensor) if tensor._spec is not None else _memory(tensor)
        ref, offset = None, 0
        if memory_of is not None:
            nbytes, distance, data = memory_of
            offset, rest = divmod(distance, dtype.itemsize)
            steps = [divmod(step, dtype.itemsize) for step in spec.strides]
            fits = not rest and not nbytes % dtype.itemsize and distance >= 0
            fits &= distance + _extent(spec) <= nbytes
            if fits and all(step >= 0 and not odd for step, odd in steps):
                kind = self._types.setdefault(storage.uid, _TYPES.get(dtype.name))
                if nbytes and kind != _TYPES.get(dtype.name):
                    raise RuntimeError(
                        "Cannot save multiple tensors or storages that view the same data as "
                        f"different types, got {dtype.name} besides {kind}; save a clone() of one"
                    )
                ref = self._ref((storage.uid, dtype), dtype, nbytes, data)
        if ref is None:  # memory that PyTorch's strides cannot describe: a copy of its own
            spec = memory.copy(tensor._array)
            ref, offset = self._ref(id(spec), dtype, spec.nbytes, spec.reshape(-1).view), 0
        stride = tuple(step // dtype.itemsize for step in spec.strides)
        common: Any = (ref, offset, spec.shape, stride, tensor._requires_grad, OrderedDict())
        if dtype.name in _TYPES:
            return common
        return *common, _name(f"torch.{dtype.name}")

    def _ref(
        self, key: Any, dtype: Any, nbytes: int, data: Callable[[], NDArray[Any]]
    ) -> _StorageRef:
        ref = self._by_memory.get(key)
        if ref is None:
            ref = _StorageRef(str(len(self.storages)), dtype, nbytes, data)
            self._by_memory[key] = ref
            self.storages.append(ref)
        return ref


_Memory: TypeAlias = tuple[int, int, Callable[[], NDArray[Any]]]
"""The bytes of a storage, the offset of a tensor in it, and a function that returns its memory."""


def _memory(tensor: Tensor) -> _Memory | None:
    """Return the memory of a tensor; None if it has gaps."""
    flat, array = _flat(tensor._storage.root), tensor._array
    if flat is None:
        return None
    distance = _address(array) - _address(flat) if array.size else 0
    return flat.nbytes, distance, flat.view


def _paged_memory(tensor: Tensor) -> _Memory:
    """Return the memory of a tensor without reading it."""
    storage = tensor._storage
    return storage.nbytes, tensor._offset, lambda: storage.root.reshape(-1)


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _extent(array: NDArray[Any]) -> int:
    """Return the bytes from the first element to the end of the last, for strides from 0 on."""
    if not array.size:
        return 0
    steps = zip(array.shape, array.strides, strict=True)
    return int(sum((size - 1) * step for size, step in steps) + array.itemsize)


def _flat(root: NDArray[Any]) -> NDArray[np.uint8] | None:
    """Return all bytes of `root`, in memory order; None if it has gaps."""
    order = sorted(range(root.ndim), key=lambda dim: -root.strides[dim])
    dense = root.transpose(order)
    if not dense.flags.c_contiguous:
        return None
    return dense.reshape(-1).view(np.uint8)


def write(obj: Any, file: BinaryIO, folder: str, protocol: int) -> None:
    """Write a checkpoint of `obj` to an open file; its records have names in `folder`."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, protocol)
    pickler.dump(obj)
    with masked:
        archive = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True)
        try:
            with interruptible:
                _add(archive, f"{folder}/data.pkl", buffer.getbuffer())
                _add(archive, f"{folder}/.format_version", b"1")
                _add(archive, f"{folder}/.storage_alignment", str(_ALIGNMENT).encode())
                _add(archive, f"{folder}/byteorder", sys.byteorder.encode())
                for key, ref in enumerate(pickler.storages):
                    _add(archive, f"{folder}/data/{key}", ref.data().view(np.uint8).data)
                _add(archive, f"{folder}/version", b"3\n")
                archive.close()
        finally:
            # Else closing what an error has left would write more, and raise another error.
            archive.fp = None
            del archive  # its finalizer would drop a signal


def _add(archive: zipfile.ZipFile, name: str, data: Any) -> None:
    """Add a record whose data begins at a multiple of `_ALIGNMENT` bytes in the file."""
    view = memoryview(data)
    entry = zipfile.ZipInfo(name)
    entry.file_size = view.nbytes
    is_large = view.nbytes > zipfile.ZIP64_LIMIT // 2
    assert archive.fp is not None
    header = archive.fp.tell() + 30 + len(name.encode()) + (20 if is_large else 0)
    gap = -(header + 4) % _ALIGNMENT
    entry.extra = _PADDING + gap.to_bytes(2, "little") + b"Z" * gap
    with archive.open(entry, "w", force_zip64=is_large) as record:
        for start in range(0, view.nbytes, _CHUNK):
            record.write(view[start : start + _CHUNK])


def lock(file: BinaryIO) -> None:
    """Lock a file as long as it is open; raise OSError if another process has locked it."""
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sweep(folder: str | os.PathLike[str], name: str | None = None) -> None:
    """Remove the unfinished files in a folder whose writer is dead; those of `name`, if given.

    A writer holds the lock of its file, and so do processes that it forked meanwhile. A file that
    is not locked yet, as it is for an instant, has another name, and must be old to be removed.
    """
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
        for each in names:
            match = _UNFINISHED.fullmatch(each)
            if match and name in (None, match["name"]):
                with contextlib.suppress(OSError):
                    _remove_abandoned(os.path.join(folder, each), match["kind"])


def _remove_abandoned(path: str, kind: str) -> None:
    """Remove an unfinished file, unless a living process may be writing it."""
    if kind == "new" and time.time() - os.stat(path).st_mtime <= _GRACE_SECONDS:
        return
    if sys.platform == "win32":  # an open file cannot be removed there
        os.unlink(path)
        return
    with open(path, "r+b") as file:  # an exclusive lock on NFS needs a file open for writing
        lock(file)
        os.unlink(path)


@contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path` when the block ends without an error.

    It is written beside `path`, so whoever reads sees the old file or the whole new one. What
    killed processes have left of it there is removed. What is no ordinary file, such as a pipe, is
    opened itself.

    Raises:
        RuntimeError: the folder does not exist.
    """
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise RuntimeError(f"Parent directory {folder} does not exist.")
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        mode = 0
    if mode and not stat.S_ISREG(mode):
        with open(path, "wb") as file:
            yield file
        return
    sweep(folder, os.path.basename(path))
    begin = os.path.join(folder, f".{os.path.basename(path)}.{os.urandom(6).hex()}")
    unlocked, locked = f"{begin}.new", f"{begin}.tmp"
    temporary = unlocked
    with contextlib.ExitStack() as block:
        try:
            with open(unlocked, "xb") as file:
                if sys.platform != "win32":  # an open file cannot be renamed there
                    with contextlib.suppress(OSError):  # of file systems without locks
                        lock(file)
                        # The lock lasts until the last descriptor is closed.
                        block.callback(os.close, os.dup(file.fileno()))
                        os.rename(unlocked, locked)
                        temporary = locked
                yield file
            if mode:
                os.chmod(temporary, stat.S_IMODE(mode))
            os.replace(temporary, path)
        except BaseException as error:
            for each in (unlocked, locked):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(each)
            if isinstance(error, OSError) and error.errno and error.filename is None:
                error.filename = path  # as of a full drive
            raise
