"""Batches from a worker to the main process: arrays in shared memory, the rest pickled.

The arrays of a message lie in a segment: a file in memory without a name, whose descriptor travels
over the connection, a Unix socket. So there is nothing to delete, however a process ends. Where
descriptors cannot be sent, and for small arrays, the bytes go through the connection.
"""

import io
import mmap
import os
import pickle
import socket
import tempfile
from collections import deque
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    """Return where buffers of these sizes begin in a segment, and where the last one ends."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, end


def _map(descriptor: int, nbytes: int) -> NDArray[np.uint8]:
    # Faults page by page would take several times as long.
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    return np.frombuffer(mmap.mmap(descriptor, nbytes, flags=flags), np.uint8)


class _Segment(NamedTuple):
    """A nameless file in memory, and its mapping in the worker."""

    descriptor: int
    memory: NDArray[np.uint8]


class Sender:
    """A worker's end of a connection.

    It writes into the segments that the main process has emptied, and makes new ones, or larger
    ones, only if none fits: new memory costs much more than a copy.
    """

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self._segments: dict[int, _Segment] = {}
        self._free: list[int] = []
        self._returned: deque[int] = deque()
        self.give_back = self._returned.append
        """Note that the main process has emptied a segment; for any thread."""

    def send(self, content: Any) -> None:
        """Send an object, to be received by a `Receiver`.

        Raises:
            OSError: the other end is closed, or there is no memory left.
            Exception: the object cannot be pickled; nothing is sent then.
        """
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(content)
        sizes = [each.nbytes for each in pickler.buffers]
        number, is_new = self._write(pickler.buffers, sizes) if sizes else (-1, False)
        self._connection.send_bytes(pickle.dumps((sizes, number, is_new)))
        self._connection.send_bytes(file.getbuffer())
        if is_new:
            descriptor = self._segments[number].descriptor
            reduction.send_handle(self._connection, descriptor, None)

    def _write(self, buffers: list[memoryview], sizes: list[int]) -> tuple[int, bool]:
        """Copy the buffers to a segment; return its number, and whether its memory is new."""
        offsets, nbytes = _offsets(sizes)
        number, is_new = self._take(nbytes)
        target = self._segments[number].memory
        for offset, size, buffer in zip(offsets, sizes, buffers, strict=True):
            np.copyto(target[offset : offset + size], np.frombuffer(buffer, np.uint8))
        return number, is_new

    def _take(self, nbytes: int) -> tuple[int, bool]:
        while self._returned:
            self._free.append(self._returned.popleft())
        self._free.sort(key=lambda number: self._segments[number].memory.nbytes)
        for position, number in enumerate(self._free):
            if self._segments[number].memory.nbytes >= nbytes:
                del self._free[position]
                return number, False
        # Some room more, since batches may differ in size.
        nbytes = -(-(nbytes + nbytes // 8) // mmap.PAGESIZE) * mmap.PAGESIZE
        number = self._free.pop() if self._free else len(self._segments)
        if number in self._segments:
            descriptor = self._segments[number].descriptor
        else:
            descriptor = _new_file()
        os.ftruncate(descriptor, nbytes)
        self._segments[number] = _Segment(descriptor, _map(descriptor, nbytes))
        return number, True


def _new_file() -> int:
    """Return the descriptor of a new file without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("offgrad-batch")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Receiver:
    """The main process's end of a connection.

    It copies arrays from segments into tensor memory, which is reused as all tensors' is.

    Attributes:
        connection: to the worker.
        emptied: numbers of the segments that the worker may use again, to be sent to it.
    """

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self.connection = connection
        self.emptied: list[int] = []
        self._segments: dict[int, NDArray[np.uint8]] = {}

    def receive(self) -> Any:
        """Return the next object of the worker.

        Raises:
            EOFError, OSError: the worker has ended.
        """
        sizes, number, is_new = pickle.loads(self.connection.recv_bytes())
        payload = self.connection.recv_bytes()
        if number < 0:
            return pickle.loads(payload)
        if is_new:
            descriptor = reduction.recv_handle(self.connection)
            try:
                self._segments[number] = _map(descriptor, os.fstat(descriptor).st_size)
            finally:
                os.close(descriptor)
        source = self._segments[number]
        offsets, _ = _offsets(sizes)
        copies = [
            memory.copy(source[at : at + size]) for at, size in zip(offsets, sizes, strict=True)
        ]
        self.emptied.append(number)
        return pickle.loads(payload, buffers=[each.data for each in copies])


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
