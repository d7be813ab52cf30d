"""The choice of the spill directory, and the sweep of abandoned folders."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from offgrad_storage import spill_directory, sweep
from offgrad_storage.files import spill_directory as module
from offgrad_storage.files.spill_directory import SpillFolder, file_system_of


def test_the_environment_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = tmp_path / "deep" / "spills"
    monkeypatch.setenv("OFFGRAD_SPILL_DIR", str(wanted))
    assert spill_directory() == wanted
    assert stat.S_IMODE(wanted.stat().st_mode) == 0o700
    assert spill_directory(tmp_path) == tmp_path


def test_memory_is_no_place_to_spill_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OFFGRAD_SPILL_DIR", raising=False)
    if file_system_of("/dev/shm") != "tmpfs" or not os.access("/var/tmp", os.W_OK):
        pytest.skip("needs a tmpfs at /dev/shm, and /var/tmp")
    monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
    assert spill_directory() == Path("/var/tmp")


def test_file_system_of() -> None:
    if not os.path.exists("/proc/self/mountinfo"):
        pytest.skip("needs /proc")
    assert file_system_of("/proc") == "proc"
    assert file_system_of("/no/such/file") == ""


def test_folder_is_private_and_removed(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    (folder.path / "x").write_text("x")
    folder.remove()
    folder.remove()
    assert not list(tmp_path.iterdir())


def test_living_folders_are_left_alone(tmp_path: Path) -> None:
    first = SpillFolder(tmp_path)
    second = SpillFolder(tmp_path)
    assert sweep(tmp_path) == []
    assert first.path.exists()
    first.remove()
    second.remove()


def test_dead_folders_are_swept(tmp_path: Path) -> None:
    dead = tmp_path / "offgrad-spill-1-dead"
    dead.mkdir()
    (dead / "lock").touch()
    (dead / "data").write_text("x")
    just_begun = tmp_path / "offgrad-spill-2-begun"
    just_begun.mkdir()
    stale = tmp_path / "offgrad-spill-3-stale"
    stale.mkdir()
    os.utime(stale, (0, 0))
    others = tmp_path / "something-else"
    others.mkdir()
    assert set(sweep(tmp_path)) == {dead, stale}
    assert set(tmp_path.iterdir()) == {just_begun, others}


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need privileges there")
def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "lock").touch()
    spills = tmp_path / "spills"
    spills.mkdir()
    (spills / "offgrad-spill-1-link").symlink_to(precious)
    inner = spills / "offgrad-spill-2-inner"
    inner.mkdir()
    (inner / "lock").symlink_to(precious / "lock")
    assert sweep(spills) == []
    assert (precious / "lock").exists()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs root")
def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "offgrad-spill-1-other"
    folder.mkdir()
    (folder / "lock").touch()
    os.chown(folder, 12345, 12345)
    assert sweep(tmp_path) == []
    assert module._is_abandoned(folder, 0)
