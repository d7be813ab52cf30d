"""The engine: results, order of nodes, kept memory and errors."""

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor, memory

# Typed as Any, so that tests need not check each gradient for None.
grad: Any = offgrad.autograd.grad


def leaf(*values: float) -> Tensor:
    return offgrad.tensor(values, dtype=offgrad.float64, requires_grad=True)


def test_gradients_accumulate_over_calls() -> None:
    x = leaf(1, 2, 3)
    for times in (1, 2, 3):
        (x * x).sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2 * times, 4 * times, 6 * times]


def test_diamond_sums_all_paths_before_the_next_node() -> None:
    x = leaf(0.5)
    a = x * 2
    b, c = a.exp(), a.sin()
    runs: list[Tensor] = []
    a.register_hook(runs.append)
    (b * c + b).sum().backward()
    assert len(runs) == 1
    value = np.exp(1.0) * np.sin(1.0) + np.exp(1.0) * np.cos(1.0) + np.exp(1.0)
    np.testing.assert_allclose(runs[0].item(), value)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.item(), 2 * value)


def test_wide_graph_is_linear_in_its_paths() -> None:
    """2^60 paths, 60 nodes."""
    x = leaf(1.0)
    y = x
    for _ in range(60):
        y = (y + y) * 0.5
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.item() == 1.0


def test_derivatives_to_third_order() -> None:
    x = leaf(0.3, 1.7)
    y = x**4 + x.sin()
    (first,) = grad(y.sum(), x, create_graph=True)
    (second,) = grad(first.sum(), x, create_graph=True)
    (third,) = grad(second.sum(), x)
    v = x.detach().numpy()
    np.testing.assert_allclose(first.detach().numpy(), 4 * v**3 + np.cos(v))
    np.testing.assert_allclose(second.detach().numpy(), 12 * v**2 - np.sin(v))
    np.testing.assert_allclose(third.numpy(), 24 * v - np.cos(v))
    assert not third.requires_grad


def test_backward_create_graph_leaves_a_differentiable_grad() -> None:
    x = leaf(2.0)
    (x**3).sum().backward(create_graph=True)
    first = x.grad
    assert first is not None
    assert first.requires_grad
    x.grad = None
    first.sum().backward()
    assert x.grad is not None
    assert x.grad.item() == 12.0
    x.grad = None


def test_error_of_a_second_backward_names_retain_graph() -> None:
    x = leaf(1, 2)
    y = (x * x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match=r"MulBackward0.*retain_graph=True"):
        y.backward()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        grad(y, x)


def test_second_backward_without_saved_tensors_works() -> None:
    x = leaf(1, 2)
    y = (x + x).sum()
    y.backward()
    y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [4, 4]


def test_retain_graph() -> None:
    x = leaf(3.0)
    y = x * x
    y.backward(retain_graph=True)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad is not None
    assert x.grad.item() == 18.0
    with pytest.raises(RuntimeError, match="freed"):
        y.backward()


def test_shared_part_of_two_graphs_is_freed_by_the_first() -> None:
    x = leaf(3.0)
    shared = x * x
    a, b = shared * 2, shared * 3
    a.backward()
    with pytest.raises(RuntimeError, match="retain_graph"):
        b.backward()


def test_backward_frees_the_saved_memory_at_once() -> None:
    x = offgrad.ones(300, 300, requires_grad=True)
    before = memory.allocated()
    y = x.exp()
    loss = (y * y).sum()
    del y
    held = memory.allocated()
    assert held >= before + x.nbytes
    loss.backward()
    assert x.grad is not None
    assert memory.allocated() == before + x.grad.nbytes + loss.nbytes


def test_inputs_restricts_accumulation() -> None:
    a, b = leaf(2.0), leaf(5.0)
    y = a * b
    y.backward(inputs=[a], retain_graph=True)
    assert a.grad is not None
    assert a.grad.item() == 5.0
    assert b.grad is None
    y.backward(inputs=b)
    assert b.grad is not None
    assert (a.grad.item(), b.grad.item()) == (5.0, 2.0)


