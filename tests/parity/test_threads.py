"""Forward and backward in many threads at once: exact sums, or a clear error; nothing else."""

import threading
from typing import Any

import numpy as np
import pytest

import offgrad
from tests.parity.conftest import constant, leaf, lists, raises
from tests.parity.threads import results, together

THREADS = 8

pytestmark = pytest.mark.usefixtures("switch_often")


# Graphs of their own.


def test_the_example_of_the_specification(lib: Any) -> None:
    def train() -> Any:
        x = lib.ones(5, 5, requires_grad=True)
        y = (x + 3) * (x + 4) * 0.5
        y.sum().backward()
        return x.grad.tolist()

    assert results(together(*[train] * 10)) == [[[4.5] * 5] * 5] * 10


def test_own_graphs_give_the_same_as_alone(lib: Any) -> None:
    def train(seed: int) -> Any:
        start = np.random.default_rng(seed).standard_normal((6, 6))
        w = leaf(lib, start.tolist())
        for _ in range(10):
            y = w * 1
            y[1:3].mul_(0.5)
            loss = ((y @ w.t()).tanh() * y.sigmoid()).sum()
            (first,) = lib.autograd.grad(loss, w, create_graph=True)
            (first * first).sum().backward()
            with lib.no_grad():
                w.sub_(w.grad, alpha=0.01)
            w.grad = None
        return w.tolist()

    alone = [train(seed) for seed in range(THREADS)]
    found = results(together(*[lambda seed=seed: train(seed) for seed in range(THREADS)]))
    assert np.allclose(found, alone, rtol=1e-12)


def test_an_error_in_one_thread_is_its_own(lib: Any) -> None:
    def fail() -> None:
        x = leaf(lib, 1, 2)
        y = x * 1

        def hook(grad: Any) -> None:
            raise ZeroDivisionError

        y.register_hook(hook)
        y.sum().backward()

    def work() -> Any:
        x = leaf(lib, 1, 2)
        for _ in range(30):
            (x * x).sum().backward()
        return x.grad.tolist()

    found = together(*[fail, work] * 4)
    assert [type(each) for each in found[::2]] == [ZeroDivisionError] * 4
    assert found[1::2] == [[60, 120]] * 4


# Shared leaves.


def test_hogwild_sums_are_exact(lib: Any) -> None:
    w, b = leaf(lib, [[1, 2], [3, 4]]), leaf(lib, 1, 1)
    rounds = 40

    def train(number: int) -> None:
        x = constant(lib, number, 1)
        for _ in range(rounds):
            ((x @ w) * 2 + b).sum().backward()

    results(together(*[lambda n=n: train(n) for n in range(THREADS)]))
    first = 2 * rounds * sum(range(THREADS))
    assert w.grad.tolist() == [[first] * 2, [2 * rounds * THREADS] * 2]
    assert b.grad.tolist() == [rounds * THREADS] * 2


def test_the_first_gradients_of_a_leaf_are_not_lost(lib: Any) -> None:
    """Where there is no gradient yet, one thread's must not replace another's."""
    for _ in range(60):
        x = leaf(lib, 1, 2)
        losses = [(x * (number + 1)).sum() for number in range(THREADS)]
        results(together(*[loss.backward for loss in losses]))
        assert x.grad.tolist() == [sum(range(1, THREADS + 1))] * 2


def test_a_leaf_used_for_the_first_time_by_many_threads(lib: Any) -> None:
    for _ in range(60):
        x = leaf(lib, 1, 2)
        results(together(*[lambda x=x: (x * 3).sum().backward()] * THREADS))
        assert x.grad.tolist() == [3 * THREADS] * 2


