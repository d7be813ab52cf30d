"""Sampler: what the system knows of the process, looked up by a thread.

The difference between resident memory and tensor memory is what the allocator does not see: Python
objects, libraries, NumPy arrays of the program, buffers that the pool keeps for reuse.
"""

import threading
from time import perf_counter
from typing import Any

_MAX_SAMPLES = 4_000

FIGURES = ("seconds", "rss_nbytes", "page_cache_nbytes", "read_nbytes", "written_nbytes")


class Sampler:
    """Looks at the process every so many seconds.

    Page cache is that of the whole system; bytes read and written are those that reached the drive
    for this process. A figure that the system does not have is 0. With very many samples, every
    second is dropped, and the interval doubled.

    Args:
        interval: in seconds.
    """

    def __init__(self, interval: float) -> None:
        import psutil  # slow to import

        self._interval = interval
        self._psutil = psutil
        self._process = psutil.Process()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offgrad sampler", daemon=True)
        self._samples: list[tuple[float, ...]] = []
        self._began_io = self._io()

    def start(self) -> None:
        """Begin to look."""
        self._look()
        self._thread.start()

    def stop(self) -> None:
        """Look once more, and end the thread."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()  # of a forked child it has ended
            self._look()

    def figures(self, began: float) -> dict[str, list[Any]]:
        """Return the samples by figure; seconds count from `began`."""
        samples = self._samples.copy()
        columns = zip(*samples, strict=True) if samples else [()] * len(FIGURES)
        figures: dict[str, list[Any]] = {
            name: list(column) for name, column in zip(FIGURES, columns, strict=True)
        }
        figures["seconds"] = [each - began for each in figures["seconds"]]
        return figures

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            self._look()

    def _look(self) -> None:
        read_nbytes, written_nbytes = self._io()
        self._samples.append(
            (
                perf_counter(),
                self._process.memory_info().rss,
                getattr(self._psutil.virtual_memory(), "cached", 0),
                read_nbytes - self._began_io[0],
                written_nbytes - self._began_io[1],
            )
        )
        if len(self._samples) >= _MAX_SAMPLES:
            self._samples = self._samples[::2]
            self._interval *= 2

    def _io(self) -> tuple[int, int]:
        try:
            figures = self._process.io_counters()
        except (AttributeError, OSError, self._psutil.Error):
            return 0, 0
        return figures.read_bytes, figures.write_bytes
