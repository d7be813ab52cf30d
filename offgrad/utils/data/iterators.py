"""Iterators of a DataLoader. Internal."""

import _thread
import itertools
import multiprocessing
import os
import pickle
import signal
import time
import warnings
import weakref
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from offgrad_storage.interrupts import masked

from offgrad._utils import ExceptionWrapper
from offgrad.utils.data._utils import transport
from offgrad.utils.data._utils.fetch import make_fetcher
from offgrad.utils.data._utils.worker import Ended, Task, WorkerArguments, run
from offgrad.utils.data.sampler import draw_seed

if TYPE_CHECKING:
    from offgrad.utils.data.dataloader import DataLoader

_END_SECONDS = 5.0
"""The time that workers get to end the batch in work; then they are terminated."""

# The ends of connections to workers that are open in this process.
_open_ends: "weakref.WeakSet[Connection[Any, Any]]" = weakref.WeakSet()


def _part_of(loader: "DataLoader[Any]") -> str:
    """Return what an iterable dataset that yields more than its length may lack."""
    if not loader.num_workers:
        return "Its len() must be the number of samples that it yields"
    return (
        "For multiprocessing data-loading, this means that each worker must yield its own part of "
        "the samples: see get_worker_info()"
    )


class _BaseDataLoaderIter:
    """Base class: yields batches, and counts those of iterable datasets."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        if loader.pin_memory:
            warnings.warn(
                "pin_memory=True has no effect without an accelerator",
                stacklevel=4,
            )
        self._base_seed = draw_seed(loader.generator)
        self._persistent_workers = loader.persistent_workers
        self._reset(loader)

    def _reset(self, loader: "DataLoader[Any]") -> None:
        """Begin an iteration."""
        self._sampler_iter: Iterator[Any] = iter(loader._index_sampler)
        self._loader = loader
        # Known if the program has asked for it.
        self._known_length: int | None = getattr(loader, "_IterableDataset_len_called", None)
        self._num_yielded = 0

    def __iter__(self) -> "_BaseDataLoaderIter":
        return self

    def __next__(self) -> Any:
        data = self._next_data()
        self._num_yielded += 1
        self._check_length()
        return data

    def __len__(self) -> int:
        return len(self._loader._index_sampler)

    def _next_data(self) -> Any:
        raise NotImplementedError

    def _check_length(self) -> None:
        length = self._known_length
        if length is not None and self._num_yielded > length:
            warnings.warn(
                f"Length of IterableDataset {self._loader.dataset} was reported to be {length}, "
                f"but {self._num_yielded} samples have been fetched. {_part_of(self._loader)}",
                stacklevel=3,
            )


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    """Fetches in this process."""

    def __init__(self, loader: "DataLoader[Any]") -> None:
        super().__init__(loader)
        self._fetcher = make_fetcher(
            loader.dataset, loader._auto_collation, loader.collate_fn, loader.drop_last
        )

    def _next_data(self) -> Any:
        return self._fetcher.fetch(next(self._sampler_iter))


class _Workers:
    """The worker processes of one iterator, and the connections to them."""

    def __init__(self, loader: "DataLoader[Any]", base_seed: int) -> None:
        self.process = os.getpid()
        self.processes: list[Any] = []
        self.connections: list[Connection[Any, Any]] = []
        self.receivers: list[transport.Receiver] = []
        arguments = WorkerArguments(
            loader.dataset,
            loader._auto_collation,
            loader.collate_fn,
            loader.drop_last,
            base_seed,
            loader.worker_init_fn,
            loader.num_workers,
        )
        context = loader.multiprocessing_context or multiprocessing
        forks = context.get_start_method() == "fork"
        try:
            for number in range(loader.num_workers):
                with masked:
                    here, there = context.Pipe()
                    self.connections.append(here)
                    self.receivers.append(transport.Receiver(here))
                    _open_ends.add(here)
                others = tuple(_open_ends) if forks else ()
                worker = context.Process(
                    target=run, args=(arguments, number, there, others), daemon=True
                )
                with masked:  # an unfinished start would leave a process that nobody ends
                    worker.start()
                    self.processes.append(worker)
                    there.close()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all workers: after the batch in work, or, if that takes long, at once."""
        if os.getpid() != self.process:  # a forked child's copy
            return
        with masked:
            for connection in self.connections:
                transport.close(connection)
            deadline = time.monotonic() + _END_SECONDS
            for ending in ("terminate", "kill", ""):
                for worker in self.processes:
                    worker.join(max(0.0, deadline - time.monotonic()))
                left = [each for each in self.processes if each.is_alive()]
                if not left or not ending:
                    break
                for worker in left:
                    getattr(worker, ending)()
                deadline = time.monotonic() + _END_SECONDS
            self.processes.clear()
            self.connections.clear()
            self.receivers.clear()

    def describe_dead(self, numbers: list[int]) -> str:
        """Return the sentence for workers that ended by themselves."""
        dead = [self.processes[number] for number in numbers]
        text = "; ".join(_describe_end(each) for each in dead)
        pids = ", ".join(str(each.pid) for each in dead)
        return f"DataLoader worker (pid(s) {pids}) exited unexpectedly: {text}"


