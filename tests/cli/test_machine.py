"""The description of the machine tells the truth, as far as another source knows it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from offgrad_storage.files.spill_directory import file_system_of, mount_of

from offgrad.cli.drive import describe_folder
from offgrad.cli.machine import describe_machine, memory_limits


def test_it_is_json_and_agrees_with_psutil(tmp_path: Path) -> None:
    machine = json.loads(json.dumps(describe_machine(tmp_path)))
    assert machine["memory_nbytes"] == psutil.virtual_memory().total
    assert machine["usable_threads"] >= 1
    drive = machine["drive"]
    assert drive["folder"] == str(tmp_path)
    assert drive["total_nbytes"] == psutil.disk_usage(str(tmp_path)).total
    assert drive["drive"]
    assert not list(tmp_path.iterdir())


def test_mounts_agree_with_psutil() -> None:
    if not os.path.exists("/proc/self/mountinfo"):
        pytest.skip("needs /proc")
    # Of several mounts in the same folder the last one is seen.
    listed = {each.mountpoint: each for each in psutil.disk_partitions(all=True)}
    for folder in ("/", "/proc", "/sys", "/dev/shm"):
        if folder in listed:
            mount = mount_of(folder)
            assert mount is not None
            assert (mount.folder, mount.kind) == (folder, listed[folder].fstype)


def test_memory_is_called_memory() -> None:
    if file_system_of("/dev/shm") != "tmpfs":
        pytest.skip("needs a tmpfs")
    drive = describe_folder(Path("/dev/shm"))
    assert (drive["is_memory"], drive["drive"]) == (True, "memory (tmpfs)")


def test_limits_of_the_process_are_found() -> None:
    resource = pytest.importorskip("resource")
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 40, 1 << 40))\n"
        "from offgrad.cli.machine import memory_limits; print(memory_limits())"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert f"'address_space': {1 << 40}" in found
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    assert memory_limits()["address_space"] == (None if soft == resource.RLIM_INFINITY else soft)
