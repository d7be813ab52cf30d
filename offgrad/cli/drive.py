"""The drive under a folder, as the operating system describes it."""

import os
import shutil
from pathlib import Path
from typing import Any

from offgrad_storage import StoreError
from offgrad_storage.files.direct_file import DirectFile
from offgrad_storage.files.spill_directory import RAM, Mount, mount_of

_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "fuse.sshfs", "beegfs", "gpfs"}
_OF_THE_HOST = {"9p", "virtiofs", "vboxsf", "fuse.grpcfuse", "drvfs"}


def describe_folder(folder: Path) -> dict[str, Any]:
    """Return file system, drive and free space of a folder that exists; sizes in bytes.

    Writes and removes one page, to see whether the page cache can be bypassed.

    - ``drive``: one line for people.
    - ``is_memory``: whether what is written there stays in RAM.
    - ``direct_io``: whether O_DIRECT works; None if the folder cannot be written to.

    Raises:
        OSError: the folder does not exist, or cannot be read.
    """
    mount, usage = mount_of(folder), shutil.disk_usage(folder)
    kind, model = _drive(folder, mount)
    is_memory = (mount is not None and mount.kind in RAM) or kind.startswith("memory")
    return {
        "folder": str(folder),
        "file_system": mount.kind if mount else None,
        "mounted_at": mount.folder if mount else None,
        "mount_options": sorted(set(mount.options)) if mount else [],
        "drive": kind if model is None else f"{kind}, {model}",
        "is_memory": is_memory,
        "direct_io": _takes_direct_io(folder),
        "total_nbytes": usage.total,
        "free_nbytes": usage.free,
    }


def drive_in_words(drive: dict[str, Any]) -> str:
    """Return what `describe_folder` found, as one line."""
    if drive["is_memory"]:
        return f"{drive['folder']} is memory ({drive['file_system']}), not a drive"
    known = ", ".join(each for each in (drive["file_system"], drive["drive"]) if each)
    return f"{drive['folder']} ({known})" if known else drive["folder"]


def _takes_direct_io(folder: Path) -> bool | None:
    try:
        file = DirectFile.unnamed(folder, direct=True)
    except (OSError, StoreError):
        return None
    try:
        return file.direct
    finally:
        file.close()


def _drive(folder: Path, mount: Mount | None) -> tuple[str, str | None]:
    """Return the kind of the drive in plain words, and its model if it has a name."""
    if mount is None:
        return "unknown drive", None
    if mount.kind in RAM:
        return f"memory ({mount.kind})", None
    if mount.kind in _REMOTE:
        return f"network ({mount.kind})", None
    if mount.kind in _OF_THE_HOST:
        return f"folder of the host ({mount.kind})", None
    if mount.kind == "overlay":
        upper = next((each[9:] for each in mount.options if each.startswith("upperdir=")), "")
        below = mount_of(upper) if upper else None
        if below is None or below.kind == "overlay":
            return "unknown drive, below an overlay", None
        return _drive(Path(upper), below)
    device = _block_device(folder, mount)
    return ("unknown drive", None) if device is None else _named(device)


def _block_device(folder: Path, mount: Mount) -> Path | None:
    """Return the folder of the whole drive in /sys; None if the file system has no such drive."""
    number = os.stat(folder).st_dev
    if os.major(number) == 0:  # the file system made the number up
        try:
            number = os.stat(mount.source).st_rdev
        except OSError:
            return None
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not device.exists():
        return None
    device = device.resolve()
    return device.parent if (device / "partition").exists() else device


def _named(device: Path) -> tuple[str, str | None]:
    below = sorted((device / "slaves").iterdir()) if (device / "slaves").is_dir() else []
    if below:  # RAID, LVM or encryption
        kinds = {_named(each.resolve()) for each in below}
        names = sorted({kind if model is None else f"{kind}, {model}" for kind, model in kinds})
        return f"{device.name} over {len(below)} of: {'; '.join(names)}", None
    name, path = device.name, str(device)
    model = _read(device / "device" / "model")
    if name.startswith(("zram", "ram")):
        return f"memory ({name})", model
    if name.startswith("loop"):
        return f"file as a drive ({_read(device / 'loop' / 'backing_file') or name})", model
    if "/virtio" in path or name.startswith("xvd"):
        return "virtual drive (virtio)" if "/virtio" in path else "virtual drive (Xen)", model
    if name.startswith("nvme"):
        return "NVMe drive", model
    bus = "USB drive" if "/usb" in path else None
    spins = _read(device / "queue" / "rotational")
    spinning = {"0": "solid-state drive", "1": "rotating drive"}.get(spins or "", "unknown drive")
    return bus or spinning, model


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
