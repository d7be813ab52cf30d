"""Tensor memory is counted to the byte when it is allocated and freed."""

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import memory

SIZES = [0, 1, 1000, 16_383, 16_384, 16_385, 100_003]  # float32: around POOL_THRESHOLD


@pytest.mark.parametrize("size", SIZES)
def test_exact_bytes_are_counted_and_subtracted_on_del(size: int) -> None:
    before = memory.allocated()
    x = offgrad.zeros(size)
    assert x.nbytes == 4 * size
    assert memory.allocated() == before + x.nbytes
    y = x + 1
    assert memory.allocated() == before + 2 * x.nbytes
    del x
    assert memory.allocated() == before + y.nbytes
    del y
    assert memory.allocated() == before


MAKERS: dict[str, Any] = {
    "tensor": lambda: offgrad.tensor(np.ones((200, 100), np.float32)),
    "empty": lambda: offgrad.empty(200, 100),
    "full": lambda: offgrad.full((200, 100), 2.0),
    "eye": lambda: offgrad.eye(200, 100),
    "arange": lambda: offgrad.arange(20_000.0),
    "linspace": lambda: offgrad.linspace(0, 1, 20_000),
    "rand": lambda: offgrad.rand(200, 100),
    "randn": lambda: offgrad.randn(200, 100),
    "randint": lambda: offgrad.randint(0, 9, (100, 100)),
    "randperm": lambda: offgrad.randperm(10_000),
    "zeros_like": lambda: offgrad.zeros_like(offgrad.ones(200, 100)),
    "clone": lambda: offgrad.ones(200, 100).clone(),
    "sum": lambda: offgrad.ones(200, 200, 2).sum(2),
    "matmul": lambda: offgrad.ones(200, 50) @ offgrad.ones(50, 100),
    "compare": lambda: offgrad.ones(200, 500) > 0,
    "index": lambda: offgrad.ones(300, 100)[offgrad.arange(200)],
    "max": lambda: offgrad.ones(200, 2, 100).max(1)[0],
    "prod": lambda: offgrad.ones(200, 2, 100).prod(1),
    "isnan": lambda: offgrad.ones(200, 500).isnan(),
    "tril": lambda: offgrad.ones(200, 100).tril(),
    "gather": lambda: offgrad.ones(200, 100).gather(1, offgrad.zeros(200, 100).long()),
    "round of integers": lambda: offgrad.ones(200, 100, dtype=offgrad.int64).round(),
    "repickled": lambda: pickle.loads(pickle.dumps(offgrad.ones(200, 100))),
    "deep copy": lambda: copy.deepcopy(offgrad.ones(200, 100)),
}  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
def test_each_way_to_create_a_tensor_is_counted(name: str) -> None:
    before = memory.allocated()
    tensor = MAKERS[name]()
    assert tensor.nbytes >= 64 * 1024
    assert memory.allocated() == before + tensor.nbytes
    del tensor
    assert memory.allocated() == before


def test_views_do_not_count_but_keep_the_storage_alive() -> None:
    before = memory.allocated()
    x = offgrad.zeros(300, 300)
    held = memory.allocated()
    views = [x[0], x.T, x.view(-1), x.expand(2, 300, 300), x.detach(), *x.split(100), x[:, ::2]]
    assert memory.allocated() == held
    row = views[0]
    del x, views
    assert memory.allocated() == held
    del row
    assert memory.allocated() == before


def test_arrays_of_tensors_keep_their_memory() -> None:
    before = memory.allocated()
    array = offgrad.zeros(300, 300).numpy()[5]
    held = memory.allocated() - before
    assert held in (0, 300 * 300 * 4)
    assert not array.any()
    del array
    assert memory.allocated() == before


@pytest.mark.parametrize("shape", [(10,), (300, 300)])
def test_external_memory_is_not_counted(shape: tuple[int, ...]) -> None:
    before = memory.allocated()
    array = np.zeros(shape, np.float32)
    x = offgrad.from_numpy(array)
    assert memory.allocated() == before
    assert np.may_share_memory(x._array, array)
    y = x * 1
    assert memory.allocated() == before + y.nbytes
    copied = offgrad.tensor(array)
    assert memory.allocated() == before + y.nbytes + copied.nbytes


def test_memory_shared_through_numpy_counts_once() -> None:
    before = memory.allocated()
    x = offgrad.zeros(300, 300)
    y = offgrad.from_numpy(x.numpy())
    assert memory.allocated() == before + x.nbytes
    nbytes = x.nbytes
    del x
    assert memory.allocated() == before + nbytes
    del y
    assert memory.allocated() == before


def test_peak() -> None:
    memory.reset_peak()
    start = memory.allocated()
    assert memory.max_allocated() == start
    x = offgrad.zeros(1000)
    y = offgrad.zeros(50_000)
    top = memory.allocated()
    del y
    assert memory.max_allocated() == top == start + 4000 + 200_000
    memory.reset_peak()
    assert memory.max_allocated() == memory.allocated() == start + x.nbytes
    offgrad.zeros(10)
    assert memory.max_allocated() == start + 4040


def test_peak_of_forward_and_backward() -> None:
    x = offgrad.ones(300, 300, requires_grad=True)
    start, unit = memory.allocated(), x.nbytes
    memory.reset_peak()
    x.exp().sin().cos().sum().backward()
    # Three saved results and a few gradients.
    assert start + 3 * unit <= memory.max_allocated() <= start + 7 * unit
    assert x.grad is not None
    assert memory.allocated() == start + x.grad.nbytes


def test_in_place_operations_keep_no_extra_memory() -> None:
    x = offgrad.zeros(300, 300)
    held = memory.allocated()
    x += 1
    x[0] = 5.0
    x.copy_(offgrad.ones(300))
    assert memory.allocated() == held


def test_observers_see_every_change() -> None:
    seen: list[int] = []
    before = memory.allocated()
    with memory.observe(seen.append):
        x = offgrad.zeros(100)
        y = offgrad.zeros(100_000)
        del x
        del y
    offgrad.zeros(7)
    assert seen == [before + each for each in (400, 400_400, 400_000, 0)]


def test_counts_are_exact_with_many_threads() -> None:
    before = memory.allocated()
    barrier = threading.Barrier(4)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        kept: list[Any] = []
        barrier.wait()
        try:
            for _ in range(200):
                kept.append(offgrad.zeros(int(rng.integers(1, 40_000))))
                if len(kept) > 5:
                    del kept[int(rng.integers(0, len(kept)))]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert memory.allocated() == before


def test_freed_in_another_thread() -> None:
    before = memory.allocated()
    box = [offgrad.zeros(50_000), offgrad.zeros(10)]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert memory.allocated() == before