def test_hooks_of_a_shared_leaf_see_every_backward(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    seen: list[Any] = []
    after: list[bool] = []
    x.register_hook(lambda g: seen.append(g.tolist()))
    x.register_hook(lambda g: g * 2)
    x.register_post_accumulate_grad_hook(lambda t: after.append(t is x))

    def run(number: int) -> None:
        for _ in range(10):
            (x * number).sum().backward()

    results(together(*[lambda n=n: run(n) for n in range(THREADS)]))
    assert sorted(seen) == sorted([[n, n] for n in range(THREADS)] * 10)
    assert after == [True] * 10 * THREADS
    assert x.grad.tolist() == [20 * sum(range(THREADS))] * 2


def test_grad_leaves_shared_leaves_alone(lib: Any) -> None:
    x = leaf(lib, 1, 2)

    def run(number: int) -> list[Any]:
        return [lib.autograd.grad((x * number).sum(), x)[0].tolist() for _ in range(20)]

    found = results(together(*[lambda n=n: run(n) for n in range(THREADS)]))
    assert found == [[[n, n]] * 20 for n in range(THREADS)]
    assert x.grad is None


# Shared graphs.


def test_a_retained_graph_gives_exact_sums(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * x
    y[:1].mul_(4)
    loss = (y * y).sum()
    rounds = 15

    def run() -> None:
        for _ in range(rounds):
            loss.backward(retain_graph=True)

    results(together(*[run] * THREADS))
    assert x.grad.tolist() == [64 * rounds * THREADS, 32 * rounds * THREADS]


def test_a_shared_first_part_that_is_retained(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    shared = (x * x) * 3
    rounds = 15

    def run(number: int) -> None:
        for _ in range(rounds):
            (shared * number).sum().backward(retain_graph=True)

    results(together(*[lambda n=n: run(n) for n in range(THREADS)]))
    total = rounds * sum(range(THREADS))
    assert x.grad.tolist() == [6 * total, 12 * total]


@pytest.mark.parametrize("part", ["all", "first"])
def test_a_graph_that_is_not_retained_is_used_or_refused(lib: Any, part: str) -> None:
    """Never a wrong sum, another error or a thread that hangs."""
    for _ in range(25):
        x = leaf(lib, 1, 2)
        shared = ((x * x) * x).pow(2)
        loss = shared.sum()

        def run(loss: Any = loss, shared: Any = shared) -> None:
            (loss if part == "all" else (shared * 1).sum()).backward()

        found = together(*[run] * 6)
        errors = [each for each in found if each is not None]
        assert all(type(each) is RuntimeError for each in errors), errors
        assert all("retain_graph" in str(each) for each in errors), errors
        done = len(found) - len(errors)
        assert done >= 1
        assert x.grad.tolist() == [6 * done, 192 * done]


def test_gradients_of_a_retained_graph_by_grad(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * x
    loss = (y * x).sum()

    def run() -> Any:
        (first,) = lib.autograd.grad(loss, x, create_graph=True)
        (second,) = lib.autograd.grad(first.sum(), x, retain_graph=True)
        return lists([first, second])

    found = results(together(*[lambda: [run() for _ in range(10)]] * THREADS))
    assert found == [[[[3, 12], [6, 12]]] * 10] * THREADS


def test_hooks_of_a_shared_graph_run_in_the_thread_of_backward(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * x
    seen: list[int] = []
    y.register_hook(lambda g: seen.append(threading.get_ident()))
    y.grad_fn.register_hook(lambda gi, go: seen.append(threading.get_ident()))
    loss = y.sum()

    def run() -> int:
        loss.backward(retain_graph=True)
        return threading.get_ident()

    found = results(together(*[run] * THREADS))
    assert sorted(seen) == sorted(found * 2)


def test_retained_gradients_of_a_shared_graph() -> None:
    """Not with torch, which loses some of them."""
    x = leaf(offgrad, 1, 2)
    y = x * x
    y.retain_grad()
    loss = (y * 3).sum()
    results(together(*[lambda: loss.backward(retain_graph=True)] * THREADS))
    assert y.grad.tolist() == [3 * THREADS] * 2
    assert x.grad.tolist() == [6 * THREADS, 12 * THREADS]


def test_view_histories_rebuilt_by_many_threads(lib: Any) -> None:
    for _ in range(20):
        x = leaf(lib, 1, 2)
        y = x * 1
        view = y[:1]
        y.mul_(3)

        def run(view: Any = view, x: Any = x) -> Any:
            return view.grad_fn, lib.autograd.grad((view * 2).sum(), x, retain_graph=True)[0]

        found = results(together(*[run] * 6))
        assert len({id(node) for node, _ in found}) == 1
        assert [each.tolist() for _, each in found] == [[6, 0]] * 6


def test_unpacking_in_many_threads(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    packed: list[Any] = []

    def pack(tensor: Any) -> Any:
        packed.append(tensor)
        return tensor.tolist()

    with lib.autograd.graph.saved_tensors_hooks(pack, lambda values: constant(lib, *values)):
        loss = (x * x).sum()
    results(together(*[lambda: loss.backward(retain_graph=True)] * THREADS))
    assert len(packed) == 2
    assert x.grad.tolist() == [2 * THREADS, 4 * THREADS]


def test_custom_functions(lib: Any) -> None:
    class Square(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, number: int) -> Any:
            ctx.save_for_backward(x)
            ctx.number = number
            return x * x * number

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grads[0] * 2 * x * ctx.number, None

    x = leaf(lib, 1, 2)

    def run(number: int) -> None:
        for _ in range(10):
            Square.apply(x, number).sum().backward()

    results(together(*[lambda n=n: run(n) for n in range(THREADS)]))
    total = 10 * sum(range(THREADS))
    assert x.grad.tolist() == [2 * total, 4 * total]


# State per thread, and shared state.


def test_saved_tensor_hooks_are_of_a_thread(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    barrier = threading.Barrier(4)

    def run(number: int) -> list[int]:
        packed: list[int] = []

        def pack(tensor: Any) -> Any:
            packed.append(number)
            return tensor

        for _ in range(10):
            if number % 2:
                with lib.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                    barrier.wait(60)
                    y = x * x
                    barrier.wait(60)
            else:
                barrier.wait(60)
                y = x * x
                barrier.wait(60)
            y.sum().backward()
        return packed

    found = results(together(*[lambda n=n: run(n) for n in range(4)]))
    assert found == [[], [1] * 20, [], [3] * 20]
    assert x.grad.tolist() == [80, 160]


def test_hooks_outside_do_not_reach_a_new_thread(lib: Any) -> None:
    packed: list[Any] = []
    x = leaf(lib, 1, 2)

    def pack(tensor: Any) -> Any:
        packed.append(tensor)
        return tensor

    with lib.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        (loss,) = results(together(lambda: (x * x).sum()))
    loss.backward()
    assert packed == []
    assert x.grad.tolist() == [2, 4]


def test_backward_in_another_thread_than_forward(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with lib.no_grad():
        (y,) = results(together(lambda: x * x))
        assert y.requires_grad
        seen: list[bool] = []
        y.register_hook(lambda g: seen.append(lib.is_grad_enabled()))
        loss = results(together(y.sum))[0]
        assert loss.requires_grad
        results(together(loss.backward))
    assert seen == [False]
    assert x.grad.tolist() == [2, 4]


def test_a_change_in_another_thread_is_noticed(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    loss = (y * y).sum()
    results(together(lambda: y.mul_(2)))
    with raises(RuntimeError):
        loss.backward()


def test_version_counters_count_every_change(lib: Any) -> None:
    x = lib.zeros(THREADS, 2)
    rows = [x[number] for number in range(THREADS)]
    results(together(*[lambda r=row: [r.add_(1) for _ in range(50)] for row in rows]))
    assert x.tolist() == [[50, 50]] * THREADS
    assert x._version == 50 * THREADS


def test_reentrant_backward_in_every_thread(lib: Any) -> None:
    x = leaf(lib, 1, 2)

    def hook(grad: Any) -> None:
        with lib.enable_grad():
            (x * 10).sum().backward()

    def run() -> None:
        for _ in range(5):
            y = x * 1
            y.register_hook(hook)
            y.sum().backward()

    results(together(*[run] * THREADS))
    assert x.grad.tolist() == [11 * 5 * THREADS] * 2


def test_hooks_are_added_and_removed_while_others_run(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * x
    loss = y.sum()

    def register() -> None:
        for _ in range(50):
            y.register_hook(lambda g: None).remove()
            x.register_hook(lambda g: None).remove()

    def run() -> None:
        for _ in range(20):
            loss.backward(retain_graph=True)

    results(together(*[register, run] * 3))
    assert x.grad.tolist() == [120, 240]


# Sessions of offgrad.


@pytest.mark.parametrize("where", ["pool", "disk"])
def test_sessions_in_threads_give_the_same_bits(where: str) -> None:
    def run(seed: int, session: Any) -> bytes:
        start = np.random.default_rng(seed).standard_normal((64, 64)).astype(np.float32)
        w = offgrad.tensor(start, requires_grad=True)
        with session:
            y = w * 1
            y[3:9].mul_(0.5)
            loss = ((y @ w.t()).tanh() * y.sigmoid()).sum()
        loss.backward()
        assert w.grad is not None
        return w.grad.numpy().tobytes()

    kept = [run(seed, offgrad.offload("keep")) for seed in range(4)]
    calls = [lambda seed=seed: run(seed, offgrad.offload(where)) for seed in range(4)]
    assert results(together(*calls)) == kept


def test_a_graph_of_a_session_shared_by_threads() -> None:
    start = np.arange(64.0 * 64).reshape(64, 64) % 7
    x = offgrad.tensor(start, requires_grad=True)
    with offgrad.offload("pool"):
        loss = ((x * x) * x).sum()
    results(together(*[lambda: loss.backward(retain_graph=True)] * 4))
    assert x.grad is not None
    assert np.array_equal(x.grad.numpy(), 4 * 3 * start**2)
