"""Processes that are killed in mid-write, and processes that share a directory."""

from __future__ import annotations

import contextlib
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from offgrad_storage import sweep

from tests.storage.faults import (
    Scenario,
    Stored,
    assert_readable,
    finish,
    linux_only,
    make,
    many,
    noise,
    put_each,
    start,
)

pytestmark = linux_only

MIB = 1 << 20


def write_for_ever(kind: str, where: str) -> None:
    with make(kind, Path(where)) as store:
        stored, _ = put_each(kind, store, many("small", MIB))
        print("writing", flush=True)
        while True:
            stored = [(store.put(array), array) for array in many("small", 4 * MIB)]
            stored.append((store.put(noise(8 * MIB)), noise(8 * MIB)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["disk", "zarr"])
def test_a_killed_writer_leaves_nothing_once_another_has_started(kind: str, tmp_path: Path) -> None:
    with make(kind, tmp_path) as living:
        stored, _ = put_each(kind, living, many("small", MIB // 2))
        beside = set(tmp_path.iterdir())
        for seconds in (0.01, 0.05):
            with started(write_for_ever, [(kind, tmp_path)]) as (writer,):
                assert writer.stdout is not None
                assert writer.stdout.readline() == "writing\n"
                time.sleep(seconds)
                writer.send_signal(signal.SIGKILL)
                assert writer.wait() == -signal.SIGKILL
            for path in set(tmp_path.rglob("*")):
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0 or any(
                    stat.S_IMODE(parent.stat().st_mode) == 0o700
                    for parent in path.parents
                    if parent.is_relative_to(tmp_path) and parent != tmp_path
                ), f"{path} was open to others"
            with make(kind, tmp_path) as second:
                assert_readable(put_each(kind, second, many("small", MIB // 2))[0])
            assert set(tmp_path.iterdir()) == beside, "what the dead writer left was not swept"
        assert_readable(stored)
    assert not list(tmp_path.iterdir())


def work_and_sweep(kind: str, seed: str, where: str) -> None:
    directory = Path(where)
    for turn in range(4):
        with make(kind, directory) as store:
            random = np.random.default_rng(int(seed) * 100 + turn)
            stored: Stored = []
            for number in range(40):
                array = noise(int(random.integers(1, 200_000)), seed=int(seed) * 1000 + number)
                stored.append((store.put(array), array))
                if number % 10 == 5:
                    sweep(directory)
                    assert_readable(stored)
                    del stored[::2]
            assert_readable(stored)
            stored.clear()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["disk", "zarr"])
def test_processes_in_one_directory_do_no_harm_to_each_other(kind: str, tmp_path: Path) -> None:
    with make(kind, tmp_path) as store:
        stored, _ = put_each(kind, store, many("small", MIB))
        with started(work_and_sweep, [(kind, seed, tmp_path) for seed in range(2)]) as workers:
            while any(worker.poll() is None for worker in workers):
                sweep(tmp_path)
                time.sleep(0.001)
            for worker in workers:
                finish(worker)
        assert_readable(stored)
        stored.clear()
    assert not list(tmp_path.iterdir())


def make_and_close(kind: str, where: str) -> None:
    for _ in range(30):
        with make(kind, Path(where)):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["disk", "zarr"])
def test_stores_that_start_and_end_beside_each_other(kind: str, tmp_path: Path) -> None:
    with started(make_and_close, [(kind, tmp_path)] * 3) as workers:
        for worker in workers:
            finish(worker)
    assert not list(tmp_path.iterdir())


@contextlib.contextmanager
def started(
    scenario: Scenario, arguments: list[tuple[object, ...]]
) -> Iterator[list[subprocess.Popen[str]]]:
    """A process for each of ``arguments``; all are ended afterwards."""
    workers: list[subprocess.Popen[str]] = []
    try:
        workers += [start(scenario, *each) for each in arguments]
        yield workers
    finally:
        for worker in workers:
            with worker:
                worker.kill()
