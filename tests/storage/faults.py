"""Real faults of the system, made in separate processes that end with them.

A scenario is a function of a test module that takes strings. ``isolated`` runs it in a new Python
process, where it may use up resource limits and, in a new mount namespace, mount and damage file
systems: all of this ends with the process. A scenario whose fault this machine or user cannot make
raises ``Unsupported``, which skips the test.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import mmap
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from offgrad_storage import (
    AbstractArrayStore,
    Allocate,
    DiskStore,
    Handle,
    PoolStore,
    StoreError,
    TieredStore,
    ZarrStore,
)
from offgrad_storage.testing import eventually

Array = NDArray[Any]
Scenario = Callable[..., None]
T = TypeVar("T")

ON_DISK = ["disk", "disk-buffered", "zarr"]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

_UNSUPPORTED = 77
_RUN = "from tests.storage import faults; faults.main()"
_PATH = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin{os.pathsep}/sbin"


class Unsupported(Exception):
    """This machine or user cannot make the fault."""


# ---- stores and their errors


def make(
    kind: str,
    directory: Path,
    *,
    quota: int | None = None,
    inflight_nbytes: int = 4 << 20,
    allocate: Allocate | None = None,
) -> AbstractArrayStore:
    """A store of a kind: "disk", "disk-buffered", "disk-lz4", "zarr", "zarr-blosc", "pool" or
    "tiered", above a disk.
    """
    if kind == "pool":
        return PoolStore(quota, allocate=allocate)
    if kind == "tiered":
        below = make("disk", directory, quota=quota, inflight_nbytes=inflight_nbytes)
        return TieredStore(16 << 20, below, allocate=allocate)
    options: dict[str, Any] = {
        "quota": quota,
        "inflight_nbytes": inflight_nbytes,
        "allocate": allocate,
    }
    if kind.startswith("disk"):
        codec = "lz4" if kind == "disk-lz4" else "none"
        return DiskStore(directory, direct=kind != "disk-buffered", codec=codec, **options)
    return ZarrStore(directory, codec="blosc-lz4" if kind == "zarr-blosc" else "none", **options)


def name_of(kind: str) -> str:
    return {"disk": "DiskStore", "zarr": "ZarrStore", "pool": "PoolStore"}[kind.split("-")[0]]


def assert_helpful(error: BaseException, kind: str, handle: Handle | None = None) -> None:
    """A MemoryError, or a StoreError with store, handle (if given), problem and fix."""
    if isinstance(error, MemoryError):
        return
    assert isinstance(error, StoreError), repr(error)
    text = str(error)
    assert error.store.startswith(name_of(kind)), f"names no store: {error!r}"
    assert text.startswith(error.store), f"names no store: {error!r}"
    assert error.fix, f"does not say what to do: {error!r}"
    assert text.endswith(error.fix), f"does not say what to do: {error!r}"
    if handle is not None:
        assert error.handle, f"names no handle: {error!r}"
        assert error.handle in repr(handle), f"names another handle than {handle!r}: {error!r}"
        assert error.handle in text, f"names no handle: {error!r}"
    happened = text.removeprefix(error.store).removesuffix(error.fix).replace(error.handle, "")
    assert re.search(r"\w{3,} \w+", happened), f"does not say what happened: {error!r}"


def outcome(kind: str, handle: Handle, array: Array) -> type[BaseException] | None:
    """None if ``get`` gives ``array`` back bit for bit, else the kind of error, once checked."""
    try:
        found = handle.get()
    except (StoreError, MemoryError) as error:
        assert_helpful(error, kind, handle)
        return type(error)
    assert_bytes(found, array)
    return None


def assert_bytes(found: Array, expected: Array) -> None:
    """Two arrays of bytes are the same; takes no memory, of which there may be none."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.data == expected.data, "not the bytes that were stored"


Stored = list[tuple[Handle, Array]]


