"""``offgrad compare``: train a model under each policy and show the figures side by side."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from offgrad.cli.compare import report
from offgrad.cli.compare.comparison import Comparison
from offgrad.cli.compare.config import Config, parse_batches, parse_limits
from offgrad.cli.compare.dataset import Bytes, load_text
from offgrad.cli.compare.files import (
    check_files,
    keeps_earlier,
    settings_of,
    write_figures,
    write_files,
)
from offgrad.cli.compare.groups import Plan
from offgrad.cli.compare.kept import Kept
from offgrad.cli.compare.largest import compare_largest
from offgrad.cli.compare.least_limit import least_limit
from offgrad.cli.compare.models import MODELS
from offgrad.cli.compare.output import names_of
from offgrad.cli.compare.policy_list import read_policies
from offgrad.cli.compare.results import CRASHED
from offgrad.cli.compare.runner import LimitTooLow, Refused
from offgrad.cli.compare.settings import check_settings, check_torch
from offgrad.cli.compare.side_by_side import print_side_by_side
from offgrad.cli.compare.target import check_batch, check_target
from offgrad.cli.drive import describe_folder, drive_in_words
from offgrad.cli.errors import BadValue
from offgrad.cli.folders import check_spill_directory
from offgrad.memory import format_nbytes
from offgrad.policies import POLICIES

_CURVE_BATCHES = (1, 2, 4, 8)
_Command = Callable[..., Any]
_PATH = click.Path(path_type=Path)


def _size(name: str, kind: type) -> Callable[[_Command], _Command]:
    return click.option(f"--{name}", type=kind, hidden=True)


class _Compare(click.Command):
    """Tells where the options of a script belong."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        script = next((each for each in args if each.endswith(".py")), None)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if script is None:
                raise
            raise BadValue(
                f"{error.format_message()} Options of the script follow --, as in offgrad compare "
                f"{script} -- {error.option_name}"
            ) from None


@click.command(
    cls=_Compare,
    short_help="Train under each policy; compare memory, time, gradients.",
    context_settings={"show_default": True, "max_content_width": 100},
)
@click.argument("target", default="gpt", metavar="[TARGET]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS]")
@click.option(
    "--policies",
    default=",".join(POLICIES),
    metavar="LIST",
    help="Policies, separated by commas, or a file *.toml.",
)
@click.option("--batch", metavar="LIST", help="Samples per step, such as 8,16.")
@click.option("--steps", default=10, help="Training steps. The times leave out the first.")
@click.option("--repeats", default=1, help="Times that each process runs anew.")
@click.option(
    "--memory-limit",
    metavar="LIST",
    help="Most memory for tensors, such as 200MiB; or none.  [default: 160MiB for gpt]",
)
@click.option("--hard-limit", is_flag=True, help="Let the system enforce it, too (RLIMIT_AS).")
@click.option("--torch", "with_torch", is_flag=True, help="Train built-in models on PyTorch, too.")
@click.option("--seed", default=0, help="Seed for weights, batches and dropout.")
@click.option("--text", "text_path", type=_PATH, help="File or folder that gpt learns.")
@click.option("--directory", metavar="FOLDER", help="Where stores write.")
@click.option("--output", default="offgrad-compare", type=_PATH, help="Folder for the results.")
@click.option("--fresh", is_flag=True, help="Start over instead of going on after Ctrl-C.")
@click.option("--curve", is_flag=True, help="Plot samples per second against memory, by batch.")
@click.option("--largest-batch", is_flag=True, help="Find the largest batch within the limit.")
@click.option("--from", "from_files", is_flag=True, help="Compare results: --from a.json b.json.")
@_size("layers", int)
@_size("width", int)
@_size("heads", int)
@_size("context", int)
@_size("image", int)
@_size("dropout", float)
@_size("lr", float)
def compare(
    target: str,
    arguments: tuple[str, ...],
    output: Path,
    directory: str | None,
    from_files: bool,
    **options: Any,
) -> int:
    """Train a model under each policy, and compare memory, time and gradients.

    \b
    TARGET is one of
      gpt, resnet, lstm, mlp, vit   built-in; sizes: --layers, --width, --heads, --context,
                                    --image, --dropout, --lr
      train.py                      a script; a step ends with a call of optimizer.step()
      package.module:step           a function that trains a step, or returns one that does

    \b
    A policy decides where the tensors saved for backward go:
      keep               stay in memory             recompute     cheap ones are recomputed
      pool, disk, zarr   to RAM, a file, Zarr       budget:64MiB  above that go to disk
      disk:lz4           compressed by a codec      last:8        all but the last 8 go to disk
      cast:float16       rounded                    a;b           the first that takes a tensor
    with options: min=SIZE (smaller tensors stay), then=disk (after cast, last, recompute),
    op=Gelu and module=blocks.* (these tensors only).

    Policies run in processes that take turns step by step. Exit status: 0 if all trained or ran
    out of memory; 1 if gradients differ, a process crashed or none finished; 2 for bad values.

    Example:  offgrad compare train.py --policies keep,disk:lz4 -- --epochs 1
    """
    if from_files:
        return print_side_by_side(Console(emoji=False), [target, *arguments])
    with _spilling_to(directory):
        return _compare(target, arguments, output, **options)