def test_inputs_may_be_non_leaves() -> None:
    x = leaf(2.0)
    middle = x * 3
    (middle * middle).backward(inputs=[middle])
    assert middle.grad is not None
    assert middle.grad.item() == 12.0
    assert x.grad is None


def test_partial_backward_keeps_the_rest_of_the_graph() -> None:
    x = leaf(2.0)
    middle = x * x
    top = middle * middle
    assert grad(top, middle)[0].item() == 8.0
    assert grad(middle, x)[0].item() == 4.0


def test_grad_does_not_touch_dot_grad() -> None:
    x, w = leaf(2.0), leaf(3.0)
    (found,) = grad(x * w, x)
    assert found is not None
    assert found.item() == 3.0
    assert x.grad is None
    assert w.grad is None


def test_unused_inputs() -> None:
    x, unused = leaf(2.0), leaf(1, 2)
    with pytest.raises(RuntimeError, match=r"input 1.*shape \[2\].*allow_unused"):
        grad(x * x, [x, unused])
    first, second = grad(x * x, [x, unused], allow_unused=True)
    assert first is not None
    assert second is None
    _, zeros = grad(x * x, [x, unused], materialize_grads=True)
    assert zeros is not None
    assert zeros.tolist() == [0, 0]
    assert zeros.dtype == unused.dtype
    with pytest.raises(ValueError, match="allow_unused"):
        grad(x * x, [x], materialize_grads=True, allow_unused=False)


def test_grad_of_an_output_with_respect_to_itself() -> None:
    x = leaf(2.0)
    y = x * x
    assert [each.item() for each in grad(y, [y, x])] == [1.0, 4.0]
    assert grad(x, x)[0].item() == 1.0


def test_same_input_twice() -> None:
    x = leaf(2.0)
    assert [each.item() for each in grad(x * x, [x, x])] == [4.0, 4.0]


def test_several_roots() -> None:
    x = leaf(1, 2)
    a, b = x * 2, x * x
    offgrad.autograd.backward(
        [a, b, a], [leaf(1, 0).detach(), leaf(1, 1).detach(), leaf(0, 5).detach()]
    )
    assert x.grad is not None
    assert x.grad.tolist() == [2 + 2, 10 + 4]


def test_root_gradient_is_converted_and_checked() -> None:
    x = leaf(1, 2)
    (x * 2).backward(offgrad.ones(2, dtype=offgrad.float32))
    assert x.grad is not None
    assert x.grad.dtype == offgrad.float64
    with pytest.raises(RuntimeError, match="shape"):
        (x * 2).backward(offgrad.ones(3))
    with pytest.raises(RuntimeError, match="2 tensors, got 1"):
        offgrad.autograd.backward([x * 1, x * 2], [offgrad.ones(2)])
    with pytest.raises(RuntimeError, match="cannot be empty"):
        (x.sum()).backward(inputs=[])
    with pytest.raises(RuntimeError, match="real"):
        (x * 2).backward(offgrad.ones(2) * 1j)


def test_unused_outputs() -> None:
    x = leaf(1, 2, 3, 4)
    first, _, third = x.split([1, 2, 1])
    (first * 2 + third * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 0, 0, 3]
    values, indices = leaf(3, 1).max(0)
    assert not indices.requires_grad
    assert values.grad_fn is not None


def test_engine_ignores_grad_mode_of_the_caller() -> None:
    x = leaf(2.0)
    y = x * x
    with offgrad.no_grad():
        (found,) = grad(y, x, create_graph=True)
    assert found is not None
    assert found.requires_grad
    assert offgrad.is_grad_enabled()


def test_error_in_backward_restores_mode_and_keeps_the_graph() -> None:
    x = leaf(2.0)
    y = x * x

    def fail(_: Tensor) -> None:
        raise KeyError("hook")

    handle = y.register_hook(fail)
    with pytest.raises(KeyError, match="hook"):
        (y * 2).backward(create_graph=True)
    handle.remove()
    assert offgrad.is_grad_enabled()
    (x * x).backward()
    assert x.grad is not None
    assert x.grad.item() == 4.0