def put_each(kind: str, store: AbstractArrayStore, arrays: list[Array]) -> tuple[Stored, int]:
    """Put every array; give those that were taken, and how many puts raised a helpful error."""
    stored, refused = [], 0
    for array in arrays:
        try:
            stored.append((store.put(array), array))
        except (StoreError, MemoryError) as error:
            assert_helpful(error, kind)
            refused += 1
    store.flush()
    for handle, _ in stored:
        handle.wait_captured()
    return stored, refused


def assert_readable(stored: Stored) -> None:
    """All arrays can be read, after a flush: from their places in the store."""
    for handle, _ in stored[:1]:
        handle.store.flush()
    for handle, array in stored:
        assert_bytes(handle.get(), array)


def assert_works_again(kind: str, store: AbstractArrayStore, nbytes: int) -> None:
    """A put and a get work, if need be after files were removed in the background."""
    array = noise(nbytes, seed=nbytes)

    def works() -> bool:
        stored, _ = put_each(kind, store, [array])
        return all(outcome(kind, *pair) is None for pair in stored) and bool(stored)

    eventually(works, 20 if kind.startswith("zarr") else 2)


def noise(nbytes: int, seed: int = 0) -> Array:
    """Bytes that no codec makes smaller, and that are found nowhere by chance."""
    return np.frombuffer(np.random.default_rng(seed).bytes(nbytes), np.uint8)


def many(sizes: str, total: int) -> list[Array]:
    """Arrays of 1 to 64 KB ("small") or 1 to 5 MB ("large"), of ``total`` bytes or little more."""
    random = np.random.default_rng(total)
    low, high = {"small": (1 << 10, 64 << 10), "large": (1 << 20, 5 << 20)}[sizes]
    arrays: list[Array] = []
    while total > 0:
        arrays.append(noise(int(random.integers(low, high)), seed=len(arrays)))
        total -= arrays[-1].nbytes
    return arrays


# ---- stored bytes in files


def open_files(directory: Path) -> list[Path]:
    """Entries of /proc/self/fd for the open regular files under ``directory``, unnamed ones too."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith(f"{directory}{os.sep}") and path.is_file():
                found.append(path)
    return found


def files_under(directory: Path) -> list[Path]:
    """Every regular file in which a store in ``directory`` may keep bytes: named or only open."""
    named = [Path(folder, name) for folder, _, names in os.walk(directory) for name in names]
    seen: dict[tuple[int, int], Path] = {}
    for path in [*named, *open_files(directory)]:
        with contextlib.suppress(OSError):  # it has just been removed
            status = path.stat() if path.parent.name == "fd" else path.lstat()
            if stat.S_ISREG(status.st_mode):
                seen.setdefault((status.st_dev, status.st_ino), path)
    return list(seen.values())


def disk_nbytes(directory: Path) -> int:
    """Bytes that the files of a store take, those only open included."""
    total = 0
    for path in files_under(directory):
        with contextlib.suppress(OSError):  # it has just been removed
            total += path.stat().st_blocks * 512
    return total


def place_of(array: Array, directory: Path) -> tuple[Path, int] | None:
    """The file under ``directory`` and the offset of the bytes of ``array``, if written."""
    data = array.tobytes()
    for path in files_under(directory):
        size = path.stat().st_size
        if size >= len(data):
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
                if (offset := view.find(data)) >= 0:
                    return path, offset
    return None


def written_places(
    store: AbstractArrayStore, stored: Stored, directory: Path
) -> list[tuple[Path, int]]:
    """Where each array is stored, with all of them in files."""
    store.flush()
    places = [place_of(array, directory) for _, array in stored]
    found = [place for place in places if place]
    assert len(set(found)) == len(found), "two arrays share a place"
    assert len(found) == len(places), "the arrays are not to be found in the store's files"
    return found


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Change bytes in a file that a store has open."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, data, offset)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flip(path: Path, offset: int) -> None:
    with path.open("rb") as file:
        file.seek(offset)
        byte = file.read(1)[0]
    overwrite(path, offset, bytes([byte ^ 0x10]))


# ---- limits


def take_all(take: Callable[[], T], taken: list[T]) -> None:
    """Take again and again, into ``taken``, until that raises."""
    while True:
        taken.append(take())


@contextlib.contextmanager
def limit(which: int, value: int) -> Iterator[None]:
    """A soft resource limit, put back afterwards."""
    import resource

    before = resource.getrlimit(which)
    resource.setrlimit(which, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


def address_space() -> int:
    """Bytes of address space that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


