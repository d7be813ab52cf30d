"""What the sessions did while a profile was active, by their ledgers."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any
from weakref import ref

from offgrad.memory.allocator import counter
from offgrad.session.ledger import Figures, Ledger, LedgerRow, PageLedger
from offgrad.session.paging import ModelOffload
from offgrad.session.session import OffloadSession

RowKey = tuple[str, str, str]
Rows = dict[RowKey, LedgerRow]

_COUNTS = [each.name for each in fields(Figures)]


class _Watched:
    """A session, or pages: the ledger before the recording, and the last that was read."""

    def __init__(self, owner: Any, read: Callable[[], Ledger], before: Rows) -> None:
        self.owner = ref(owner)
        self.read = read
        self.before = before


class Ledgers:
    """Watches all sessions, and all pages, of the process."""

    def __init__(self) -> None:
        self._sessions: dict[int, _Watched] = {}
        self._ended: Rows = {}  # of sessions that have died
        self._offloads: dict[int, tuple[ref[Any], Rows]] = {}  # rows before the recording, by id
        self._pages: dict[int, Rows] = {}  # the latest rows, by the same ids

    def begin(self) -> None:
        """Learn what sessions have done before."""
        self._find(before=True)

    def on_session(self, session: OffloadSession) -> None:
        """Watch a session that is entered; it may die before the next look."""
        self._watch(session, {})

    def look(self) -> None:
        """Watch new owners, and add up those that have died."""
        self._find(before=False)
        for key, watched in list(self._sessions.items()):
            if watched.owner() is None:
                del self._sessions[key]
                _add(self._ended, _difference(watched.read().rows, watched.before))
        for key, (reference, _) in self._offloads.items():
            offload = reference()
            if offload is not None:
                self._pages[key] = _by_key(offload.ledger.rows)

    def sessions(self) -> Ledger:
        """Return the figures of all sessions since the recording began."""
        self.look()
        rows: Rows = {}
        _add(rows, self._ended)
        for watched in list(self._sessions.values()):
            _add(rows, _difference(watched.read().rows, watched.before))
        return Ledger.of(rows.values())

    def pages(self) -> PageLedger:
        """Return the figures of all pages since the recording began."""
        rows: Rows = {}
        for key, latest in self._pages.items():
            _add(rows, _difference(latest.values(), self._offloads[key][1]))
        return PageLedger.of(rows.values())

    def _find(self, before: bool) -> None:
        for each in counter.reclaimables:
            if isinstance(each, OffloadSession):
                self._watch(each, _by_key(each.ledger.rows) if before else {})
            elif isinstance(each, ModelOffload) and not self._knows(each):
                rows = _by_key(each.ledger.rows) if before else {}
                # Pages are there before they are used: their number and size are no changes.
                self._offloads[id(each)] = ref(each), rows

    def _knows(self, offload: ModelOffload) -> bool:
        known = self._offloads.get(id(offload))
        return known is not None and known[0]() is offload

    def _watch(self, session: OffloadSession, before: Rows) -> None:
        known = self._sessions.get(id(session))
        if known is not None:
            if known.owner() is session:
                return
            _add(self._ended, _difference(known.read().rows, known.before))
        rows, lock = session._ledger, session.lock

        def read() -> Ledger:  # outlives the session
            with lock:
                return rows.ledger()

        self._sessions[id(session)] = _Watched(session, read, before)


def _by_key(rows: Iterable[LedgerRow]) -> Rows:
    copies: Rows = {}
    _add(copies, {(row.op, row.slot, row.module): row for row in rows})
    return copies


def _difference(rows: Iterable[LedgerRow], before: Rows) -> Rows:
    """Return what `rows` have counted since `before`; rows without any are left out."""
    result = {}
    for key, row in _by_key(rows).items():
        old = before.get(key)
        if old is not None:
            for name in _COUNTS:
                setattr(row, name, getattr(row, name) - getattr(old, name))
        if any(getattr(row, name) for name in _COUNTS):
            result[key] = row
    return result


def _add(total: Rows, rows: Rows) -> None:
    for key, row in rows.items():
        if key not in total:
            total[key] = LedgerRow(op=row.op, slot=row.slot, module=row.module)
        total[key].add(row)
