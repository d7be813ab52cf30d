"""``offgrad bench-storage``: what a drive gives, bare and through each store and codec."""

import json
import os
from collections.abc import Iterable, Iterator

import click
from offgrad_storage import StoreError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from offgrad.cli.bench_storage import report
from offgrad.cli.bench_storage.measure import STORES_MEASURED, TOTAL, Cell, cells, measure
from offgrad.cli.bench_storage.workload import measure_workload
from offgrad.cli.drive import describe_folder
from offgrad.cli.errors import BadValue
from offgrad.cli.folders import check_spill_directory
from offgrad.memory import format_nbytes
from offgrad.policies.names import store_and_codec

_MIN_FREE_NBYTES = 4 * TOTAL


@click.command(
    "bench-storage",
    short_help="Measure a drive, bare and through each store.",
    context_settings={"show_default": True, "max_content_width": 100},
)
@click.argument("directory", metavar="[FOLDER]", required=False)
@click.option("--directory", "option", metavar="FOLDER", help="The same as the argument.")
@click.option(
    "--stores",
    default=",".join(STORES_MEASURED),
    metavar="LIST",
    show_default=False,
    help="Stores with or without codecs, separated by commas, such as disk,disk:lz4.  [default: "
    "all that matter]",
)
@click.option(
    "--seconds", type=click.IntRange(1, 3600), default=30, help="About the time to measure."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def bench_storage(
    directory: str | None, option: str | None, stores: str, seconds: int, as_json: bool
) -> int:
    """Measure a folder's drive: bare, and through each store and codec.

    The bare rates are those of system calls on a file that bypasses the page cache, if the drive
    can. Stores write and read the arrays that a step of a small GPT saves on this machine, and
    arrays of one size, as a training does: writes in the background, reads ahead of their use. From
    the rates follows which policy feeds such a step without a stall. By default FOLDER is the one
    to which policies spill.

    \b
    Examples:
      offgrad bench-storage
      offgrad bench-storage /mnt/nvme --seconds 60
      offgrad bench-storage /mnt/nvme --stores disk,disk:bfloat16 --json > nvme.json

    Exit status: 0; 1 if a store failed; 2 for bad values.
    """
    if directory is not None and option is not None and directory != option:
        raise BadValue(f"the folder is given twice: {directory} and --directory {option}")
    try:
        names = _names(stores)
        folder = check_spill_directory(directory if directory is not None else option)
    except (ValueError, ImportError) as error:
        raise BadValue(str(error)) from None
    drive = describe_folder(folder)
    if drive["free_nbytes"] < _MIN_FREE_NBYTES:
        free = format_nbytes(drive["free_nbytes"])
        raise BadValue(f"{folder} has {free} free; {format_nbytes(_MIN_FREE_NBYTES)} are needed")
    console = Console(stderr=True, emoji=False)
    try:
        with console.status("Measuring a step of a GPT; its kernels may have to be compiled"):
            workload = measure_workload()
        found = list(_shown(console, measure(folder, names, workload, seconds), len(cells(names))))
    except StoreError as error:
        raise click.ClickException(" ".join(str(error).split())) from None
    if as_json:
        click.echo(json.dumps(report.as_json(found, workload, os.fspath(folder)), indent=1))
    else:
        report.print_tables(Console(emoji=False), found, workload, drive)
    return 0


def _names(text: str) -> list[str]:
    """Return the stores of a list, checked.

    Raises:
        ValueError: one is unknown, or none is named.
    """
    names = [each.strip() for each in text.split(",") if each.strip()]
    if not names:
        raise ValueError("--stores needs at least one store, such as disk")
    try:
        for each in names:
            store_and_codec(each, None)
    except ValueError as error:
        raise ValueError(f"--stores: {error}") from None
    return list(dict.fromkeys(names))


def _shown(console: Console, measured: Iterable[Cell], total: int) -> Iterator[Cell]:
    """Show progress with the remaining time, on a terminal."""
    columns = BarColumn(bar_width=24), TimeRemainingColumn(), TextColumn("{task.description}")
    is_live = console.is_terminal and not console.is_dumb_terminal
    with Progress(*columns, console=console, disable=not is_live, transient=True) as progress:
        task = progress.add_task("bare", total=total)
        for cell in measured:
            progress.update(task, advance=1, description=cell.name)
            yield cell
