"""A profile as a trace that Perfetto and Chrome open: the JSON trace event format.

Reference: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import os
from typing import Any

_PHASES = "phases"
_MICROSECONDS = 1e6


def trace(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the trace of the figures of `Profile.to_dict`: spans by thread, and counters."""
    pid = os.getpid()
    events: list[dict[str, Any]] = [_named("process_name", pid, 0, "offgrad")]
    threads: dict[str, int] = {}
    for span in figures["spans"]:
        thread = span["thread"] or _PHASES
        if thread not in threads:
            threads[thread] = len(threads) + 1
            events.append(_named("thread_name", pid, threads[thread], thread))
        events.append(
            {
                "ph": "X",
                "name": span["name"],
                "cat": span["kind"],
                "pid": pid,
                "tid": threads[thread],
                "ts": span["start"] * _MICROSECONDS,
                "dur": max(0.0, span["end"] - span["start"]) * _MICROSECONDS,
                "args": {"nbytes": span["nbytes"]},
            }
        )
    timeline, sampled = figures["timeline"], figures["sampled"]
    events += _counters(pid, "tensor memory", timeline["seconds"], timeline["categories"])
    for name, keys in _SAMPLED.items():
        events += _counters(pid, name, sampled["seconds"], {key: sampled[key] for key in keys})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": figures["machine"]}


_SAMPLED = {
    "resident memory": ("rss_nbytes",),
    "page cache": ("page_cache_nbytes",),
    "drive": ("read_nbytes", "written_nbytes"),
}


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _counters(
    pid: int, name: str, seconds: list[float], values: dict[str, list[int]]
) -> list[dict[str, Any]]:
    return [
        {
            "ph": "C",
            "name": name,
            "pid": pid,
            "tid": 0,
            "ts": second * _MICROSECONDS,
            "args": {key: column[index] for key, column in values.items()},
        }
        for index, second in enumerate(seconds)
    ]
