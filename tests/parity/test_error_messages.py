"""Error messages of offgrad: the rule, the argument, the fix; raised on the line at fault."""

import copy
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import offgrad as og
from offgrad import autograd
from tests.parity.conftest import builtin_class, constant, leaf


def same(each: Any) -> Any:
    return each


@contextmanager
def says(error: type[Exception], *patterns: str) -> Iterator[None]:
    """Assert that the block raises an error in whose text every pattern is found."""
    with pytest.raises(error) as info:
        yield
    assert builtin_class(info.value) is error
    text = "\n".join([str(info.value), *getattr(info.value, "__notes__", [])])
    missing = [each for each in patterns if not re.search(each, text, re.IGNORECASE)]
    assert not missing, f"{missing} not in: {text}"


def shape(*sizes: int) -> str:
    """Return a pattern for a shape, written as a tuple or a list."""
    inner = ", ?".join(map(str, sizes))
    return rf"[(\[]{inner},?[)\]]"


# Roots and their gradients.


def test_a_gradient_of_another_shape() -> None:
    y = leaf(og, 1, 2) * 2
    with says(RuntimeError, "shape", shape(2), shape(3)):
        y.backward(og.ones(3))
    with says(RuntimeError, "shape", shape(2), shape(2, 1)):
        autograd.grad(y, y, og.ones(2, 1))


def test_a_gradient_of_another_kind_of_number() -> None:
    z = leaf(og, [1j], dtype=og.complex128)
    with says(RuntimeError, "complex", "complex128", "float64"):
        (z * 2).backward(constant(og, [1.0]))


def test_a_gradient_that_is_no_tensor() -> None:
    with says(TypeError, "tensor", "float"):
        (leaf(og, 1, 2) * 2).backward(3.0)


def test_no_gradient_for_a_root_of_many_elements() -> None:
    with says(RuntimeError, "scalar|one element", shape(2, 3), r"sum\(|gradient|grad_outputs"):
        (leaf(og, [[1, 2, 3], [4, 5, 6]]) * 2).backward()


def test_no_gradient_for_a_complex_root() -> None:
    with says(RuntimeError, "real", "complex128", r"gradient|\.real|abs"):
        (leaf(og, 1j, dtype=og.complex128) * 2).backward()


def test_a_root_that_does_not_require_grad() -> None:
    with says(RuntimeError, "requires? grad|requires_grad", r"requires_grad|no_grad|detach"):
        constant(og, 1.0).backward()


def test_a_different_number_of_gradients() -> None:
    x = leaf(og, 1.0)
    with says(RuntimeError, r"\b2\b|two", r"\b1\b|one", "grad_tensors|gradients?"):
        autograd.backward([x * 2, x * 3], [None])


# Inputs.


def test_an_input_that_was_not_used() -> None:
    x, w = leaf(og, 1.0), leaf(og, 2.0)
    with says(RuntimeError, r"\b1\b", "not.*(used|reach|depend|part)", "allow_unused"):
        autograd.grad(x * 2, [x, w])


def test_an_input_that_does_not_require_grad() -> None:
    x = leaf(og, 1.0)
    with says(RuntimeError, "require"):
        autograd.grad(x * 2, [x, constant(og, 1.0)])


def test_no_inputs() -> None:
    x = leaf(og, 1.0)
    with says(RuntimeError, "inputs", "empty|at least one|no "):
        autograd.grad(x * 2, [])
    with says(RuntimeError, "inputs", "empty|at least one|no "):
        (x * 2).backward(inputs=[])


def test_an_input_that_is_no_tensor() -> None:
    x = leaf(og, 1.0)
    with says(RuntimeError, "tensor", "str"):
        autograd.grad(x * 2, ["x"])  # type: ignore[list-item]


def test_contradicting_arguments_of_grad() -> None:
    x = leaf(og, 1.0)
    with says(ValueError, "allow_unused", "materialize_grads"):
        autograd.grad(x * 2, x, allow_unused=False, materialize_grads=True)


# The graph.


