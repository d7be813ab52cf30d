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
    FLY,
    IO,
    LAND,
    MARK,
    NAME,
    NODE,
    OP,
    PHASE,
    ROLE,
    SAVE,
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
        self._saved: dict[int, Record] = {}  # by the id of the saved tensor
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
                if record is not None and not record.is_dead:
                    self._learn(record, event, batch)
            else:
                if kind == OP:
                    for owner, shape, dtype in event[6]:
                        record = self._by_owner.get(owner)
                        if record is not None and record.shape is None:
                            record.shape, record.dtype = shape, dtype
                    if event[3] is None:
                        continue
                elif kind == NODE:
                    for key in event[5]:
                        self._release(key, batch)
                elif kind == PHASE:
                    self._phase = event[2]
                batch.append(event)
        self._sum_up(batch, index_of_peak if highest > self.peak_nbytes else -1)

    # First pass

    def _add(self, event: Event, batch: list[Any]) -> int:
        _, now, reference, nbytes, owner, op, node, place, purpose, site = event
        if reference in self._by_reference:  # it existed when the recording began, and was noted
            return 0
        category, row, shape, dtype = purpose
        if category < 0:
            is_input = op is node is place is None and site is not None
            category = INPUT if is_input and self._phase in ("other", "forward") else TEMPORARY
        record = Record(nbytes, owner, category)
        origin = None if node is None else node[1]
        if origin is not None:
            place, site = origin[0], origin[1] or site
        record.site = site
        if place is not None:
            record.module = place.name
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
        if kind == ROLE:
            self._learn_form(record, event)
            role = ROLES.get(event[3])
            if role is not None:
                was_plain = was_plain or record.base == INPUT
                record.base = role
        elif kind == SAVE:
            self._learn_form(record, event)
            _, _, _, key, op, slot, module, death, _, _ = event
            self._savers[id(death)] = death, record, key
            self._saved[key] = record
            if record.saves is None:
                record.saves = set()
            if not record.saves and not record.slot:
                record.op, record.slot, record.module = op, slot, module
            record.saves.add(key)
        elif kind == NAME:
            self._learn_form(record, event)
            record.op, record.slot, record.module = event[3:6]
        elif kind == FLY:
            record.flights += 1
            self._flying[event[3]] = record
            was_plain = False  # it was not in flight before
        elif kind == LAND:
            record.flights -= 1
        elif kind == USE and record.base == PREFETCHED:
            record.base = SAVED
        self._categorize(record, was_plain, batch)

    def _learn_form(self, record: Record, event: Event) -> None:
        if record.shape is None:
            record.shape, record.dtype = event[-2:]

    def _categorize(self, record: Record, was_plain: bool, batch: list[Any]) -> None:
        category = record.find_category()
        if category == record.category:
            return
        if record.birth is not None and was_plain and record.birth[3] == record.category:
            record.birth[3] = category
        else:
            batch.append([CHANGE, self._now, record.category, category, record])
            record.birth = None  # what follows does not hold from the allocation on
        record.category = category

    def _forget_saver(self, death: "ref[Any]", batch: list[Any]) -> None:
        """Account for a saved tensor that no backward pass has released."""
        _, record, key = self._savers.pop(id(death), (None, None, 0))
        if record is not None and self._saved.get(key) is record:
            self._release(key, batch)

    def _release(self, key: int, batch: list[Any]) -> None:
        record = self._saved.pop(key, None)
        if record is not None and not record.is_dead and record.saves:
            record.saves.discard(key)
            self._categorize(record, False, batch)

    def close(self) -> None:
        """Notice no more deaths."""
        self._savers.clear()
        self._saved.clear()

    # Second pass

    def _sum_up(self, batch: list[Any], index_of_peak: int) -> None:
        alive, modules = self._alive, self.modules
        changes: list[tuple[float, int, int, int]] = []
        total = highest = self.total  # the highest since modules and steps were last told
        for index, item in enumerate(batch):
            kind, now = item[0], item[1]
            if kind == CHANGE:
                _, _, before, after, record = item
                nbytes = record.nbytes
                if before < 0:
                    total += nbytes
                    if total > highest:
                        highest = total
                    alive[id(record)] = record
                    record.birth = None
                elif after < 0:
                    total -= nbytes
                    alive.pop(id(record), None)
                record.shown = after
                if after == SAVED:
                    record.keeper = record.module
                    modules.note_saved(record.keeper, nbytes)
                elif before == SAVED:
                    modules.note_saved(record.keeper, -nbytes)
                changes.append((now, before, after, nbytes))
                if index == index_of_peak:
                    self.peak_nbytes, self.peak_seconds = total, now
                    self.at_peak = [(each, each.shown) for each in alive.values()]
            elif kind == OP:
                _, end, start, thread, cls, nbytes, _ = item
                self.spans.append((cls.__name__, "op", thread.name, start, end, nbytes))
            elif kind == IO:
                _, end, start, thread, action, nbytes = item
                self.spans.append((action, "io", thread, start, end, nbytes))
            elif kind == MARK:
                _, end, start, thread, name = item
                self.spans.append((name, "mark", thread.name, start, end, 0))
            elif kind == TOTAL:
                self._set_total(now, item[2])
                total = highest = self.total
            else:
                modules.note(highest)
                self.steps.note(highest)
                highest = total
                if kind in (PHASE, STEP):
                    self.steps.read(item, total)
                else:
                    modules.read(item, total)
        modules.note(highest)
        self.steps.note(highest)
        self.total = total
        self._add_rows(changes)
        if len(self.rows) > MAX_ROWS * _WIDTH:
            self._downsample()

    def _add_rows(self, changes: list[tuple[float, int, int, int]]) -> None:
        """Add a row for each change: its time, the categories before and after, and the bytes."""
        if not changes:
            return
        numbers = np.arange(len(changes))
        seconds, before, after, nbytes = np.array(changes).T
        steps = np.zeros((len(changes), _WIDTH))  # the last column is for no category: -1
        steps[numbers, before.astype(int)] -= nbytes
        steps[numbers, after.astype(int)] += nbytes
        table = np.empty((len(changes), _WIDTH))
        table[:, 0] = seconds
        np.cumsum(steps[:, :-1], axis=0, out=table[:, 1:])
        table[:, 1:] += self.totals
        self.totals = [int(each) for each in table[-1, 1:]]
        self.rows.frombytes(table.tobytes())

    def _set_total(self, now: float, nbytes: int) -> None:
        self.totals[TEMPORARY] = self.total = nbytes
        self.steps.note(nbytes)
        self._add_row(now)
        if nbytes > self.peak_nbytes:
            self.peak_nbytes, self.peak_seconds = nbytes, now

    def _add_row(self, now: float) -> None:
        self.rows.extend([now, *self.totals])  # at once: a fork may copy the rows meanwhile

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
