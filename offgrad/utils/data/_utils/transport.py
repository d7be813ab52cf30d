"""Batches from a worker to the main process: arrays in shared memory, the rest pickled.

The arrays of a message lie in one memory file without a name, whose descriptor travels over the
connection, a Unix socket. So there is nothing to delete, however a process ends. Where descriptors
cannot be sent, and for small arrays, the bytes go through the connection.
"""

import io
import mmap
import os
import pickle
import socket
import tempfile
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from offgrad import memory
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import wrap

_MIN_NBYTES = 16 * 1024  # below, a mapping costs more than two copies
_ALIGNMENT = 64
_CAN_SHARE = hasattr(socket, "AF_UNIX") and hasattr(socket, "SCM_RIGHTS")


class _Pickler(pickle.Pickler):
    """Leaves the bytes of large tensors and arrays out, in `buffers`."""

    def __init__(self, file: io.BytesIO) -> None:
        self.buffers: list[memoryview] = []
        super().__init__(file, protocol=5, buffer_callback=self._keep)

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if not _CAN_SHARE or raw.nbytes < _MIN_NBYTES:
            return True  # in the pickle
        self.buffers.append(raw)
        return False

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor) or obj._grad_fn is not None:
            return NotImplemented
        array = memory.contiguous(obj._array)
        data = pickle.PickleBuffer(array.reshape(-1).view(np.uint8).data)
        arguments = (type(obj), obj._requires_grad, array.dtype.name, array.shape, data)
        return _tensor_over, arguments


def _tensor_over(
    kind: type[Tensor], requires_grad: bool, dtype: str, shape: tuple[int, ...], data: Any
) -> Tensor:
    """Return a tensor over the memory `data`."""
    tensor = wrap(np.ndarray(shape, np.dtype(dtype), buffer=data))
    if kind is not type(tensor):
        plain, tensor = tensor, object.__new__(kind)
        tensor._set(plain._array, plain._storage, False)
    tensor._requires_grad = requires_grad
    return tensor


def _offsets(sizes: list[int]) -> tuple[list[int], int]:
    """Return where buffers of these sizes begin in a file, and its size."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def _map(descriptor: int, nbytes: int) -> mmap.mmap:
    # Faults page by page would take several times as long.
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    return mmap.mmap(descriptor, nbytes, flags=flags)


def _shared_file(buffers: list[memoryview], sizes: list[int]) -> int:
    """Return the descriptor of a new nameless file with the bytes of `buffers`."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("offgrad-batch")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        offsets, nbytes = _offsets(sizes)
        os.ftruncate(descriptor, nbytes)
        with _map(descriptor, nbytes) as mapped:
            whole = np.frombuffer(mapped, np.uint8)
            for offset, size, buffer in zip(offsets, sizes, buffers, strict=True):
                np.copyto(whole[offset : offset + size], np.frombuffer(buffer, np.uint8))
            del whole  # else the mapping could not be closed
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Message:
    """An object on its way, pickled and in shared memory.

    Raises:
        Exception: the object cannot be pickled.
    """

    def __init__(self, content: Any) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(content)
        self._payload = file.getbuffer()
        self._buffers = pickler.buffers
        self._sizes = [each.nbytes for each in pickler.buffers]

    def send(self, connection: "Connection[Any, Any]") -> None:
        """Send the object, to be received by `receive`.

        Raises:
            OSError: the other end is closed, or there is no memory left.
        """
        descriptor = _shared_file(self._buffers, self._sizes) if self._sizes else -1
        try:
            connection.send_bytes(pickle.dumps(self._sizes))
            connection.send_bytes(self._payload)
            if self._sizes:
                reduction.send_handle(connection, descriptor, None)
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def receive(connection: "Connection[Any, Any]") -> Any:
    """Return the next object from a worker; its arrays stay in the shared memory.

    Raises:
        EOFError, OSError: the worker has ended.
    """
    sizes = pickle.loads(connection.recv_bytes())
    payload = connection.recv_bytes()
    if not sizes:
        return pickle.loads(payload)
    descriptor = reduction.recv_handle(connection)
    offsets, nbytes = _offsets(sizes)
    try:
        mapped = memoryview(_map(descriptor, nbytes))
    finally:
        os.close(descriptor)
    buffers = [mapped[at : at + size] for at, size in zip(offsets, sizes, strict=True)]
    return pickle.loads(payload, buffers=buffers)


def close(connection: "Connection[Any, Any]") -> None:
    """Close a connection for the other end, too: other processes may have copies of this end."""
    if connection.closed:
        return
    if _CAN_SHARE:
        try:
            with socket.socket(fileno=os.dup(connection.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end has gone
            pass
    connection.close()
