"""One open file, read and written at offsets, bypassing the page cache where possible."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from offgrad_storage.errors import MissingDataError
from offgrad_storage.files.spill_directory import SpillFolder
from offgrad_storage.memory.buffer_pool import PAGE, BufferPool

if sys.platform != "win32":
    import fcntl
    import resource

_DROP_NBYTES = 64 << 20  # written and read between two drops of a file from the page cache
_F_NOCACHE = 48  # of macOS

_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE, with FALLOC_FL_KEEP_SIZE
_fallocate = getattr(ctypes.CDLL(None), "fallocate", None) if sys.platform == "linux" else None
if _fallocate is not None:
    _fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

Bytes = NDArray[np.uint8]


class DirectFile:
    """A file, open for reading and writing.

    Bypasses the page cache where the system and the file system support O_DIRECT. Elsewhere its
    pages are dropped from the cache, if the system can.

    Args:
        descriptor: of the open file; this object owns it from now on.
        directory: of the file.
        direct: whether to try O_DIRECT; None to assume that it works.
        folder: removed with the file.

    Attributes:
        descriptor: of the open file; -1 once closed.
        direct: whether addresses, offsets and lengths must be multiples of ``PAGE``.
    """

    def __init__(
        self,
        descriptor: int,
        directory: Path,
        direct: bool | None,
        folder: SpillFolder | None = None,
    ) -> None:
        self.directory = directory
        self.descriptor = descriptor
        self._folder = folder
        self._seek_lock = threading.Lock()
        self._cached_nbytes = 0
        try:
            self.direct = direct is not False and self._go_direct(probe=direct is True)
            if sys.platform == "darwin":
                fcntl.fcntl(descriptor, _F_NOCACHE, 1)
        except BaseException:
            self.close()
            raise

    @classmethod
    def unnamed(cls, directory: Path, direct: bool) -> DirectFile:
        """A file of mode 0600 that vanishes with its process, even a killed one.

        It has no name in ``directory`` where the system allows that.
        """
        if hasattr(os, "O_TMPFILE"):
            with contextlib.suppress(OSError):  # other errors recur below
                flags = os.O_TMPFILE | os.O_RDWR | os.O_EXCL
                return cls(os.open(directory, flags, 0o600), directory, direct)
        folder = SpillFolder(directory)
        path = folder.path / "arrays"
        try:
            descriptor = create(path)
        except BaseException:
            folder.remove()
            raise
        try:
            path.unlink()
        except OSError:  # Windows: an open file keeps its name, so its folder stays as well
            return cls(descriptor, directory, direct, folder)
        folder.remove()
        return cls(descriptor, directory, direct)

    def write_at(self, data: Bytes, offset: int) -> None:
        """Write all of ``data`` at ``offset``."""
        stuck, nbytes = False, data.size
        while data.size:
            done = self._write_some(data, offset)
            if done < data.size and self.direct:
                done -= done % PAGE  # the rest must be aligned again
            if not done and stuck:
                raise OSError(errno.EIO, "the file takes no more bytes, and gives no reason")
            stuck = not done
            data, offset = data[done:], offset + done
        self._limit_page_cache(nbytes)

    def read_at(self, out: Bytes, offset: int, min_nbytes: int | None = None) -> None:
        """Fill ``out`` from ``offset``, or ``min_nbytes`` bytes of it where the file ends.

        Raises:
            MissingDataError: the file ends before.
        """
        stuck, nbytes = False, out.size
        enough = offset + (nbytes if min_nbytes is None else min_nbytes)
        while out.size:
            done = self._read_some(out, offset)
            if offset + done >= enough and done < out.size:
                break
            if done < out.size and self.direct:
                done -= done % PAGE
            if not done and stuck:
                raise MissingDataError(
                    f"the file ends before byte {offset + out.size}: it was cut short",
                    fix="Something else changed the file; put the array again",
                )
            stuck = not done
            out, offset = out[done:], offset + done
        self._limit_page_cache(nbytes)

    def write_run(self, run: Sequence[Bytes], offset: int) -> None:
        """Write consecutive buffers, in one system call if possible."""
        nbytes = sum(data.size for data in run)
        if hasattr(os, "pwritev"):
            done = os.pwritev(self.fileno(), [data.data for data in run], offset)
            if done == nbytes:
                self._limit_page_cache(nbytes)
                return
        for data in run:
            self.write_at(data, offset)
            offset += data.size

    def read_run(self, run: Sequence[Bytes], offset: int) -> None:
        """Fill consecutive buffers, in one system call if possible.

        Raises:
            MissingDataError: the file ends before.
        """
        nbytes = sum(out.size for out in run)
        if hasattr(os, "preadv"):
            done = os.preadv(self.fileno(), [out.data for out in run], offset)
            if done == nbytes:
                self._limit_page_cache(nbytes)
                return
        for out in run:
            self.read_at(out, offset)
            offset += out.size

    def punch(self, offset: int, nbytes: int) -> bool:
        """Return the blocks of a range to the file system; False if it refuses."""
        if _fallocate is None:
            return False
        return bool(_fallocate(self.fileno(), _PUNCH_HOLE, offset, nbytes) == 0)

    def close(self) -> None:
        """Close the file, which frees its space; may be called twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        if self._folder is not None:
            self._folder.remove()

    def fileno(self) -> int:
        """The file descriptor, of a file that is not closed."""
        if self.descriptor < 0:
            raise ValueError("the file is closed")
        return self.descriptor

    def _limit_page_cache(self, nbytes: int) -> None:
        """Count ``nbytes`` more in the page cache, and drop them from time to time."""
        if self.direct or not nbytes or not hasattr(os, "posix_fadvise"):
            return
        self._cached_nbytes += nbytes  # two threads may lose a count; the next drop makes up
        if self._cached_nbytes >= _DROP_NBYTES:
            self._cached_nbytes = 0
            os.fdatasync(self.fileno())  # only pages on the disk can be dropped
            os.posix_fadvise(self.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _go_direct(self, probe: bool) -> bool:
        if sys.platform != "linux":
            return False
        flags = fcntl.fcntl(self.fileno(), fcntl.F_GETFL)
        if not probe:
            fcntl.fcntl(self.fileno(), fcntl.F_SETFL, flags | os.O_DIRECT)
            return True
        page = BufferPool().empty(2 * PAGE, np.uint8)
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
        with self._seek_lock:
            os.lseek(self.fileno(), offset, os.SEEK_SET)
            return os.write(self.fileno(), data.data)

    def _read_some(self, out: Bytes, offset: int) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self.fileno(), [out.data], offset)
        with self._seek_lock:
            os.lseek(self.fileno(), offset, os.SEEK_SET)
            got = os.read(self.fileno(), out.size)
            out[: len(got)] = np.frombuffer(got, np.uint8)
            return len(got)


def create(path: Path) -> int:
    """The descriptor of a new file of mode 0600; an existing file or link is an error."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.open(path, flags, 0o600)


def _file_size_limit() -> float:
    if sys.platform == "win32":
        return float("inf")
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return float("inf") if limit == resource.RLIM_INFINITY else limit
