"""``offgrad compare --from``: the results of two machines or two versions side by side."""

import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from offgrad._display import Name
from offgrad.cli.drive import drive_in_words
from offgrad.cli.errors import BadValue
from offgrad.cli.terminal import print_table
from offgrad.memory import format_nbytes

_KEYS = {"machine", "config", "runs"}
_VERSIONS = (1, 2)
_SAME = ("seed", "steps", "batch", "target", "layers", "width", "heads", "context", "dropout")


def print_side_by_side(console: Console, paths: list[str]) -> int:
    """Print the runs that both of two files have, with ratios of the second to the first.

    Raises:
        BadValue: there are not two files, or one holds no results of `offgrad compare`.
    """
    if len(paths) != 2:
        raise BadValue(f"--from takes two files: --from a.json b.json, got {len(paths)}")
    first, second = (_read(Path(path)) for path in paths)
    try:
        return _print(console, paths, first, second)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise BadValue(f"--from: a value of {' or '.join(paths)} is damaged: {error}") from None


def _print(console: Console, paths: list[str], first: Any, second: Any) -> int:
    for letter, path, figures in zip("AB", paths, (first, second), strict=True):
        console.print(f"{letter}: {path}\n   {_described(figures)}", highlight=False, markup=False)
    if other := _differences(first["config"], second["config"]):
        console.print(f"The trainings differ: {'; '.join(other)}", highlight=False, markup=False)
    runs = {run["name"]: run for run in second["runs"]}
    common = [(run, runs[run["name"]]) for run in first["runs"] if run["name"] in runs]
    if not common:
        raise BadValue(f"{paths[0]} and {paths[1]} have no run of the same name")
    console.print()
    print_table(console, _table(common))
    return 0


def _read(path: Path) -> Any:
    try:
        figures = json.loads(path.read_bytes())
    except OSError as error:
        raise BadValue(f"--from: {path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise BadValue(f"--from: {path} is not JSON") from None
    if not isinstance(figures, dict) or not figures.keys() >= _KEYS:
        raise BadValue(f"--from: {path} holds no results of offgrad compare")
    if figures.get("version", 1) not in _VERSIONS:
        raise BadValue(
            f"--from: {path} is of version {figures.get('version')!r}; this offgrad reads "
            f"{' and '.join(map(str, _VERSIONS))}"
        )
    return figures


def _described(figures: dict[str, Any]) -> str:
    machine = figures["machine"]
    drive = machine.get("drive")  # results of old versions have none
    where = f"; {drive_in_words(drive)}" if drive else ""
    return (
        f"{machine['cpu']}, {machine['usable_threads']} threads, {machine['blas']}{where}; "
        f"offgrad {figures['offgrad']}, {figures['created']}"
    )


def _differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    return [
        f"{name} {_or_none(first[name])} and {_or_none(second[name])}"
        for name in _SAME
        if name in first and name in second and first[name] != second[name]
    ]


def _table(common: list[tuple[Any, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("\npolicy")
    for heading in ("seconds\nA", "\nB", "\nB / A", "peak tensors\nA", "\nB", "\nB / A"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("\nlosses")
    for a, b in common:
        times = [(each["step_seconds"] or {}).get("median") for each in (a, b)]
        peaks = [each["peak_tensor_nbytes"] for each in (a, b)]
        table.add_row(
            Name(a["name"]),
            *(_number(each, "{:.3f}") for each in times),
            _ratio(*times),
            *("-" if each is None else format_nbytes(each) for each in peaks),
            _ratio(*peaks),
            _losses(a, b),
        )
    return table


def _or_none(value: Any) -> Any:
    return "none" if value is None else value


def _number(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)


def _ratio(first: float | None, second: float | None) -> str:
    return "-" if not first or second is None else f"{second / first:.2f}"


def _losses(first: dict[str, Any], second: dict[str, Any]) -> str:
    own, its = first["final_loss"], second["final_loss"]
    if own is None or its is None:
        return str(first["status"] if own is None else second["status"])
    return "same" if own == its else f"{own:.5f}, {its:.5f}"