def test_a_graph_that_was_freed() -> None:
    y = leaf(og, 1.0) ** 2
    y.backward()
    with says(RuntimeError, "second time|freed|released|twice", "retain_graph"):
        y.backward()
    assert y.grad_fn is not None
    with says(RuntimeError, "freed|released", "retain_graph", "Pow|saved"):
        y.grad_fn._saved_self


def test_integers_that_are_to_require_grad() -> None:
    x = og.ones(2, dtype=og.int64)
    for call in (
        x.requires_grad_,
        lambda: og.tensor([1, 2], requires_grad=True),
        lambda: og.zeros(2, dtype=og.int64, requires_grad=True),
        lambda: setattr(x, "requires_grad", True),
    ):
        with says(RuntimeError, "float", "int64"):
            call()


def test_requires_grad_of_a_result() -> None:
    with says(RuntimeError, "leaf|leaves", r"detach"):
        (leaf(og, 1.0) * 2).requires_grad_(False)


def test_retain_grad_and_hooks_without_requires_grad() -> None:
    x = constant(og, 1.0)
    for call in (
        x.retain_grad,
        lambda: x.register_hook(same),
        lambda: x.register_post_accumulate_grad_hook(same),
        lambda: autograd.graph.get_gradient_edge(x),
    ):
        with says(RuntimeError, "require"):
            call()


def test_a_post_accumulate_hook_of_a_result() -> None:
    with says(RuntimeError, "leaf|leaves", "register_hook|retain_grad|grad_fn|non-leaf|result"):
        (leaf(og, 1.0) * 2).register_post_accumulate_grad_hook(same)


def test_a_deep_copy_of_a_result() -> None:
    with says(RuntimeError, "leaf|leaves|created explicitly", "detach|clone"):
        copy.deepcopy(leaf(og, 1.0) * 2)


def test_a_leaf_changed_in_place() -> None:
    with says(RuntimeError, "leaf", "in.place", "no_grad|detach|clone"):
        leaf(og, 1.0).mul_(2)


def test_a_view_detached_in_place() -> None:
    y = leaf(og, 1, 2) * 2
    with says(RuntimeError, "view", r"detach\(\)"):
        y[:1].detach_()


def test_numpy_of_a_tensor_that_requires_grad() -> None:
    with says(RuntimeError, "require", r"detach\(\)"):
        leaf(og, 1.0).numpy()


def test_grad_of_another_shape_or_dtype() -> None:
    x = leaf(og, 1, 2)
    with says(RuntimeError, "shape|size", shape(2), shape(3)):
        x.grad = constant(og, 1, 2, 3)
    with says(RuntimeError, "dtype|type", "float64", "float32"):
        x.grad = constant(og, 1, 2, dtype=og.float32)
    with says(TypeError, "tensor", "float"):
        x.grad = 3.0


# Saved tensors.


def test_a_saved_tensor_that_was_changed() -> None:
    h = leaf(og, 1, 2) * 2
    y = h**2
    h.add_(1)
    h.add_(1)
    with says(
        RuntimeError,
        "PowBackward0",
        r"\bself\b",
        shape(2),
        "float64",
        "version.*2",
        "version.*0|was 0|at 0|saved.*0",
        "add",
        "in.place",
        "clone",
    ):
        y.sum().backward()


def test_a_saved_tensor_that_was_changed_under_hooks() -> None:
    """If it is refused, it is refused as well as without hooks."""
    x = leaf(og, 1, 2)
    h = x * 2
    with autograd.graph.saved_tensors_hooks(same, same):
        y = h**2
    h.add_(1)
    try:
        y.sum().backward()
    except RuntimeError as error:
        text = str(error)
        assert re.search("PowBackward0", text)
        assert re.search(r"\bself\b", text)
        assert "float64" in text
    else:
        assert x.grad is not None
        assert x.grad.tolist() == [8, 16]


def test_unpack_returns_no_tensor() -> None:
    context: Any = autograd.graph.saved_tensors_hooks
    with context(same, lambda each: 3.0):
        y = leaf(og, 1, 2) ** 2
    with says(TypeError, "unpack", "tensor", "float"):
        y.sum().backward()


