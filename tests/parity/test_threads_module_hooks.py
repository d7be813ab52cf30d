"""Several threads run backward through one retained graph over modules with hooks.

PyTorch keeps the gradients of a module's outputs on the module's hook, so that its threads mix
them up; offgrad keeps them in the pass. The other kinds of hooks are right in both.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest

import offgrad
from tests.parity.conftest import constant, leaf
from tests.parity.hooked import module
from tests.parity.threads import results, together

THREADS = 6
ROUNDS = 40

pytestmark = pytest.mark.usefixtures("switch_often")


def product(lib: Any) -> Any:
    return module(lib, lambda a, b: (a * b * 2, a + b))


def graph(lib: Any, layer: Any) -> tuple[Any, Any, Any]:
    """Return two leaves and the outputs of `layer`, called with products of them."""
    x, w = leaf(lib, 2, 3), leaf(lib, 5, 7)
    return x, w, layer(x * 1, w * 1)


def run_all(lib: Any, x: Any, w: Any, outputs: Any, rounds: int = ROUNDS) -> list[Any]:
    """Differentiate in each thread with a gradient of its own; return what each thread got."""

    def run(number: int) -> list[Any]:
        seen = []
        for _ in range(rounds):
            first, second = constant(lib, number, number), constant(lib, 100, 100)
            grads = lib.autograd.grad(outputs, [x, w], [first, second], retain_graph=True)
            seen.append([each.tolist() for each in grads])
        return seen

    return results(together(*[lambda n=n: run(n) for n in range(THREADS)]))


def expected(number: int, scale: float = 1) -> list[Any]:
    to_x = [scale * (2 * w * number + 100) for w in (5, 7)]
    to_w = [scale * (2 * x * number + 100) for x in (2, 3)]
    return [to_x, to_w]


def test_full_backward_hooks_get_the_gradients_of_their_pass() -> None:
    layer = product(offgrad)
    mixed: list[Any] = []

    def hook(module: Any, grad_input: Any, grad_output: Any) -> Any:
        number = grad_output[0][0].item()
        if [each.tolist() for each in grad_input] != expected(number):
            mixed.append((grad_input, grad_output))
        return tuple(each * (number + 1) for each in grad_input)

    layer.register_full_backward_hook(hook)
    found = run_all(offgrad, *graph(offgrad, layer))
    assert mixed == []
    assert found == [[expected(n, n + 1)] * ROUNDS for n in range(THREADS)]


def test_global_full_backward_hooks() -> None:
    wrong: list[Any] = []

    def hook(module: Any, grad_input: Any, grad_output: Any) -> None:
        if [each.tolist() for each in grad_input] != expected(grad_output[0][0].item()):
            wrong.append(grad_output)

    with offgrad.nn.modules.module.register_module_full_backward_hook(hook):
        graph_of_all = graph(offgrad, product(offgrad))
        run_all(offgrad, *graph_of_all)
    assert wrong == []


def test_full_backward_pre_hooks() -> None:
    layer = product(offgrad)
    layer.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 3, grads[1] * 3))
    layer.register_full_backward_hook(lambda module, grad_in, grad_out: None)
    found = run_all(offgrad, *graph(offgrad, layer))
    assert found == [[expected(n, 3)] * ROUNDS for n in range(THREADS)]


def test_modules_inside_modules() -> None:
    """Each level's hook doubles the gradients of its inputs."""
    inner = [product(offgrad) for _ in range(3)]
    outer = module(
        offgrad, lambda a, b: tuple(map(sum, zip(*(f(a, b) for f in inner), strict=True)))
    )
    for each in (*inner, outer):
        each.register_full_backward_hook(
            lambda module, grad_in, grad_out: tuple(2 * each for each in grad_in)
        )
    found = run_all(offgrad, *graph(offgrad, outer), rounds=15)
    assert found == [[expected(n, 12)] * 15 for n in range(THREADS)]


def test_a_hook_that_raises_leaves_nothing_for_the_next_pass() -> None:
    layer = product(offgrad)
    fail = [True]
    seen: list[Any] = []

    def inner_hook(grad: Any) -> None:
        if fail[0]:
            raise ZeroDivisionError

    def hook(module: Any, grad_input: Any, grad_output: Any) -> None:
        seen.append([None if each is None else each.tolist() for each in grad_output])

    layer.register_full_backward_hook(hook)
    x, w = leaf(offgrad, 2, 3), leaf(offgrad, 5, 7)
    inside: list[Any] = []

    def forward(a: Any, b: Any) -> Any:
        inside.append(a * b)
        return inside[-1] * 2, a + b

    layer.forward = forward
    first, second = layer(x * 1, w * 1)
    inside[0].register_hook(inner_hook)
    with pytest.raises(ZeroDivisionError):
        (first.sum() * 9).backward(retain_graph=True)
    fail[0] = False
    (first.sum() + second.sum() * 4).backward(retain_graph=True)
    assert seen == [[[1, 1], [4, 4]]]


