"""The results of a comparison as CSV and as Markdown, ready to be published."""

import csv
import io
from typing import Any

from offgrad.cli.compare.report import warning_lines
from offgrad.cli.drive import drive_in_words
from offgrad.memory import format_nbytes

_COLUMNS = (
    *("name", "policy", "library", "batch", "memory_limit", "status", "final_loss"),
    *("identical_to_reference", "peak_tensor_nbytes", "peak_tensor_ratio", "peak_rss_nbytes"),
    *("peak_over_base_nbytes", "saved_nbytes_per_step", "stored_nbytes_per_step"),
    *("written_nbytes_per_step", "stall_seconds_per_step"),
)
_QUARTILES = ("step_seconds", "step_ratio")


def as_csv(figures: dict[str, Any]) -> str:
    """Return a line for each run of the figures of `as_json`; empty where there is no figure."""
    stream = io.StringIO()
    spread = [f"{name}_{part}" for name in _QUARTILES for part in ("low", "median", "high")]
    writer = csv.DictWriter(stream, [*_COLUMNS, *spread], lineterminator="\n")
    writer.writeheader()
    for run in figures["runs"]:
        row = {name: run[name] for name in _COLUMNS}
        for name in _QUARTILES:
            for part, value in (run[name] or {}).items():
                row[f"{name}_{part}"] = value
        writer.writerow(row)
    return stream.getvalue()


def as_markdown(figures: dict[str, Any], what: str) -> str:
    """Return a table of the figures of `as_json`, with what was measured and on what machine."""
    headings = (
        *("policy", "result", "peak of tensors", "peak RSS", "seconds per step", "times keep"),
        *("written per step", "gradients"),
    )
    warnings = [(run["name"], run["warnings"]) for run in figures["runs"]]
    lines = [
        "# Policies compared",
        "",
        f"{what}. Medians, in brackets quartiles."
        + ("" if figures["complete"] else " **Stopped before it was complete.**"),
        "",
        _line(headings),
        _line(["---"] * len(headings)),
        *(_line(_row(run)) for run in figures["runs"]),
        "",
        *(f"{line}\n" for line in warning_lines(warnings)),
        _machine(figures["machine"], figures["offgrad"]),
        "",
    ]
    return "\n".join(lines)


def _line(cells: Any) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def _row(run: dict[str, Any]) -> list[str]:
    ratio = run["peak_tensor_ratio"]
    peak = _nbytes(run["peak_tensor_nbytes"]) + ("" if ratio is None else f" ({ratio:.2f})")
    return [
        run["name"],
        run["status"],
        peak,
        _nbytes(run["peak_rss_nbytes"]),
        _spread(run["step_seconds"], 3),
        _spread(run["step_ratio"], 2),
        _nbytes(run["written_nbytes_per_step"]),
        _gradients(run),
    ]


def _gradients(run: dict[str, Any]) -> str:
    if run["name"] == run["reference"]:
        return "reference"
    if run["library"] != "offgrad":
        return "other library"
    if run["identical_to_reference"] is None:
        return ""
    if run["identical_to_reference"]:
        return "identical"
    return "DIFFER" if run["lossless"] else "rounded"


def _nbytes(value: float | None) -> str:
    return "" if value is None else format_nbytes(value)


def _spread(values: dict[str, float] | None, decimals: int) -> str:
    if values is None:
        return ""
    low, median, high = (f"{values[each]:.{decimals}f}" for each in ("low", "median", "high"))
    return f"{median} ({low} to {high})"


def _machine(machine: dict[str, Any], version: str) -> str:
    return (
        f"{machine['cpu']}, {machine['usable_threads']} threads, "
        f"{format_nbytes(machine['memory_nbytes'])}; stores in {drive_in_words(machine['drive'])}; "
        f"{machine['blas']}; {machine['system']}; Python {machine['python']}, "
        f"NumPy {machine['numpy']}, offgrad {version}."
    )
