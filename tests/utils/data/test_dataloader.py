"""DataLoader with worker processes: order, seeds, shared memory, errors, and what stays behind."""

import gc
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import Any

import numpy as np
import psutil
import pytest

import offgrad
from offgrad.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info
from tests.processes import start_python

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process:DeprecationWarning", "ignore:This DataLoader will create:UserWarning"
)


class Numbers(Dataset[Any]):
    """The numbers below 12; `act` runs before each."""

    def __init__(self, act: Callable[[int], Any] = lambda index: index) -> None:
        self.act = act

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return self.act(index)


class Shards(IterableDataset[int]):
    """Each worker yields numbers of its own hundred, `counts` of them."""

    def __init__(self, *counts: int) -> None:
        self.counts = counts

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        number = 0 if worker is None else worker.id
        return iter(range(100 * number, 100 * number + self.counts[number]))


@pytest.fixture(autouse=True)
def _no_process_stays() -> Iterator[None]:
    resource_tracker.ensure_running()  # a process that spawning starts, and that stays
    before = threading.active_count(), _descriptors()
    yield
    gc.collect()
    assert not multiprocessing.active_children()
    assert (threading.active_count(), _descriptors()) == before


def _descriptors() -> int:
    return psutil.Process().num_fds()


def _lists(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_come_in_the_samplers_order(workers: int) -> None:
    def slow(index: int) -> int:
        time.sleep(0.002 * (index % 3 == 0))
        return index

    data = Numbers(slow)
    order = [5, 3, 1, 11, 0, 7, 2]
    loader = DataLoader(data, 2, sampler=order, num_workers=workers)
    assert _lists(loader) == [[5, 3], [1, 11], [0, 7], [2]]
    anyhow = DataLoader(data, 2, sampler=order, num_workers=workers, in_order=False)
    assert sorted(_lists(anyhow)) == [[0, 7], [1, 11], [2], [5, 3]]


def test_shuffles_and_seeds_repeat() -> None:
    def draw(index: int) -> Any:
        return index, offgrad.rand(()).item(), random.random(), np.random.rand()  # noqa: NPY002

    def epoch(seed: int, workers: int) -> list[Any]:
        offgrad.manual_seed(seed)
        return [b.tolist() for batch in DataLoader(
            Numbers(draw), 3, shuffle=True, num_workers=workers
        ) for b in batch]  # fmt: skip

    first, other = epoch(1, 2), epoch(2, 2)
    assert first == epoch(1, 2)
    assert first != other
    assert first[::4] == epoch(1, 0)[::4]  # the order does not depend on the workers
    assert first[1] != first[5]  # workers draw different numbers

    def seeded() -> list[Any]:
        generator = offgrad.Generator().manual_seed(3)
        return _lists(DataLoader(Numbers(), 4, shuffle=True, generator=generator))

    assert seeded() == seeded()


def test_worker_info() -> None:
    def info(index: int) -> Any:
        worker = get_worker_info()
        assert worker is not None
        assert isinstance(worker.dataset, Numbers)
        return worker.id, worker.num_workers, worker.seed, offgrad.get_num_threads(), os.getppid()

    def init(number: int) -> None:
        os.environ["OFFGRAD_TEST_WORKER"] = str(number)

    loader = DataLoader(Numbers(info), 6, num_workers=2, worker_init_fn=init)
    (ids, counts, seeds, threads, parents), second = loader
    assert ids.tolist() == [0] * 6
    assert second[0].tolist() == [1] * 6
    assert counts.tolist() == [2] * 6
    assert second[2][0].item() == seeds[0].item() + 1
    assert threads[0].item() == 1
    assert parents[0].item() == os.getpid()
    assert get_worker_info() is None
    assert "OFFGRAD_TEST_WORKER" not in os.environ


def test_arrays_travel_in_shared_memory() -> None:
    def sample(index: int) -> Any:
        large = offgrad.full((64, 256), float(index))
        half = offgrad.full((64, 256), index, dtype=offgrad.bfloat16)
        return {"large": large, "half": half, "array": np.full(3, index), "none": offgrad.ones(0)}

    held = offgrad.memory.allocated()
    loader = DataLoader(Numbers(sample), None, num_workers=2)
    batches = list(loader)
    assert offgrad.memory.allocated() - held >= 12 * 64 * 256 * 6
    for index, batch in enumerate(batches):
        assert batch["large"].tolist() == [[index] * 256] * 64
        assert batch["half"].dtype == offgrad.bfloat16
        assert batch["half"][3, 4].item() == index
        assert batch["array"].tolist() == [index] * 3
        assert batch["none"].shape == (0,)
    first = batches[0]["large"]
    first.add_(1)
    first.requires_grad_().sum().backward()
    assert first.grad is not None
    del batches, batch, first
    if os.path.exists("/dev/shm"):
        assert not [name for name in os.listdir("/dev/shm") if "offgrad" in name]


@pytest.mark.slow
def test_spawned_workers() -> None:
    data = TensorDataset(offgrad.arange(40000.0).view(4, -1), offgrad.arange(4))
    loader = DataLoader(data, 2, num_workers=1, multiprocessing_context="spawn")
    numbers = [batch[1].tolist() for batch in loader]
    assert numbers == [[0, 1], [2, 3]]


@pytest.mark.parametrize("persistent", [False, True])
def test_iterable_datasets_are_shared_out(persistent: bool) -> None:
    loader = DataLoader(Shards(3, 7), 2, num_workers=2, persistent_workers=persistent)
    expected = [[0, 1], [100, 101], [2], [102, 103], [104, 105], [106]]
    for _ in range(2):
        assert _lists(loader) == expected
    dropped = DataLoader(Shards(3, 7), 2, num_workers=2, drop_last=True)
    assert _lists(dropped) == [each for each in expected if len(each) == 2]
    assert _lists(DataLoader(Shards(3, 7), 2)) == [[0, 1], [2]]


def test_persistent_workers_stay() -> None:
    loader = DataLoader(
        Numbers(lambda index: (index, os.getpid())), 2, num_workers=2, persistent_workers=True
    )
    processes = set()
    for _ in range(3):
        for numbers, pids in loader:  # ends early: the next iteration begins anew
            processes |= set(pids.tolist())
            if numbers[0] == 2:
                break
    assert len(processes) == 2
    assert [numbers.tolist()[0] for numbers, _ in loader] == [0, 2, 4, 6, 8, 10]


class _TwoArguments(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)


def test_errors_come_with_the_workers_traceback() -> None:
    def fail(index: int) -> int:
        if index == 1:
            raise ValueError("no ones")
        if index == 2:
            raise KeyError("no twos")
        if index == 3:
            raise _TwoArguments(1, 2)
        if index == 4:
            return lambda: None  # type: ignore[return-value]
        return index

    batches = iter(DataLoader(Numbers(fail), None, num_workers=2))
    assert next(batches) == 0
    text = r"Caught ValueError in DataLoader worker process 1\.\nOriginal Traceback.*no ones"
    with pytest.raises(ValueError, match=f"(?s){text}"):
        next(batches)
    with pytest.raises(KeyError, match=r"(?s)process 0.*Traceback.*no twos") as caught:
        next(batches)
    assert "\n" in str(caught.value)
    with pytest.raises(RuntimeError, match="Caught _TwoArguments in DataLoader worker process 1"):
        next(batches)
    with pytest.raises(RuntimeError, match=r"(?s)in DataLoader worker process 0.*pickle"):
        next(batches)
    assert next(batches) == 5


def test_errors_of_the_init_function() -> None:
    def init(number: int) -> None:
        raise ValueError("not today")

    with pytest.raises(ValueError, match=r"(?s)worker process 0.*not today"):
        next(iter(DataLoader(Numbers(), num_workers=1, worker_init_fn=init)))


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda index: os.kill(os.getpid(), signal.SIGKILL), "is killed by signal: Killed"),
        (lambda index: os._exit(3), "exit code 3"),
    ],
    ids=["killed", "exit"],
)
def test_a_worker_that_ends(act: Callable[[int], Any], message: str) -> None:
    with pytest.raises(
        RuntimeError, match=rf"worker \(pid\(s\) \d+\) exited unexpectedly.*{message}"
    ):
        list(DataLoader(Numbers(act), num_workers=2))


