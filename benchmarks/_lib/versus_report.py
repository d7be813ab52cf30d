"""Tables of `benchmarks.bench_vs_torch`, in Markdown, and the machine's description."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks._lib.versus_measure import BASE
from benchmarks._lib.versus_rows import TENTH
from offgrad.cli.machine import describe_machine

_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "sve")
_VARIABLES = ("OPENBLAS_", "OMP_", "MKL_", "OFFGRAD_", "NUMBA_", "GOTO_")


def describe(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the machine, the processor's flags that matter, and settings of libraries."""
    settings = {name: value for name, value in environment.items() if name.startswith(_VARIABLES)}
    return {**describe_machine(), "flags": _flags(), "environment": settings}


def _flags() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    words = {
        word for line in lines if line.startswith(("flags", "Features")) for word in line.split()
    }
    return [flag for flag in _FLAGS if flag in words]


def machine_lines(machine: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    """Return the description of the machine and of the libraries in the workers, as text."""
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['usable_threads']} usable threads, "
        f"{machine['memory_nbytes'] / 2**30:.0f} GiB; {' '.join(machine['flags'])}",
        f"{machine['system']}, Python {machine['python']}, NumPy {machine['numpy']}",
    ]
    libraries = rows[-1]["libraries"]
    for name in (BASE, "offgrad"):
        pools = ", ".join(
            f"{each['internal_api']} {each['version'] or ''} {each['architecture'] or ''}".strip()
            for each in libraries[name]["thread_pools"]
        )
        capability = libraries[name].get("cpu_capability", "")
        lines.append(f"{name} {libraries[name]['version']} {capability}: {pools}")
    if machine["environment"]:
        lines.append(" ".join(f"{name}={value}" for name, value in machine["environment"].items()))
    return lines


def print_report(
    console: Console, machine: dict[str, Any], rows: list[dict[str, Any]], rounds: int
) -> None:
    """Print the machine, a table of times and one of memory, and what was skipped."""
    for line in machine_lines(machine, rows):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"\nMedians of {rounds} rounds; in brackets, quartiles of the rounds' ratios to torch.\n",
        highlight=False,
    )
    console.print(_times(rows), highlight=False)
    for line in _growth_lines(rows):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if any("peak" in row for row in rows):
        title = "\nPeak of resident memory beyond the loaded libraries, MiB:\n"
        console.print(title, highlight=False)
        console.print(_peaks(rows), highlight=False)
    for row in rows:
        for name, reason in row["skipped"].items():
            text = f"\nSkipped: {name} in {row['row']}, {row['threads']} threads: {reason}"
            console.print(text, markup=False, highlight=False, soft_wrap=True)


def verdict(ratio: float, target: float | None) -> str:
    """Return whether a ratio meets its target; ``""`` without one."""
    if target is None:
        return ""
    return "met" if ratio <= target else f"missed by {ratio / target:.2f}x"


def _table(*headings: str) -> Table:
    table = Table(box=box.MARKDOWN)
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _times(rows: list[dict[str, Any]]) -> Table:
    table = _table("", "threads", BASE, "contender", "time", "times torch", "target", "")
    for row in rows:
        for measure in row["seconds"][BASE]:
            if measure.endswith(TENTH):
                continue
            for name in row["seconds"]:
                if name == BASE:
                    continue
                low, middle, high = row["ratios"][name][measure]
                target = row["targets"].get(measure) if name == "offgrad" else None
                table.add_row(
                    row["row"] if measure == "step" else f"{row['row']}: {measure}",
                    str(row["threads"]),
                    _duration(row["seconds"][BASE][measure]),
                    name,
                    _duration(row["seconds"][name][measure]),
                    f"{middle:.2f} ({low:.2f} to {high:.2f})",
                    "" if target is None else f"{target:.2f}",
                    verdict(middle, target),
                )
    return table


def _growth_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield how much longer a node takes in a chain than in one a tenth as long."""
    for row in rows:
        for name, seconds in row["seconds"].items():
            growth = [
                f"{measure} {median(each) / 10 / median(seconds[measure + TENTH]):.2f}"
                for measure, each in seconds.items()
                if measure + TENTH in seconds
            ]
            if growth:
                text = ", ".join(growth)
                yield (
                    f"{row['row']}, {row['threads']} threads, {name}: time of a node, times that "
                    f"in a chain a tenth as long: {text}"
                )


def _peaks(rows: list[dict[str, Any]]) -> Table:
    table = _table("", "threads", BASE, "contender", "peak", "times torch", "target", "")
    for row in rows:
        peaks = {
            name: figures["over_libraries_nbytes"] for name, figures in row.get("peak", {}).items()
        }
        for name, nbytes in peaks.items():
            if name == BASE:
                continue
            ratio = nbytes / max(1, peaks[BASE])
            target = row["peak_target"] if name == "offgrad" else None
            table.add_row(
                row["row"],
                str(row["threads"]),
                f"{peaks[BASE] / 2**20:.0f}",
                name,
                f"{nbytes / 2**20:.0f}",
                f"{ratio:.2f}",
                "" if target is None else f"{target:.2f}",
                verdict(ratio, target),
            )
    return table


def _duration(seconds: list[float]) -> str:
    middle = median(seconds)
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if middle >= unit:
            return f"{middle / unit:.3g} {name}"
    return f"{middle * 1e9:.3g} ns"
