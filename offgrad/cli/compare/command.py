"""``offgrad compare``: trains a GPT under every policy and puts the figures side by side."""

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
from offgrad.cli.compare.dataset import Bytes, load_text
from offgrad.cli.compare.output import check_output, write_output
from offgrad.cli.compare.progress import display
from offgrad.cli.compare.runner import CRASHED, Run, run_worker
from offgrad.memory import format_nbytes
from offgrad.policies import POLICIES, parse_policy

_DEFAULTS = Config()
_OUTPUTS = ("compare.json", "compare.png")


class BadValue(click.ClickException):
    """A value the user gave makes no sense."""

    exit_code = 2


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.option("--layers", default=_DEFAULTS.layers, help="Blocks of the GPT.")
@click.option("--width", default=_DEFAULTS.width, help="Features of a token.")
@click.option("--heads", default=_DEFAULTS.heads, help="Attention heads of a block.")
@click.option("--context", default=_DEFAULTS.context, help="Bytes of a sequence.")
@click.option("--batch", default=_DEFAULTS.batch, help="Sequences of a step.")
@click.option(
    "--steps", default=_DEFAULTS.steps, help="Training steps; the first is not in the median time."
)
@click.option("--dropout", default=_DEFAULTS.dropout, help="Probability of dropout.")
@click.option("--lr", default=_DEFAULTS.lr, help="Learning rate of AdamW.")
@click.option(
    "--policies",
    default=",".join(POLICIES),
    metavar="LIST",
    help="What to compare, separated by commas: keep; pool, disk and zarr, with a codec or not, as "
    "disk:lz4; cast:float16 (or bfloat16, int8, int4), which rounds, in memory or elsewhere "
    "(,then=disk); budget:64MiB; last:8; recompute (,then=disk). With ,min=SIZE behind it a policy "
    "takes no tensors below that, with ,op=Gelu or ,module=blocks.* only these; between several, "
    "as in disk,op=Gelu;pool, the first that has an answer counts.",
)
@click.option("--seed", default=_DEFAULTS.seed, help="Of weights, batches and dropout.")
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
    help="Most memory for tensors, such as 200MiB, or none. With a limit, keep runs without it, "
    "too, as the reference.",
)
@click.option(
    "--hard-limit",
    is_flag=True,
    help="Have the operating system hold the limit, too (RLIMIT_AS).",
)
@click.option(
    "--output",
    default="offgrad-compare",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where compare.json and compare.png go.",
)
def compare(
    text_path: Path | None, policies: str, memory_limit: str, output: Path, **options: Any
) -> int:
    """Train a byte-level GPT under each policy, and compare memory, time and gradients.

    Each policy runs in a process of its own, with the same weights, batches and dropout. Every
    tensor saved for backward goes where the policy says: it stays in memory (keep), is copied to a
    pool in RAM (pool), or is written to disk (disk, zarr). All must give the same gradients, bit by
    bit, but for those that round what they store.

    Exit status: 0 if all policies finished with the same gradients or ran out of memory under the
    limit; 1 if gradients differ that must not, or a worker crashed; 2 for bad values.
    """
    try:
        names = parse_policies(policies)
        config = Config(memory_limit=parse_limit(memory_limit), **options)
        check_output(output, _OUTPUTS)
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
    _run_all(console, runs, config, text)
    reference = runs[0]
    for run in runs:
        run.compare(reference)
    report.print_tables(console, runs, reference)
    files = _write(output, config, f"{source}, {text.size} bytes", runs)
    console.print(f"Written: {', '.join(map(str, files))}", highlight=False, soft_wrap=True)
    return int(any(run.status == CRASHED or run.differs for run in runs))


def plan(policies: tuple[str, ...], config: Config) -> list[Run]:
    """Return the runs in their order; the first is the reference, without a limit."""
    limited = config.memory_limit is not None
    if not limited:
        rest = [policy for policy in policies if policy != REFERENCE]
        return [_run(policy, limited=False) for policy in (REFERENCE, *rest)]
    reference = Run(f"{REFERENCE}, no limit", REFERENCE, limited=False)
    return [reference, *(_run(policy, limited=True) for policy in policies)]


def _run(policy: str, limited: bool) -> Run:
    return Run(policy, policy, limited, lossless=parse_policy(policy).lossless)


def _announce(console: Console, config: Config, source: str, size: int) -> None:
    limit = (
        "no memory limit"
        if config.memory_limit is None
        else f"tensors limited to {format_nbytes(config.memory_limit)}"
        + (", held by the operating system" if config.hard_limit else "")
    )
    console.print(
        f"GPT: {config.layers} layers, width {config.width}, {config.heads} heads; "
        f"{config.steps} steps of {config.batch} x {config.context} bytes; {limit}\n"
        f"Text: {source}, {format_nbytes(size)}",
        highlight=False,
        markup=False,
    )


def _run_all(console: Console, runs: list[Run], config: Config, text: Bytes) -> None:
    with display(console, [run.name for run in runs], config.steps) as shown:
        for run in runs:
            shown.begin(run)
            run_worker(run, config, text, shown.update)
            shown.end(run)


def _write(output: Path, config: Config, source: str, runs: list[Run]) -> list[Path]:
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
        raise click.ClickException(f"the results cannot be written: {error}") from error
