"""The plot of throughput against peak memory: a line for each variant, a marker for each batch."""

import os
from collections.abc import Collection
from itertools import cycle
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

_MIB = 1 << 20
# Colour and marker per kind of variant. The colours are Okabe and Ito's, distinguishable with any
# kind of colour vision; no information is in the colour alone.
_STYLES = {
    "keep": ("#000000", "o"),
    "pool": ("#E69F00", "o"),
    "disk": ("#0072B2", "s"),
    "zarr": ("#009E73", "s"),
    "disk, bfloat16": ("#56B4E9", "s"),
    "bfloat16": ("#56B4E9", "o"),
    "budget 50%": ("#E69F00", "^"),
    "budget 25%": ("#E69F00", "v"),
    "budget 10%": ("#E69F00", "D"),
    "recompute": ("#009E73", "P"),
    "recompute, disk": ("#D55E00", "D"),
    "checkpoint": ("#CC79A7", "o"),
    "checkpoint, disk": ("#CC79A7", "s"),
}
_OTHERS = [
    (colour, marker) for marker in "^vDP" for colour in ("#D55E00", "#009E73", "#CC79A7", "#56B4E9")
]  # for variants without a style
_COARSE, _FINE = (1, 1.5, 2, 3, 4, 6), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)


def save_curves(
    figures: dict[str, Any], path: str | os.PathLike[str], left_out: Collection[str] = ()
) -> None:
    """Draw the curves of all models in `figures` into a PNG file.

    Variants in `left_out` are not drawn. Memory is the peak of resident memory above a process with
    its libraries loaded.

    Raises:
        ValueError: if `figures` has no curve.
    """
    curves = [value for key, value in figures.items() if key.startswith("curve ")]
    if not curves:
        raise ValueError("the figures have no curve")
    names = dict.fromkeys(row["variant"] for curve in curves for row in curve["rows"])
    drawn = [name for name in names if name.partition(" ")[2] not in left_out]
    columns = 5
    figure = Figure(figsize=(10, 5.8 + 0.24 * -(-len(drawn) // columns)), layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    others = cycle(_OTHERS)
    for name in drawn:
        style = _STYLES.get(name.partition(" ")[2]) or next(others)
        for axes, curve in zip(panels, curves, strict=True):
            _line(axes, name, style, [row for row in curve["rows"] if row["variant"] == name])
    for axes, curve in zip(panels, curves, strict=True):
        _finish(axes, curve["model"])
    panels[0].set_ylabel("samples per second")
    handles, _ = panels[0].get_legend_handles_labels()
    figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
    )
    figure.savefig(path, dpi=180, format="png")


def _line(axes: Any, name: str, style: tuple[str, str], rows: list[dict[str, Any]]) -> None:
    """Draw a variant, hollow and dashed for PyTorch; markers grow with the batch size."""
    colour, marker = style
    hollow = name.startswith("torch")
    memory = [row["peak_over_base_nbytes"] / _MIB for row in rows]
    rates = [row["samples_per_second"] for row in rows]
    look = {
        "color": colour,
        "marker": marker,
        "markerfacecolor": "white" if hollow else colour,
        "linestyle": "--" if hollow else "-",
    }
    axes.plot([], [], markersize=6, linewidth=1.2, label=name, **look)
    axes.plot(memory, rates, **look | {"marker": ""}, linewidth=1.2)
    for index, (row, x, y) in enumerate(zip(rows, memory, rates, strict=True)):
        axes.plot(x, y, markersize=4.5 + 1.5 * index, **look)
        if name.endswith(" keep"):
            axes.annotate(
                f"batch {row['batch']}",
                (x, y),
                xytext=(0, 7) if hollow else (5, -11),  # above one line, and below the other
                horizontalalignment="center" if hollow else "left",
                textcoords="offset points",
                fontsize=8,
                path_effects=[withStroke(linewidth=2, foreground="white")],
                zorder=5,
            )


def _finish(axes: Any, title: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(0.11, 0.08)
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=_FINE if high < 8 * low else _COARSE))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("peak memory above that of the loaded libraries (MiB resident)")
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