@pytest.mark.slow
@pytest.mark.parametrize("depth", [100_000])
def test_deep_graph(depth: int) -> None:
    """Forward, backward and freeing use no recursion."""
    x = offgrad.ones(1, requires_grad=True)
    y = x
    for _ in range(depth):
        y = y * 1.0
    y.backward()
    assert x.grad is not None
    assert x.grad.item() == 1.0
    z = x
    for _ in range(depth):
        z = z + 1.0
    alive = weakref.ref(z)
    del z, y
    assert alive() is None


@pytest.mark.slow
def test_deep_graph_of_functions_is_freed_without_recursion() -> None:
    class Same(offgrad.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return grads[0]

    x = offgrad.ones(1, requires_grad=True)
    y = x
    for _ in range(30_000):
        y = Same.apply(y)
    alive = weakref.ref(y)
    del y
    assert alive() is None


def test_no_reference_cycles() -> None:
    gc.collect()
    gc.disable()
    try:
        x = offgrad.ones(4, 4, requires_grad=True)
        before = memory.allocated()
        y = (x.exp().softmax(-1).sqrt() @ x).sigmoid().relu().sum()
        alive = weakref.ref(y)
        del y
        assert alive() is None
        assert memory.allocated() == before
        z = (x.exp() @ x).tanh().sum()
        z.backward(retain_graph=True)
        assert x.grad is not None
        held = x.grad.nbytes
        del z
        assert memory.allocated() == before + held
    finally:
        gc.enable()


def test_backward_from_several_threads_over_shared_leaves() -> None:
    x = leaf(*range(8))
    errors: list[BaseException] = []
    results: list[list[float]] = []

    def work() -> None:
        try:
            for _ in range(20):
                (found,) = grad(((x + 3) * (x + 4) * 0.5).sum(), x)
                assert found is not None
                results.append(found.tolist())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert results == [[value + 3.5 for value in range(8)]] * 80


def test_an_unpack_hook_runs_backward_through_the_node_that_unpacks() -> None:
    x = offgrad.tensor([2.0, 3.0], requires_grad=True)
    inner: list[offgrad.Tensor | None] = []

    def unpack(packed: offgrad.Tensor) -> offgrad.Tensor:
        if not inner:
            inner.append(None)  # not again inside
            for create_graph in (True, False):
                inner.extend(
                    offgrad.autograd.grad(
                        y, x, offgrad.ones(2), retain_graph=True, create_graph=create_graph
                    )
                )
        return packed

    with offgrad.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        y = x * x
    y.backward(offgrad.ones(2))
    assert x.grad is not None
    for found in (x.grad, *inner[1:]):
        assert found is not None
        assert found.tolist() == [4.0, 6.0]


@pytest.mark.parametrize("operation", [lambda a, b: a + b, lambda a, b: a.view(2, 1).view(2) - b])
def test_memory_that_backward_passes_on_keeps_one_version(operation: Any) -> None:
    a, b, w = leaf(1.0, 2.0), leaf(3.0, 4.0), leaf(5.0, 6.0)
    root = offgrad.ones(2, dtype=offgrad.float64)
    grad_a, _ = grad(operation(a, b) * 1.0, (a, b), root)
    given, _ = grad(operation(a, b), (a, b), root)
    assert grad_a is not None
    assert given is not None
    for tensor in (grad_a, given):
        assert tensor.tolist() == [1.0, 1.0]
    loss = (given * w).sum()
    root.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_gradients_that_share_memory_share_a_version() -> None:
    a, b, w = leaf(1.0, 2.0), leaf(3.0, 4.0), leaf(5.0, 6.0)
    grad_a, grad_b = grad((a + b) * 2.0, (a, b), offgrad.ones(2, dtype=offgrad.float64))
    assert grad_a is not None
    assert grad_b is not None
    loss = (grad_b * w).sum()
    grad_a.mul_(3)
    if grad_b.tolist() == [2.0, 2.0]:
        loss.backward()
        return
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()
