"""Recording: a tape and its account, for the profiles over them."""

from time import perf_counter

from offgrad_storage.interrupts import MaskedLock, masked

from offgrad import memory
from offgrad.profiler.account import Account
from offgrad.profiler.tape import Tape

_MIN_SECONDS = 1e-4  # of a time between phases that is one itself


class Recording:
    """Records from `open` to `close`. It can be read at any time, from any thread.

    Attributes:
        tape: notes what happens.
        account: the figures; see `read`.
        began, ended: on the clock `perf_counter`; `ended` is None while it is open.

    Args:
        detailed: whether to find out what memory is for; else only totals and passes are recorded.
    """

    def __init__(self, *, detailed: bool) -> None:
        self._lock = MaskedLock()
        self.tape = Tape(self.read_some, detailed=detailed)
        self.began = self.tape.began
        self.ended: float | None = None
        self.account = Account(self.began, _MIN_SECONDS if detailed else 0.0)

    def open(self) -> None:
        """Begin to record."""
        self.tape.open()
        self.read()
        self.account.start(memory.allocated())

    def close(self) -> None:
        """End; it does no harm to call it twice."""
        with masked:
            self.tape.close()
            if self.ended is None:
                self.ended = perf_counter()
            self.read()
            self.account.close()

    @property
    def now(self) -> float:
        """The end of the recording so far."""
        return perf_counter() if self.ended is None else self.ended

    def read(self) -> Account:
        """Account for all events so far; return the account."""
        if self.ended is None:
            memory.allocated()  # notices what has died
        if not self._lock.is_owned:  # else a finalizer of the program reads inside a read
            with self._lock:
                self._read_events()
        return self.account

    def read_some(self) -> None:
        """Account for the events so far, unless a thread is doing so."""
        with masked:
            if self._lock.acquire(blocking=False):
                try:
                    self._read_events()
                finally:
                    self._lock.release()

    def _read_events(self) -> None:
        events = self.tape.events
        self.account.read([events.popleft() for _ in range(len(events))])
