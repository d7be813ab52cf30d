"""Draw the largest models that train within a limit of memory, as horizontal bars.

    python -m benchmarks.largest_model figures.json docs/largest-model.png

`benchmarks/bench_largest_model.py` writes the figures; each limit has a panel.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

_GIB = 1 << 30
# Okabe and Ito's colours, distinguishable with any kind of colour vision; names tell them, too.
_COLOURS = {"offgrad": "#0072B2", "torch": "#E69F00", "accelerate": "#CC79A7"}
_OTHER = "#009E73"


def save_bars(figures: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Draw a bar for each row into a PNG file, the largest on top, "at least" as an arrow."""
    limits = sorted({row["max_nbytes"] for row in figures["rows"]})
    by_key = {(row["max_nbytes"], row["name"]): row for row in figures["rows"]}
    first = {name: row for (limit, name), row in by_key.items() if limit == limits[0]}
    names = sorted(first, key=lambda name: first[name]["parameters"])
    figure = Figure(figsize=(10, 1.2 + 0.31 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(limits), sharey=True, squeeze=False)[0]
    for axes, limit in zip(panels, limits, strict=True):
        for place, name in enumerate(names):
            if (limit, name) in by_key:
                _bar(axes, place, by_key[limit, name])
        axes.set_ylim(-0.7, len(names) - 0.3)
        _finish(axes, f"{limit / _GIB:g} GiB of memory for the process")
    panels[0].set_yticks(range(len(names)), labels=names, fontsize=9)
    sizes = figures["sizes"]
    figure.supxlabel(
        f"parameters of the largest GPT that trains, millions (float32, AdamW, width "
        f"{sizes['width']}, one sequence of {sizes['context']} tokens)",
        fontsize=9,
    )
    figure.savefig(path, dpi=180, format="png")


def _bar(axes: Any, place: int, row: dict[str, Any]) -> None:
    millions = row["parameters"] / 1e6
    if not millions:
        axes.annotate("does not train", (0.02, place), xycoords=("axes fraction", "data"),
                      va="center", fontsize=8)  # fmt: skip
        return
    colour = _COLOURS.get(row["name"].partition(" ")[0], _OTHER)
    axes.barh(place, millions, color=colour, height=0.7)
    text = f"{millions:,.0f}"
    if row["is_at_least"]:
        axes.plot(millions, place, marker=">", color=colour, markersize=11, clip_on=False)
        text = f"at least {text}"
    axes.annotate(text, (millions, place), xytext=(8 if row["is_at_least"] else 4, 0),
                  textcoords="offset points", va="center", fontsize=8)  # fmt: skip


def _finish(axes: Any, title: str) -> None:
    axes.set_xscale("log")
    _, high = axes.get_xlim()
    axes.set_xlim(10, 4 * max(high, 100))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(axis="x", alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print("largest_model takes a file of figures and one for the picture", file=sys.stderr)
        sys.exit(2)
    source, target = sys.argv[1:]
    save_bars(json.loads(Path(source).read_bytes()), target)
