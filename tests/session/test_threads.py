"""Several threads, each with a session or with a shared one."""

import threading
from contextlib import nullcontext
from typing import Any

from tests.session.graphs import Bits, Offload, bits, gradient, normal
from tests.session.helpers import in_threads


def _chain(offload: Offload, seed: int) -> Bits:
    found: Bits = []
    for step in range(4):
        # No matrix products: BLAS threads would only wait for each other.
        x, w = normal(seed + step, 140, 140), normal(seed, 140, 140)
        with offload():
            loss = ((x * w).tanh() * w.t()).sin().square().mean()
        loss.backward()
        found += bits(loss, x.grad, w.grad)
    return found


def test_threads_with_a_session_each(offload: Offload) -> None:
    results: dict[int, Bits] = {}

    def work(seed: int) -> None:
        results[seed] = _chain(offload, seed)

    in_threads(lambda: work(1), lambda: work(100))
    for seed in (1, 100):
        assert results[seed] == _chain(nullcontext, seed)


def test_threads_that_share_a_session(offload: Offload) -> None:
    results: dict[int, Bits] = {}
    session = offload()

    def work(seed: int) -> None:
        results[seed] = _chain(lambda: session, seed)

    in_threads(lambda: work(1), lambda: work(100))
    for seed in (1, 100):
        assert results[seed] == _chain(nullcontext, seed)


def test_a_session_applies_to_its_thread_only(offload: Offload) -> None:
    results: dict[str, Bits] = {}
    session: Any = offload()
    entered, done = threading.Event(), threading.Event()

    def with_session() -> None:
        with session:
            entered.set()
            done.wait(60)
            results["with"] = _chain(nullcontext, 5)

    def without() -> None:
        entered.wait(60)
        results["without"] = _chain(nullcontext, 5)
        assert session.ledger.saves == 0
        done.set()

    in_threads(with_session, without)
    assert results["with"] == results["without"]
    assert session.ledger.saves > 0


def test_backward_in_another_thread(offload: Offload) -> None:
    x, w = normal(1, 140, 140), normal(2, 140, 140)
    with offload():
        loss = ((x @ w).tanh() @ w.t()).sin().sum()
    in_threads(loss.backward)
    y, v = normal(1, 140, 140), normal(2, 140, 140)
    ((y @ v).tanh() @ v.t()).sin().sum().backward()
    assert bits(x.grad, w.grad) == bits(y.grad, v.grad)


def test_two_threads_run_backward_on_one_retained_graph(offload: Offload) -> None:
    x = normal(1, 140, 140)
    with offload():
        loss = (x * 2).exp().sin().tanh().square().sum()
    found: list[Bits] = []

    def work() -> None:
        for _ in range(5):
            found.append(bits(*gradient(loss, x, retain_graph=True)))

    in_threads(work, work)
    assert len(found) == 10
    assert all(each == found[0] for each in found)
