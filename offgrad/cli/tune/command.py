"""``offgrad tune``: choose a policy for a recorded step, or for a script."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from offgrad._display import Name
from offgrad.cli import trailing
from offgrad.cli.errors import BadValue
from offgrad.cli.replay.command import load, machine_for, table
from offgrad.cli.run.live import show
from offgrad.cli.saves import StepSaves
from offgrad.cli.script import Script
from offgrad.cli.terminal import broken_pipe, print_table
from offgrad.memory import format_nbytes, parse_nbytes
from offgrad.prediction import Machine, Recording, choose
from offgrad.prediction.plan import NO_CHOICES, Choice


@click.command(
    short_help="Choose a policy for a script or a recorded step.",
    context_settings={"max_content_width": 100, "allow_interspersed_args": False},
)
@click.option("--budget", metavar="SIZE", help="The most memory to hold for backward.  [required]")
@click.option(
    "--bandwidth", metavar="RATE", help="Of the drive, such as 1GB/s.  [default: measured]"
)
@click.option("--directory", metavar="FOLDER", help="Where stores would write, to be measured.")
@click.option(
    "--seconds", default=20.0, show_default=True, help="The search ends after so many seconds."
)
@click.option(
    "--steps",
    default=3,
    show_default=True,
    type=click.IntRange(min=1),
    help="A script is ended after so many steps of its optimizer.",
)
@click.option("-m", "is_module", is_flag=True, help="FILE is a module, as in python -m.")
@click.argument("file", metavar="FILE")
@click.argument("arguments", metavar="[ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
def tune(file: str, arguments: tuple[str, ...], **options: Any) -> int | Callable[[], int]:
    """Choose what to keep, recompute or store, for the least time within a bound of memory.

    FILE is a recorded training step, as for offgrad replay; or a script (a file .py, a folder, or
    with -m a module) with its arguments, which runs for a few steps to record one. Options stand
    before FILE, or last; after a script's arguments they begin with --budget.

    Masks may also be encoded, eight to a byte, before they are stored. What is chosen holds the
    bound whatever a step saves. The last line is the policy as text, for
    offgrad.offload and all commands.

    In a program, offgrad.offload("auto", budget="512MiB") does the same after two steps.

    \b
    Examples:
      offgrad tune run.offgrad --budget 256MiB
      offgrad tune train.py --batch 8 --budget 256MiB

    Exit status: 0; 2 for bad values, as a file that is no recording; that of a script that fails.
    """
    is_script = (
        options["is_module"] or file.endswith((".py", ".pyc", ".pyz")) or os.path.isdir(file)
    )
    arguments, options = _with_trailing_options(file, arguments, options, is_script)
    nbytes = _checked(options)
    is_module, steps = options.pop("is_module"), options.pop("steps")
    bandwidth, directory = options["bandwidth"], options["directory"]
    if is_script:
        program = Script(file, arguments, is_module)
        machine = machine_for(bandwidth, directory)
        return lambda: _record_and_tune(program, nbytes, steps, machine, options["seconds"])
    recording = load(Path(file))
    _tune(recording, nbytes, machine_for(bandwidth, directory), options["seconds"])
    return 0


def _with_trailing_options(
    file: str, arguments: tuple[str, ...], options: dict[str, Any], is_script: bool
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Take the options that follow the recording, or the script's arguments."""
    if not is_script:
        return trailing.parsed(arguments, 0, options, "file") if arguments else ((), options)
    index = trailing.first(arguments, "--budget")
    if index is None or options["budget"] is not None:
        return arguments, options
    try:
        return trailing.parsed(arguments, index, options, "file")
    except click.UsageError as error:
        raise BadValue(
            f"{error.format_message().rstrip('.')}; if --budget is an option of the script itself, "
            "put offgrad's before the script: offgrad tune --budget SIZE SCRIPT --budget ..."
        ) from None


def _checked(options: dict[str, Any]) -> int:
    """Return the budget in bytes."""
    if options["budget"] is None:
        raise click.UsageError("Missing option '--budget'.")
    try:
        nbytes = parse_nbytes(options["budget"])
    except ValueError as error:
        raise BadValue(f"--budget: {error}") from None
    if not 0 < options["seconds"] < float("inf"):
        raise BadValue(f"--seconds: it is a positive number, got {options['seconds']:g}")
    return nbytes


def _record_and_tune(
    program: Script, nbytes: int, steps: int, machine: Machine, seconds: float
) -> int:
    """Run a script for some steps, and choose for the one that saved most.

    A process that the script forked only ends, with the script's status.
    """
    saves, pid = StepSaves(nbytes, steps), os.getpid()
    try:
        with saves:
            program.run()
    except BadValue as error:
        show(f"offgrad: {error.format_message()}")
        return error.exit_code
    except KeyboardInterrupt:  # outside of click, as the script
        if os.getpid() != pid:
            raise
        show("offgrad: interrupted")
        return 130
    except SystemExit as exit:  # of the script, or since enough is recorded
        if os.getpid() != pid or (exit.code not in (None, 0) and not saves.has_enough):
            raise
    if os.getpid() != pid:
        return 0
    if saves.recording is None:
        show(f"offgrad: {program.name} saved nothing for backward: does it train with offgrad?")
        return 1
    try:
        _tune(saves.recording, nbytes, machine, seconds)
        sys.stdout.flush()
    except KeyboardInterrupt:
        show("offgrad: interrupted")
        return 130
    except BrokenPipeError:
        return broken_pipe()
    return 0


def _tune(loaded: Recording, nbytes: int, machine: Machine, seconds: float) -> None:
    """Choose, and print what was chosen."""
    console = Console(emoji=False)
    with console.status(f"choosing, for {seconds:g} s at most"):
        plan = choose(loaded, nbytes, machine=machine, max_seconds=seconds)
    names = ["chosen", *(each.policy for each in plan.others)]
    print_table(console, table(names, [plan.predicted, *plan.others]))
    console.print(f"Held for backward: at most {format_nbytes(nbytes)}.", highlight=False)
    if plan.choices:
        print_table(console, _reasons(plan.choices))
    else:
        console.print(NO_CHOICES, highlight=False)
    click.echo(str(plan))


def _reasons(choices: Sequence[Choice]) -> Table:
    """Return a table of what was chosen for each class of tensors, and why."""
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("choice", "tensors", "bytes"):
        found.add_column(name, justify="right", no_wrap=True)
    found.add_column("operation, slot, module", ratio=3)
    found.add_column("why", ratio=2)
    for each in choices:
        found.add_row(
            each.action, each.count, format_nbytes(each.nbytes), Name(each.where), each.reason
        )
    return found
