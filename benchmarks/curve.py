"""The picture of throughput against peak memory: a line for each variant, a marker for each batch.

    python -m benchmarks.curve figures.json curve.png

The figures are those of `benchmarks.bench_sessions -k curve`; each model has a panel.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

_MIB = 1 << 20
# Okabe and Ito's colours, which people with any kind of colour vision tell apart. There are as many
# markers as has no common factor with them, so that pairs of both come again late.
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_STEPS = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)


def save_curves(figures: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Draw the curves of all models in `figures` into a PNG file.

    Memory is the most that was resident over what a process takes with its libraries loaded.

    Raises:
        ValueError: there are none.
    """
    curves = [value for key, value in figures.items() if key.startswith("curve ")]
    if not curves:
        raise ValueError("the figures have no curve: run benchmarks/bench_sessions.py -k curve")
    names = list(dict.fromkeys(row["variant"] for curve in curves for row in curve["rows"]))
    columns = 5
    height = 4.6 + 0.24 * -(-len(names) // columns)
    figure = Figure(figsize=(10, height), layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, curve in zip(panels, curves, strict=True):
        for index, name in enumerate(names):
            rows = [row for row in curve["rows"] if row["variant"] == name]
            _line(axes, rows, index, hollow=name.startswith("torch"))
        _finish(axes, curve["model"])
    panels[0].set_ylabel("samples per second")
    handles = dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))
    figure.legend(
        handles=list(handles.values()),
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
        markerscale=1.0,
    )
    figure.savefig(path, dpi=180, format="png")


def _line(axes: Any, rows: list[dict[str, Any]], index: int, *, hollow: bool) -> None:
    memory = [row["peak_over_base_nbytes"] / _MIB for row in rows]
    rates = [row["samples_per_second"] for row in rows]
    colour = _COLOURS[index % len(_COLOURS)]
    axes.plot(
        memory,
        rates,
        color=colour,
        linestyle="--" if hollow else "-",
        linewidth=1.2,
        marker=_MARKERS[index % len(_MARKERS)],
        markersize=6,
        markeredgewidth=1.2,
        markerfacecolor="white" if hollow else colour,
        label=rows[0]["variant"],
    )
    if rows[0]["variant"].endswith(" keep"):
        for row, x, y in zip(rows, memory, rates, strict=True):
            axes.annotate(
                f"batch {row['batch']}",
                (x, y),
                xytext=(0, 7),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )


def _finish(axes: Any, title: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(0.08, 0.12)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=_STEPS))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("peak memory over that of the loaded libraries (MiB resident)")
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    source, target = sys.argv[1:]
    save_curves(json.loads(Path(source).read_bytes()), target)
