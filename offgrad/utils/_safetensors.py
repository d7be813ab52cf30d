"""Safetensors files of offgrad's tensors, through the safetensors library; mapped when read."""

import json
import mmap
import os
from collections import defaultdict
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from offgrad.autograd.tensor_base import TensorBase, describe, wrap
from offgrad.autograd.tensor_base import metadata as layout_of
from offgrad.memory import Storage
from offgrad.ops._core.device import check_device

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
    "C64": np.dtype(np.complex64),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}

Path = str | os.PathLike[str]


def _checked(tensors: "Mapping[str, Tensor]") -> "Mapping[str, Tensor]":
    """Return the tensors to save.

    Raises:
        ValueError: for other objects than tensors, and for tensors that are not contiguous.
        RuntimeError: tensors share memory.
    """
    if not isinstance(tensors, Mapping):
        raise ValueError(f"expected a dict of tensors by name, got {type(tensors).__name__}")
    for name, each in tensors.items():
        if not isinstance(each, TensorBase):
            raise ValueError(
                f"key {name!r} is invalid: expected a tensor, got {type(each).__name__}"
            )
        if not layout_of(each).flags.c_contiguous:
            raise ValueError(
                f"you are trying to save the non contiguous {describe(each)} {name!r}; pack it "
                "before with .contiguous()"
            )
    shared = [sorted(names) for names in _sharing(tensors) if len(names) > 1]
    if shared:
        raise RuntimeError(
            f"Some tensors share memory, and each would be saved: {shared}; save one of each, "
            "clones, or the model with save_model"
        )
    return tensors


def _sharing(tensors: "Mapping[str, Tensor]") -> list[list[str]]:
    """Return the names of tensors grouped by the memory that they share."""
    groups: dict[int, list[str]] = defaultdict(list)
    for name, each in tensors.items():
        if layout_of(each).size:
            groups[each._storage.uid].append(name)
    found = []
    for names in groups.values():
        if len(names) == 1:
            found.append(names)
            continue
        apart: list[list[str]] = []
        for name in names:
            array = tensors[name]._array
            for group in apart:
                if any(np.may_share_memory(array, tensors[other]._array) for other in group):
                    group.append(name)
                    break
            else:
                apart.append([name])
        found += apart
    return found


def save(tensors: "Mapping[str, Tensor]", metadata: dict[str, str] | None = None) -> bytes:
    """Return the content of a safetensors file.

    Args:
        tensors: contiguous tensors by name, of which none share memory.
        metadata: further text.
    """
    arrays = {name: each._array for name, each in _checked(tensors).items()}
    return bytes(safetensors.numpy.save(arrays, metadata))


