"""autograd.graph: nodes, edges, metadata and versions."""

import gc
from collections.abc import Callable
from typing import Any

import pytest

from tests.parity.conftest import constant, leaf, lists, raises

# Node


def test_every_node_is_a_node(lib: Any) -> None:
    Node = lib.autograd.graph.Node
    x = leaf(lib, 1, 2)
    y = (x * x).sum()
    product = y.grad_fn.next_functions[0][0]
    for each in (y.grad_fn, product, product.next_functions[0][0]):
        assert isinstance(each, Node)
        assert issubclass(type(each), Node)
    for other in (x, None, 3, y):
        assert not isinstance(other, Node)


def test_a_functions_node_is_a_node(lib: Any) -> None:
    class Double(lib.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.factor = 2
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * ctx.factor

    x = leaf(lib, 1, 2)
    y = Double.apply(x)
    assert isinstance(y.grad_fn, lib.autograd.graph.Node)
    assert y.grad_fn.name() == "DoubleBackward"
    assert type(y.grad_fn).__name__ == "DoubleBackward"
    assert y.grad_fn.factor == 2
    assert y.grad_fn.metadata == {}
    assert type(y.grad_fn.next_functions[0][0]).__name__ == "AccumulateGrad"


def test_metadata_is_a_dict_of_the_node(lib: Any) -> None:
    y = leaf(lib, 1, 2) * 2
    z = y * 3
    assert y.grad_fn.metadata == {}
    y.grad_fn.metadata["mine"] = [1]
    assert y.grad_fn.metadata["mine"] == [1]
    assert z.grad_fn.next_functions[0][0].metadata["mine"] == [1]
    assert z.grad_fn.metadata == {}


def test_metadata_can_be_read_by_hooks(lib: Any) -> None:
    y = leaf(lib, 1, 2) * 2
    node = y.grad_fn
    node.metadata["count"] = 0

    def hook(inputs: Any, outputs: Any) -> None:
        node.metadata["count"] += 1

    node.register_hook(hook)
    y.sum().backward()
    assert node.metadata == {"count": 1}
    node.metadata.clear()
    assert y.grad_fn.metadata == {}


def test_a_leafs_node_has_metadata(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 2
    y.grad_fn.next_functions[0][0].metadata["mine"] = 1
    assert y.grad_fn.next_functions[0][0].metadata == {"mine": 1}


# Gradient edges.


def test_the_edge_of_a_result(lib: Any) -> None:
    y = leaf(lib, 1, 2) * 2
    edge = lib.autograd.graph.get_gradient_edge(y)
    assert isinstance(edge, lib.autograd.graph.GradientEdge)
    assert edge.node is y.grad_fn
    assert edge.output_nr == 0
    assert edge[0] is y.grad_fn
    assert edge[1] == 0
    assert edge == lib.autograd.graph.get_gradient_edge(y)


def test_the_edge_of_a_leaf(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    edge = lib.autograd.graph.get_gradient_edge(x)
    assert type(edge.node).__name__ == "AccumulateGrad"
    assert edge.node.variable is x
    assert (x * 2).grad_fn.next_functions[0][0] is edge.node


def test_the_edge_of_one_output_of_several(lib: Any) -> None:
    first, second = leaf(lib, 1, 2).unbind()
    get = lib.autograd.graph.get_gradient_edge
    assert get(first).node is get(second).node
    assert [get(first).output_nr, get(second).output_nr] == [0, 1]


def test_a_tensor_without_requires_grad_has_no_edge(lib: Any) -> None:
    with raises(RuntimeError):
        lib.autograd.graph.get_gradient_edge(constant(lib, 1, 2))
    with raises(RuntimeError):
        lib.autograd.graph.get_gradient_edge((leaf(lib, 1) * 2).detach())


def test_an_edge_as_input_of_grad(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * x
    edge = lib.autograd.graph.get_gradient_edge(h)
    y = (h * 3).sum()
    del h
    gc.collect()
    (to_h,) = lib.autograd.grad(y, edge)
    assert to_h.tolist() == [3, 3]


def test_edges_and_tensors_as_inputs_of_grad(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * x
    get = lib.autograd.graph.get_gradient_edge
    grads = lib.autograd.grad((h * x).sum(), [get(h), x, get(x)])
    assert lists(grads) == [[1, 2], [3, 12], [3, 12]]


def test_an_edge_of_one_output_as_input_of_grad(lib: Any) -> None:
    first, second = leaf(lib, 1, 2).unbind()
    graph = lib.autograd.graph
    y = first * 2 + second * 5
    grads = lib.autograd.grad(
        y,
        [graph.get_gradient_edge(second), graph.GradientEdge(first.grad_fn, 0)],
    )
    assert lists(grads) == [5, 2]


def test_an_edge_made_by_hand(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = (x * x).sum()
    product = y.grad_fn.next_functions[0][0]
    (grad,) = lib.autograd.grad(y, lib.autograd.graph.GradientEdge(product, 0))
    assert grad.tolist() == [1, 1]


def test_an_edge_that_was_not_used(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    edge = lib.autograd.graph.get_gradient_edge(leaf(lib, 3.0))
    with raises(RuntimeError):
        lib.autograd.grad((x * x).sum(), edge)
    assert lib.autograd.grad((x * x).sum(), edge, allow_unused=True) == (None,)
    second = x.unbind()[1]
    first = lib.autograd.graph.GradientEdge(second.grad_fn, 0)
    assert lib.autograd.grad(second, first, allow_unused=True) == (None,)


def test_an_edge_as_output_of_grad(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = (x * x).sum()
    edge = lib.autograd.graph.get_gradient_edge(y)
    del y
    gc.collect()
    (grad,) = lib.autograd.grad(edge, x)
    assert grad.tolist() == [2, 4]


def test_an_edge_of_many_elements_needs_a_gradient(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    edge = lib.autograd.graph.get_gradient_edge(x * x)
    with raises(RuntimeError):
        lib.autograd.grad(edge, x)
    with raises(RuntimeError):
        lib.autograd.grad(edge, x, lib.ones(3, dtype=lib.float64))
    (grad,) = lib.autograd.grad(edge, x, constant(lib, 1, 10))
    assert grad.tolist() == [2, 40]


def test_edges_as_both(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    h = x * x
    y = (h * h).sum()
    get = lib.autograd.graph.get_gradient_edge
    (grad,) = lib.autograd.grad([get(y)], [get(h)])
    assert grad.tolist() == [2, 8]


def test_an_edge_as_root_of_backward(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = (x * x).sum()
    edge = lib.autograd.graph.get_gradient_edge(y)
    del y
    gc.collect()
    lib.autograd.backward(edge)
    assert x.grad.tolist() == [2, 4]
    other = lib.autograd.graph.get_gradient_edge(x * 3)
    lib.autograd.backward([other, x.sum()], [constant(lib, 1, 10), None])
    assert x.grad.tolist() == [6, 35]


def test_a_leafs_edge_as_input_of_backward(lib: Any) -> None:
    x, w = leaf(lib, 1, 2), leaf(lib, 3, 4)
    edge = lib.autograd.graph.get_gradient_edge(x)
    (x * w).sum().backward(inputs=[edge])
    assert x.grad.tolist() == [3, 4]
    assert w.grad is None


def test_higher_orders_by_edges(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    edge = lib.autograd.graph.get_gradient_edge(x)
    (first,) = lib.autograd.grad((x**3).sum(), edge, create_graph=True)
    (second,) = lib.autograd.grad(first.sum(), edge)
    assert second.tolist() == [6, 12]


def test_hooks_on_the_node_of_an_edge(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    edge = lib.autograd.graph.get_gradient_edge(x)
    edge.node.register_prehook(lambda outputs: (outputs[0] * 10,))
    (x * 2).sum().backward()
    assert x.grad.tolist() == [20, 20]


def test_an_edge_keeps_the_graph_alive(lib: Any) -> None:
    edge = lib.autograd.graph.get_gradient_edge(leaf(lib, 1, 2) * 3)
    gc.collect()
    leafs = lib.autograd.graph.GradientEdge(edge.node.next_functions[0][0], 0)
    (grad,) = lib.autograd.grad(edge, leafs, constant(lib, 1, 1))
    assert grad.tolist() == [3, 3]


def test_the_edge_of_a_tensor_changed_in_place(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    t = x * 2
    get = lib.autograd.graph.get_gradient_edge
    before = get(t)
    t.mul_(3)
    after = get(t)
    assert before.node is not after.node
    assert lists(lib.autograd.grad(t.sum(), [before, after])) == [[3, 3], [1, 1]]


def test_a_node_alone_is_no_edge(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = (x * x).sum()
    with raises(TypeError):
        lib.autograd.grad(y, y.grad_fn)
    y.backward()
    assert x.grad.tolist() == [2, 4]


# increment_version


def test_increment_version(lib: Any) -> None:
    increment = lib.autograd.graph.increment_version
    x, y = constant(lib, 1, 2), constant(lib, 3, 4)
    assert increment(x) is None
    assert x._version == 1
    increment([x, y])
    increment((y,))
    increment(each for each in (x, x))
    assert (x._version, y._version) == (4, 2)
    increment([])
    assert x.tolist() == [1, 2]


def test_increment_version_is_shared(lib: Any) -> None:
    x = constant(lib, 1, 2)
    lib.autograd.graph.increment_version(x[:1])
    assert x._version == 1
    lib.autograd.graph.increment_version(x.detach())
    assert x._version == 2


def test_increment_version_tells_autograd_of_a_change(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = (x * x).sum()
    lib.autograd.graph.increment_version(x)
    with raises(RuntimeError):
        y.backward()
    (x * x).sum().backward()
    assert x.grad.tolist() == [2, 4]


@pytest.mark.parametrize("wrong", [3, [3], None])
def test_increment_version_wants_tensors(lib: Any, wrong: Any) -> None:
    with raises(RuntimeError):
        lib.autograd.graph.increment_version(wrong)


# Other names.


NAMES = [
    "GradientEdge",
    "Node",
    "allow_mutation_on_saved_tensors",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "saved_tensors_hooks",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_module_has_it(lib: Any, name: str) -> None:
    member: Callable[..., Any] = getattr(lib.autograd.graph, name)
    assert callable(member)
    assert name in lib.autograd.graph.__all__
