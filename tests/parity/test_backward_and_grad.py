"""backward and grad: every argument, every root, every order."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.parity.conftest import constant, leaf, lists, raises

with_a_graph = pytest.mark.filterwarnings("ignore:Using backward:UserWarning")


# The starting gradient.


def test_a_scalar_starts_with_one(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    assert (x * x).sum().backward() is None
    assert x.grad.tolist() == [2, 4]


def test_one_element_of_any_shape_starts_with_one(lib: Any) -> None:
    x = leaf(lib, [[3]])
    (x * x).backward()
    assert x.grad.tolist() == [[6]]


def test_more_than_one_element_needs_a_gradient(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with raises(RuntimeError):
        (x * x).backward()
    with raises(RuntimeError):
        lib.autograd.grad(x * x, x)
    assert x.grad is None


def test_no_element_needs_a_gradient_too(lib: Any) -> None:
    x = leaf(lib, [])
    with raises(RuntimeError):
        (x * x).backward()
    (x * x).sum().backward()
    assert x.grad.shape == (0,)


def test_a_given_gradient(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    (x * x).backward(constant(lib, 10, 100))
    assert x.grad.tolist() == [20, 400]
    (x * x).backward(gradient=constant(lib, 1, 1))
    assert x.grad.tolist() == [22, 404]


def test_a_gradient_for_a_scalar_scales(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    (x * x).sum().backward(constant(lib, 3))
    assert x.grad.tolist() == [6, 12]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (1, 2)], ids=str)
def test_a_gradient_has_the_shape_of_the_result(lib: Any, shape: tuple[int, ...]) -> None:
    x = leaf(lib, 1, 2)
    y = x * x
    wrong = lib.ones(shape, dtype=lib.float64)
    with raises(RuntimeError):
        y.backward(wrong)
    with raises(RuntimeError):
        lib.autograd.grad(y, x, wrong)
    with raises(RuntimeError):
        lib.autograd.backward([y], [wrong])
    assert x.grad is None
    y.backward(lib.ones(2, dtype=lib.float64))


def test_a_gradient_is_a_tensor(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * x
    for wrong in (3.0, [1.0, 1.0]):
        with raises(TypeError):
            y.backward(wrong)
        with raises(TypeError):
            lib.autograd.grad([y], [x], [3.0])
    assert x.grad is None


def test_a_gradient_is_cast_to_the_results_dtype(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    (grad,) = lib.autograd.grad(x * 2, x, lib.ones(2, dtype=lib.float32))
    assert grad.dtype == lib.float64
    assert grad.tolist() == [2, 2]


def test_the_given_gradient_stays_the_callers(lib: Any) -> None:
    for is_root in (True, False):
        x = leaf(lib, 1, 2)
        mine = constant(lib, 1, 2)
        (x if is_root else x + 0).backward(mine)
        assert x.grad is not mine
        x.grad.mul_(5)
        assert mine.tolist() == [1, 2]
        mine.zero_()
        assert x.grad.tolist() == [5, 10]


def test_two_leaves_do_not_share_a_gradient(lib: Any) -> None:
    a, b = leaf(lib, 1, 2), leaf(lib, 3, 4)
    (a + b).backward(constant(lib, 1, 1))
    a.grad.mul_(5)
    assert b.grad.tolist() == [1, 1]


def test_a_leaf_can_be_the_root(lib: Any) -> None:
    x = leaf(lib, 3.0)
    x.backward()
    assert x.grad.item() == 1
    (grad,) = lib.autograd.grad(x, x)
    assert grad.item() == 1


# Roots that cannot be.


def test_a_tensor_without_requires_grad_has_no_backward(lib: Any) -> None:
    x = leaf(lib, 1.0)
    for root in (
        lib.ones(1),
        lib.ones(1, dtype=lib.int64),
        x.detach(),
        (x > 0),
    ):
        with raises(RuntimeError):
            root.backward()
        with raises(RuntimeError):
            lib.autograd.grad(root, x)
        with raises(RuntimeError):
            lib.autograd.grad([x * 2, root], x, allow_unused=True)
    assert x.grad is None


def test_a_result_of_no_grad_has_no_backward(lib: Any) -> None:
    x = leaf(lib, 1.0)
    with lib.no_grad():
        y = x * 2
    with raises(RuntimeError):
        y.backward()


def test_backward_runs_in_no_grad(lib: Any) -> None:
    x = leaf(lib, 3.0)
    y = x * x
    with lib.no_grad():
        y.backward()
        assert not lib.is_grad_enabled()
    assert x.grad.item() == 6


def test_a_graph_of_gradients_can_be_made_in_no_grad(lib: Any) -> None:
    x = leaf(lib, 3.0)
    y = x * x
    with lib.no_grad():
        (grad,) = lib.autograd.grad(y, x, create_graph=True)
        assert not lib.is_grad_enabled()
    assert grad.requires_grad


def test_backward_leaves_the_grad_mode_alone(lib: Any) -> None:
    x = leaf(lib, 3.0)
    (x * x).backward()
    assert lib.is_grad_enabled()
    lib.autograd.grad(x * x, x, create_graph=True)
    assert lib.is_grad_enabled()


# Accumulation.


def test_gradients_add_up_over_calls(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    for factor in (1, 10, 100):
        (x * factor).sum().backward()
    assert x.grad.tolist() == [111, 111]


def test_gradients_add_up_over_paths(lib: Any) -> None:
    x = leaf(lib, 2.0)
    a, b = x * 3, x * x
    c = a * b
    (c + a + c).backward()
    assert x.grad.item() == 2 * 9 * 4 + 3


def test_gradients_of_broadcast_inputs_are_summed(lib: Any) -> None:
    x, b = leaf(lib, [[1, 2], [3, 4]]), leaf(lib, [[1, 2]])
    s = leaf(lib, 5.0)
    (x * b + s).sum().backward()
    assert x.grad.tolist() == [[1, 2], [1, 2]]
    assert b.grad.tolist() == [[4, 6]]
    assert s.grad.item() == 4


def test_gradients_have_their_leafs_dtype(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4, dtype=lib.float32)
    (x * w).sum().backward()
    assert x.grad.dtype == lib.float64
    assert w.grad.dtype == lib.float32
    assert lists([x.grad, w.grad]) == [[3, 4], [1, 2]]


# Freeing the graph.


def test_a_graph_that_saved_can_be_used_once(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = (x * x).sum()
    y.backward()
    with raises(RuntimeError):
        y.backward()
    with raises(RuntimeError):
        lib.autograd.grad(y, x)
    assert x.grad.tolist() == [2, 4]


def test_a_graph_that_saved_nothing_can_be_used_again(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = (x + 1).sum()
    y.backward()
    y.backward()
    assert x.grad.tolist() == [2, 2]


def test_retain_graph(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward(retain_graph=True)
    assert x.grad.tolist() == [4, 8]
    y.backward()
    assert x.grad.tolist() == [6, 12]
    with raises(RuntimeError):
        y.backward()


def test_grad_frees_the_graph_too(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = (x * x).sum()
    lib.autograd.grad(y, x, retain_graph=True)
    lib.autograd.grad(y, x)
    with raises(RuntimeError):
        lib.autograd.grad(y, x)


@with_a_graph
def test_create_graph_retains_the_graph(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = (x * x).sum()
    y.backward(create_graph=True)
    y.backward()
    assert x.grad.tolist() == [4, 8]
    x.grad = None


@with_a_graph
def test_create_graph_without_retain_graph(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = (x * x).sum()
    y.backward(create_graph=True, retain_graph=False)
    with raises(RuntimeError):
        y.backward()
    x.grad = None


def test_a_shared_part_is_freed_by_the_first_backward(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * x
    first, second = (h * 2).sum(), (h * 3).sum()
    first.backward()
    with raises(RuntimeError):
        second.backward()


def test_a_shared_part_is_kept_by_retain_graph(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * x
    first, second = (h * 2).sum(), (h * 3).sum()
    first.backward(retain_graph=True)
    second.backward()
    assert x.grad.tolist() == [10, 20]


def test_only_nodes_that_ran_are_freed(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * x
    y = (h * h).sum()
    (to_h,) = lib.autograd.grad(y, h)
    (to_x,) = lib.autograd.grad(h, x, to_h)
    assert to_h.tolist() == [2, 8]
    assert to_x.tolist() == [4, 32]
    with raises(RuntimeError):
        lib.autograd.grad(y, h)


# inputs=


def test_only_inputs_accumulate(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    (x * w).sum().backward(inputs=[x])
    assert lists([x.grad, w.grad]) == [[3, 4], None]
    (x * w).sum().backward(inputs=w)
    assert lists([x.grad, w.grad]) == [[3, 4], [1, 2]]


def test_inputs_accumulate_over_calls(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    for _ in range(3):
        (x * 2).sum().backward(inputs=(x,))
    assert x.grad.tolist() == [6, 6]


def test_inputs_may_be_results(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * x
    (h * h).sum().backward(inputs=[h])
    assert h.grad.tolist() == [2, 8]
    assert x.grad is None


def test_inputs_may_be_a_result_and_its_leaf(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * x
    (h * h).sum().backward(inputs=[h, x])
    assert h.grad.tolist() == [2, 8]
    assert x.grad.tolist() == [4, 32]


def test_inputs_named_twice_accumulate_once(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    (x * x).sum().backward(inputs=[x, x])
    assert x.grad.tolist() == [2, 4]


def test_inputs_that_were_not_used_are_left_alone(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    (x * 2).sum().backward(inputs=[x, w])
    assert x.grad.tolist() == [2, 2]
    assert w.grad is None


def test_inputs_must_be_tensors_that_require_grad(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = (x * x).sum()
    with raises(RuntimeError):
        y.backward(inputs=[])
    with raises(RuntimeError):
        y.backward(inputs=[constant(lib, 1, 2)])
    with raises(RuntimeError):
        y.backward(inputs=["x"])
    with raises(RuntimeError):
        lib.autograd.backward(y, inputs=[])
    assert lists([x.grad]) == [None]
    y.backward()
    assert lists([x.grad]) == [[2, 4]]


def test_inputs_skip_nodes_that_lead_to_none_of_them(lib: Any) -> None:
    """A node that leads to no input does not run, so its saved tensors remain."""
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    a, b = x * x, w * w
    (a + b).sum().backward(inputs=[x])
    b.sum().backward()
    assert x.grad.tolist() == [2, 4]
    assert w.grad.tolist() == [6, 8]


# autograd.backward


def test_several_roots(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    a, b = (x * x).sum(), x * 3
    assert lib.autograd.backward([a, b], [None, constant(lib, 1, 10)]) is None
    assert x.grad.tolist() == [5, 34]


def test_several_scalar_roots_need_no_gradients(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    lib.autograd.backward([x.sum(), (x * 2).sum()])
    lib.autograd.backward((x.sum(), (x * 2).sum()), grad_tensors=(None, constant(lib, 3)))
    assert x.grad.tolist() == [10, 10]


def test_one_root_without_a_list(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    lib.autograd.backward(x * x, constant(lib, 1, 1))
    lib.autograd.backward((x * x).sum())
    assert x.grad.tolist() == [4, 8]


def test_a_root_named_twice_counts_twice(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = (x * x).sum()
    lib.autograd.backward([y, y])
    assert x.grad.tolist() == [4, 8]


def test_a_root_within_the_graph_of_another(lib: Any) -> None:
    x = leaf(lib, 3.0)
    h = x * x
    y = h * h
    lib.autograd.backward([y, h])
    assert x.grad.item() == 4 * 27 + 6


def test_roots_that_share_a_node(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    first, second = x.unbind()
    lib.autograd.backward([second, first], [constant(lib, 5), None])
    assert x.grad.tolist() == [1, 5]


def test_as_many_gradients_as_roots(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with raises(RuntimeError):
        lib.autograd.backward([x.sum(), (x * 2).sum()], [None])
    with raises(RuntimeError):
        lib.autograd.backward([x.sum(), x * 2])
    assert x.grad is None


def test_autograd_backward_takes_the_arguments_of_tensor_backward(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = (x * w).sum()
    lib.autograd.backward(y, retain_graph=True, inputs=[x])
    lib.autograd.backward([y], inputs=w)
    assert lists([x.grad, w.grad]) == [[3, 4], [1, 2]]
    with raises(RuntimeError):
        lib.autograd.backward([y])


# autograd.grad


def test_grad_returns_a_tuple_and_accumulates_nothing(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    y = (x * w).sum()
    grads = lib.autograd.grad(y, [w, x])
    assert isinstance(grads, tuple)
    assert lists(grads) == [[1, 2], [3, 4]]
    assert x.grad is None
    assert w.grad is None
    assert not grads[0].requires_grad


def test_grad_of_results(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * x
    k = h * 3
    to_h, to_k, to_x = lib.autograd.grad(k.sum(), [h, k, x])
    assert lists([to_h, to_k, to_x]) == [[3, 3], [1, 1], [6, 12]]


def test_grad_of_a_root_with_respect_to_itself(lib: Any) -> None:
    y = leaf(lib, 1, 2).sum()
    (grad,) = lib.autograd.grad(y, y)
    assert grad.item() == 1
    (grad,) = lib.autograd.grad(y, [y], constant(lib, 7))
    assert grad.item() == 7


def test_grad_of_an_input_named_twice(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    assert lists(lib.autograd.grad((x * x).sum(), [x, x])) == [[2, 4], [2, 4]]


def test_grad_of_several_outputs_is_their_sum(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    outputs = [x.sum(), x * 3]
    (grad,) = lib.autograd.grad(outputs, x, grad_outputs=[None, constant(lib, 1, 10)])
    assert grad.tolist() == [4, 31]
    (grad,) = lib.autograd.grad((x.sum(), x.sum()), (x,))
    assert grad.tolist() == [2, 2]


def test_grad_outputs_may_be_one_tensor(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    (grad,) = lib.autograd.grad(x * 3, x, constant(lib, 1, 10))
    assert grad.tolist() == [3, 30]


def test_grad_outputs_fit_the_outputs(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with raises(RuntimeError):
        lib.autograd.grad([x * 2, x * 3], x, constant(lib, 1, 1))
    with raises(RuntimeError):
        lib.autograd.grad([x * 2, x * 3], x, [None, None])
    with raises(RuntimeError):
        lib.autograd.grad([x * 2], x, [constant(lib, 1)])


def test_grad_of_an_unused_tensor(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, [[3, 4]])
    y = (x * x).sum()
    with raises(RuntimeError):
        lib.autograd.grad(y, [x, w])
    to_x, to_w = lib.autograd.grad((x * x).sum(), [x, w], allow_unused=True)
    assert to_x.tolist() == [2, 4]
    assert to_w is None


def test_grad_materialized(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, [[3, 4]], dtype=lib.float32)
    _, to_w = lib.autograd.grad((x * x).sum(), [x, w], materialize_grads=True)
    assert to_w.tolist() == [[0, 0]]
    assert to_w.dtype == lib.float32
    lib.autograd.grad((x * x).sum(), [x, w], allow_unused=True, materialize_grads=True)
    with raises(ValueError):
        lib.autograd.grad((x * x).sum(), [x, w], allow_unused=False, materialize_grads=True)


def test_grad_of_a_later_result_was_not_used(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * 2
    later = h * 3
    with raises(RuntimeError):
        lib.autograd.grad(h.sum(), later)
    assert lib.autograd.grad(h.sum(), later, allow_unused=True) == (None,)


def test_inputs_of_grad_require_grad(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    for wrong in (constant(lib, 1), lib.ones(1, dtype=lib.int64), x.detach()):
        for allow in (False, True):
            with raises(RuntimeError):
                lib.autograd.grad((x * x).sum(), [x, wrong], allow_unused=allow)


def test_grad_wants_inputs(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    with raises(RuntimeError):
        lib.autograd.grad((x * x).sum(), [])
    with raises(RuntimeError):
        lib.autograd.grad((x * x).sum(), ["x"])


def test_batched_grads(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = leaf(lib, 3)
    eye = lib.eye(2, dtype=lib.float64)
    (grad,) = lib.autograd.grad(x**3, x, eye, is_grads_batched=True, create_graph=True)
    assert lists([grad]) == [[[3, 0], [0, 12]]]
    (second,) = lib.autograd.grad(grad.sum(), x)
    assert lists([second]) == [[6, 12]]
    out = x * 2
    found = lib.autograd.grad(out, (x, y), eye, is_grads_batched=True, allow_unused=True)
    assert lists(found[:1]) == [[[2, 0], [0, 2]]]
    assert found[1] is None
    with raises(RuntimeError):
        lib.autograd.grad(out, x, eye, is_grads_batched=True)  # the graph was freed
    with raises(RuntimeError):
        lib.autograd.grad(x * 2, x, eye[0], is_grads_batched=True)
    with raises(RuntimeError):
        lib.autograd.grad(x * 2, x, is_grads_batched=True)


def test_inputs_as_a_dict(lib: Any) -> None:
    x, y = leaf(lib, 1, 2), leaf(lib, 3)
    found = lib.autograd.grad((x * y).sum(), {"x": x, "y": y})
    assert {name: each.tolist() for name, each in found.items()} == {"x": [3, 3], "y": 3}
    lib.autograd.backward((x * y).sum(), inputs={"x": x})
    assert x.grad.tolist() == [3, 3]
    assert y.grad is None


def test_old_arguments(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    ones = lib.ones(2, dtype=lib.float64)
    with pytest.warns(FutureWarning, match="grad_variables"):
        lib.autograd.backward(x * 2, grad_variables=ones)
    assert x.grad.tolist() == [2, 2]
    with pytest.warns(FutureWarning, match="only_inputs"):
        lib.autograd.grad((x * 2).sum(), x, None, None, False, False)
    with pytest.warns(FutureWarning), raises(RuntimeError):
        lib.autograd.backward(x * 2, ones, grad_variables=ones)


def test_grad_of_a_part_runs_only_that_part(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * x
    ran: list[Any] = []
    h.grad_fn.register_hook(lambda *_: ran.append("h"))
    lib.autograd.grad((h * 2).sum(), h)
    assert ran == []


# Higher orders.


def power(x: Any) -> Any:
    return x * x * x * x * x


ORDERS: dict[str, tuple[Callable[[Any], Any], list[float]]] = {
    "fifth power": (power, [32, 80, 160, 240, 240, 120]),
    "pow": (lambda x: x**5, [32, 80, 160, 240, 240, 120]),
    "a view in between": (lambda x: power(x.view(1)).view(()), [32, 80, 160, 240, 240, 120]),
    "reciprocal": (lambda x: 1 / x, [1 / 2, -1 / 4, 1 / 4, -3 / 8, 3 / 4, -15 / 8]),
    "exp of log": (lambda x: (3 * x.log()).exp(), [8, 12, 12, 6, 0, 0]),
}


@pytest.mark.parametrize("function", ORDERS)
def test_any_order(lib: Any, function: str) -> None:
    call, expected = ORDERS[function]
    x = leaf(lib, 2.0)
    derivative = call(x)
    seen = [derivative.item()]
    for _ in expected[1:]:
        (derivative,) = lib.autograd.grad(derivative, x, create_graph=True)
        seen.append(derivative.item())
    assert seen == pytest.approx(expected, abs=1e-12)


@with_a_graph
def test_second_order_by_backward(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    (x**3).sum().backward(create_graph=True)
    first = x.grad
    x.grad = None
    first.sum().backward()
    assert first.tolist() == [3, 12]
    assert x.grad.tolist() == [6, 12]


def test_a_mixed_second_derivative(lib: Any) -> None:
    x, w = leaf(lib, 2.0), leaf(lib, 3.0)
    (to_x,) = lib.autograd.grad(x * x * w * w, x, create_graph=True)
    to_x_x, to_x_w = lib.autograd.grad(to_x, [x, w])
    assert to_x_x.item() == 2 * 9
    assert to_x_w.item() == 4 * 2 * 3


def test_without_create_graph_a_gradient_has_no_graph(lib: Any) -> None:
    x = leaf(lib, 2.0)
    (grad,) = lib.autograd.grad(x**3, x, retain_graph=True)
    assert not grad.requires_grad
    with raises(RuntimeError):
        lib.autograd.grad(grad, x)


def test_a_linear_functions_gradient_does_not_depend_on_its_input(lib: Any) -> None:
    x = leaf(lib, 2.0)
    (grad,) = lib.autograd.grad(x * 3, x, create_graph=True)
    assert not grad.requires_grad


def test_grad_with_respect_to_grad_outputs(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    v = leaf(lib, 1, 1)
    (pulled,) = lib.autograd.grad(x**3, x, v, create_graph=True)
    assert pulled.tolist() == [3, 12]
    (pushed,) = lib.autograd.grad(pulled, v, constant(lib, 10, 100))
    assert pushed.tolist() == [30, 1200]


def test_a_gradient_that_requires_grad_has_a_graph_only_when_asked(lib: Any) -> None:
    x, v = leaf(lib, 1, 2), leaf(lib, 1, 1)
    (pulled,) = lib.autograd.grad(x * 3, x, v)
    assert not pulled.requires_grad


def test_a_product_of_a_hessian_and_a_vector(lib: Any) -> None:
    x = leaf(lib, 1, 2, 3)
    v = constant(lib, 1, 0, 1)
    (first,) = lib.autograd.grad((x.sum()) ** 3, x, create_graph=True)
    (product,) = lib.autograd.grad(first, x, v)
    assert product.tolist() == [72, 72, 72]


def test_a_penalty_on_the_gradient(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    loss = (w * x * x).sum()
    (to_x,) = lib.autograd.grad(loss, x, create_graph=True)
    (loss + (to_x**2).sum()).backward()
    assert w.grad.tolist() == [1 + 8 * 3, 4 + 8 * 4 * 4]
    assert x.grad.tolist() == [6 + 8 * 9, 16 + 8 * 16 * 2]


def test_a_step_of_descent_can_be_differentiated(lib: Any) -> None:
    rate = leaf(lib, 0.5)
    x = leaf(lib, 2.0)
    step = x
    for _ in range(2):
        (to_step,) = lib.autograd.grad(step**2, step, create_graph=True)
        step = step - rate * to_step
    step.backward()
    assert step.item() == 0
    assert x.grad.item() == 0
    assert rate.grad.item() == 0
    rate, x = leaf(lib, 0.25), leaf(lib, 2.0)
    (to_x,) = lib.autograd.grad(x**2, x, create_graph=True)
    (x - rate * to_x).backward()
    assert x.grad.item() == 0.5
    assert rate.grad.item() == -4


# Complex numbers.


def test_a_complex_root_needs_a_gradient(lib: Any) -> None:
    z = leaf(lib, [1 + 2j], dtype=lib.complex128)
    for root in (z * 2, (z * 2).sum()):
        with raises(RuntimeError):
            root.backward()
        with raises(RuntimeError):
            lib.autograd.grad(root, z)
    assert z.grad is None


def test_a_complex_root_with_a_gradient(lib: Any) -> None:
    z = leaf(lib, [1 + 2j], dtype=lib.complex128)
    (z * z).backward(constant(lib, [1 + 0j], dtype=lib.complex128))
    assert z.grad.tolist() == [2 - 4j]
    (grad,) = lib.autograd.grad(z * z, z, constant(lib, [1j], dtype=lib.complex128))
    assert grad.tolist() == [1j * (2 - 4j)]


def test_the_gradient_of_a_complex_root_is_complex(lib: Any) -> None:
    z = leaf(lib, [1 + 2j], dtype=lib.complex128)
    with raises(RuntimeError):
        (z * z).backward(constant(lib, [1]))
    x = leaf(lib, [1])
    with raises(RuntimeError):
        (x * x).backward(constant(lib, [1 + 0j], dtype=lib.complex128))


def test_a_real_loss_of_complex_numbers(lib: Any) -> None:
    """The gradient of |z|^2 is 2z: minus it is the direction of steepest descent."""
    z = leaf(lib, [1 + 2j, -3j], dtype=lib.complex128)
    (z * z.conj()).real.sum().backward()
    assert z.grad.tolist() == [2 + 4j, -6j]


def test_a_real_leaf_of_a_complex_computation_has_a_real_gradient(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    z = constant(lib, [1 + 2j, 3 - 1j], dtype=lib.complex128)
    (x * z).real.sum().backward()
    assert x.grad.dtype == lib.float64
    assert x.grad.tolist() == [1, 3]


@pytest.mark.parametrize("power", [0, 1, 2, 3])
def test_derivatives_of_a_power_end_where_pytorch_ends_them(lib: Any, power: int) -> None:
    """One order after the last that is not 0: that derivative is 0, and has no history."""
    x = leaf(lib, 2.0, -3.0)
    y, expected, factor = x**power, [], 1
    for order in range(1, power + 2):
        factor *= power - order + 1
        (y,) = lib.autograd.grad(y.sum(), x, create_graph=True)
        expected = [factor * each ** max(power - order, 0) for each in (2.0, -3.0)]
        assert y.tolist() == expected
        assert y.requires_grad == (order <= power)
    assert expected == [0, 0]
