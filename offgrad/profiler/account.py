"""Account: the events of a tape as figures.

It reads the tape some thousands of events at a time, in two passes. The first keeps the records of
what lives, and turns events into changes of categories. What becomes known of new memory soon after
its allocation, such as that it is a gradient, holds from the allocation on. The second pass adds
the changes up, and finds the peak.
"""

from array import array
from collections import deque
from typing import Any
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from offgrad.profiler.categories import (
    CATEGORIES,
    INPUT,
    PREFETCHED,
    ROLES,
    SAVED,
    TEMPORARY,
)
from offgrad.profiler.events import (
    ADD,
    DIE,
    ENTER,
    EXIT,
    FLY,
    IO,
    LAND,
    NAME,
    NODE,
    OP,
    PHASE,
    RELEASE,
    ROLE,
    SAVE,
    SHAPE,
    STEP,
    TOTAL,
    USE,
    Event,
)
from offgrad.profiler.extremes import extremes
from offgrad.profiler.modules import Modules, Spans
from offgrad.profiler.records import Record
from offgrad.profiler.steps import Steps

MAX_ROWS = 40_000
MAX_SPANS = 20_000
_WIDTH = 1 + len(CATEGORIES)

CHANGE = -1
"""The kind of a change of memory; the other items of a batch are events."""


