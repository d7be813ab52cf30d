"""Hooks of modules: forward, forward pre, full backward, full backward pre."""

from typing import Any

import pytest

import offgrad
from offgrad import Tensor, nn


def leaf(*shape: int) -> Tensor:
    return offgrad.ones(*shape, requires_grad=True)


def test_forward_hooks() -> None:
    net = nn.Linear(2, 2)
    seen: list[Any] = []
    net.register_forward_pre_hook(lambda module, args: seen.append(("pre", len(args))))
    net.register_forward_pre_hook(lambda module, args: (args[0] * 0,))
    net.register_forward_hook(
        lambda module, args, output: seen.append(("post", args[0].sum().item()))
    )
    handle = net.register_forward_hook(lambda module, args, output: output + 100)
    out = net(offgrad.ones(1, 2))
    assert seen == [("pre", 1), ("post", 0)]
    assert net.bias is not None
    assert out.equal((net.bias + 100).view(1, 2))
    handle.remove()
    assert net(offgrad.ones(1, 2)).tolist() == [net.bias.tolist()]


def test_prepended_hook_runs_first() -> None:
    net = nn.Identity()
    seen: list[int] = []
    net.register_forward_hook(lambda *_: seen.append(1))
    net.register_forward_hook(lambda *_: seen.append(0), prepend=True)
    net(offgrad.ones(1))
    assert seen == [0, 1]


def test_full_backward_hooks_see_inputs_and_outputs() -> None:
    net = nn.Linear(2, 3, bias=False)
    seen: list[Any] = []
    net.register_full_backward_pre_hook(lambda module, grads: seen.append(("pre", grads)))
    net.register_full_backward_hook(
        lambda module, inputs, outputs: seen.append((module, inputs, outputs))
    )
    x = leaf(1, 2)
    (net(x) * 2).sum().backward()
    assert seen[0][0] == "pre"
    module, (grad_input,), (grad_output,) = seen[1]
    assert module is net
    assert grad_output.tolist() == [[2, 2, 2]]
    assert grad_input.allclose(x.grad)
    assert net.weight.grad is not None


def test_full_backward_hooks_may_replace() -> None:
    net = nn.Linear(2, 2, bias=False)
    net.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 10,))
    net.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0 + 7,))
    x = leaf(1, 2)
    net(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[7, 7]]
    assert net.weight.grad is not None
    assert net.weight.grad.tolist() == [[10, 10], [10, 10]]


def test_hook_without_a_gradient_for_the_input() -> None:
    net = nn.Embedding(3, 2)
    seen: list[Any] = []
    net.register_full_backward_hook(lambda module, inputs, outputs: seen.append((inputs, outputs)))
    out = net(offgrad.tensor([0, 1])).sum()
    with pytest.warns(UserWarning, match="no inputs require grad in a call of Embedding"):
        out.backward()
    ((inputs, outputs),) = seen
    assert inputs == (None,)
    assert outputs[0].tolist() == [[1, 1], [1, 1]]


class Several(nn.Module):
    def forward(self, a: Tensor, n: int, b: Tensor) -> tuple[Tensor, int, Tensor]:
        return a * n, n, b * 2


def test_several_inputs_and_outputs_of_which_some_are_no_tensors() -> None:
    net = Several()
    seen: list[Any] = []
    net.register_full_backward_hook(lambda module, inputs, outputs: seen.append((inputs, outputs)))
    a, b = leaf(2), leaf(2)
    first, number, second = net(a, 3, b)
    assert number == 3
    (first.sum() + second.sum() * 5).backward()
    ((inputs, outputs),) = seen
    assert [each if each is None else each.tolist() for each in inputs] == [[3, 3], None, [10, 10]]
    assert [each if each is None else each.tolist() for each in outputs] == [[1, 1], None, [5, 5]]
    assert a.grad is not None
    assert a.grad.tolist() == [3, 3]


def test_wrong_number_of_gradients_is_refused() -> None:
    net = nn.Linear(2, 2)
    handle = net.register_full_backward_hook(lambda module, inputs, outputs: inputs * 2)
    with pytest.raises(RuntimeError, match="full_backward_hook"):
        net(leaf(1, 2)).sum().backward()
    handle.remove()
    net.register_full_backward_pre_hook(lambda module, outputs: outputs * 2)
    with pytest.raises(RuntimeError, match="full_backward_pre_hook"):
        net(leaf(1, 2)).sum().backward()


def test_hooks_of_each_call_and_of_a_module_used_twice() -> None:
    net = nn.Tanh()
    seen: list[float] = []
    net.register_full_backward_hook(lambda module, inputs, outputs: seen.append(outputs[0].item()))
    x = leaf(1)
    (net(x) * 2 + net(x) * 3).sum().backward()
    assert sorted(seen) == [2, 3]
    x.grad = None
    y = net(net(x))
    y.backward()
    assert len(seen) == 4


def test_removed_and_no_grad() -> None:
    net = nn.Tanh()
    seen: list[int] = []
    handle = net.register_full_backward_hook(lambda *_: seen.append(1))
    with offgrad.no_grad():
        assert net(leaf(1)).is_leaf
    handle.remove()
    net(leaf(1)).backward()
    assert not seen


def test_backward_hooks_with_double_backward() -> None:
    net = nn.Sigmoid()
    net.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))
    x = leaf(1)
    grad: Any = offgrad.autograd.grad
    (first,) = grad(net(x), x, create_graph=True)
    (second,) = grad(first, x)
    s = offgrad.sigmoid(x.detach())
    assert first.allclose(s * (1 - s) * 2)
    # The hook doubled the first derivative; the second does not pass the outputs, so no hook.
    assert second.allclose(s * (1 - s) * (1 - 2 * s) * 2)


def test_what_goes_through_hooks_must_not_be_changed_in_place() -> None:
    class Doubling(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mul_(2)

    net = Doubling()
    net.register_full_backward_hook(lambda *_: None)
    with pytest.raises((RuntimeError, NotImplementedError), match="view"):
        net(leaf(2) * 1)


def test_keyword_arguments_pass() -> None:
    class Add(nn.Module):
        def forward(self, x: Tensor, *, by: float = 0.0) -> Tensor:
            return x + by

    net = Add()
    net.register_full_backward_hook(lambda *_: None)
    net.register_forward_hook(lambda *_: None)
    assert net(leaf(1), by=2.0).item() == 3
