"""The HTML report of a comparison: the step of median time of each run, side by side."""

import os
from typing import Any

from offgrad.memory import format_nbytes
from offgrad.profiler import report

_LEDGER = (
    *("logical_nbytes", "kept_nbytes", "stored_nbytes", "written_nbytes", "read_nbytes"),
    *("recomputed_nbytes", "stall_seconds"),
)


def save_page(figures: dict[str, Any], what: str, path: str | os.PathLike[str]) -> None:
    """Write a page with the profiles in the figures of `as_json`."""
    profiles: dict[str, Any] = {}
    for run in figures["runs"]:
        if run["profile"] is not None:
            profiles[_name(run, profiles)] = _profile(run, figures["machine"])
    report(path, profiles, title=f"Policies compared: {what}")


def has_page(figures: dict[str, Any]) -> bool:
    """Return whether any run has a profile."""
    return any(run["profile"] is not None for run in figures["runs"])


def _name(run: dict[str, Any], others: dict[str, Any]) -> str:
    """Return the name of a run; with its batch and limit if another has the same."""
    name = str(run["name"])
    if name in others:
        limit = run["memory_limit"]
        parts = [f"batch {run['batch']}", f"limit {format_nbytes(limit)}" if limit else "no limit"]
        name = f"{name}, {', '.join(parts)}"
    while name in others:
        name += "'"
    return name


def _profile(run: dict[str, Any], machine: dict[str, Any]) -> dict[str, Any]:
    """Return the profile of one step, with the figures per step of the whole run."""
    steps = len(run["steps"]) or 1
    seconds = run["step_seconds"]["median"] if run["step_seconds"] else 0.0
    rss = run["peak_rss_nbytes"]
    return {
        **run["profile"],
        "peak_nbytes": run["peak_tensor_nbytes"],  # of all steps
        "machine": machine,
        "steps": [{"index": run["profile_step"], "start": 0.0, "end": seconds, "count": 1}],
        "ledger": {name: run["ledger"].get(name, 0) / steps for name in _LEDGER},
        "sampled": {"seconds": [], "rss_nbytes": [] if rss is None else [rss]},
    }
