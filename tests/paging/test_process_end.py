"""The end of a process: no save is lost, threads and handlers of `atexit` may use the model."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from offgrad_storage import DiskStore, StoreFullError

import offgrad
from offgrad import checkpoint
from tests.paging.models import mlp

MODEL = """
import atexit, os, sys, threading
import offgrad
from offgrad import checkpoint, nn
from offgrad_storage import ZarrStore
kind, folder = sys.argv[1:]
kept = ZarrStore(folder + "/kept", keep=True)
placement = offgrad.policies.Offload(kept) if kind == "kept zarr" else kind
with offgrad.offload_model(placement, window="256KiB"):
    model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(6)])
optimizer = offgrad.optim.AdamW(model.parameters())

def train(steps):
    for step in range(steps):
        model(offgrad.ones(4, 128)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield step + 1
"""
SAVES = """
for step in train(3):
    checkpoint.save(folder + "/run", step=step, background=True, model=model, optimizer=optimizer)
"""
THREADS = """
def work():
    print("trained", len([*train(10)]))
    offgrad.save(model.state_dict(), folder + "/thread.pt")

atexit.register(lambda: offgrad.save(model.state_dict(), folder + "/handler.pt"))
threading.Thread(target=work).start()
"""
FAILS = """
for _ in train(1):
    pass
save = checkpoint.save(folder + "/run.pt", background=True, model=model, bad=lambda: 0)
"""


def _run(code: str, kind: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-Werror", "-c", MODEL + code, kind, str(folder)],
        env=os.environ | {"OFFGRAD_SPILL_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("kind", ["keep", "disk", "zarr", "kept zarr"])
def test_the_last_background_save_is_written(kind: str, tmp_path: Path) -> None:
    done = _run(SAVES, kind, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    names = sorted(each.name for each in (tmp_path / "run").iterdir())
    assert names == [f"checkpoint-{step:08d}.pt" for step in (1, 2, 3)]
    assert checkpoint.load(tmp_path / "run")["step"] == 3


@pytest.mark.parametrize("kind", ["disk", "zarr"])
def test_threads_and_handlers_may_use_the_model(kind: str, tmp_path: Path) -> None:
    done = _run(THREADS, kind, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained 10\n", "")
    by_thread, by_handler = (
        offgrad.load(tmp_path / f"{each}.pt") for each in ("thread", "handler")
    )
    assert [*by_thread] == [*by_handler]
    assert all(bool((each == by_handler[name]).all()) for name, each in by_thread.items())


def test_a_save_that_fails_last_is_reported(tmp_path: Path) -> None:
    done = _run(FAILS, "disk", tmp_path)
    assert "offgrad.checkpoint: at exit:" in done.stderr
    assert "run.pt is not written: " in done.stderr
    assert "lambda" in done.stderr
    assert not (tmp_path / "run.pt").exists()


def test_a_save_refuses_what_cannot_be_loaded(tmp_path: Path) -> None:
    import numpy as np

    for value in (np.zeros(3), np.float64(1.5)):
        state: Any = {"metrics": [1, {"best": value}]}
        with pytest.raises(TypeError, match=r"of NumPy at 'state.metrics.1.best': pass"):
            checkpoint.save(tmp_path / "run.pt", model=mlp(1), state=state)
    assert not [*tmp_path.iterdir()]


def test_the_error_of_a_full_store_holds_no_frames(tmp_path: Path) -> None:
    import gc
    import weakref

    import numpy as np

    class Marker:
        pass

    def fill(store: DiskStore) -> "weakref.ref[Any]":
        marker = Marker()
        reference = weakref.ref(marker)
        with pytest.raises(StoreFullError):
            _ = [store.put(np.zeros(1 << 16)) for _ in range(8)]
        return reference

    gc.disable()
    try:
        with DiskStore(tmp_path, threads=0) as store:
            limit = _file_size_limit(1 << 20)
            try:
                reference = fill(store)
            finally:
                _file_size_limit(limit)
            assert reference() is None
    finally:
        gc.enable()


def _file_size_limit(nbytes: int) -> int:
    import resource

    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, most))
    return before