def test_timeout() -> None:
    loader = DataLoader(Numbers(lambda index: time.sleep(0.3)), None, num_workers=1, timeout=0.01)
    with pytest.raises(RuntimeError, match=r"timed out after 0\.01 seconds"):
        next(iter(loader))


def test_an_early_end_leaves_nothing() -> None:
    """The fixture looks for processes."""
    loader = DataLoader(Numbers(), num_workers=2, prefetch_factor=4)
    for batch in loader:
        assert batch.tolist() == [0]
        break
    iterator = iter(loader)
    next(iterator)
    del iterator

    def fail() -> None:
        for _ in loader:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_large_tasks_and_results_do_not_block() -> None:
    """Neither fits into a connection's buffer."""
    indices = [[number] * 50_000 for number in range(6)]
    loader = DataLoader(
        Numbers(), batch_sampler=indices, num_workers=1, prefetch_factor=6, collate_fn=list
    )
    assert [len(batch) for batch in loader] == [50_000] * 6


PROGRAM = """
import sys, time, os
sys.path[:0] = {path!r}
from offgrad.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self): return 1000
    def __getitem__(self, index):
        time.sleep(0.01)
        return index

loader = DataLoader(Slow(), num_workers=2, persistent_workers={persistent})
for index, batch in enumerate(loader):
    if index == 1:
        print(*[worker.pid for worker in {workers}], flush=True)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill"])
@pytest.mark.slow
def test_workers_end_with_their_parent(how: int) -> None:
    import sys

    code = PROGRAM.format(
        path=[each for each in sys.path if each],
        persistent=True,
        workers="loader._iterator._workers.processes",
    )
    with start_python(code, stdout=-1, stderr=-1) as process:
        assert process.stdout is not None
        pids = [int(each) for each in process.stdout.readline().split()]
        assert len(pids) == 2
        process.send_signal(how)
        assert process.wait(30)
    deadline = time.monotonic() + 30
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < deadline, "workers outlived their parent"
        time.sleep(0.01)


def test_a_forked_copy_of_an_iterator_ends_no_workers() -> None:
    from tests.forked import run_in_child

    iterators = [iter(DataLoader(Numbers(), num_workers=1))]
    run_in_child(iterators.clear)
    assert len(list(iterators.pop())) == 12


def test_workers_start_inside_a_session_and_differentiate() -> None:
    """Threads of the session write while the process forks."""

    def sample(index: int) -> Any:
        x = offgrad.full((64,), float(index), requires_grad=True)
        (x * x).sum().backward()
        assert x.grad is not None
        return x.grad / 24

    def losses(workers: int, policy: str) -> list[float]:
        offgrad.manual_seed(0)
        model = offgrad.nn.Sequential(offgrad.nn.Linear(64, 600), offgrad.nn.GELU())
        found = []
        with offgrad.offload(policy):
            for batch in DataLoader(Numbers(sample), 4, num_workers=workers):
                loss = model(batch).square().mean()
                loss.backward()
                found.append(loss.item())
        return found

    assert losses(2, "disk") == losses(0, "keep")
