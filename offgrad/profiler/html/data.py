"""The data of a report, bounded so that the page stays small."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offgrad.profiler.extremes import extremes

_MAX_BINS = 1500
_MAX_SPANS = 6000
_MAX_PHASES = 3000
_MAX_MODULES = 2000
_MAX_CONTENTS = 600
_MAX_ROWS = 400
_DIGITS = 7  # of seconds


def bounded(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page shows of a profile, downsampled to extremes where there is too much."""
    result = dict(profile)
    result["timeline"] = _timeline(profile["timeline"])
    result.setdefault("seconds", result["timeline"]["seconds"][-1])
    result["spans"], result["threads"] = _spans(profile.get("spans") or ())
    result["phases"] = _longest(profile.get("phases") or (), _MAX_PHASES)
    steps = list(profile.get("steps") or ())
    result["steps"] = steps[:: len(steps) // _MAX_PHASES + 1]
    result["modules"] = _modules(profile.get("modules") or ())
    result["peak"] = _first(profile.get("peak"), "contents", _MAX_CONTENTS)
    result["ledger"] = _first(profile.get("ledger"), "rows", _MAX_ROWS)
    result["pages"] = _first(profile.get("pages"), "rows", _MAX_ROWS)
    result["sampled"] = _sampled(profile.get("sampled"))
    return {name: _finite(value) for name, value in result.items()}


def _timeline(timeline: Mapping[str, Any]) -> dict[str, Any]:
    if not len(timeline["nbytes"]):  # nothing was allocated
        return {"seconds": [0.0], "nbytes": [0], "categories": {}}
    nbytes = np.asarray(timeline["nbytes"])
    indices = extremes(nbytes, _MAX_BINS)
    seconds = np.asarray(timeline["seconds"], np.float64)[indices].round(_DIGITS)
    return {
        "seconds": seconds.tolist(),
        "nbytes": nbytes[indices].tolist(),
        "categories": {
            name: np.asarray(values)[indices].tolist()
            for name, values in (timeline.get("categories") or {}).items()
        },
    }


def _longest(parts: Sequence[Mapping[str, Any]], count: int) -> list[Mapping[str, Any]]:
    """Return the longest parts of the recording, in their order."""
    if len(parts) <= count:
        return list(parts)
    lengths = np.array([each["end"] - each["start"] for each in parts])
    return [parts[index] for index in np.sort(np.argsort(-lengths, kind="stable")[:count])]


def _modules(modules: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the modules that took most time, which includes that of their parts."""

    def seconds(row: Mapping[str, Any]) -> float:
        return -float(row.get("forward_seconds", 0) + row.get("backward_seconds", 0))

    kept = {id(each) for each in sorted(modules, key=seconds)[:_MAX_MODULES]}
    return [each for each in modules if id(each) in kept]


def _spans(spans: Sequence[Mapping[str, Any]]) -> tuple[list[list[Any]], list[str]]:
    """Return the longest spans, in their order, and the names of threads.

    A span is its name, kind, number of the thread, start, end and bytes.
    """
    spans = _longest(spans, _MAX_SPANS)
    threads: dict[Any, int] = {}
    rows = [
        [
            each["name"],
            each["kind"],
            threads.setdefault(each["thread"], len(threads)),
            round(each["start"], _DIGITS),
            round(each["end"], _DIGITS),
            each.get("nbytes", 0),
        ]
        for each in spans
    ]
    return rows, list(map(str, threads))


def _first(part: Mapping[str, Any] | None, name: str, count: int) -> dict[str, Any] | None:
    return None if not part else {**part, name: list(part.get(name) or ())[:count]}


def _sampled(sampled: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not sampled:
        return None
    every = max(1, len(sampled.get("seconds") or ()) // (2 * _MAX_BINS))
    return {
        name: values[::every] if isinstance(values, list) else values
        for name, values in sampled.items()
    }


def _finite(value: Any) -> Any:
    """Replace what JSON lacks by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value
