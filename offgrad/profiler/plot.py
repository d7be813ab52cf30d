"""The plot of a memory profile, by Matplotlib's objects: no global state, no display needed.

Colours are of the set of Okabe and Ito (2008), told apart by people with any kind of colour vision;
nothing is said by colour alone.
"""

import os
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from offgrad.profiler.recorder import extremes

if TYPE_CHECKING:
    from offgrad.profiler.profile import MemoryProfile, Phase

LINE = "#0072B2"
SHADES = {"forward": "#56B4E9", "backward": "#E69F00", "after": "#999999"}
_MIB = 1024**2
_DRAWN = 4000
_NARROW = 0.04


def save_plot(profile: "MemoryProfile", path: str | os.PathLike[str]) -> None:
    """Draw `profile` into a file whose suffix says its format."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    timeline = profile.timeline
    drawn = extremes(timeline.nbytes, _DRAWN)
    seconds, nbytes = timeline.seconds[drawn], timeline.nbytes[drawn]
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
    """Make memory in MiB the vertical axis, from 0, with room on top for labels."""
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
    wide = (phase.end - phase.start) / end
    if wide >= _NARROW:
        axes.annotate(
            phase.name,
            ((phase.start + phase.end) / 2, 0.985),
            xycoords=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=9,
            rotation=0 if wide > 2 * _NARROW else 90,
        )


def _mark_peak(axes: Any, profile: "MemoryProfile") -> None:
    seconds, nbytes = profile.timeline
    index = int(nbytes.argmax())
    left = seconds[index] < profile.phases[-1].end / 2
    axes.plot(seconds[index], nbytes[index] / _MIB, "o", color=LINE, markersize=5)
    axes.annotate(
        f"peak {nbytes[index] / _MIB:.1f} MiB",
        (seconds[index], nbytes[index] / _MIB),
        xytext=(6 if left else -6, 5),
        textcoords="offset points",
        ha="left" if left else "right",
        fontsize=9,
    )