def test_a_nested_pass_through_the_same_module_is_its_own() -> None:
    layer = product(offgrad)
    seen: list[Any] = []
    layer.register_full_backward_hook(
        lambda module, grad_in, grad_out: seen.append(grad_out[0].tolist())
    )
    x, w = leaf(offgrad, 2, 3), leaf(offgrad, 5, 7)
    nested = [True]

    def run_again(grad: Any) -> None:
        if nested.pop():
            nested.append(False)
            offgrad.autograd.grad(outputs, [x], [ones * 4, ones], retain_graph=True)

    inside: list[Any] = []

    def forward(a: Any, b: Any) -> Any:
        inside.append(a * b)
        return inside[-1] * 2, a + b

    layer.forward = forward
    outputs = layer(x * 1, w * 1)
    inside[0].register_hook(run_again)
    nested.append(True)
    ones = constant(offgrad, 1, 1)
    grads = offgrad.autograd.grad(outputs, [x], [ones * 6, ones], retain_graph=True)
    assert grads[0] is not None
    assert grads[0].tolist() == [61, 85]
    assert seen == [[4, 4], [6, 6]]


# Kinds of hooks that are right in PyTorch, too


def test_legacy_hooks(lib: Any) -> None:
    layer = module(lib, lambda a, b: a * b)
    wrong: list[Any] = []

    def hook(module: Any, grad_input: Any, grad_output: Any) -> None:
        number = grad_output[0][0].item()
        if [each.tolist() for each in grad_input] != [
            [5 * number, 7 * number],
            [2 * number, 3 * number],
        ]:
            wrong.append(grad_output)

    layer.register_backward_hook(hook)
    x, w = leaf(lib, 2, 3), leaf(lib, 5, 7)
    output = layer(x * 1, w * 1)

    def run(number: int) -> None:
        for _ in range(ROUNDS):
            output.backward(constant(lib, number, number), retain_graph=True)

    results(together(*[lambda n=n: run(n) for n in range(THREADS)]))
    total = ROUNDS * sum(range(THREADS))
    assert wrong == []
    assert x.grad.tolist() == [5 * total, 7 * total]


@pytest.mark.parametrize("mode", ["all", "any"])
def test_multi_grad_hooks(lib: Any, mode: str) -> None:
    x = leaf(lib, 2, 3)
    a, b = x * 2, x * 3
    seen: list[Any] = []
    note: Callable[[Any], None] = (
        (lambda grads: seen.append((grads[0][0].item(), grads[1][0].item())))
        if mode == "all"
        else (lambda grad: seen.append(grad[0].item()))
    )
    lib.autograd.graph.register_multi_grad_hook([a, b], note, mode=mode)
    total = (a + b).sum()

    def run(number: int) -> None:
        for _ in range(ROUNDS):
            total.backward(constant(lib, number), retain_graph=True)

    results(together(*[lambda n=n: run(n) for n in range(THREADS)]))
    expected = [((n, n) if mode == "all" else n) for n in range(THREADS)]
    assert sorted(seen) == sorted(expected * ROUNDS)


def test_all_kinds_at_once() -> None:
    layer = product(offgrad)
    inner = threading.local()

    def nested(grad: Any) -> None:
        if getattr(inner, "runs", False):
            return
        inner.runs = True
        try:
            ones = constant(offgrad, 1, 1)
            offgrad.autograd.grad(outputs, [x], [ones, ones], retain_graph=True)
        finally:
            inner.runs = False

    layer.register_full_backward_pre_hook(lambda module, grads: tuple(each * 2 for each in grads))
    layer.register_full_backward_hook(
        lambda module, grad_in, grad_out: tuple(
            each * (grad_out[0][0].item() + 1) for each in grad_in
        )
    )
    x, w, outputs = graph(offgrad, layer)
    for each in outputs:
        each.retain_grad()
    calls: list[int] = []
    offgrad.autograd.graph.register_multi_grad_hook(outputs, lambda grads: calls.append(1))
    outputs[0].register_hook(nested)
    rounds = 15
    found = run_all(offgrad, x, w, outputs, rounds)
    assert found == [[expected(n, 2 * (2 * n + 1))] * rounds for n in range(THREADS)]
    assert len(calls) == 2 * THREADS * rounds
    assert outputs[1].grad.tolist() == [THREADS * rounds * 101] * 2
