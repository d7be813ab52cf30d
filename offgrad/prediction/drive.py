"""Drive: a model of time in which stores read and write in the background.

One queue serves reads before writes, as the I/O threads of stores do, each job at the drive's rate.
"""

from collections import OrderedDict
from collections.abc import Callable

from offgrad.prediction.machine import Machine


class Job:
    """A read or a write.

    Attributes:
        seconds: that it takes.
        begin: called when it begins; returns False if nothing is left to do.
        end: called when it has ended.
        is_done: whether it has ended, or was cancelled.
    """

    __slots__ = ("begin", "end", "is_done", "seconds")

    def __init__(
        self, seconds: float, end: Callable[[], None], begin: Callable[[], bool] | None = None
    ) -> None:
        self.seconds, self.begin, self.end = seconds, begin, end
        self.is_done = False


class Drive:
    """The drive, and the clock of the program that uses it.

    Attributes:
        now: seconds since the beginning.
        stall_seconds: how long the program has waited.
        written_nbytes, read_nbytes: so far.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.now = self.stall_seconds = 0.0
        self.written_nbytes = self.read_nbytes = 0
        self._reads: OrderedDict[Job, None] = OrderedDict()
        self._writes: OrderedDict[Job, None] = OrderedDict()
        self._running: Job | None = None
        self._ends = 0.0
        self._is_writing_first = False

    def compute(self, seconds: float) -> None:
        """Let the program compute, while the drive goes on."""
        slowdown = self.machine.slowdown
        left = seconds
        while left > 0:
            if self._running is None:
                self._advance_to(self.now + left)
                return
            # Until the running job ends, computing takes longer.
            factor = 1.0 + slowdown
            step = min(left * factor, max(self._ends - self.now, 0.0))
            self._advance_to(self.now + step)
            left -= step / factor
            if step == 0.0:
                self._advance_to(self.now)
                if self._running is not None and self._ends <= self.now:
                    return

    def read_now(self, nbytes: int) -> None:
        """Let the program wait for a read of its own, before all that is queued."""
        self.read_nbytes += nbytes
        job = Job(self.read_time(nbytes), _nothing)
        self._reads[job] = None
        self._reads.move_to_end(job, last=False)
        self._start()
        self.wait_for(lambda: job.is_done)

    def wait_for(self, is_reached: Callable[[], bool], *, for_write: bool = False) -> bool:
        """Let the program wait until `is_reached`; return False if nothing is under way before."""
        self._is_writing_first = for_write
        try:
            while not is_reached():
                self._start()
                if self._running is None:
                    return False
                self.stall_seconds += max(0.0, self._ends - self.now)
                self._advance_to(max(self._ends, self.now))
            return True
        finally:
            self._is_writing_first = False

    def read(self, nbytes: int, end: Callable[[], None]) -> Job:
        """Queue a read."""
        self.read_nbytes += nbytes
        job = Job(self.read_time(nbytes), end)
        self._reads[job] = None
        self._start()
        return job

    def copy(self, nbytes: int, end: Callable[[], None]) -> Job:
        """Queue a read of what is still in memory."""
        job = Job(nbytes / self.machine.copy_rate, end)
        self._reads[job] = None
        self._start()
        return job

    def write(self, nbytes: int, begin: Callable[[], bool], end: Callable[[], None]) -> Job:
        """Queue a write of so many bytes."""
        seconds = self.machine.write_seconds + nbytes / self.machine.write_rate

        def begin_and_count() -> bool:
            is_wanted = begin()
            self.written_nbytes += nbytes * is_wanted
            return is_wanted

        job = Job(seconds, end, begin_and_count)
        self._writes[job] = None
        self._start()
        return job

    def read_time(self, nbytes: int) -> float:
        """Return the seconds of one read."""
        return self.machine.read_seconds + nbytes / self.machine.read_rate

    def cancel(self, job: Job) -> bool:
        """Take a read out of the queue; return False if it has begun."""
        if self._reads.pop(job, self) is self:
            return False
        job.is_done = True
        return True

    def prefer_read(self, job: Job) -> None:
        """Do a queued read first."""
        if job in self._reads:
            self._reads.move_to_end(job, last=False)

    def prefer(self, job: Job) -> None:
        """Do a queued write first."""
        if job in self._writes:
            self._writes.move_to_end(job, last=False)

    @property
    def is_writing(self) -> bool:
        """Whether a write is queued or running."""
        return bool(self._writes) or (self._running is not None and self._running.begin is not None)

    def finish(self) -> None:
        """Let all queued jobs end, at no cost for the program."""
        while self._running is not None or self._reads or self._writes:
            self._start()
            if self._running is None:
                return
            self._advance_to(max(self._ends, self.now))

    def _advance_to(self, when: float) -> None:
        while self._running is not None and self._ends <= when:
            job, self.now = self._running, max(self.now, self._ends)
            self._running, job.is_done = None, True
            job.end()
            self._start()
        self.now = max(self.now, when)

    def _start(self) -> None:
        while self._running is None and (self._reads or self._writes):
            queue = self._reads or self._writes
            if self._is_writing_first and self._writes:
                queue = self._writes
            job, _ = queue.popitem(last=False)
            if job.begin is not None and not job.begin():
                job.is_done = True
                continue
            self._running, self._ends = job, self.now + job.seconds


def _nothing() -> None:
    pass
