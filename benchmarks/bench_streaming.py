"""What does a step cost when moving its bytes takes about as long as computing, or longer?

    pytest benchmarks/bench_streaming.py -s

A chain of elementwise layers saves an array for each pass over one, so no policy can hide all of
its writes and reads. A step under each policy is compared with the longer of computing (a step
under `keep`) and moving (a bare loop of direct writes and reads of as many bytes); all take turns.
Both need memory bandwidth and the processor, so even the bare loops beside a step under `keep` take
longer than the longer of the two: the first line. Medians are printed with quartiles; no time is
asserted.

Besides the tensors in use, sessions hold little memory: 32 MiB of pending writes and 32 MiB of
prefetched reads. The last session has more of both and a third thread, so that the drive is never
idle.

OFFGRAD_BENCH_STREAMING="layers MiB rounds" sets the size.
"""

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from offgrad_storage import DiskStore

import offgrad
from benchmarks._lib.training_turns import quartiles
from offgrad import memory
from offgrad.cli.bench_storage.bare_file import BareFile
from offgrad.cli.bench_storage.loops import Variants
from offgrad.nn import functional as F

_MIB = 1 << 20
LAYERS, SIZE, ROUNDS = map(int, os.environ.get("OFFGRAD_BENCH_STREAMING", "48 16 7").split())


def _forward(x: Any, session: offgrad.session.OffloadSession) -> Any:
    """Run layers that each save their result."""
    with session:
        y = x
        for layer in range(LAYERS):
            y = F.relu(y - layer / LAYERS)
        return y.sum()


def _step(x: Any, session: offgrad.session.OffloadSession) -> None:
    _forward(x, session).backward()
    x.grad = None


def _step_beside(x: Any, keep: offgrad.session.OffloadSession, loops: Variants) -> None:
    """Run a step under `keep`, with a loop of writes beside forward and of reads in backward."""
    with ThreadPoolExecutor(1) as thread:
        moving = thread.submit(loops["bare write, 2 threads"])
        loss = _forward(x, keep)
        moving.result()
        moving = thread.submit(loops["bare read, 2 threads"])
        loss.backward()
        x.grad = None
        moving.result()


def test_steps_against_computing_and_moving(tmp_path: Path) -> None:
    """Compare the step of each policy with the longer of `keep` and the bare loops."""
    try:
        file = BareFile.unnamed(tmp_path, LAYERS * SIZE * _MIB)
    except OSError:
        pytest.skip("the folder does not support direct writes")
    x = offgrad.randn(SIZE * _MIB // 4096, 1024, requires_grad=True)
    sessions = {
        name: offgrad.offload(name, directory=str(tmp_path))
        for name in ("keep", "disk", "zarr", f"budget:{LAYERS * SIZE // 2}MiB")
    }
    store = DiskStore(tmp_path, allocate=memory.empty, threads=3, inflight_nbytes=128 * _MIB)
    sessions["disk, more in flight"] = offgrad.offload(store, prefetch_nbytes="64MiB")
    runs: dict[str, Callable[[], object]] = {
        name: partial(_step, x, session) for name, session in sessions.items()
    }
    loops = file.variants(16 * _MIB, 1, 2)
    runs["bare loops beside keep"] = partial(_step_beside, x, sessions["keep"], loops)
    runs |= loops
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(1 + ROUNDS):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - began)
    file.close()
    store.close()
    medians = {name: statistics.median(each[1:]) for name, each in seconds.items()}
    bare = {
        kind: min(medians[f"bare {kind}, {n}"] for n in ("1 thread", "2 threads"))
        for kind in ("write", "read")
    }
    computing = medians["keep"]
    print(
        f"\n{LAYERS} layers, each saves {SIZE} MiB; computing {computing:.3f} s; bare loops: "
        f"write {bare['write']:.3f} s, read {bare['read']:.3f} s"
    )
    steps = 1 + ROUNDS
    moved = {"bare loops beside keep": (file.nbytes, file.nbytes)}
    for name, session in sessions.items():
        ledger = session.ledger
        moved[name] = (ledger.written_nbytes // steps, ledger.read_nbytes // steps)
    for name, (written, read) in moved.items():
        moving = written / file.nbytes * bare["write"] + read / file.nbytes * bare["read"]
        low, median, high = quartiles(seconds[name][1:])
        print(
            f"  {name:22} {median:.3f} s ({low:.3f} to {high:.3f}), moving {moving:.3f} s: "
            f"{median / max(computing, moving):.2f} of the longer, "
            f"{median / (computing + moving):.2f} of the sum"
        )