class Account:
    """The figures so far. For one thread at a time.

    Args:
        began: when the recording began.
        min_seconds: of a phase, see `Steps`.

    Attributes:
        totals: the bytes of each category, as of the last event.
        peak_nbytes: the maximum of their sum.
        peak_seconds: when it was reached.
        at_peak: what was alive then, each with its category.
        rows: time and bytes of each category after each change, downsampled to extremes.
        spans: name, kind, thread, begin, end and bytes of what ran, the latest ones.
    """

    def __init__(self, began: float, min_seconds: float) -> None:
        self._began = began
        self.totals = [0] * len(CATEGORIES)
        self.total = 0
        self.peak_nbytes = 0
        self.peak_seconds = began
        self.at_peak: list[tuple[Record, int]] = []
        self.rows = array("d")
        self.spans: Spans = deque(maxlen=MAX_SPANS)
        self.modules = Modules(self.spans)
        self.steps = Steps(self.spans, began, min_seconds)
        self._by_reference: dict[Any, Record] = {}
        self._by_owner: dict[int, Record] = {}
        self._alive: dict[int, Record] = {}
        self._savers: dict[int, tuple[ref[Any], Record, int]] = {}  # by the id of the reference
        self._now = began  # of the first pass
        self._phase = "other"  # of the first pass
        self._flying: dict[int, Record] = {}  # by the id of the store's entry

    def start(self, nbytes: int) -> None:
        """Learn the bytes that are allocated when the recording begins."""
        self.totals[TEMPORARY] += nbytes - self.total
        self.total = nbytes
        if nbytes > self.peak_nbytes:
            self.peak_nbytes = nbytes
        self.steps.start(nbytes)
        del self.rows[:]  # of what was there before
        self._add_row(self._began)

    def read(self, events: list[Any]) -> None:
        """Account for the next events of the tape, and deaths of saved tensors between them."""
        batch: list[Any] = []
        total = highest = self.total
        index_of_peak = -1
        for event in events:
            if type(event) is ref:
                self._forget_saver(event, batch)
                continue
            kind, self._now = event[0], event[1]
            if kind == ADD:
                total += self._add(event, batch)
                if total > highest:
                    highest, index_of_peak = total, len(batch) - 1
            elif kind == DIE:
                total -= self._remove(event, batch)
            elif kind <= FLY:
                if kind == LAND:
                    record = self._flying.pop(event[2], None)
                else:
                    record = self._by_owner.get(event[2])
                if record is not None:
                    self._learn(record, event, batch)
            else:
                if kind == PHASE:
                    self._phase = event[2]
                batch.append(event)
        self._sum_up(batch, index_of_peak if highest > self.peak_nbytes else -1)

    # First pass

    def _add(self, event: Event, batch: list[Any]) -> int:
        _, now, reference, nbytes, owner, op, node, call, purpose, site = event
        if reference in self._by_reference:  # it existed when the recording began, and was noted
            return 0
        category, row, shape, dtype = purpose
        if category < 0:
            is_input = op is node is call is None and site is not None
            category = INPUT if is_input and self._phase in ("other", "forward") else TEMPORARY
        record = Record(nbytes, owner, category)
        record.site = site
        origin = None if node is None else node[1]
        if origin is not None:
            call, record.site = origin[0], origin[1] or site
        if call is not None:
            record.module = call.name(None)
        if node is not None:
            record.op = node[0]
        elif op is not None:
            record.op = op.__name__
        if row is not None:
            record.op, record.slot, record.module = row
            record.shape, record.dtype = shape, dtype
        self._by_reference[reference] = self._by_owner[owner] = record
        record.birth = [CHANGE, now, -1, category, record]
        batch.append(record.birth)
        return record.nbytes

    def _remove(self, event: Event, batch: list[Any]) -> int:
        record = self._by_reference.pop(event[2], None)
        if record is None:
            return 0
        if self._by_owner.get(record.owner) is record:
            del self._by_owner[record.owner]
        record.is_dead = True
        batch.append([CHANGE, event[1], record.category, -1, record])
        return record.nbytes

    def _learn(self, record: Record, event: Event, batch: list[Any]) -> None:
        kind, was_plain = event[0], record.is_plain
        if record.is_dead:
            return
        if kind == SHAPE:
            if record.shape is None:
                record.shape, record.dtype = event[3], event[4]
            return
        if kind == ROLE:
            role = ROLES.get(event[3])
            if role is not None:
                was_plain = was_plain or record.base == INPUT
                record.base = role
        elif kind == SAVE:
            _, _, _, key, op, slot, module, death = event
            self._savers[id(death)] = death, record, key
            if record.saves is None:
                record.saves = set()
            if not record.saves and not record.slot:
                record.op, record.slot = op, slot
                name = module if isinstance(module, str) else ""
                record.module = module.name(None) if hasattr(module, "name") else name
            record.saves.add(key)
        elif kind == RELEASE:
            if record.saves:
                record.saves.discard(event[3])
        elif kind == NAME:
            _, _, _, record.op, record.slot, record.module = event
        elif kind == FLY:
            record.flights += 1
            self._flying[event[3]] = record
            was_plain = False  # it was not in flight before
        elif kind == LAND:
            record.flights -= 1
        elif kind == USE and record.base == PREFETCHED:
            record.base = SAVED
        category = record.find_category()
        if category == record.category:
            return
        if record.birth is not None and was_plain and record.birth[3] == record.category:
            record.birth[3] = category
        else:
            batch.append([CHANGE, event[1], record.category, category, record])
            record.birth = None  # what follows does not hold from the allocation on
        record.category = category

    def _forget_saver(self, death: "ref[Any]", batch: list[Any]) -> None:
        """Account for a saved tensor that no backward pass has released."""
        _, record, key = self._savers.pop(id(death), (None, None, 0))
        if record is not None:
            self._learn(record, (RELEASE, self._now, record.owner, key), batch)

    def close(self) -> None:
        """Notice no more deaths."""
        self._savers.clear()

    # Second pass

    def _sum_up(self, batch: list[Any], index_of_peak: int) -> None:
        totals, alive = self.totals, self._alive
        for index, item in enumerate(batch):
            kind, now = item[0], item[1]
            if kind == CHANGE:
                before, after, record = item[2], item[3], item[4]
                nbytes = record.nbytes
                if before < 0:
                    self.total += nbytes
                    alive[id(record)] = record
                    record.birth = None
                    self.modules.note(self.total)
                    self.steps.note(self.total)
                else:
                    totals[before] -= nbytes
                if after < 0:
                    self.total -= nbytes
                    alive.pop(id(record), None)
                else:
                    totals[after] += nbytes
                record.shown = after
                if after == SAVED:
                    record.keeper = record.module
                    self.modules.note_saved(record.keeper, nbytes)
                elif before == SAVED:
                    self.modules.note_saved(record.keeper, -nbytes)
                self._add_row(now)
                if index == index_of_peak:
                    self._note_peak(now)
            elif kind in (ENTER, EXIT, NODE):
                self.modules.read(item, self.total)
            elif kind == TOTAL:
                self._set_total(now, item[2])
            elif kind == OP:
                _, end, start, thread, cls, nbytes = item
                self.spans.append((cls.__name__, "op", thread.name, start, end, nbytes))
            elif kind == IO:
                _, end, start, thread, action, nbytes = item
                self.spans.append((action, "io", thread, start, end, nbytes))
            elif kind in (PHASE, STEP):
                self.steps.read(item, self.total)
        if len(self.rows) > MAX_ROWS * _WIDTH:
            self._downsample()

    def _set_total(self, now: float, nbytes: int) -> None:
        self.totals[TEMPORARY] = self.total = nbytes
        self.steps.note(nbytes)
        self._add_row(now)
        if nbytes > self.peak_nbytes:
            self.peak_nbytes, self.peak_seconds = nbytes, now

    def _add_row(self, now: float) -> None:
        self.rows.append(now)
        self.rows.extend(self.totals)

    def _note_peak(self, now: float) -> None:
        self.peak_nbytes, self.peak_seconds = self.total, now
        self.at_peak = [(each, each.shown) for each in self._alive.values()]

    def _downsample(self) -> None:
        table = np.frombuffer(self.rows.tobytes(), np.float64).reshape(-1, _WIDTH)
        kept = extremes(table[:, 1:].sum(axis=1), MAX_ROWS // 4)
        self.rows = array("d", table[kept].tobytes())

    def table(self, now: float, max_rows: int | None = None) -> NDArray[np.float64]:
        """Return a row for each change: seconds since the begin, and the bytes of each category.

        Args:
            now: the time of a last row.
            max_rows: keep about this number of rows, extremes included.
        """
        rows = np.frombuffer(self.rows.tobytes(), np.float64).reshape(-1, _WIDTH)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        table = np.vstack([rows, [now, *self.totals]])
        table[:, 0] = np.maximum(table[:, 0] - self._began, 0.0)
        if max_rows is None:
            return table
        return table[extremes(table[:, 1:].sum(axis=1), max(1, max_rows // 2))]