def save_file(
    tensors: "Mapping[str, Tensor]", filename: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors to a safetensors file: see `save`. Paged tensors are read one by one."""
    if any(each._storage.is_paged for each in _checked(tensors).values()):
        _write_one_by_one(tensors, filename, metadata or {})
        return
    arrays = {name: each._array for name, each in tensors.items()}
    safetensors.numpy.save_file(arrays, filename, metadata)


def _write_one_by_one(
    tensors: "Mapping[str, Tensor]", filename: Path, metadata: dict[str, str]
) -> None:
    """Write a file whose tensors are not in memory together, which the library's writer needs."""
    names = {dtype: name for name, dtype in _DTYPES.items()}
    order = sorted(tensors, key=lambda name: (-layout_of(tensors[name]).itemsize, name))
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name in order:
        layout = layout_of(tensors[name])
        begin, end = end, end + layout.nbytes
        header[name] = {
            "dtype": names[layout.dtype],
            "shape": list(layout.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(filename, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(tensors[name]._array.reshape(-1).view(np.uint8).data)


def load(data: bytes) -> "dict[str, Tensor]":
    """Return the tensors in the content of a safetensors file."""
    safetensors.deserialize(data)  # type: ignore[no-untyped-call]  # checks the content
    return _tensors(np.frombuffer(bytearray(data), np.uint8))


def load_file(filename: Path, device: Any = "cpu", *, backend: str = "mmap") -> "dict[str, Tensor]":
    """Return the tensors of a file, mapped into memory: their bytes are read when they are used.

    Changes of the tensors stay in memory, which is not counted.
    """
    check_device(device)
    with safe_open(filename, "pt") as file:
        return {name: file.get_tensor(name) for name in file.offset_keys()}


def _header(content: NDArray[np.uint8]) -> tuple[dict[str, Any], int]:
    """Return the header, and where the data begins."""
    length = int.from_bytes(content[:8].tobytes(), "little")
    return json.loads(content[8 : 8 + length].tobytes()), 8 + length


def _tensors(content: NDArray[np.uint8]) -> "dict[str, Tensor]":
    header, start = _header(content)
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            array = _array(content, start, entry)
            found[name] = wrap(array, Storage(array, external=True))
    return found


def _array(content: NDArray[np.uint8], start: int, entry: dict[str, Any]) -> NDArray[Any]:
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        raise ValueError(f"offgrad has no dtype for {entry['dtype']} of safetensors files")
    first, end = entry["data_offsets"]
    data = content[start + first : start + end]
    if data.ctypes.data % dtype.itemsize:
        data = data.copy()  # kernels need whole elements at their boundaries
    array: NDArray[Any] = data.view(dtype).reshape(entry["shape"])
    return array


class safe_open:
    """An open safetensors file, whose tensors are mapped when they are asked for.

    Args:
        filename: the path.
        framework: accepted: "pt", "numpy" and others all give offgrad's tensors.
        device: the CPU.
        backend: accepted.

    Raises:
        SafetensorError: the file is not whole.
    """

    def __init__(
        self, filename: Path, framework: str = "pt", device: Any = "cpu", *, backend: str = "mmap"
    ) -> None:
        check_device(device)
        with safetensors.safe_open(filename, "numpy") as file:  # checks the header
            self._metadata = file.metadata()
        with open(filename, "rb") as opened:
            mapping = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        self._content = np.frombuffer(mapping, np.uint8)
        header, self._start = _header(self._content)
        header.pop("__metadata__", None)
        self._entries: dict[str, dict[str, Any]] = header

    def __enter__(self) -> "safe_open":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass  # tensors keep the mapping

    def keys(self) -> list[str]:
        """Return the names, sorted."""
        return sorted(self._entries)

    def offset_keys(self) -> list[str]:
        """Return the names in the order of the data."""
        return sorted(self._entries, key=lambda name: self._entries[name]["data_offsets"])

    def metadata(self) -> dict[str, str] | None:
        """Return the further text of the file."""
        return self._metadata  # type: ignore[no-any-return]

    def get_tensor(self, name: str) -> "Tensor":
        """Return a tensor."""
        array = _array(self._content, self._start, self._entry(name))
        return wrap(array, Storage(array, external=True))

    def get_slice(self, name: str) -> "Slice":
        """Return an object whose items are parts of a tensor."""
        return Slice(self.get_tensor(name), str(self._entry(name)["dtype"]))

    def _entry(self, name: str) -> dict[str, Any]:
        if name not in self._entries:
            raise safetensors.SafetensorError(
                f"File does not contain tensor {name}; it has {', '.join(self.keys())}"
            )
        return self._entries[name]


class Slice:
    """A tensor of a file, of which only the parts that are used are read."""

    def __init__(self, tensor: "Tensor", dtype: str) -> None:
        self._tensor = tensor
        self._dtype = dtype

    def get_shape(self) -> list[int]:
        """Return the shape."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """Return the name of the dtype in the file, as F32."""
        return self._dtype

    def __getitem__(self, index: Any) -> "Tensor":
        return self._tensor[index]


def _duplicates(state: "Mapping[str, Tensor]") -> dict[str, str]:
    """Return the names of tensors that another one, whose name it gives, stands for.

    Raises:
        RuntimeError: tensors share parts of their memory only.
    """
    found = {}
    for names in _sharing(state):
        first, *others = sorted(names)
        for other in others:
            a, b = state[first]._array, state[other]._array
            if (a.shape, a.strides, a.dtype) != (b.shape, b.strides, b.dtype) or (
                a.__array_interface__["data"] != b.__array_interface__["data"]
            ):
                raise RuntimeError(
                    f"{first} and {other} share a part of their memory, which a safetensors file "
                    "cannot say; clone one of them"
                )
            found[other] = first
    return found


def save_model(
    model: Any,
    filename: Path,
    metadata: dict[str, str] | None = None,
    force_contiguous: bool = True,
) -> None:
    """Write the state dict of a module; tied tensors are written once.

    Args:
        model: a module.
        filename: the path.
        metadata: further text; the names of tied tensors are added.
        force_contiguous: whether to write copies of tensors that are not contiguous.
    """
    state = dict(model.state_dict())
    duplicates = _duplicates(state)
    for name in duplicates:
        del state[name]
    if force_contiguous:
        state = {name: each.contiguous() for name, each in state.items()}
    save_file(state, filename, {**(metadata or {}), **duplicates} or None)


def load_model(
    model: Any,
    filename: Path,
    strict: bool = True,
    device: Any = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[list[str], list[str]]:
    """Copy the tensors of a file into a module; return the names missing and not expected.

    Raises:
        RuntimeError: with `strict`, if there are any.
    """
    state = load_file(filename, device)
    duplicates = _duplicates(model.state_dict())
    missing, unexpected = model.load_state_dict(state, strict=False)
    loaded = {first for name, first in duplicates.items() if name in state}
    missing = [name for name in missing if name not in duplicates and name not in loaded]
    unexpected = [name for name in unexpected if name not in duplicates]
    if strict and (missing or unexpected):
        problems = [f"missing keys: {', '.join(missing)}"] * bool(missing)
        problems += [f"unexpected keys: {', '.join(unexpected)}"] * bool(unexpected)
        raise RuntimeError(
            f"Error(s) in loading state_dict for {type(model).__name__}: {'; '.join(problems)}"
        )
    return missing, unexpected