@contextlib.contextmanager
def _spilling_to(directory: str | None) -> Iterator[None]:
    """Let this process and its workers spill to a folder."""
    if directory is None:
        yield
        return
    before = os.environ.get("OFFGRAD_SPILL_DIR")
    try:
        folder = check_spill_directory(directory)
    except ValueError as error:
        raise BadValue(str(error)) from None
    os.environ["OFFGRAD_SPILL_DIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["OFFGRAD_SPILL_DIR"]
        else:
            os.environ["OFFGRAD_SPILL_DIR"] = before


def _compare(
    target: str,
    arguments: tuple[str, ...],
    output: Path,
    *,
    text_path: Path | None,
    fresh: bool,
    curve: bool,
    largest_batch: bool,
    **options: Any,
) -> int:
    try:
        if curve and largest_batch:
            raise ValueError("--curve and --largest-batch are two modes: give one of them")
        plan = _plan(target, arguments, curve, largest_batch, **options)
        check_files(output, curve, largest_batch)
        folder = check_settings()
    except ValueError as error:
        raise BadValue(str(error)) from None
    text, source = _text(plan.config, text_path)
    console = Console(emoji=False)
    _announce(console, plan, source, folder, text)
    try:
        kept = Kept(output, {**settings_of(plan, text), "largest batch": largest_batch})
        if fresh:
            kept.clear()
        if largest_batch:
            return compare_largest(console, plan, text, output, kept)
        return _run(console, Comparison(plan, source), text, output, kept, curve)
    except Refused as error:
        raise BadValue(str(error)) from None
    except LimitTooLow as error:
        raise BadValue(_too_low(console, plan, text, error.model_nbytes)) from None


def _plan(
    target: str,
    arguments: tuple[str, ...],
    curve: bool,
    largest_batch: bool,
    *,
    policies: str,
    batch: str | None,
    memory_limit: str | None,
    repeats: int,
    with_torch: bool,
    hard_limit: bool,
    **options: Any,
) -> Plan:
    check_target(target, arguments)
    named = read_policies(policies)
    batches = parse_batches(batch)
    if curve and batch is None:
        batches = _CURVE_BATCHES
    check_batch(batches[0], target, arguments)
    if memory_limit is None:
        memory_limit = MODELS[target].memory_limit if target in MODELS and not curve else "none"
    limits = parse_limits(memory_limit)
    if repeats < 1:
        raise ValueError(f"--repeats must be at least 1, got {repeats}")
    if hard_limit and limits == (None,):
        raise ValueError("--hard-limit needs a --memory-limit, got none")
    config = Config(
        target,
        arguments,
        batch=batches[0],
        memory_limit=limits[0],
        hard_limit=hard_limit and limits[0] is not None,
        **options,
    )
    if with_torch:
        check_torch(config, largest_batch)
    if largest_batch:
        _check_largest(config, limits)
    return Plan(config, named, batches, limits, repeats, with_torch, hard_limit)


def _check_largest(config: Config, limits: tuple[int | None, ...]) -> None:
    if None in limits:
        raise ValueError("--largest-batch needs a --memory-limit")
    check_batch(1, config.target, config.arguments)


def _text(config: Config, path: Path | None) -> tuple[Bytes, str | None]:
    try:
        if config.target != "gpt":
            if path is not None:
                raise ValueError(f"only gpt learns a text, not {config.target}")
            return load_text(None)[:0], None
        text = load_text(path)
        if text.size <= (config.context or 0):
            raise ValueError(
                f"a context of {config.context} needs {(config.context or 0) + 1} bytes of text, "
                f"got {text.size}"
            )
    except ValueError as error:
        raise BadValue(f"--text: {error}") from None
    return text, f"{path or 'the bundled text'}, {text.size} bytes"


def _announce(console: Console, plan: Plan, source: str | None, folder: Path, text: Bytes) -> None:
    limits = [format_nbytes(each) if each is not None else "none" for each in plan.limits]
    by_system = ", also by the operating system" if plan.hard_limit else ""
    limited = "no memory limit"
    if plan.limits != (None,):
        limited = f"tensors limited to {', '.join(limits)}{by_system}"
    lines = [f"{plan.config}; {limited}"]
    if source is not None:
        lines.append(f"Text: {source.rpartition(', ')[0]}, {format_nbytes(text.size)}")
    lines.append(f"Stores: {drive_in_words(describe_folder(folder))}")
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _run(
    console: Console, comparison: Comparison, text: Bytes, output: Path, kept: Kept, curve: bool
) -> int:
    try:
        comparison.run(console, text, kept)
    except Exception:
        raise
    except BaseException:
        _leave_results(console, comparison, output, curve)
        raise
    report.print_tables(console, comparison.groups)
    if keeps_earlier(comparison, output):
        written = f"Nothing written: {output} keeps the results of an earlier run"
    else:
        try:
            files = write_files(comparison, output, curve)
        except OSError as error:
            raise click.ClickException(_not_written(comparison, output, error)) from error
        written = f"Written to {names_of(files)}"
    kept.clear()
    console.print(written, highlight=False, markup=False, soft_wrap=True)
    if not comparison.has_finished_any:
        raise click.ClickException("no policy finished; the reasons are above")
    return int(any(run.status == CRASHED or run.differs for run in comparison.runs))


def _not_written(comparison: Comparison, output: Path, error: OSError) -> str:
    """Write the figures alone, which the drive may have room for; return what is to be said."""
    reason = error.strerror or error
    try:
        path = write_figures(comparison, output)
    except OSError:
        return f"the results could not be written to {output}: {reason}; give another --output"
    return (
        f"the results could not be written to {output}: {reason}; the figures alone are in {path}: "
        "free some space, or give another --output"
    )


def _leave_results(console: Console, comparison: Comparison, output: Path, curve: bool) -> None:
    """Write what was done before a signal."""
    if not comparison.groups or keeps_earlier(comparison, output):
        return
    with contextlib.suppress(OSError):
        files = write_files(comparison, output, curve)
        text = (
            f"Stopped. Written so far to {names_of(files)}\n"
            "The same command goes on with what is left; --fresh starts over."
        )
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _too_low(console: Console, plan: Plan, text: Bytes, model_nbytes: int) -> str:
    console.print("The limit is too low. Searching the least that works ...", highlight=False)
    lowest = min(each for each in plan.limits if each is not None)
    message = (
        f"--memory-limit {format_nbytes(lowest)} is less than the model itself needs: parameters, "
        f"gradients and the optimizer's state take {format_nbytes(model_nbytes)}"
    )

    def report_trial(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    least = least_limit(plan.config, plan.policies, text, model_nbytes, report_trial)
    if least is None:
        return message
    return f"{message}; the least that works is {format_nbytes(least.nbytes)}, with {least.policy}"
