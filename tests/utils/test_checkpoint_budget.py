"""Checkpoints under a budget, which bounds the tensors they save; hooks of single saved tensors."""

import gc
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import pytest

import offgrad
from offgrad.policies import (
    Keep,
    Policy,
    SaveContext,
    Store,
)
from offgrad.utils.checkpoint import checkpoint, checkpoint_sequential
from tests.session.backends import MemoryBackend, RecordingStore, memory_store
from tests.session.bound import KIB64, Peaks, Program, as_bytes, budget, check_bound, measure
from tests.session.graphs import Bits, bits, gradient, normal

ckpt = partial(checkpoint, use_reentrant=False)


def tanh_chain(peaks: Peaks, x: Any) -> Any:
    """Save three results; each operation is a phase, in each run."""
    for _ in range(3):
        x = x.tanh()
        peaks.next()
    return x


def with_phases(peaks: Peaks, x: Any) -> Any:
    x.register_hook(peaks.next)
    peaks.next()
    return x


def with_forward_phase(peaks: Peaks, x: Any) -> Any:
    """Begin a phase in each run. None for the gradient: tensor hooks run once, not in each run."""
    peaks.next()
    return x


def in_a_row(x: Any, peaks: Peaks) -> Any:
    for _ in range(5):
        x = with_phases(peaks, ckpt(partial(tanh_chain, peaks), x))
    return x.sum()


def among_others(x: Any, peaks: Peaks) -> Any:
    """Checkpoints between operations that save tensors, too."""
    for _ in range(3):
        x = with_phases(peaks, x.sin())
        x = with_phases(peaks, ckpt(partial(tanh_chain, peaks), x))
        x = with_phases(peaks, x.exp())
    return x.sum()


def nested(x: Any, peaks: Peaks) -> Any:
    def outer(x: Any) -> Any:
        for _ in range(3):
            x = ckpt(partial(tanh_chain, peaks), x * 1)
        return x

    x = with_phases(peaks, x * 1)
    for _ in range(2):
        x = with_phases(peaks, ckpt(outer, x))
        x = with_phases(peaks, x.sigmoid())
    return x.sum()


def sequential(x: Any, peaks: Peaks) -> Any:
    functions = [lambda x: x.tanh(), lambda x: with_phases(peaks, x.sin())] * 4
    return checkpoint_sequential(functions, 4, x * 1, use_reentrant=False).sum()


PROGRAMS: list[Callable[[Any, Peaks], Any]] = [in_a_row, among_others, nested, sequential]


@pytest.mark.parametrize("tensors", [0, 1, 2.5, 4, 12])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_inputs_of_checkpoints_hold_no_more_than_the_budget(
    program: Callable[[Any, Peaks], Any], tensors: float
) -> None:
    nbytes, x = int(tensors * KIB64), normal(1, 128, 128)
    bound: Program = partial(program, x)
    with memory_store(MemoryBackend(delay=0.001)) as store:
        for backwards in (1, 3):
            check_bound(bound, [x], budget(nbytes, store), nbytes, backwards)
        assert store.stats().puts if tensors <= 1 else tensors < 12 or not store.stats().puts
        assert not store.stats().live_handles


@pytest.mark.parametrize("tensors", [0, 1, 2.5, 40])
def test_a_budget_inside_checkpoints_is_the_one_around(tensors: float) -> None:
    """One session, entered again inside the function and in its recomputations: one budget."""
    nbytes, x = int(tensors * KIB64), normal(1, 128, 128)

    def program(enter: Callable[[], Any], peaks: Peaks) -> Any:
        def inner(x: Any) -> Any:
            with enter():
                return tanh_chain(peaks, x)

        def outer(x: Any) -> Any:
            with enter():
                x = with_forward_phase(peaks, x.exp())
                return ckpt(inner, x).sin()

        y = with_phases(peaks, x * 1)
        for _ in range(3):
            y = with_phases(peaks, ckpt(inner, y))
            y = with_phases(peaks, ckpt(outer, y))
        return y.sum()

    with memory_store(MemoryBackend(delay=0.001)) as store:
        session = budget(nbytes, store)
        for backwards in (1, 3):
            gc.collect()
            gc.disable()
            try:
                needed, expected = measure(partial(program, as_bytes), [x], as_bytes(), backwards)
                again = partial(program, lambda: session)
                peaks_of_run, found = measure(again, [x], session, backwards)
            finally:
                gc.enable()
            assert found == expected
            over = [peak - minimum for peak, minimum in zip(peaks_of_run, needed, strict=True)]
            assert max(over) <= nbytes, over
        assert bool(store.stats().puts) == (tensors < 40)
        assert not store.stats().live_handles


def test_a_saved_tensors_own_hooks_beside_checkpoints() -> None:
    """A tensor stored by a session already has hooks; a kept one takes hooks once."""

    class Products(Policy):
        def place(self, context: SaveContext) -> Any:
            return Keep() if context.op.startswith("Sin") else Store(store)

    unpacked: list[str] = []

    def unpack(array: Any) -> Any:
        unpacked.append(str(array.dtype))
        return offgrad.from_numpy(array.copy())

    def run(session: Any, hooks: bool) -> Bits:
        x = normal(1, 32, 32)
        with session:
            y = ckpt(lambda x: x.tanh().sin(), x * 1).sin()
            z = ckpt(lambda x: (x * x).exp(), y)
            w = z.tanh()
        if hooks:
            y.grad_fn._raw_saved_self.register_hooks(lambda x: x.numpy().copy(), unpack)
            with pytest.raises(RuntimeError, match="hooks have already been set"):
                y.grad_fn._raw_saved_self.register_hooks(lambda x: x, unpack)
            with pytest.raises(RuntimeError, match="offload"):
                w.grad_fn._raw_saved_result.register_hooks(lambda x: x, unpack)
        (first,) = gradient(w.sum(), x, create_graph=True)
        (first.square().sum() + w.sum()).backward()
        return bits(w, first, x.grad)

    with RecordingStore() as store:
        assert run(offgrad.offload(Products()), hooks=True) == run(nullcontext(), hooks=False)
        assert unpacked == ["float32"] * 2
        assert store.stats().puts >= 3
        assert not store.stats().live_handles


def test_hooks_of_tensors_saved_inside_are_refused_and_change_nothing() -> None:
    """Inside a checkpoint forward keeps no tensors that hooks could pack."""
    x, z = normal(1, 8), normal(1, 8)
    refused: list[str] = []

    def function(x: Any) -> Any:
        y = x.exp()
        with suppress(RuntimeError):
            y.grad_fn._raw_saved_result.register_hooks(lambda x: x * 0, lambda x: x)
            return y.sin()
        refused.append("in forward")
        return y.sin()

    with offgrad.offload("disk,min=0"):
        ckpt(function, x * 1).sum().backward()
    (z * 1).exp().sin().sum().backward()
    assert refused[:1] == ["in forward"]
    assert bits(x.grad) == bits(z.grad)
