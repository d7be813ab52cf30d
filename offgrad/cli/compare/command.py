"""``offgrad compare``: train a GPT under each policy and show the figures side by side."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from offgrad.cli.compare import report
from offgrad.cli.compare.config import (
    REFERENCE,
    Config,
    parse_limit,
    parse_policies,
)
from offgrad.cli.compare.dataset import load_text
from offgrad.cli.compare.output import check_output, write_output
from offgrad.cli.compare.progress import progress_display
from offgrad.cli.compare.results import CRASHED, FINISHED, Run
from offgrad.cli.compare.runner import run_workers
from offgrad.cli.compare.settings import check_settings
from offgrad.cli.errors import BadValue
from offgrad.memory import format_nbytes
from offgrad.policies import POLICIES, parse_policy

_DEFAULTS = Config()
_OUTPUTS = ("compare.json", "compare.png")


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.option("--layers", default=_DEFAULTS.layers, help="Number of transformer blocks.")
@click.option("--width", default=_DEFAULTS.width, help="Features per token.")
@click.option("--heads", default=_DEFAULTS.heads, help="Attention heads per block.")
@click.option("--context", default=_DEFAULTS.context, help="Bytes per sequence.")
@click.option("--batch", default=_DEFAULTS.batch, help="Sequences per step.")
@click.option(
    "--steps",
    default=_DEFAULTS.steps,
    help="Training steps. The times leave out the first.",
)
@click.option("--dropout", default=_DEFAULTS.dropout, help="Dropout probability.")
@click.option("--lr", default=_DEFAULTS.lr, help="Learning rate of AdamW.")
@click.option(
    "--policies",
    default=",".join(POLICIES),
    metavar="LIST",
    help="Policies to compare, separated by commas; see above.",
)
@click.option("--seed", default=_DEFAULTS.seed, help="Seed for weights, batches and dropout.")
@click.option(
    "--text",
    "text_path",
    type=click.Path(path_type=Path),
    help="File or folder to train on.  [default: the source of Python's standard library]",
)
@click.option(
    "--memory-limit",
    default="160MiB",
    metavar="SIZE",
    help="Maximum memory for tensors, such as 200MiB; or none. With a limit, keep also runs once "
    "without it, as the reference.",
)
@click.option(
    "--hard-limit",
    is_flag=True,
    help="Let the operating system enforce the limit, too (RLIMIT_AS).",
)
@click.option(
    "--output",
    default="offgrad-compare",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Folder for the results, compare.json and compare.png.",
)
def compare(
    text_path: Path | None, policies: str, memory_limit: str, output: Path, **options: Any
) -> int:
    """Train a byte-level GPT under each policy, and compare memory, time and gradients.

    Each policy trains in a separate process, with the same weights, batches and dropout. All must
    give bit-identical gradients, except policies that round the tensors they store. The processes
    take turns step by step, so that other load slows all of them alike; the memory of all of them
    is in use at once.

    \b
    A policy decides where the tensors saved for backward go:
      keep               stay in memory
      pool, disk, zarr   go to a pool in RAM, to a file, to a Zarr store
      disk:lz4           go to a file, compressed by a codec
      cast:float16       are rounded (or bfloat16, int8, int4), in memory
      budget:64MiB       stay in memory up to 64 MiB; the others go to disk
      last:8             the last 8 stay in memory; the others go to disk
      recompute          are recomputed if that is cheap; the others stay

    \b
    Options follow a policy after a comma:
      min=SIZE           smaller tensors stay in memory
      then=disk          after cast: where the rounded tensors go; after last
                         and recompute: where the other tensors go
      op=Gelu, module=blocks.*
                         only tensors saved by these operations or modules

    In "disk,op=Gelu;pool" the first policy that takes a tensor counts.

    Exit status: 0 if each policy finished with the same gradients or ran out of memory under the
    limit; 1 if no policy finished, gradients differ without rounding, or a worker crashed; 2 for
    bad values.
    """
    try:
        names = parse_policies(policies)
        config = Config(memory_limit=parse_limit(memory_limit), **options)
        check_output(output, _OUTPUTS)
        check_settings()
    except ValueError as error:
        raise BadValue(str(error)) from None
    try:
        text = load_text(text_path)
        if text.size <= config.context:
            raise ValueError(
                f"a context of {config.context} needs {config.context + 1} bytes of text, got "
                f"{text.size}"
            )
    except ValueError as error:
        raise BadValue(f"--text: {error}") from None
    source = str(text_path) if text_path else "the source of Python's standard library"
    console = Console()
    _announce(console, config, source, text.size)
    runs = plan(names, config)
    with progress_display(console, [run.name for run in runs], config.steps) as display:
        run_workers(runs, config, text, display)
    reference = runs[0]
    for run in runs:
        run.compare(reference)
    report.print_tables(console, runs, reference)
    files = _write(output, config, f"{source}, {text.size} bytes", runs)
    console.print(f"Written: {', '.join(map(str, files))}", highlight=False, soft_wrap=True)
    if not any(run.status == FINISHED for run in runs if not run.is_extra):
        raise click.ClickException("no policy finished; the reasons are above")
    return int(any(run.status == CRASHED or run.differs for run in runs))


def plan(policies: tuple[str, ...], config: Config) -> list[Run]:
    """Return the runs in order; the first is the reference, without a memory limit."""
    limited = config.memory_limit is not None
    if not limited:
        others = [policy for policy in policies if policy != REFERENCE]
        reference = Run(REFERENCE, REFERENCE, limited=False, is_extra=REFERENCE not in policies)
        return [reference, *(_run(policy, limited=False) for policy in others)]
    reference = Run(f"{REFERENCE}, no limit", REFERENCE, limited=False, is_extra=True)
    return [reference, *(_run(policy, limited=True) for policy in policies)]


def _run(policy: str, limited: bool) -> Run:
    return Run(policy, policy, limited, lossless=parse_policy(policy).lossless)


def _announce(console: Console, config: Config, source: str, size: int) -> None:
    limit = (
        "no memory limit"
        if config.memory_limit is None
        else f"tensors limited to {format_nbytes(config.memory_limit)}"
        + (", also by the operating system" if config.hard_limit else "")
    )
    console.print(
        f"GPT: {config.layers} layers, width {config.width}, {config.heads} heads; "
        f"{config.steps} steps of {config.batch} x {config.context} bytes; {limit}\n"
        f"Text: {source}, {format_nbytes(size)}",
        highlight=False,
        markup=False,
    )


def _write(output: Path, config: Config, source: str, runs: list[Run]) -> list[Path]:
    # Here, because Matplotlib is slow to import.
    from offgrad.cli.compare.plot import save_comparison

    figures = report.as_json(config, source, runs, runs[0])
    try:
        return write_output(
            output,
            {
                "compare.json": lambda path: path.write_text(json.dumps(figures, indent=1) + "\n"),
                "compare.png": lambda path: save_comparison(runs, config.memory_limit, path),
            },
        )
    except OSError as error:
        raise click.ClickException(f"the results could not be written: {error}") from error
