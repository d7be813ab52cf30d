"""Hooks of tensors and nodes: which run, in which order, and what they may change."""

from typing import Any

import pytest

import offgrad
from offgrad import Tensor

# Typed as Any, so that tests need not check each gradient for None.
grad: Any = offgrad.autograd.grad


def leaf(*values: float) -> Tensor:
    return offgrad.tensor(values, dtype=offgrad.float64, requires_grad=True)


def test_order_of_all_hooks_of_one_node() -> None:
    x = leaf(1, 2)
    y = x * x
    node: Any = y.grad_fn
    seen: list[Any] = []
    node.register_hook(lambda inputs, outputs: seen.append(("post", y.grad is not None)))
    node.register_prehook(lambda outputs: seen.append(("pre 1", y.grad is not None)))
    node.register_prehook(lambda outputs: seen.append(("pre 2", y.grad is not None)))
    y.register_hook(lambda g: seen.append(("tensor 1", y.grad is not None)))
    y.register_hook(lambda g: seen.append(("tensor 2", y.grad is not None)))
    y.retain_grad()
    y.sum().backward()
    assert seen == [
        ("tensor 1", False), ("tensor 2", False), ("pre 1", True), ("pre 2", True), ("post", True)
    ]  # fmt: skip


def test_tensor_hooks_get_the_result_of_earlier_ones() -> None:
    x = leaf(1, 2)
    seen: list[Any] = []
    x.register_hook(lambda g: g * 2)
    x.register_hook(lambda g: seen.append(g.tolist()))
    x.register_hook(lambda g: g + 1)
    (x * 3).sum().backward()
    assert seen == [[6, 6]]
    assert x.grad is not None
    assert x.grad.tolist() == [7, 7]


def test_retained_gradient_comes_after_all_tensor_hooks() -> None:
    x = leaf(1, 2)
    y = x * 1
    y.register_hook(lambda g: g * 2)
    y.retain_grad()
    y.retain_grad()
    assert y.retains_grad
    y.register_hook(lambda g: g * 3)
    y.sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [6, 6]
    x.retain_grad()
    assert not x.retains_grad


def test_hook_runs_once_with_the_whole_gradient() -> None:
    x = leaf(1, 2)
    seen: list[Any] = []
    x.register_hook(lambda g: seen.append(g.tolist()))
    (x * 2 + x * 3 + x).sum().backward()
    assert seen == [[6, 6]]


def test_hook_registered_after_the_forward() -> None:
    x = leaf(1, 2)
    y = (x * 2).sum()
    x.register_hook(lambda g: g * 10)
    y.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [20, 20]


def test_leaf_hooks_outlive_graphs_and_are_removed_by_their_handle() -> None:
    x = leaf(1.0)
    handle = x.register_hook(lambda g: g * 2)
    for _ in range(2):
        x.grad = None
        (x * 1).backward()
        assert x.grad is not None
        assert x.grad.item() == 2
    handle.remove()
    handle.remove()
    x.grad = None
    (x * 1).backward()
    assert x.grad is not None
    assert x.grad.item() == 1
    with x.register_hook(lambda g: g * 5):
        assert grad(x * 1, x)[0].item() == 5
    assert grad(x * 1, x)[0].item() == 1


@pytest.mark.parametrize(
    ("hook", "error"),
    [
        (lambda g: offgrad.ones(3, dtype=offgrad.float64), RuntimeError),
        (lambda g: g.float(), RuntimeError),
        (lambda g: "gradient", TypeError),
        (lambda g: 2.0, TypeError),
    ],
)
def test_results_of_tensor_hooks_are_checked(hook: Any, error: type[Exception]) -> None:
    x = leaf(1, 2)
    x.register_hook(hook)
    with pytest.raises(error, match="hook"):
        x.sum().backward()
    assert x.grad is None


def test_hooks_need_a_tensor_that_requires_grad() -> None:
    constant = offgrad.ones(2)
    for call in (
        lambda: constant.register_hook(print),
        constant.retain_grad,
        lambda: constant.register_post_accumulate_grad_hook(print),
        lambda: (leaf(1.0) * 2).register_post_accumulate_grad_hook(print),
    ):
        with pytest.raises(RuntimeError, match="require"):
            call()


def test_node_hooks_may_replace() -> None:
    x = leaf(1, 2)
    y = x * 2
    node: Any = y.grad_fn
    node.register_prehook(lambda outputs: (outputs[0] + 1,))
    node.register_hook(lambda inputs, _: tuple(None if g is None else g * 10 for g in inputs))
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [40, 40]


def test_node_hooks_see_all_inputs_and_outputs() -> None:
    x, w = leaf(1, 2), leaf(3, 4).detach()
    y = x * w
    seen: list[Any] = []
    node: Any = y.grad_fn
    node.register_hook(lambda inputs, outputs: seen.append((inputs, outputs)))
    y.sum().backward()
    (inputs, outputs), = seen  # fmt: skip
    assert (inputs[0].tolist(), inputs[1], len(outputs)) == ([3, 4], None, 1)


