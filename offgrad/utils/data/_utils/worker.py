"""The work of a worker process: it fetches batches until the loader has gone."""

import contextlib
import multiprocessing
import os
import queue
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from offgrad import kernels, ops
from offgrad._utils import ExceptionWrapper
from offgrad.utils.data._utils.fetch import MapFetcher, make_fetcher
from offgrad.utils.data._utils.transport import Sender

PARENT_CHECK_SECONDS = 2.0


@dataclass(frozen=True)
class WorkerInfo:
    """What a worker process knows of itself.

    Attributes:
        id: its number, from 0.
        num_workers: how many there are.
        seed: of its random generators.
        dataset: its copy of the dataset.
        rng: always None.
        worker_method: always "multiprocessing".
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any
    rng: Any = None
    worker_method: str = "multiprocessing"


_worker_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Return what the current DataLoader worker knows of itself; None in the main process."""
    return _worker_info


class Task(NamedTuple):
    """A batch to fetch.

    Attributes:
        epoch: the iteration of the loader; workers skip tasks of earlier ones.
        number: its position in the epoch.
        index: what the sampler yielded.
        emptied: numbers of the worker's segments that the main process has emptied.
    """

    epoch: int
    number: int
    index: Any
    emptied: list[int]


class Ended(NamedTuple):
    """A worker's answer when its iterable dataset has no samples left."""


class WorkerArguments(NamedTuple):
    """What all workers of a loader need."""

    dataset: Any
    auto_collation: bool
    collate_fn: Callable[[Any], Any]
    drop_last: bool
    base_seed: int
    init_fn: Callable[[int], Any] | None
    num_workers: int


def run(
    arguments: WorkerArguments,
    worker_id: int,
    connection: "Connection[Any, Any]",
    other_ends: "tuple[Connection[Any, Any], ...]",
) -> None:
    """Run a worker; `other_ends` are connections of the parent, of which a fork made copies."""
    for end in other_ends:
        end.close()
    # The parent raises KeyboardInterrupt, too, or has gone.
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
        _Worker(arguments, worker_id, connection).run()


class _Worker:
    def __init__(
        self, arguments: WorkerArguments, worker_id: int, connection: "Connection[Any, Any]"
    ) -> None:
        self._arguments = arguments
        self._id = worker_id
        self._connection = connection
        self._sender = Sender(connection)
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._latest_epoch = 0
        self._parent = os.getppid()

    def run(self) -> None:
        global _worker_info
        arguments = self._arguments
        kernels.set_num_threads(1)
        seed = arguments.base_seed + self._id
        random.seed(seed)
        ops.manual_seed(seed)
        sequence = np.random.SeedSequence([arguments.base_seed % 2**64, self._id])
        np.random.seed(sequence.generate_state(4))  # noqa: NPY002
        _worker_info = WorkerInfo(self._id, arguments.num_workers, seed, arguments.dataset)
        threading.Thread(target=self._read_tasks, daemon=True).start()
        failure = None
        try:
            if arguments.init_fn is not None:
                arguments.init_fn(self._id)
        except Exception:
            failure = self._caught()
        epoch, fetcher = -1, None
        while (task := self._tasks.get()) is not None:
            if task.epoch < self._latest_epoch:
                continue
            if task.epoch != epoch:
                epoch, fetcher = task.epoch, None
            result: Any = failure
            try:
                if failure is None:
                    fetcher = fetcher or self._make_fetcher()
                    result = fetcher.fetch(task.index)
            except StopIteration:
                # From a dataset with indices, it is an error of the program.
                ends = type(fetcher) is not MapFetcher
                result = Ended() if ends else self._caught()
            except Exception:
                result = self._caught()
            self._answer(task, result)

    def _make_fetcher(self) -> MapFetcher:
        arguments = self._arguments
        return make_fetcher(
            arguments.dataset, arguments.auto_collation, arguments.collate_fn, arguments.drop_last
        )

    def _caught(self) -> ExceptionWrapper:
        return ExceptionWrapper(where=f"in DataLoader worker process {self._id}")

    def _answer(self, task: Task, result: Any) -> None:
        try:
            self._sender.send((task.epoch, task.number, result))
        except OSError:
            raise
        except Exception:
            # Of a batch, or of the class of an exception, that cannot be pickled.
            caught = result if isinstance(result, ExceptionWrapper) else self._caught()
            error = ExceptionWrapper((RuntimeError, caught.exc_msg), where=caught.where)
            self._sender.send((task.epoch, task.number, error))

    def _read_tasks(self) -> None:
        """Read tasks as they come, so that the parent never waits; at their end the worker ends."""
        try:
            while self._parent_lives():
                if self._connection.poll(PARENT_CHECK_SECONDS):
                    task = self._connection.recv()
                    self._latest_epoch = task.epoch
                    for number in task.emptied:
                        self._sender.give_back(number)
                    self._tasks.put(task)
        except (EOFError, OSError):
            pass
        finally:
            self._tasks.put(None)

    def _parent_lives(self) -> bool:
        parent = multiprocessing.parent_process()
        return os.getppid() == self._parent and (parent is None or parent.is_alive())
