"""Batches of size 0, windows of padding alone, and targets and queries that count for nothing."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import memory

EMPTY_BATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "GRUCell": lambda m, x: m.nn.GRUCell(4, 3)(x.reshape(0, 4)),
    "RNNCell": lambda m, x: m.nn.RNNCell(4, 3)(x.reshape(0, 4)),
    "LSTMCell": lambda m, x: m.nn.LSTMCell(4, 3)(x.reshape(0, 4))[0],
    "grid_sample": lambda m, x: m.nn.functional.grid_sample(
        x.reshape(0, 1, 2, 2), x.reshape(0, 1, 2, 2), align_corners=True
    ),
    "max_pool2d": lambda m, x: m.nn.functional.max_pool2d(x.reshape(0, 1, 4, 4), 2),
    "adaptive_max_pool1d": lambda m, x: m.nn.functional.adaptive_max_pool1d(x.reshape(0, 1, 4), 2),
}


@pytest.mark.parametrize("name", EMPTY_BATCHES)
def test_empty_batches_have_gradients_of_both_orders(name: str) -> None:
    torch = pytest.importorskip("torch")
    shapes = []
    for m in (offgrad, torch):
        x = m.zeros(0, 4, 4, requires_grad=True)
        y = EMPTY_BATCHES[name](m, x)
        upper = m.ones_like(y).requires_grad_()
        (grad,) = m.autograd.grad(y, x, upper, create_graph=True)
        m.autograd.grad(grad, upper, m.ones_like(grad))
        shapes.append((tuple(y.shape), tuple(grad.shape)))
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_maxima_of_windows_that_hold_padding_alone_are_the_lowest_number(dtype: str) -> None:
    # The elements of the only window are 1 before and 1 after the rows of the input.
    kind = getattr(offgrad, dtype)
    x = offgrad.arange(12).reshape(1, 1, 3, 4).to(kind)
    x.requires_grad_(kind.is_floating_point)
    arguments: Any = {"kernel_size": (2, 1), "padding": (1, 0), "dilation": (4, 1)}
    y, places = offgrad.nn.functional.max_pool2d(x, return_indices=True, **arguments)
    lowest = -np.inf if kind.is_floating_point else np.iinfo(dtype).min
    assert np.array_equal(y.detach().numpy(), np.full((1, 1, 1, 4), lowest))
    assert 0 <= places.min().item() <= places.max().item() < 12
    if kind.is_floating_point:
        y.sum().backward()
        assert x.grad is not None
        assert not x.grad.any().item()


def _second_derivatives(y: Any, x: Any) -> Any:
    upper = offgrad.ones_like(y).requires_grad_()
    (grad,) = offgrad.autograd.grad(y, x, upper, create_graph=True)
    return offgrad.autograd.grad(grad, (x, upper), offgrad.ones_like(grad))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_ignored_targets_alone_have_a_second_derivative_of_zero(smoothing: float) -> None:
    x = offgrad.randn(2, 3, requires_grad=True)
    y = offgrad.nn.functional.cross_entropy(
        x, offgrad.tensor([0, 0]), ignore_index=0, label_smoothing=smoothing
    )
    for each in _second_derivatives(y, x):
        assert not each.any().item()


@pytest.mark.parametrize("is_bool", [True, False])
def test_a_query_that_attends_to_no_key_has_second_derivatives_of_zero(is_bool: bool) -> None:
    allowed = offgrad.tensor([[True, False], [False, False]])
    mask = allowed if is_bool else offgrad.zeros(2, 2).masked_fill(~allowed, float("-inf"))
    q = offgrad.randn(1, 1, 2, 3, requires_grad=True)
    k, v = offgrad.randn(2, 1, 1, 2, 3)
    attend = offgrad.nn.functional.scaled_dot_product_attention
    of_query, of_upper = _second_derivatives(attend(q, k, v, mask), q)
    assert of_query.isfinite().all().item()
    assert of_upper.isfinite().all().item()
    # A learned mask takes another way.
    learned = offgrad.zeros(2, 2).masked_fill(~allowed, float("-inf")).requires_grad_()
    out = attend(q, k, v, learned)
    assert not out[..., 1, :].any().item()
    out.sum().backward()
    assert learned.grad is not None
    assert q.grad is not None
    assert learned.grad.isfinite().all().item()
    assert q.grad.isfinite().all().item()


def test_ctc_saves_no_memory_that_it_did_not_write(monkeypatch: pytest.MonkeyPatch) -> None:
    empty, saved = memory.empty, []

    def filled(value: float, *arguments: Any) -> Any:
        array = empty(*arguments)
        array.fill(value)
        return array

    log_probs = offgrad.randn(6, 2, 4).log_softmax(2).requires_grad_()
    targets = offgrad.tensor([[1, 2, 3], [2, 0, 0]])
    for value in (0.0, 1.0):
        monkeypatch.setattr(memory, "empty", partial(filled, value))
        loss = offgrad.nn.functional.ctc_loss(log_probs, targets, (6, 3), (3, 1), reduction="none")
        node: Any = loss.grad_fn
        saved.append(node._saved_result1.numpy())
    # A checkpoint compares what forward saved with what it recomputes.
    assert np.array_equal(*saved)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("width", "value_width"), [(0, 0), (0, 3), (2, 0)])
def test_heads_without_width_attend_to_all_keys_alike(
    width: int, value_width: int, is_causal: bool
) -> None:
    torch = pytest.importorskip("torch")
    found = []
    for m in (offgrad, torch):
        q = m.ones(1, 2, 4, width, requires_grad=True)
        v = m.arange(8.0 * value_width).reshape(1, 2, 4, value_width).requires_grad_()
        attention = m.nn.functional.scaled_dot_product_attention
        result = attention(q, q, v, is_causal=is_causal)
        result.square().sum().backward()
        found.append([each.detach().numpy() for each in (result, q.grad, v.grad)])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 2, 5, 8), (3, 5, 8), (5, 8), (2, 3, 4, 5, 8)])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_layout_of_attention_is_that_of_the_query(
    shape: tuple[int, ...], is_transposed: bool
) -> None:
    torch = pytest.importorskip("torch")
    found = []
    for m in (offgrad, torch):
        q = m.ones(shape)
        if is_transposed and len(shape) == 4:
            q = q.transpose(1, 2).contiguous().transpose(1, 2)
        for options in ({}, {"is_causal": True}):
            result = m.nn.functional.scaled_dot_product_attention(q, m.ones(shape), q, **options)
            found.append(result.stride())
    assert found[:2] == found[2:]
