"""One file without a name, read and written at offsets, past the page cache where possible."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .buffers import PAGE, BufferPool
from .directory import SpillFolder
from .errors import MissingDataError

if sys.platform == "linux":
    import fcntl
    import resource

Bytes = NDArray[np.uint8]


class SpillFile:
    """A file of mode 0600 that vanishes with its process, even one that is killed.

    Args:
        directory: an existing one; nothing is to be seen in it, where the system allows that.
        direct: try O_DIRECT.
        buffers: where to take an aligned page from, to try it.

    Attributes:
        direct: whether addresses, offsets and lengths must be multiples of ``PAGE``.
    """

    def __init__(self, directory: Path, direct: bool, buffers: BufferPool) -> None:
        self._folder: SpillFolder | None = None
        self._descriptor: int | None = self._open(directory)
        self._seek = threading.Lock()
        self.direct = direct and self._go_direct(buffers)

    def write_at(self, data: Bytes, offset: int) -> None:
        """Write all of ``data`` at ``offset``."""
        stuck = False
        while data.size:
            done = self._write_some(data, offset)
            if done < data.size and self.direct:
                done -= done % PAGE  # the rest must be aligned again
            if not done and stuck:
                raise OSError(errno.EIO, "the file takes no more bytes, and gives no reason")
            stuck = not done
            data, offset = data[done:], offset + done

    def read_at(self, out: Bytes, offset: int) -> None:
        """Fill ``out`` from ``offset``; MissingDataError where the file ends before."""
        stuck = False
        while out.size:
            done = self._read_some(out, offset)
            if done < out.size and self.direct:
                done -= done % PAGE
            if not done and stuck:
                raise MissingDataError(
                    f"the file ends before byte {offset + out.size}: it was cut short",
                    fix="Something else changed the file; put the array again",
                )
            stuck = not done
            out, offset = out[done:], offset + done

    def close(self) -> None:
        """Give the space back; may be called twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
        if self._folder is not None:
            self._folder.remove()

    def fileno(self) -> int:
        """The file descriptor."""
        if self._descriptor is None:
            raise ValueError("the spill file is closed")
        return self._descriptor

    def _open(self, directory: Path) -> int:
        if hasattr(os, "O_TMPFILE"):
            with contextlib.suppress(OSError):  # what is really wrong shows again below
                return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
        folder = SpillFolder(directory)
        try:
            path = folder.path / "arrays"
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
            descriptor = os.open(path, flags, 0o600)
        except BaseException:
            folder.remove()
            raise
        try:
            path.unlink()
        except OSError:  # Windows: an open file keeps its name, so its folder stays as well
            self._folder = folder
        else:
            folder.remove()
        return descriptor

    def _go_direct(self, buffers: BufferPool) -> bool:
        if sys.platform != "linux":
            return False
        flags = fcntl.fcntl(self.fileno(), fcntl.F_GETFL)
        page = buffers.empty(2 * PAGE, np.uint8)
        page[:PAGE] = np.arange(PAGE) % 251
        try:
            fcntl.fcntl(self.fileno(), fcntl.F_SETFL, flags | os.O_DIRECT)
            wrote = os.pwritev(self.fileno(), [page[:PAGE].data], 0)
            read = os.preadv(self.fileno(), [page[PAGE:].data], 0)
            if wrote == read == PAGE and np.array_equal(page[:PAGE], page[PAGE:]):
                return True
        except OSError:
            pass  # some file systems refuse the flag, some only the write
        fcntl.fcntl(self.fileno(), fcntl.F_SETFL, flags)
        return False

    def _write_some(self, data: Bytes, offset: int) -> int:
        if hasattr(os, "pwritev"):
            try:
                return os.pwritev(self.fileno(), [data.data], offset)
            except OSError as error:
                # Cut at a limit that is no multiple of PAGE, a direct write is merely "invalid".
                if error.errno == errno.EINVAL and offset + data.size > _file_size_limit():
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG)) from None
                raise
        with self._seek:
            os.lseek(self.fileno(), offset, os.SEEK_SET)
            return os.write(self.fileno(), data.data)

    def _read_some(self, out: Bytes, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.fileno(), [out.data], offset)
        with self._seek:
            os.lseek(self.fileno(), offset, os.SEEK_SET)
            got = os.read(self.fileno(), out.size)
            out[: len(got)] = np.frombuffer(got, np.uint8)
            return len(got)


def _file_size_limit() -> float:
    if sys.platform != "linux":
        return float("inf")
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return float("inf") if limit == resource.RLIM_INFINITY else limit