# ---- separate file systems


def mount_tmpfs(path: Path, nbytes: int) -> None:
    _mount("-t", "tmpfs", "-o", f"size={nbytes},mode=700", "tmpfs", path)


def mount_ext4(path: Path, nbytes: int, options: str = "errors=remount-ro") -> None:
    """An ext4 in a file, without a journal: all but a few percent of it can be used."""
    image = path.with_name(f"{path.name}.ext4")
    try:
        with image.open("wb") as file:
            file.truncate(nbytes)
        _command("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", image)
        _mount("-o", f"loop,{options}", image, path)
    finally:
        image.unlink()  # the mount keeps it


def mount_read_only(path: Path) -> None:
    """Make ``path`` a read-only view of itself."""
    _mount("--bind", path, path)
    _mount("-o", "remount,bind,ro", path)


def stop_drive(path: Path) -> None:
    """From now on every input or output on this ext4 is an error, as if its drive had died."""
    import fcntl

    shutdown, without_flushing = 0x8004587D, 2  # EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, shutdown, without_flushing.to_bytes(4, sys.byteorder))
    except OSError as error:
        raise Unsupported(f"cannot shut an ext4 down: {error}") from error
    finally:
        os.close(descriptor)


def turn_read_only(path: Path) -> None:
    """The kernel makes this ext4 read-only, as it does when it finds it damaged."""
    device = os.stat(path).st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
    try:
        Path(f"/sys/fs/ext4/{block}/trigger_fs_error").write_text("made by a test")
    except OSError as error:
        raise Unsupported(f"cannot trigger an error of ext4: {error}") from error


def _mount(*arguments: object) -> None:
    _command("mount", *arguments)


def _command(name: str, *arguments: object) -> None:
    program = shutil.which(name, path=_PATH)
    if program is None:
        raise Unsupported(f"there is no {name} here")
    ran = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise Unsupported(f"{name} is not permitted here: {ran.stderr.strip()}")


@functools.cache
def _namespace() -> list[str]:
    """The command that runs another one in a mount namespace; empty if that cannot be had."""
    program = shutil.which("unshare", path=_PATH)
    if program is not None:
        for options in (["--mount"], ["--mount", "--map-root-user"]):
            command = [program, *options]
            if not subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
                return command
    return []


# ---- processes


def start(
    scenario: Scenario, *arguments: object, mounts: bool = False, umask: int | None = None
) -> subprocess.Popen[str]:
    """Start a scenario in a new Python process, in a new mount namespace if ``mounts``."""
    prefix = _namespace() if mounts else []
    if mounts and not prefix:
        pytest.skip("no mount namespace to be had here")
    names = [scenario.__module__, scenario.__qualname__]
    return subprocess.Popen(
        [*prefix, sys.executable, "-Werror", "-c", _RUN, *names, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": _PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        umask=-1 if umask is None else umask,
    )


def finish(process: subprocess.Popen[str], timeout: float = 120) -> str:
    """Wait for a scenario and return its output; skip or fail as it did."""
    with process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    if process.returncode == _UNSUPPORTED:
        pytest.skip(errors.strip())
    assert process.returncode == 0, errors
    return out


def isolated(
    scenario: Scenario,
    *arguments: object,
    mounts: bool = False,
    umask: int | None = None,
    timeout: float = 120,
) -> str:
    """Run a scenario in a separate process and return its output."""
    return finish(start(scenario, *arguments, mounts=mounts, umask=umask), timeout)


def main() -> None:
    """The program of such a process."""
    module, name, *arguments = sys.argv[1:]
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: do not outlive a killed parent
    try:
        getattr(importlib.import_module(module), name)(*arguments)
    except Unsupported as reason:
        print(reason, file=sys.stderr)
        sys.exit(_UNSUPPORTED)
