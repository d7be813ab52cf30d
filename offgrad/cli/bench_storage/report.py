"""The rates as tables, and as JSON."""

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import offgrad
from offgrad._display import Name
from offgrad.cli.bench_storage.loops import MB, label
from offgrad.cli.bench_storage.measure import SIZES, Cell, Rates
from offgrad.cli.bench_storage.workload import Workload
from offgrad.cli.machine import describe_machine
from offgrad.cli.terminal import print_table
from offgrad.memory import format_nbytes

_GB = 1e9
_NONE = "-"


def print_tables(
    console: Console, cells: Sequence[Cell], workload: Workload, drive: dict[str, Any]
) -> None:
    """Print drive, rates, and what each store can carry."""
    _say(console, heading(drive))
    for cell in cells:
        if cell.name == "bare":
            threads = f"{cell.column} thread{'s' * (cell.column > 1)}"
            rates = cell.reason or _pair(cell.rates)
            _say(console, f"Bare writes and reads of 16 MB, {threads}: {rates}")
    by_place = {(each.name, each.column): each.rates for each in cells}
    names = list(dict.fromkeys(each.name for each in cells if each.name != "bare"))
    _say(
        console,
        "\nGB/s written / read, for the arrays of a GPT's step and for arrays of one size;\n"
        "what is stored of the GPT's, and processor seconds to write and read a GB of them",
    )
    print_table(console, _rates_table(names, by_place))
    _say(
        console,
        f"\nThe step of a GPT saves {format_nbytes(workload.nbytes)} in "
        f"{workload.forward_seconds:.2f} s forward, {workload.backward_seconds:.2f} s backward: "
        f"{workload.nbytes_per_second / _GB:.2f} GB per second of a step. "
        "\nWithout a stall policies carry:",
    )
    print_table(console, _feeds_table(names, by_place, workload))
    if any(each.reason == "no time was left" for each in cells):
        _say(console, f"{_NONE}: no time was left; --seconds gives more")


def heading(drive: dict[str, Any]) -> str:
    """Return one line about a folder; see `offgrad.cli.drive.describe_folder`."""
    text = f"{drive['folder']}: {drive['file_system']} on {drive['drive']}"
    text += f", {format_nbytes(drive['free_nbytes'])} free"
    if drive["is_memory"]:
        return f"{text}. These are rates of memory: what is spilled there still takes RAM."
    return text + (", O_DIRECT" if drive["direct_io"] else ", without O_DIRECT")


def _rates_table(names: Sequence[str], rates: dict[tuple[str, int], Rates | None]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("store", min_width=14)
    for column in ("GPT", *map(label, SIZES), "stored", "CPU s"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in names:
        of_step = rates.get((name, 0))
        table.add_row(
            Name(name),
            *(_pair(rates.get((name, column)), unit="") for column in (0, *SIZES)),
            _NONE if of_step is None else f"{of_step.stored_part:.0%}",
            _NONE if of_step is None else f"{of_step.cpu_seconds:.2f}",
        )
    return table


def _feeds_table(
    names: Sequence[str], rates: dict[tuple[str, int], Rates | None], workload: Workload
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("policy")
    table.add_column("GB per second", justify="right")
    table.add_column("of the GPT's", justify="right")
    table.add_column("")
    for name in names:
        of_step = rates.get((name, 0))
        if of_step is None:
            table.add_row(name, _NONE, _NONE, "")
            continue
        carried = workload.carried(of_step.put, of_step.get)
        part = carried / workload.nbytes_per_second
        verdict = Text("feeds it", "green") if part >= 1 else Text("stalls it", "yellow")
        table.add_row(name, f"{carried / _GB:.2f}", f"{part:.1f} x", verdict)
    return table


def _pair(rates: Rates | None, unit: str = " GB/s") -> str:
    if rates is None:
        return _NONE
    return f"{_short(rates.put / _GB)} / {_short(rates.get / _GB)}{unit}"


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def as_json(cells: Sequence[Cell], workload: Workload, folder: str) -> dict[str, Any]:
    """Return all figures; rates are bytes per second."""
    measured = []
    for each in cells:
        entry: dict[str, Any] = {"name": each.name, "reason": each.reason}
        if each.name == "bare":
            entry |= {"threads": each.column, "array_nbytes": 16 * MB}
        else:
            entry["array_nbytes"] = each.column or None
        if each.rates is not None:
            entry |= each.rates._asdict()
            if not each.column:
                entry["carried"] = workload.carried(each.rates.put, each.rates.get)
        measured.append(entry)
    return {
        "offgrad": offgrad.__version__,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": describe_machine(folder),
        "step": {
            "nbytes": workload.nbytes,
            "arrays": len(workload.arrays),
            "forward_seconds": workload.forward_seconds,
            "backward_seconds": workload.backward_seconds,
            "nbytes_per_second": workload.nbytes_per_second,
        },
        "measured": measured,
    }
