"""Machines with their drives: measured once for each device, and remembered."""

import json
import os
import platform
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path

from offgrad_storage.files.spill_directory import spill_directory

from offgrad.prediction.machine import Machine
from offgrad.prediction.measurements import measure

_VERSION = 3


def measured(directory: str | os.PathLike[str] | None = None, *, again: bool = False) -> Machine:
    """Return the machine with the drive of `directory`: as remembered, or measured now.

    Measuring takes some seconds, and writes about half a GiB.

    Args:
        directory: where stores write; None for their default.
        again: measure also what is remembered.

    Raises:
        StoreError: the drive cannot be used.
    """
    key = _device_of(directory)
    known = _load()
    if not again and key in known:
        return known[key]
    machine = measure(directory)
    _save({**known, key: machine})
    return machine


def remembered(directory: str | os.PathLike[str] | None = None) -> Machine | None:
    """Return the machine with the drive of `directory`; None if that was never measured."""
    try:
        return _load().get(_device_of(directory))
    except (OSError, ValueError):  # no such folder: a store will say so
        return None


def _device_of(directory: str | os.PathLike[str] | None) -> str:
    """Return a key of the device that holds a directory."""
    folder = spill_directory(directory)
    return f"{platform.node()} {os.stat(folder).st_dev}"


def cache_file() -> Path:
    """Return where measurements are remembered: in the user's folder for caches."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = Path(base) if base else Path.home() / ".cache"
    return folder / "offgrad" / "machines.json"


def _load() -> dict[str, Machine]:
    """Return what is remembered; nothing if the file is missing, damaged or of another version."""
    names = {each.name for each in fields(Machine)}
    try:
        content = json.loads(cache_file().read_text())
        if content["version"] != _VERSION:
            return {}
        return {
            key: Machine(**{name: float(each[name]) for name in names})
            for key, each in content["machines"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return {}


def _save(machines: dict[str, Machine]) -> None:
    """Remember measurements, if the folder for caches can be written."""
    content = {
        "version": _VERSION,
        "machines": {key: asdict(each) for key, each in machines.items()},
    }
    with suppress(OSError, RuntimeError):
        path = cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        own = path.with_suffix(f".{os.getpid()}")
        own.write_text(json.dumps(content, indent=1) + "\n")
        own.replace(path)