def test_unpack_returns_another_shape() -> None:
    with autograd.graph.saved_tensors_hooks(same, lambda each: og.ones(3, dtype=og.float64)):
        y = leaf(og, 1, 2) ** 2
    with says(RuntimeError, "unpack", shape(2), shape(3)):
        y.sum().backward()


def test_pack_changes_its_input() -> None:
    h = leaf(og, 1, 2) * 2
    with (
        autograd.graph.saved_tensors_hooks(lambda each: each.mul_(2), same),
        says(RuntimeError, "pack", "in.place|chang|modif", "clone|copy"),
    ):
        h**2


def test_two_pairs_of_hooks() -> None:
    y: Any = leaf(og, 1, 2) ** 2
    raw = y.grad_fn._raw_saved_self
    raw.register_hooks(same, same)
    with says(RuntimeError, "hooks", "one pair|already|once"):
        raw.register_hooks(same, same)


def test_hooks_after_the_release() -> None:
    y: Any = leaf(og, 1, 2) ** 2
    raw = y.grad_fn._raw_saved_self
    y.sum().backward()
    with says(RuntimeError, "freed|released", "retain_graph"):
        raw.register_hooks(same, same)


def test_hooks_that_cannot_be_called() -> None:
    y: Any = leaf(og, 1, 2) ** 2
    with says(TypeError, "callable|call", "int"):
        y.grad_fn._raw_saved_self.register_hooks(3, same)
    context: Any = autograd.graph.saved_tensors_hooks
    with says(TypeError, "callable|call", "int"), context(same, 3):
        pass


def test_mutation_contexts_nested() -> None:
    graph: Any = autograd.graph
    with (
        says(RuntimeError, "allow_mutation_on_saved_tensors", "nest"),
        graph.allow_mutation_on_saved_tensors(),
        graph.allow_mutation_on_saved_tensors(),
    ):
        pass


# Hooks of backward.


def rename(grad: Any) -> Any:
    return og.ones(3, dtype=og.float64)


def test_a_hook_that_returns_another_shape() -> None:
    x = leaf(og, 1, 2)
    x.register_hook(rename)
    with says(RuntimeError, "hook", "rename", shape(2), shape(3)):
        (x * 2).sum().backward()


def test_a_hook_that_returns_another_dtype() -> None:
    x = leaf(og, 1, 2)
    x.register_hook(lambda grad: grad.float())
    with says(RuntimeError, "hook", "float64", "float32"):
        (x * 2).sum().backward()


def test_a_hook_that_returns_no_tensor() -> None:
    x = leaf(og, 1, 2)
    x.register_hook(lambda grad: 3.0)
    with says(TypeError, "hook", "tensor", "float"):
        (x * 2).sum().backward()


def test_a_nodes_hook_that_returns_the_wrong_number() -> None:
    y: Any = leaf(og, 1, 2) * leaf(og, 3, 4)
    y.grad_fn.register_hook(lambda inputs, outputs: inputs[:1])
    with says(RuntimeError, "hook", r"\b1\b|one", r"\b2\b|two"):
        y.sum().backward()


def test_a_nodes_hook_that_returns_no_tuple() -> None:
    y: Any = leaf(og, 1, 2) * leaf(og, 3, 4)
    y.grad_fn.register_prehook(lambda outputs: list(outputs))
    with says(TypeError, "hook", "tuple", "list"):
        y.sum().backward()


def test_the_mode_of_a_multi_grad_hook() -> None:
    graph: Any = autograd.graph
    with says(ValueError, "mode", "all", "any", "some"):
        graph.register_multi_grad_hook([leaf(og, 1.0)], print, mode="some")


# Operations.


def test_operands_that_do_not_fit() -> None:
    x = leaf(og, 1, 2)
    with says(RuntimeError, "add|broadcast", shape(2), shape(3)):
        x + constant(og, 1, 2, 3)
    with says(RuntimeError, "matmul|mm|product|@", shape(1, 2), shape(3, 1)):
        leaf(og, [[1, 2]]) @ leaf(og, [[1], [2], [3]])


