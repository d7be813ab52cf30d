"""The spill directory, and the removal of folders that killed processes left there."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

if sys.platform != "win32":
    import fcntl

_PREFIX = "offgrad-spill-"
_UNLOCKED = "offgrad-unlocked-"
RAM = {"tmpfs", "ramfs", "devtmpfs"}
"""File systems that are memory."""
_GRACE_SECONDS = 60.0

PathLike = str | os.PathLike[str]


def spill_directory(directory: PathLike | None = None) -> Path:
    """The directory to spill to; made, with mode 0700, if it does not exist.

    Args:
        directory: returned as an absolute path. None means OFFGRAD_SPILL_DIR, else the system's
            directory for temporary files, or /var/tmp if that one is in memory.
    """
    chosen = directory or os.environ.get("OFFGRAD_SPILL_DIR")
    if not chosen:
        chosen = tempfile.gettempdir()
        if file_system_of(chosen) in RAM and os.access("/var/tmp", os.W_OK | os.X_OK):
            chosen = "/var/tmp"
    path = Path(chosen).absolute()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def local_folder(directory: str) -> str:
    """``directory`` itself, or the folder of a ``file://`` URL."""
    scheme, separator, rest = directory.partition("://")
    if not separator or scheme.lower() not in ("file", "local"):  # the latter as fsspec has it
        return directory
    host, slash, path = rest.partition("/")
    if not slash or host not in ("", "localhost"):
        raise ValueError(
            f"{directory} is not a local folder: use {scheme}:///path, percent-encoded"
        )
    # Slow to import, with the modules of HTTP, and needed for URLs alone.
    from urllib.request import url2pathname

    return url2pathname("/" + path)


class Mount(NamedTuple):
    """A mounted file system, as the kernel lists it.

    Attributes:
        folder: where it is mounted.
        kind: the type of the file system, such as "ext4".
        source: the device, or whatever the file system names as such.
        options: of the mount and of the file system.
    """

    folder: str
    kind: str
    source: str
    options: tuple[str, ...]

    def holds(self, path: str) -> bool:
        """Whether an absolute path is in the folder."""
        return os.path.commonpath([self.folder, path]) == self.folder


def mount_of(path: PathLike) -> Mount | None:
    """The mounted file system that holds ``path``; None where the kernel does not say."""
    try:
        device = os.stat(path).st_dev
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    place = os.path.realpath(path)
    number = f"{os.major(device)}:{os.minor(device)}"
    # "36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw": see proc_pid_mountinfo(5)
    found = [(line.split()[2] == number, _mount(line)) for line in lines]
    # File systems with subvolumes have other device numbers than their mounts: the path decides.
    same = [mount for is_same, mount in found if is_same] or [
        mount for _, mount in found if mount.holds(place)
    ]
    # The last of several mounts in the same folder hides the others.
    return max(reversed(same), key=lambda each: (each.holds(place), len(each.folder)), default=None)


def _mount(line: str) -> Mount:
    before, _, after = line.partition(" - ")
    fields, (kind, source, *options) = before.split(), after.split()
    # Blanks and backslashes are written as "\040".
    folder = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
    return Mount(folder, kind, source, (*fields[5].split(","), *",".join(options).split(",")))


def file_system_of(path: PathLike) -> str:
    """The type of the file system that holds ``path``, as the kernel names it; "" if unknown."""
    mount = mount_of(path)
    return "" if mount is None else mount.kind


class SpillFolder:
    """A folder of mode 0700 that is removed after its process has ended.

    A file in it stays locked while the process lives. The next process that makes a folder in the
    same place removes those whose lock is free. The folder has another name until it is locked.

    Args:
        parent: the directory to make it in; must exist.
    """

    def __init__(self, parent: Path) -> None:
        sweep(parent)
        unlocked = Path(tempfile.mkdtemp(prefix=f"{_UNLOCKED}{os.getpid()}-", dir=parent))
        self.path = parent / (_PREFIX + unlocked.name.removeprefix(_UNLOCKED))
        self._lock: int | None = None
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        try:
            self._lock = os.open(unlocked / "lock", flags, 0o600)
            _lock(self._lock)
            unlocked.rename(self.path)
        except BaseException:
            if self._lock is not None:
                os.close(self._lock)
            with contextlib.suppress(FileNotFoundError):
                (unlocked / "lock").unlink()
            unlocked.rmdir()
            raise

    def remove(self) -> None:
        """Remove the folder and its contents; may be called twice."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        if sys.platform == "win32":  # an open file cannot be removed there
            os.close(lock)
        with contextlib.suppress(OSError):
            # Not by shutil.rmtree: there may be only one file descriptor left.
            for folder, folders, files in os.walk(self.path, topdown=False):
                links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
                for name in files + links:
                    os.unlink(os.path.join(folder, name))
                os.rmdir(folder)
        if sys.platform != "win32":
            os.close(lock)


def sweep(parent: Path) -> list[Path]:
    """Remove the spill folders in ``parent`` whose process is dead; return them.

    Only folders of this user, never through a symbolic link, never one of a living process.
    """
    swept = []
    with os.scandir(parent) as items:
        candidates = [item for item in items if item.name.startswith((_PREFIX, _UNLOCKED))]
    for item in candidates:
        with contextlib.suppress(OSError):
            status = item.stat(follow_symlinks=False)
            mine = not hasattr(os, "getuid") or status.st_uid == os.getuid()
            if not (mine and item.is_dir(follow_symlinks=False)):
                continue
            age = time.time() - status.st_mtime
            if item.name.startswith(_UNLOCKED):
                abandoned = age > _GRACE_SECONDS
            else:
                abandoned = _is_abandoned(Path(item.path), age)
            if abandoned:
                shutil.rmtree(item.path, ignore_errors=True)
                swept.append(Path(item.path))
    return swept


def _is_abandoned(folder: Path, age: float) -> bool:
    path = folder / "lock"
    if sys.platform == "win32":
        try:
            path.unlink()
        except FileNotFoundError:
            return age > _GRACE_SECONDS
        return True  # else PermissionError: its process has it open
    try:
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return age > _GRACE_SECONDS  # its process may be about to make the lock
    try:
        _lock(lock)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _lock(descriptor: int) -> None:
    if sys.platform != "win32":
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
