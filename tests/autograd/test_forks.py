"""Forks while other threads run backward passes over the same leaves and graphs."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import offgrad
from offgrad.autograd.graph import register_multi_grad_hook
from tests.forked import run_in_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@contextmanager
def _threads(work: Callable[[], object]) -> Iterator[None]:
    """Repeat `work` in two threads during the block."""
    stopping = threading.Event()

    def repeat() -> None:
        while not stopping.is_set():
            work()

    threads = [threading.Thread(target=repeat) for _ in range(2)]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        stopping.set()
        for each in threads:
            each.join()


def test_a_child_runs_backward_over_the_nodes_of_other_threads() -> None:
    weight = offgrad.ones(300, 300, requires_grad=True)
    loss = (weight.exp() * weight).sum()  # holds the leaf's node

    def gradient() -> offgrad.Tensor:
        grad: offgrad.Tensor
        (grad,) = offgrad.autograd.grad(loss, weight, retain_graph=True)
        return grad

    expected = gradient()

    def train() -> None:
        loss.backward(retain_graph=True)

    def in_child() -> None:
        for _ in range(2):
            assert gradient().equal(expected)
            weight.grad = None
            train()
            assert weight.grad is not None
            assert weight.grad.equal(expected)

    with _threads(train):
        for _ in range(20):
            time.sleep(0.003)
            run_in_child(in_child)


def test_a_forking_thread_keeps_its_node_in_the_child() -> None:
    x = offgrad.ones(3, requires_grad=True)
    y = x.exp()
    node = y.grad_fn
    assert node is not None

    def in_child() -> None:
        y.sum().backward()
        assert x.grad is not None

    with node.lock:
        run_in_child(in_child)


def test_a_child_calls_a_hook_on_several_gradients() -> None:
    x = offgrad.ones(4, requires_grad=True)
    y = offgrad.ones(4, requires_grad=True)
    calls: list[object] = []
    register_multi_grad_hook((x, y), calls.append)

    def train() -> None:
        (x * y).sum().backward()

    def in_child() -> None:
        calls.clear()
        train()
        assert len(calls) == 1

    with _threads(train):
        for _ in range(100):
            run_in_child(in_child)
