"""The plot of a comparison: tensor memory within a step, one line per policy."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from offgrad.cli.compare.results import CRASHED, Run
from offgrad.memory import format_nbytes
from offgrad.profiler.plot import SHADES, style_axes

# Okabe and Ito's colours, distinct for people with any kind of colour vision; and line styles.
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_STYLES = ("-", "-", "--", "-", "-.", ":")
_HATCHES = {"forward": "", "backward": "///", "after": "..."}
_LABELS = {"forward": "forward", "backward": "backward", "after": "update"}
_MIB = 1024**2


def save_comparison(runs: list[Run], limits: list[int], path: Path) -> None:
    """Draw `figure_of` into a PNG file."""
    figure_of(runs, limits).savefig(path, dpi=150, format="png")


def figure_of(runs: list[Run], limits: list[int]) -> Figure:
    """Draw a step of median time, or the failed one, of each run.

    Each of `limits`, in bytes, is a dashed line. A failed step may be a cold first one: what takes
    longer than the steps of median time is cut off at the right.
    """
    shown = [(run, profile) for run in runs if (profile := run.profile) is not None]
    figure = Figure(figsize=(10, 5 + 0.28 * len(shown)), layout="constrained")
    axes, strips = figure.subplots(
        2, 1, sharex=True, height_ratios=[4.6, 0.4 + 0.28 * max(1, len(shown))]
    )
    end = _end(shown)
    for index, (run, profile) in enumerate(shown):
        colour = _COLOURS[index % len(_COLOURS)]
        style = _STYLES[index % len(_STYLES)]
        _line(axes, run, profile, colour, style, end)
        _strip(strips, profile, len(shown) - 1 - index)
    for limit in limits:
        axes.axhline(limit / _MIB, color="#444444", linestyle=(0, (6, 4)), linewidth=1.2)
        axes.annotate(
            f"limit {format_nbytes(limit)}",
            (1.0, limit / _MIB),
            xycoords=axes.get_yaxis_transform(),
            xytext=(-4, 3),
            textcoords="offset points",
            ha="right",
            fontsize=9,
        )
    style_axes(axes, "")
    axes.set_xlim(left=0, right=end)
    axes.set_title(f"Tensor memory within a training step ({_caption(shown)})", loc="left")
    if shown:
        axes.legend(frameon=False, fontsize=9, loc="upper right")
    strips.set_yticks(range(len(shown)), [run.name for run, _ in reversed(shown)], fontsize=9)
    strips.set_ylim(-0.6, len(shown) - 0.4)
    strips.set_xlabel("seconds since the step began")
    strips.spines[["top", "right", "left"]].set_visible(False)
    strips.tick_params(axis="y", length=0)
    phases = [
        Patch(facecolor=SHADES[name], hatch=_HATCHES[name], edgecolor="#444444", label=label)
        for name, label in _LABELS.items()
    ]
    marks = [
        Line2D([], [], color="#444444", marker="v", linestyle="", label="backward begins"),
        Line2D([], [], color="#444444", marker="X", linestyle="", label="out of memory"),
    ]
    figure.legend(
        handles=phases + marks,
        loc="outside lower center",
        ncols=5,
        frameon=False,
        fontsize=9,
    )
    return figure


_Shown = list[tuple[Run, dict[str, Any]]]


def _end(shown: _Shown) -> float | None:
    """Return where the axis of seconds ends: at the longest step of median time, if one is."""
    ends = [profile["timeline"]["seconds"][-1] for run, profile in shown if run.is_timed]
    return 1.05 * max(ends) if any(ends) else None


def _caption(shown: _Shown) -> str:
    """Return which steps are drawn."""
    timed = [run.is_timed for run, _ in shown]
    if not any(timed):
        return "of policies that failed"
    return f"of each policy{'' if all(timed) else ' that finished'}, one of median time"


def _line(
    axes: Any, run: Run, profile: dict[str, Any], colour: str, style: str, end: float | None
) -> None:
    seconds = np.array(profile["timeline"]["seconds"])
    memory = np.array(profile["timeline"]["nbytes"]) / _MIB
    label = f"{run.name}: peak {memory.max():.0f} MiB"
    failed_step = run.failed_step
    if failed_step is not None:
        label = f"{run.name}: {run.error} in step {failed_step + 1}"
    elif run.status == CRASHED:
        label = f"{run.name}: {run.error}"
    axes.step(
        seconds, memory, where="post", color=colour, linestyle=style, linewidth=1.5, label=label
    )
    for phase in profile["phases"]:
        if phase["name"] == "backward":
            axes.plot(phase["start"], phase["start_nbytes"] / _MIB, "v", color=colour, markersize=6)
    if failed_step is not None:
        top = int(memory.argmax())
        axes.plot(
            seconds[top] if end is None else min(seconds[top], end),
            memory[top],
            "X",
            color=colour,
            markersize=11,
            markeredgecolor="white",
            clip_on=False,
        )


def _strip(axes: Any, profile: dict[str, Any], row: int) -> None:
    for phase in profile["phases"]:
        axes.barh(
            row,
            phase["end"] - phase["start"],
            left=phase["start"],
            height=0.6,
            color=SHADES[phase["name"]],
            hatch=_HATCHES[phase["name"]],
            edgecolor="#444444",
            linewidth=0.5,
        )
