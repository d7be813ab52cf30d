"""The plot of a memory profile, drawn without pyplot: no global state, no display needed.

The colours are Okabe and Ito's (2008), distinct for people with any kind of colour vision. Each
colour has a label, too.
"""

import os
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from offgrad.profiler.recorder import extremes

if TYPE_CHECKING:
    from offgrad.profiler.memory_profile import MemoryProfile, Phase

LINE = "#0072B2"
SHADES = {"forward": "#56B4E9", "backward": "#E69F00", "after": "#999999"}
_MIB = 1024**2
_MAX_BINS = 4000
_MIN_LABEL_WIDTH = 0.04  # of the horizontal axis


def save_plot(profile: "MemoryProfile", path: str | os.PathLike[str]) -> None:
    """Draw `profile` into a file; the suffix of `path` chooses the format."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    timeline = profile.timeline
    indices = extremes(timeline.nbytes, _MAX_BINS)
    seconds, nbytes = timeline.seconds[indices], timeline.nbytes[indices]
    axes.step(seconds, nbytes / _MIB, where="post", color=LINE, linewidth=1.4)
    axes.fill_between(seconds, nbytes / _MIB, step="post", color=LINE, alpha=0.15, linewidth=0)
    end = max(profile.phases[-1].end, 1e-9)
    for phase in profile.phases:
        _shade(axes, phase, end)
    _mark_peak(axes, profile)
    axes.set_xlim(0, end)
    style_axes(axes, "seconds")
    axes.set_title("Tensor memory in forward and backward", loc="left")
    figure.savefig(path, dpi=150)


def style_axes(axes: Any, xlabel: str) -> None:
    """Format the vertical axis: memory in MiB, from 0, with space on top for labels."""
    axes.set_ylim(0, axes.get_ylim()[1] * 1.12)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("tensor memory (MiB)")
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="y", alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _shade(axes: Any, phase: "Phase", end: float) -> None:
    axes.axvspan(phase.start, phase.end, color=SHADES[phase.name], alpha=0.18, linewidth=0)
    if phase.name == "backward":
        axes.axvline(phase.start, color="#444444", linewidth=0.8, linestyle=":")
        axes.axvline(phase.end, color="#444444", linewidth=0.8, linestyle=":")
    width = (phase.end - phase.start) / end
    if width >= _MIN_LABEL_WIDTH:
        axes.annotate(
            phase.name,
            ((phase.start + phase.end) / 2, 0.985),
            xycoords=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=9,
            rotation=0 if width > 2 * _MIN_LABEL_WIDTH else 90,
        )


def _mark_peak(axes: Any, profile: "MemoryProfile") -> None:
    seconds, nbytes = profile.timeline
    index = int(nbytes.argmax())
    is_left = seconds[index] < profile.phases[-1].end / 2
    axes.plot(seconds[index], nbytes[index] / _MIB, "o", color=LINE, markersize=5)
    axes.annotate(
        f"peak {nbytes[index] / _MIB:.1f} MiB",
        (seconds[index], nbytes[index] / _MIB),
        xytext=(6 if is_left else -6, 5),
        textcoords="offset points",
        ha="left" if is_left else "right",
        fontsize=9,
    )