def _stop(workers: _Workers) -> None:
    """End the workers; for finalizers, whose exceptions Python drops."""
    try:
        workers.stop()
    except KeyboardInterrupt:  # another thread's call raises it again, a moment later
        _thread.start_new_thread(_thread.interrupt_main, ())


def _describe_end(worker: Any) -> str:
    worker.join(1)
    code = worker.exitcode
    if code is None or code >= 0:
        return f"DataLoader worker (pid {worker.pid}) ended with exit code {code}"
    try:
        name = signal.strsignal(-code) or f"signal {-code}"
    except ValueError:
        name = f"signal {-code}"
    hint = " The system may have been short of memory." if -code == 9 else ""
    return f"DataLoader worker (pid {worker.pid}) is killed by signal: {name}.{hint}"


class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
    """Sends the sampler's indices to workers in turn, and returns their batches.

    Each worker has `prefetch_factor` tasks ahead. A task that a worker without samples left has
    got is dropped in its turn, so the order of batches does not depend on time.
    """

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._prefetch = max(1, loader.prefetch_factor or 0)
        self._timeout, self._in_order = loader.timeout, loader.in_order
        self._epoch = -1
        self._workers: _Workers | None = None
        super().__init__(loader)

    def _reset(self, loader: "DataLoader[Any]") -> None:
        super()._reset(loader)
        if self._workers is None:
            workers = self._workers = _Workers(loader, self._base_seed)
            self._finalizer = weakref.finalize(self, _stop, workers)
        count = len(self._workers.processes)
        self._epoch += 1
        self._sent = 0
        self._owners: dict[int, int] = {}  # of tasks, by number, in order
        self._results: dict[int, Any] = {}
        self._active = [True] * count
        self._turns = itertools.cycle(range(count))
        self._fill()

    def _shutdown_workers(self) -> None:
        """End the worker processes."""
        self._finalizer()
        self._owners, self._results = {}, {}
        self._active = []
        self._loader._iterator = None

    def _fill(self) -> None:
        """Give tasks to the workers, as many as they may have."""
        assert self._workers is not None
        while len(self._owners) < self._prefetch * sum(self._active):
            try:
                index = next(self._sampler_iter)
            except StopIteration:
                return
            worker = self._next_worker()
            number, self._sent = self._sent, self._sent + 1
            self._owners[number] = worker
            receiver = self._workers.receivers[worker]
            task = Task(self._epoch, number, index, receiver.emptied)
            try:
                receiver.connection.send(task)
                receiver.emptied = []
            except OSError:
                self._fail(worker)

    def _next_worker(self) -> int:
        """Return the next active worker; in any order, the next one that has room for a task."""
        loads = list(self._owners.values())
        for worker in self._turns:
            if self._active[worker] and (self._in_order or loads.count(worker) < self._prefetch):
                return worker
        raise AssertionError

    def _next_data(self) -> Any:
        try:
            while True:
                number = self._due()
                if number is None:
                    if not self._persistent_workers:
                        self._shutdown_workers()
                    raise StopIteration
                if number not in self._results:
                    self._receive()
                    continue
                result = self._results.pop(number)
                worker = self._owners.pop(number)
                if isinstance(result, Ended):
                    self._active[worker] = False
                self._fill()
                if isinstance(result, Ended):
                    continue
                if isinstance(result, ExceptionWrapper):
                    result.reraise()
                return result
        except KeyboardInterrupt:
            self._shutdown_workers()
            raise

    def _due(self) -> int | None:
        """Return the number of the task whose result is next; None after the last."""
        for number, worker in list(self._owners.items()):
            if number in self._results:
                return number
            if not self._active[worker]:
                del self._owners[number]  # it will not be answered
            elif self._in_order:
                return number
        return next(iter(self._owners), None)

    def _receive(self) -> None:
        """Wait for a result of any worker, and put it into `_results`."""
        workers = self._workers
        assert workers is not None
        ready = wait(workers.connections, self._timeout or None)
        if not ready:
            self._shutdown_workers()
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
        for connection in ready:
            worker = workers.connections.index(connection)  # type: ignore[arg-type]
            try:
                epoch, number, result = workers.receivers[worker].receive()
            except (EOFError, OSError):
                self._fail(worker)
            except pickle.UnpicklingError as error:
                self._shutdown_workers()
                raise RuntimeError("DataLoader: a worker's batch cannot be read") from error
            if epoch == self._epoch:
                self._results[number] = result

    def _fail(self, worker: int) -> None:
        """Raise the error for a worker that has ended by itself."""
        workers = self._workers
        assert workers is not None
        text = workers.describe_dead([worker])
        self._shutdown_workers()
        raise RuntimeError(text)
