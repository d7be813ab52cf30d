"""The files of results: compare.json, .csv, .md, .png, .html and curve.png."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import offgrad
from offgrad._config import cpu_name
from offgrad.cli.compare.comparison import Comparison
from offgrad.cli.compare.dataset import Bytes
from offgrad.cli.compare.groups import Plan
from offgrad.cli.compare.largest import LARGEST
from offgrad.cli.compare.output import check_output, write_output
from offgrad.cli.compare.page import has_page, save_page
from offgrad.cli.compare.published import as_csv, as_markdown
from offgrad.cli.compare.report import as_json

_FIGURES = "compare.json"
_OUTPUTS = _FIGURES, "compare.csv", "compare.md", "compare.png", "compare.html"
_CURVE = "curve.png"


def check_files(output: Path, curve: bool, largest: bool) -> None:
    """Check that the files of results can be written.

    Raises:
        ValueError: if not; the message is one line.
    """
    names = LARGEST if largest else (*_OUTPUTS, _CURVE) if curve else _OUTPUTS
    check_output(output, names)


def keeps_earlier(comparison: Comparison, output: Path) -> bool:
    """Return whether the folder has results of an earlier run, which are worth more."""
    return not comparison.has_figures and any((output / name).exists() for name in _OUTPUTS)


def write_files(comparison: Comparison, output: Path, curve: bool) -> list[Path]:
    """Write all files of results, or none.

    Raises:
        OSError: if they cannot be written.
    """
    # Here, because Matplotlib is slow to import.
    from offgrad.cli.compare.curve import save_curves
    from offgrad.cli.compare.plot import save_comparison

    figures = as_json(comparison)
    what = str(next(comparison.plan.configs()))
    limits = [each for each in comparison.plan.limits if each is not None]
    writers: dict[str, Any] = {
        _FIGURES: _writer_of(figures),
        "compare.csv": lambda path: path.write_text(as_csv(figures)),
        "compare.md": lambda path: path.write_text(as_markdown(figures, what)),
        "compare.png": lambda path: save_comparison(comparison.runs, limits, path),
    }
    if has_page(figures):
        writers["compare.html"] = lambda path: save_page(figures, what, path)
    if curve:
        writers[_CURVE] = lambda path: save_curves(_curve(figures), path)
    return write_output(output, writers, (*_OUTPUTS, _CURVE))


def write_figures(comparison: Comparison, output: Path) -> Path:
    """Write compare.json alone; return its path.

    Raises:
        OSError: if it cannot be written.
    """
    return write_output(output, {_FIGURES: _writer_of(as_json(comparison))})[0]


def _writer_of(figures: Any) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps(figures, indent=1) + "\n")


def settings_of(plan: Plan, text: Bytes) -> dict[str, Any]:
    """Return all that the figures of `plan` depend on."""
    target = Path(plan.config.target)
    script = target.read_bytes() if plan.config.is_script else b""
    return asdict(plan) | {
        "offgrad": offgrad.__version__,
        "cpu": cpu_name(),
        "text": hashlib.sha256(text.tobytes()).hexdigest(),
        "script": hashlib.sha256(script).hexdigest(),
    }


def _curve(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the figures in the form of `save_curves`."""
    rows = [
        {
            "batch": run["batch"],
            "variant": f"{run['library']} {_variant(run)}",
            "samples_per_second": run["batch"] / run["step_seconds"]["median"],
            "peak_over_base_nbytes": run["peak_over_base_nbytes"],
        }
        for run in figures["runs"]
        if run["step_seconds"] and run["batch"] and run["peak_over_base_nbytes"]
    ]
    return {"curve compare": {"model": figures["config"]["target"], "rows": rows}}


def _variant(run: dict[str, Any]) -> str:
    return "keep" if run["library"] == "torch" else run["policy"]
