"""``offgrad warmup``: compile all kernels now, so that no training waits for it."""

import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from offgrad import kernels
from offgrad.cli.errors import BadValue
from offgrad.cli.warmup.processes import Outcome, Unit, compile_units
from offgrad.kernels._waiting import usable_cpus
from offgrad.kernels._warmup import DTYPES, UNITS


@click.command(
    short_help="Compile all kernels ahead of training.",
    context_settings={"show_default": True, "max_content_width": 100},
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=None,
    help="Processes that compile at the same time.  [default: one for each usable core]",
)
@click.option(
    "--dtype",
    type=click.Choice([*DTYPES, "all"]),
    default="float32",
    help="Compile for tensors of this type. 16-bit floats need no kernels of their own.",
)
def warmup(processes: int | None, dtype: str) -> int:
    """Compile all kernels, so that no training step waits for it.

    Kernels are compiled when they are first used, and cached on disk: on a fresh machine the first
    training step takes seconds longer. This command fills the cache ahead, for this version of
    offgrad and this machine's processor; what is cached already is only checked. The environment
    variable NUMBA_CACHE_DIR sets the cache's folder.

    \b
    Examples:
      offgrad warmup
      offgrad warmup --dtype all --processes 2
      NUMBA_CACHE_DIR=/var/cache/offgrad offgrad warmup

    Exit status: 0 if all kernels are in the cache; 1 if one failed, or compiled kernels cannot be
    cached; 2 for bad values.
    """
    _check_backend()
    dtypes = DTYPES if dtype == "all" else (dtype,)
    units = [Unit(name, each) for each in dtypes for name in UNITS]
    count = min(processes or usable_cpus(), len(units))
    console = Console(emoji=False)
    began = time.perf_counter()
    with closing(compile_units(units, count)) as outcomes:
        finished = list(_shown(console, outcomes, len(units)))
    return _summarise(console, finished, count, time.perf_counter() - began)


def _check_backend() -> None:
    """Raise unless kernels are compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            backend = kernels.backend()
        except ValueError as error:
            raise BadValue(f"OFFGRAD_KERNELS: {error}") from None
        except RuntimeWarning as warning:
            raise click.ClickException(str(warning)) from None
    if backend == "numpy":
        raise BadValue("OFFGRAD_KERNELS=numpy: there is nothing to compile; unset it")


def _shown(console: Console, outcomes: Iterable[Outcome], total: int) -> Iterator[Outcome]:
    """Show progress: a bar on a terminal, elsewhere a line for each unit."""
    is_live = console.is_terminal and not console.is_dumb_terminal
    columns = (
        *(BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn()),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, disable=not is_live) as progress:
        task = progress.add_task("compiling", total=total)
        for outcome in outcomes:
            progress.update(task, advance=1, description=", ".join(outcome.unit))
            if not is_live or outcome.error is not None:
                _print(console, _line(outcome))
            yield outcome


def _line(outcome: Outcome) -> str:
    name = f"{outcome.unit.name}, {outcome.unit.dtype}"
    if outcome.compilation is None:
        return f"{name}: failed: {outcome.error}"
    if outcome.compilation.compiled == 0:
        return f"{name}: in the cache"
    return f"{name}: compiled in {outcome.compilation.seconds:.1f} s"


def _summarise(
    console: Console, outcomes: Sequence[Outcome], processes: int, seconds: float
) -> int:
    """Print counts, times and the cache's folder; return the exit status."""
    done = [each.compilation for each in outcomes if each.compilation is not None]
    failed = len(outcomes) - len(done)
    compiled = sum(each.compiled for each in done)
    worked = sum(each.seconds for each in done if each.compiled)
    text = f"Compiled {compiled} kernels in {seconds:.1f} s"
    if compiled:
        text += f" ({worked:.1f} s of work, {processes} processes)"
    _print(console, f"{text}; {sum(each.loaded for each in done)} were in the cache")
    folders = {each.folder for each in done}
    if None in folders:
        raise click.ClickException(
            "compiled kernels cannot be cached: neither offgrad's folder nor the user's cache can "
            "be written to; set NUMBA_CACHE_DIR to a folder that can"
        )
    for folder in sorted(each for each in folders if each is not None):
        _print(console, f"Cache: {folder}")
    if failed:
        raise click.ClickException(f"{failed} of {len(outcomes)} units failed; see above")
    return 0


def _print(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.file.flush()