def test_operands_of_several_dtypes() -> None:
    a, b = leaf(og, [[1.0]]), leaf(og, [[1.0]], dtype=og.float32)
    with says(RuntimeError, "dtype|type", "float64", "float32"):
        a @ b


# Functions.


def function(backward: Callable[..., Any]) -> Any:
    """Return a Function that doubles, with a custom backward."""
    return type(
        "Doubling",
        (autograd.Function,),
        {
            "forward": staticmethod(lambda ctx, x: x * 2),
            "backward": staticmethod(backward),
        },
    )


def test_a_function_that_returns_too_many_gradients() -> None:
    y = function(lambda ctx, grad: (grad, grad)).apply(leaf(og, 1, 2))
    with says(RuntimeError, "Doubling", r"\b2\b|two", r"\b1\b|one"):
        y.sum().backward()


def test_a_function_that_returns_another_shape() -> None:
    y = function(lambda ctx, grad: og.ones(3, dtype=og.float64)).apply(leaf(og, 1, 2))
    with says(RuntimeError, "Doubling", shape(2), shape(3)):
        y.sum().backward()


# The line.

_at_fault: list[int] = []


def wrong(value: Any) -> Any:
    """Return the value; the line that calls is the line at fault."""
    _at_fault.append(sys._getframe(1).f_lineno)
    return value


def hook_of_a_tensor() -> None:
    x = leaf(og, 1.0)
    x.register_hook(wrong(3))
    (x * 2).backward()


def post_accumulate_hook() -> None:
    x = leaf(og, 1.0)
    x.register_post_accumulate_grad_hook(wrong(3))
    (x * 2).backward()


def hook_of_a_node() -> None:
    y: Any = leaf(og, 1.0) * 2
    y.grad_fn.register_hook(wrong(3))
    y.backward()


def prehook_of_a_node() -> None:
    y: Any = leaf(og, 1.0) * 2
    y.grad_fn.register_prehook(wrong(3))
    y.backward()


def multi_grad_hook() -> None:
    x = leaf(og, 1.0)
    graph: Any = autograd.graph
    graph.register_multi_grad_hook([x], wrong(3))
    (x * 2).backward()


def hooks_of_saved_tensors() -> None:
    x = leaf(og, 1.0)
    context: Any = autograd.graph.saved_tensors_hooks
    with context(wrong(3), same):
        y = x * x
    y.backward()


def leaf_in_place() -> None:
    x = leaf(og, 1.0)
    x.mul_(wrong(2))
    (x * 2).backward()


def shapes_in_the_forward() -> None:
    x = leaf(og, 1, 2)
    y = x * wrong(constant(og, 1, 2, 3))
    y.sum().backward()


def dtype_in_the_forward() -> None:
    x = leaf(og, [[1.0]])
    y = x @ wrong(constant(og, [[1.0]], dtype=og.float32))
    y.sum().backward()


def grad_of_another_shape() -> None:
    x = leaf(og, 1, 2)
    x.grad = wrong(constant(og, 1, 2, 3))
    (x * 2).sum().backward()


def integers() -> None:
    x = og.tensor([1, 2], requires_grad=wrong(True))
    (x * 2).sum().backward()


def shape_of_a_gradient() -> None:
    y = leaf(og, 1, 2) * 2
    y.backward(wrong(og.ones(3)))


LINES = [
    hook_of_a_tensor,
    post_accumulate_hook,
    hook_of_a_node,
    prehook_of_a_node,
    multi_grad_hook,
    hooks_of_saved_tensors,
    leaf_in_place,
    shapes_in_the_forward,
    dtype_in_the_forward,
    grad_of_another_shape,
    integers,
    shape_of_a_gradient,
]


@pytest.mark.parametrize("call", LINES, ids=[each.__name__ for each in LINES])
def test_an_error_is_raised_by_the_line_at_fault(call: Callable[[], None]) -> None:
    _at_fault.clear()
    with pytest.raises((RuntimeError, TypeError, ValueError)) as info:
        call()
    lines = [each.lineno + 1 for each in info.traceback if each.frame.code.name == call.__name__]
    assert lines == _at_fault
