"""Figures of profiles, drawn without pyplot: no global state, no display needed.

The colours are Okabe and Ito's (2008), distinct for people with any kind of colour vision. Each
colour has a label, too.
"""

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE = "#0072B2"
SHADES = {
    "forward": "#56B4E9",
    "backward": "#E69F00",
    "optimizer": "#009E73",
    "other": "#999999",
    "after": "#999999",
}
COLORS = {
    "parameter": "#0072B2",
    "gradient": "#D55E00",
    "optimizer state": "#009E73",
    "saved for backward": "#E69F00",
    "prefetched": "#56B4E9",
    "in flight": "#CC79A7",
    "input": "#F0E442",
    "temporary": "#999999",
}
_MIB = 1024**2
_MIN_LABEL_WIDTH = 0.04  # of the horizontal axis


def plot(
    figures: dict[str, Any],
    path: str | os.PathLike[str] | None,
    *,
    title: str,
    axes: "Axes | None",
) -> "Axes":
    """Draw memory over time, by category where it is known; see `Profile.plot`."""
    if axes is None:
        axes = Figure(figsize=(9, 4.5), layout="constrained").add_subplot()
    timeline = figures["timeline"]
    seconds, nbytes = np.array(timeline["seconds"]), np.array(timeline["nbytes"])
    categories = timeline.get("categories")
    if categories:
        _stack(axes, seconds, categories)
    else:
        axes.fill_between(seconds, nbytes / _MIB, step="post", color=LINE, alpha=0.15, linewidth=0)
    axes.step(seconds, nbytes / _MIB, where="post", color=LINE, linewidth=1.4)
    phases = figures["phases"]
    end = max(phases[-1]["end"], 1e-9)
    for phase in phases:
        _shade(axes, phase, end, alpha=0.0 if categories else 0.18)
    _mark_peak(axes, seconds, nbytes, end)
    axes.set_xlim(0, end)
    style_axes(axes, "seconds")
    axes.set_title(title, loc="left")
    if path is not None:
        axes.figure.get_figure(root=True).savefig(path, dpi=150)
    return axes


def style_axes(axes: Any, xlabel: str) -> None:
    """Format the vertical axis: memory in MiB, from 0, with space on top for labels."""
    axes.set_ylim(0, axes.get_ylim()[1] * 1.12)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("tensor memory (MiB)")
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="y", alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _stack(axes: Any, seconds: Any, categories: dict[str, list[int]]) -> None:
    floor = np.zeros(len(seconds))
    for name, values in categories.items():
        if any(values):
            top = floor + np.array(values) / _MIB
            axes.fill_between(
                seconds, floor, top, step="post", color=COLORS[name], alpha=0.75, linewidth=0,
                label=name,
            )  # fmt: skip
            floor = top
    handles, labels = axes.get_legend_handles_labels()
    # In the order in which they are stacked.
    axes.legend(
        handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False
    )


def _shade(axes: Any, phase: dict[str, Any], end: float, alpha: float) -> None:
    name, start, stop = phase["name"], phase["start"], phase["end"]
    if alpha:
        axes.axvspan(start, stop, color=SHADES[name], alpha=alpha, linewidth=0)
    if name == "backward":
        axes.axvline(start, color="#444444", linewidth=0.8, linestyle=":")
        axes.axvline(stop, color="#444444", linewidth=0.8, linestyle=":")
    width = (stop - start) / end
    if width >= _MIN_LABEL_WIDTH and name != "other":
        axes.annotate(
            name,
            ((start + stop) / 2, 0.985),
            xycoords=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=9,
            rotation=0 if width > 2 * _MIN_LABEL_WIDTH else 90,
        )


def _mark_peak(axes: Any, seconds: Any, nbytes: Any, end: float) -> None:
    index = int(nbytes.argmax())
    is_left = seconds[index] < end / 2
    axes.plot(seconds[index], nbytes[index] / _MIB, "o", color=LINE, markersize=5)
    axes.annotate(
        f"peak {nbytes[index] / _MIB:.1f} MiB",
        (seconds[index], nbytes[index] / _MIB),
        xytext=(6 if is_left else -6, 5),
        textcoords="offset points",
        ha="left" if is_left else "right",
        fontsize=9,
    )
