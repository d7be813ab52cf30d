"""``offgrad warmup`` fills an empty cache, and says what it did."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import psutil
import pytest
from rich.console import Console

from offgrad.cli.warmup.command import _summarise
from offgrad.cli.warmup.processes import Outcome, Unit, compile_units
from offgrad.kernels._bfloat16_tiles import instructions
from offgrad.kernels._warmup import Compilation
from tests.cli.conftest import Offgrad

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# Three kernels: a warmup with all of them takes a minute or more.
FEW = """
import sys
from offgrad.kernels import _warmup
for name in {*_warmup.UNITS} - {"AdamW", "GELU", "softmax"}:
    del _warmup.UNITS[name]
from offgrad.cli import main
main()
"""

# The loops of all units come from the cache that the other tests use, or are compiled into it.
ALL_LOOPS = """
import numpy as np, offgrad
from offgrad.kernels import *
from offgrad.cli.compare.gpt import GPT, GPTConfig
from offgrad.kernels import _jit, _warmup
for name in _warmup.UNITS:
    _warmup.compile_unit(name, "float32")
print([loop.__qualname__ for loop in _jit.loops if loop.counts() == (0, 0)])
before = [loop.counts() for loop in _jit.loops]
model = GPT(GPTConfig(1, 16, 2, 8, 0.1))
optimizer = offgrad.optim.AdamW(model.parameters())
tokens = offgrad.tensor(np.zeros((2, 8), np.int64))
model.loss(tokens, tokens).backward()
optimizer.step()
used = [loop.__qualname__ for loop, counts in zip(_jit.loops, before) if loop.counts() != counts]
print(used, sum(sum(counts) for counts in before) >= 100)
"""


def python(program: str, *arguments: str, **variables: str) -> str:
    """Return what a program prints that writes nothing to stderr and ends with status 0."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
def test_an_empty_cache_is_filled(tmp_path: Path) -> None:
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    first = python(FEW, "warmup", "--processes", "2", **cache)
    assert "AdamW, float32: compiled in " in first
    assert " of work, 2 processes); 0 were in the cache\n" in first
    assert f"Cache: {tmp_path / 'cache'}" in first
    again = python(FEW, "warmup", **cache)
    assert "AdamW, float32: in the cache\n" in again
    assert "Compiled 0 kernels in " in again


@pytest.mark.slow
@pytest.mark.timeout(1200)  # on a busy machine whose cache is empty
def test_it_compiles_every_loop_and_all_that_a_step_of_the_gpt_uses() -> None:
    left_out, rest = python(ALL_LOOPS).splitlines()
    beyond_this_cpu = [] if instructions() else ["bfloat16_product_loop"]
    beyond_this_cpu += [] if instructions() == "amx" else ["split_product_loop"]
    assert left_out == str(beyond_this_cpu), "add calls of these to offgrad.kernels._warmup"
    assert rest == "[] True", "a step compiled or loaded loops for other types"


def test_bad_values(run: Run) -> None:
    done = run("warmup", "--processes", "0")
    assert done.returncode == 2
    assert "--processes" in done.stderr
    done = run("warmup", OFFGRAD_KERNELS="numpy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "offgrad: OFFGRAD_KERNELS=numpy: there is nothing to compile; unset it\n"
    )
    done = run("warmup", OFFGRAD_KERNELS="cuda")
    assert done.returncode == 2
    assert "got 'cuda'" in done.stderr


def test_without_numba(run: Run, tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "numba.py").write_text("raise ImportError('not here')\n")
    path = os.pathsep.join([str(tmp_path / "without"), *sys.path])
    done = run("warmup", PYTHONPATH=path, OFFGRAD_KERNELS="numba")
    assert done.returncode == 1
    assert done.stderr.startswith("offgrad: numba cannot be imported (not here)")


def test_help_has_an_example_and_the_exit_status(run: Run) -> None:
    done = run("warmup", "--help")
    assert "offgrad warmup --dtype all --processes 2" in done.stdout
    assert "Exit status: 0 if all kernels are in the cache; 1 if" in done.stdout


@pytest.mark.slow
def test_a_unit_that_fails_leaves_the_others() -> None:
    units = [Unit("nothing", "float32"), Unit("SGD", "float32")]
    failed, done = sorted(compile_units(units, 1), key=lambda outcome: units.index(outcome.unit))
    assert failed == Outcome(units[0], None, "KeyError: 'nothing'")
    assert done.compilation is not None
    assert done.compilation.compiled + done.compilation.loaded == 1


@pytest.mark.slow
def test_a_worker_that_dies_fails_what_it_and_nobody_else_can_compile() -> None:
    units = [Unit("SGD", "float32"), Unit("softmax", "float32"), Unit("GELU", "float32")]
    outcomes = compile_units(units, 1)
    assert next(outcomes).error is None
    psutil.Process().children()[-1].kill()
    errors = [outcome.error for outcome in outcomes]
    # The second unit may have been compiled before the worker died.
    assert errors[-1] in ("the worker process ended with status -9", "no worker process is left")


def test_failures_and_a_missing_cache_are_errors() -> None:
    console = Console(file=io.StringIO())
    unit = Unit("SGD", "float32")
    with pytest.raises(click.ClickException, match="1 of 2 units failed"):
        _summarise(
            console,
            [Outcome(unit, Compilation(1, 0, 0.5, "/cache")), Outcome(unit, None, "broken")],
            1,
            1.0,
        )
    with pytest.raises(click.ClickException, match="set NUMBA_CACHE_DIR to a folder that can"):
        _summarise(console, [Outcome(unit, Compilation(1, 0, 0.5, None))], 1, 1.0)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
def test_ctrl_c_ends_all_processes(start: Offgrad, tmp_path: Path) -> None:
    process = start("warmup", "--processes", "2", NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert process.stdout is not None
    # A worker compiles its waiting loop before its units: that one may come first.
    assert any("compiled in" in process.stdout.readline() for _ in range(3))
    workers = psutil.Process(process.pid).children()
    assert len(workers) == 2
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "offgrad: interrupted\n")
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
