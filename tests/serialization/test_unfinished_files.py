"""Unfinished files of saves: those of dead writers are removed, those of living ones never."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import offgrad
from offgrad import checkpoint
from offgrad._checkpoint import writer
from tests.forked import run_in_child
from tests.processes import start_python

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="locks of files are POSIX's")

WRITING = """
import sys, time
from offgrad._checkpoint import writer
with writer.replacing(sys.argv[1]) as file:
    file.write(b"half")
    print("writing", flush=True)
    time.sleep(600)
"""


def _hidden(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.name.startswith(".")]


@pytest.mark.parametrize(
    "save",
    [
        lambda path: checkpoint.save(path, count=1),
        lambda path: checkpoint.save(path.parent, step=1, count=1),
        lambda path: offgrad.save([1], path),
    ],
    ids=["checkpoint", "folder of checkpoints", "save"],
)
def test_the_next_save_removes_what_a_killed_one_left(
    tmp_path: Path, save: Callable[[Path], object]
) -> None:
    path = tmp_path / "a.pt"
    child = start_python(WRITING, str(path), stdout=-1)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "writing\n"
        unfinished = _hidden(tmp_path)
        save(path)
        assert _hidden(tmp_path) == unfinished
        assert len(unfinished) == 1
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    save(path)
    assert not _hidden(tmp_path)


def test_offgrad_save_leaves_the_files_of_other_names(tmp_path: Path) -> None:
    other = tmp_path / ".b.pt.0123456789ab.tmp"
    other.write_bytes(b"half")
    offgrad.save([1], tmp_path / "a.pt")
    assert other.exists()
    offgrad.save([1], tmp_path / "b.pt")
    assert not other.exists()


def test_a_file_that_is_not_locked_yet_must_be_old(tmp_path: Path) -> None:
    unlocked = tmp_path / ".a.pt.0123456789ab.new"
    unlocked.write_bytes(b"")
    writer.sweep(tmp_path)
    assert unlocked.exists()
    os.utime(unlocked, (0, 0))
    writer.sweep(tmp_path)
    assert not unlocked.exists()


def test_a_file_is_locked_until_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def sweep_first(source: str, target: str) -> None:
        writer.sweep(tmp_path)
        replace(source, target)

    monkeypatch.setattr(os, "replace", sweep_first)
    with writer.replacing(str(tmp_path / "a.pt")) as file:
        file.write(b"whole")
        run_in_child(lambda: writer.sweep(tmp_path))  # its end gives up no lock of ours
        writer.sweep(tmp_path)
    assert (tmp_path / "a.pt").read_bytes() == b"whole"
    assert not _hidden(tmp_path)


def test_where_locks_fail_a_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(writer, "lock", fail)
    with writer.replacing(str(tmp_path / "a.pt")) as file:
        for each in _hidden(tmp_path):
            os.utime(each, (0, 0))
        writer.sweep(tmp_path)
        file.write(b"whole")
    assert (tmp_path / "a.pt").read_bytes() == b"whole"
    assert not _hidden(tmp_path)