@pytest.mark.parametrize("extra", [0, 2])
def test_number_of_gradients_from_node_hooks_is_checked(extra: int) -> None:
    x = leaf(1, 2)
    post, pre = x * x, x * x
    assert post.grad_fn is not None
    assert pre.grad_fn is not None
    post.grad_fn.register_hook(lambda inputs, _: inputs[:1] * (1 + extra))
    pre.grad_fn.register_prehook(lambda outputs: outputs * extra)
    for y in (post, pre):
        with pytest.raises(RuntimeError, match="hook"):
            y.sum().backward()


def test_which_hooks_are_fired_by_grad_and_by_backward() -> None:
    def run(call: Any) -> list[str]:
        x = leaf(1, 2)
        y = x * x
        node: Any = y.grad_fn
        seen: list[str] = []
        y.register_hook(lambda g: seen.append("tensor"))
        node.register_prehook(lambda _: seen.append("pre"))
        node.register_hook(lambda *_: seen.append("post"))
        call((y * 2).sum(), x, y)
        return seen

    everything = ["tensor", "pre", "post"]
    assert run(lambda top, x, y: top.backward()) == everything
    assert run(lambda top, x, y: grad(top, x)) == everything
    assert run(lambda top, x, y: grad(top, [x, y])) == everything
    assert run(lambda top, x, y: top.backward(inputs=[x])) == everything
    # The gradient of a node's own output does not need the node.
    assert run(lambda top, x, y: grad(top, y)) == ["tensor"]


def test_hooks_of_leaves_outside_inputs_are_not_called() -> None:
    x, w = leaf(1, 2), leaf(3, 4)
    seen: list[str] = []
    w.register_hook(lambda g: seen.append("w"))
    x.register_hook(lambda g: seen.append("x"))
    grad((x * w).sum(), x)
    assert seen == ["x"]


def test_post_accumulate_hook_sees_the_sum_and_may_drop_it() -> None:
    x = leaf(1, 2)
    seen: list[Any] = []

    def hook(tensor: Tensor) -> None:
        assert tensor.grad is not None
        seen.append(tensor.grad.tolist())
        tensor.grad = None

    x.register_post_accumulate_grad_hook(hook)
    for _ in range(2):
        (x * 2).sum().backward()
    assert seen == [[2, 2], [2, 2]]
    assert x.grad is None


def test_optimizer_in_backward() -> None:
    w, v = leaf(1.0), leaf(2.0)
    optimizers = {each: offgrad.optim.SGD([each], lr=1.0) for each in (w, v)}
    for each in optimizers:
        each.register_post_accumulate_grad_hook(lambda leaf: optimizers[leaf].step())
    (w * 3 + v * 4).backward()
    assert (w.item(), v.item()) == (-2, -2)


def test_hooks_are_recorded_with_create_graph() -> None:
    x = leaf(2.0)
    x.register_hook(lambda g: g * x)
    (first,) = grad(x * x, x, create_graph=True)
    assert first.item() == 8
    (second,) = grad(first, x)
    assert second.item() == 16  # d(2 x^2) = 4 x, times x by the hook


def test_hook_that_runs_backward_of_another_graph() -> None:
    x, w = leaf(2.0), leaf(3.0)

    def hook(g: Tensor) -> None:
        with offgrad.enable_grad():
            (w * w).backward()

    x.register_hook(hook)
    (x * x).backward()
    assert w.grad is not None
    assert x.grad is not None
    assert (x.grad.item(), w.grad.item()) == (4, 6)


def test_node_metadata_and_names() -> None:
    x = leaf(1.0)
    y = x.exp()
    node: Any = y.grad_fn
    node.metadata["who"] = "me"
    assert y.grad_fn.metadata == {"who": "me"}  # type: ignore[union-attr]
    assert node.name() == "ExpBackward0"
    assert "ExpBackward0" in repr(node)
    ((last, number),) = node.next_functions
    assert (last.name(), number) == ("AccumulateGrad", 0)
    assert last.variable is x


def test_hooks_are_no_saved_values_of_their_node() -> None:
    node: Any = (leaf(1.0) * 2).grad_fn
    before = dir(node)
    node.register_prehook(lambda grads: None)
    assert [each for each in dir(node) if each.startswith("_saved")] == [
        each for each in before if each.startswith("_saved")
    ]


def test_settings_of_a_leaf_s_hook_end_with_its_node() -> None:
    x, y = offgrad.ones(2, requires_grad=True), offgrad.ones(2, requires_grad=True)

    def switch(leaf: Tensor) -> None:
        handle.remove()
        offgrad.set_grad_enabled(True)

    handle = y.register_post_accumulate_grad_hook(switch)
    modes = []
    x.register_hook(lambda grad: modes.append(offgrad.is_grad_enabled()))
    (x * 2 * y).sum().backward()
    assert modes == [False]


def test_a_hook_of_a_leaf_registered_between_two_passes_runs() -> None:
    x = offgrad.ones(2, requires_grad=True)
    loss = (x * 2).sum()
    loss.backward(retain_graph=True)
    handle = x.register_hook(lambda grad: grad * 10)
    loss.backward(retain_graph=True)
    assert x.grad is not None
    assert x.grad.tolist() == [22, 22]
    handle.remove()
    loss.backward()
    assert x.grad.tolist() == [24, 24]
    node = offgrad.autograd.graph.get_gradient_edge(x).node
    seen = []
    node.register_prehook(lambda grads: seen.append(grads[0].tolist()))
    (x * 3).sum().backward()
    assert seen == [[3, 3]]
