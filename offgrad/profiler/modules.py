"""The figures of modules: time and peak of forward and backward, and bytes saved for backward."""

from collections import deque
from typing import Any

from offgrad.profiler.events import ENTER, EXIT, Event, Place, Thread
from offgrad.session.ledger import Ledger

Spans = deque[tuple[str, str, str, float, float, int]]

_MAX_MODULES = 10_000


class ModuleFigures:
    """The figures of one qualified name; those of forward and backward include modules inside."""

    __slots__ = (
        "backward_peak_nbytes", "backward_seconds", "calls", "forward_peak_nbytes",
        "forward_seconds", "kept_nbytes", "saved_nbytes", "type",
    )  # fmt: skip

    def __init__(self, type_name: str = "") -> None:
        self.type = type_name
        self.calls = 0
        self.forward_seconds = self.backward_seconds = 0.0
        self.forward_peak_nbytes = self.backward_peak_nbytes = 0
        self.kept_nbytes = 0  # now
        self.saved_nbytes = 0  # at most

    def as_dict(self) -> dict[str, Any]:
        """Return the figures by name."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "kept_nbytes"}


class _Running:
    """A call, or the node of a pass: since when, its module, and the peak so far."""

    __slots__ = ("began", "name", "peak_nbytes", "place")

    def __init__(self, place: Place | None, name: str, began: float, nbytes: int) -> None:
        self.place = place
        self.name = name
        self.began = began
        self.peak_nbytes = nbytes


class Modules:
    """The figures of all modules, by qualified name.

    Args:
        spans: gets the spans of calls, of the nodes of backward passes, and of these by module.
    """

    def __init__(self, spans: Spans) -> None:
        self.by_name: dict[str, ModuleFigures] = {}
        self._spans = spans
        self._calls: dict[Thread, list[_Running]] = {}  # by thread, innermost last
        self._nodes: dict[Thread, _Running] = {}  # by thread
        self._parts: dict[Thread, tuple[str, float]] = {}  # by thread: module, and since when

    def figures(self, name: str, type_name: str = "") -> ModuleFigures:
        """Return the figures of a module."""
        found = self.by_name.get(name)
        if found is None:
            if len(self.by_name) >= _MAX_MODULES:
                name = "(others)"
            found = self.by_name.setdefault(name, ModuleFigures(type_name))
        if type_name and not found.type:
            found.type = type_name
        return found

    def note(self, nbytes: int) -> None:
        """Note that so many bytes are allocated."""
        for running in self._calls.values():
            if running and nbytes > running[-1].peak_nbytes:
                running[-1].peak_nbytes = nbytes
        for node in self._nodes.values():
            if nbytes > node.peak_nbytes:
                node.peak_nbytes = nbytes

    def note_saved(self, name: str, nbytes: int) -> None:
        """Note that a module keeps more, or less, for backward."""
        figures = self.figures(name)
        figures.kept_nbytes += nbytes
        figures.saved_nbytes = max(figures.saved_nbytes, figures.kept_nbytes)

    def read(self, event: Event, nbytes: int) -> None:
        """Account for the begin or end of a call, or the begin of a node."""
        kind, now, thread = event[:3]
        if kind == ENTER:
            place = event[3]
            running = _Running(place, place.name, now, nbytes)
            self._calls.setdefault(thread, []).append(running)
        elif kind == EXIT:
            self._end_call(now, thread, event[3])
        else:
            self._begin_node(now, thread, event[3], event[4], nbytes)

    def _end_call(self, now: float, thread: Thread, place: Place) -> None:
        calls = self._calls.get(thread, [])
        if not calls:
            return
        if calls[-1].place is not place and all(each.place is not place for each in calls):
            return
        ended = calls.pop()
        while ended.place is not place:
            calls[-1].peak_nbytes = max(calls[-1].peak_nbytes, ended.peak_nbytes)
            ended = calls.pop()
        figures = self.figures(ended.name, place.type_name)
        figures.calls += 1
        figures.forward_seconds += now - ended.began
        figures.forward_peak_nbytes = max(figures.forward_peak_nbytes, ended.peak_nbytes)
        if calls:
            calls[-1].peak_nbytes = max(calls[-1].peak_nbytes, ended.peak_nbytes)
        else:
            del self._calls[thread]
        name = ended.name or place.type_name
        self._spans.append((name, "module", thread.name, ended.began, now, ended.peak_nbytes))

    def _begin_node(self, now: float, thread: Thread, op: str, origin: Any, nbytes: int) -> None:
        ended = self._nodes.pop(thread, None)
        if ended is not None:
            self._end_node(ended, now, thread)
        place: Place | None = None if origin is None else origin[0]
        module = "" if place is None else place.name or place.type_name
        part = self._parts.get(thread)
        if part is not None and (part[0] != module or not op):
            self._spans.append((f"{part[0]} backward", "module", thread.name, part[1], now, 0))
            del self._parts[thread]
        if op:
            self._nodes[thread] = _Running(place, op, now, nbytes)
            if module:
                self._parts.setdefault(thread, (module, now))

    def _end_node(self, node: _Running, now: float, thread: Thread) -> None:
        self._spans.append((node.name, "op", thread.name, node.began, now, node.peak_nbytes))
        place = node.place
        while place is not None:
            figures = self.figures(place.name, place.type_name)
            figures.backward_seconds += now - node.began
            figures.backward_peak_nbytes = max(figures.backward_peak_nbytes, node.peak_nbytes)
            place = place.caller


def module_rows(modules: Modules, ledger: Ledger) -> list[dict[str, Any]]:
    """Return the figures of all modules, with those of the sessions' ledgers, sorted by name."""
    rows: dict[str, dict[str, Any]] = {}

    def row(name: str) -> dict[str, Any]:
        if name not in rows:
            figures = modules.by_name.get(name) or ModuleFigures()
            rows[name] = {"name": name, **figures.as_dict(), **dict.fromkeys(_OF_SESSIONS, 0)}
            rows[name]["stall_seconds"] = 0.0
        return rows[name]

    for name in list(modules.by_name):
        row(name)
    for each in ledger.rows:
        figures = row(each.module)
        for name, attribute in _OF_SESSIONS.items():
            figures[name] += getattr(each, attribute)
    return [rows[name] for name in sorted(rows)]


_OF_SESSIONS = {
    "packs": "saves",
    "unpacks": "unpacks",
    "read_nbytes": "read_nbytes",
    "written_nbytes": "written_nbytes",
    "stall_seconds": "stall_seconds",
    "hits": "hits",
}
"""Attributes of `Figures` by the names that modules have them under."""
