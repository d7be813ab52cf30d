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
        latency: more, if nothing else was under way.
        factor: how many times as long it takes beside computing.
        load: seconds that computing beside it takes longer.
        begin: called when it begins; returns False if nothing is left to do.
        end: called when it has ended.
        is_done: whether it has ended, or was cancelled.
    """

    __slots__ = ("begin", "end", "factor", "is_done", "latency", "load", "seconds")

    def __init__(
        self,
        seconds: float,
        end: Callable[[], None],
        begin: Callable[[], bool] | None = None,
        *,
        latency: float = 0.0,
        factor: float = 1.0,
        load: float = 0.0,
    ) -> None:
        self.seconds, self.begin, self.end = seconds, begin, end
        self.latency, self.factor, self.load = latency, factor, load
        self.is_done = False


class Drive:
    """The drive, and the clock of the program that uses it.

    Attributes:
        now: seconds since the beginning.
        stall_seconds: how long the program has waited.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.now = self.stall_seconds = 0.0
        self._reads: OrderedDict[Job, None] = OrderedDict()
        self._writes: OrderedDict[Job, None] = OrderedDict()
        self._running: Job | None = None
        self._ends = 0.0
        self._is_writing_first = self._was_busy = False

    def compute(self, seconds: float) -> None:
        """Let the program compute, while the drive goes on."""
        end = self.now + seconds
        while (job := self._running) is not None:
            left = (self._ends - self.now) * job.factor
            if self.now + left > end:
                self._ends = end + left / job.factor - (end - self.now) / job.factor
                break
            self._ends = self.now + left
            end += job.load
            self._advance_to(self._ends)
        self._advance_to(end)

    def read_now(self, nbytes: int) -> None:
        """Let the program wait for a read of its own, before all that is queued."""
        job = self._read(nbytes, _nothing)
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
        job = self._read(nbytes, end)
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
        machine = self.machine
        job = Job(
            machine.write_seconds + nbytes / machine.write_rate,
            end,
            begin,
            latency=machine.write_latency,
            factor=machine.write_factor,
            load=nbytes * machine.write_load,
        )
        self._writes[job] = None
        self._start()
        return job

    def _read(self, nbytes: int, end: Callable[[], None]) -> Job:
        machine = self.machine
        job = Job(
            machine.read_seconds + nbytes / machine.read_rate,
            end,
            latency=machine.read_latency,
            factor=machine.read_factor,
            load=nbytes * machine.read_load,
        )
        self._reads[job] = None
        return job

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
            self._was_busy = True
            self._start()
            self._was_busy = False
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
            # The threads of a store overlap jobs that follow each other.
            latency = 0.0 if self._was_busy else job.latency
            self._running, self._ends = job, self.now + job.seconds + latency


def _nothing() -> None:
    pass
