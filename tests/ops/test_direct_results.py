"""Small arithmetic by the short way: the bits and the effects of the long one."""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor, ops
from offgrad.autograd import forward_ad
from offgrad.autograd.op import Op, add_op_observer, remove_op_observer


def watch(apply: Callable[..., list[Any]], *call: Any) -> list[Any]:
    return apply(*call)


@contextmanager
def long_way() -> Iterator[None]:
    """A block in which an observer sees all operations, so that none is skipped."""
    add_op_observer(watch)
    try:
        yield
    finally:
        remove_op_observer(watch)


def by_the_long_way(function: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    def call(a: Any, b: Any) -> Tensor:
        with long_way():
            return function(a, b)

    return call


PAIRS: dict[str, tuple[Callable[[Any, Any], Tensor], Callable[[Any, Any], Tensor]]] = {
    "+": (operator.add, by_the_long_way(ops.add)),
    "-": (operator.sub, by_the_long_way(ops.sub)),
    "*": (operator.mul, by_the_long_way(ops.mul)),
    "/": (operator.truediv, by_the_long_way(ops.div)),
    "@": (operator.matmul, by_the_long_way(ops.matmul)),
}
ARITHMETIC = [each for each in PAIRS if each != "@"]
rng = np.random.default_rng(0)


def values(*shape: int, dtype: str = "float32") -> Tensor:
    return offgrad.tensor(rng.standard_normal(shape).astype(dtype))


def check_same(found: Tensor, expected: Tensor) -> None:
    assert type(found) is Tensor
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.stride() == expected.stride()
    assert found.numpy().tobytes() == expected.numpy().tobytes()
    assert not found.requires_grad
    assert found.is_leaf


OPERANDS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "square": lambda: (values(5, 5), values(5, 5)),
    "float64": lambda: (values(5, 5, dtype="float64"), values(5, 5, dtype="float64")),
    "float16": lambda: (values(5, 5, dtype="float16"), values(5, 5, dtype="float16")),
    "two dtypes": lambda: (values(5, 5), values(5, 5, dtype="float64")),
    "transposed": lambda: (values(5, 5).t(), values(5, 5).t()),
    "reversed": lambda: (values(5, 5).flip(0)[::2], values(3, 5).t().reshape(3, 5)),
    "steps": lambda: (values(10, 10)[::2, ::2], values(10, 10)[::2, 1::2]),
    "expanded": lambda: (values(5, 1).expand(5, 5), values(5, 5)),
    "row": lambda: (values(5, 5), values(5)),
    "column": lambda: (values(5, 1), values(5, 5)),
    "scalar": lambda: (values(5, 5), values()),
    "scalars": lambda: (values(), values()),
    "empty": lambda: (values(0, 5), values(0, 5)),
    "integers": lambda: (offgrad.arange(25).reshape(5, 5), offgrad.arange(25).reshape(5, 5) + 1),
    "bools": lambda: (values(5, 5) > 0, values(5, 5)),
    "large": lambda: (values(200, 200), values(200, 200)),
    "special": lambda: (
        offgrad.tensor([[0.0, -0.0, float("inf"), float("nan"), 3e38]] * 5),
        offgrad.tensor([[0.0, 1e-45, float("inf"), 1.0, -3e38]] * 5),
    ),
}


@pytest.mark.parametrize("sign", ARITHMETIC)
@pytest.mark.parametrize("name", OPERANDS)
def test_two_tensors(sign: str, name: str) -> None:
    method, function = PAIRS[sign]
    a, b = OPERANDS[name]()
    if sign == "-" and name == "bools":
        pytest.skip("subtraction takes no bools")
    check_same(method(a, b), function(a, b))
    check_same(method(b, a), function(b, a))


@pytest.mark.parametrize(
    "shapes",
    [((5, 6), (6, 7)), ((1, 300), (300, 1)), ((3, 0), (0, 3)), ((0, 3), (3, 2)), ((120, 120),) * 2,
     ((2, 3, 4), (4, 5)), ((4,), (4, 5)), ((5, 4), (4,)), ((130, 120), (120, 200))],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_products(shapes: tuple[tuple[int, ...], ...], dtype: str) -> None:
    a, b = (values(*shape, dtype=dtype) for shape in shapes)
    check_same(a @ b, PAIRS["@"][1](a, b))
    if a.ndim == b.ndim == 2:
        across = b.t() @ a.t()
        check_same(across, PAIRS["@"][1](b.t(), a.t()))


NUMBERS: list[Any] = [2, -0.1, 0, 0.0, -0.0, float("nan"), float("inf"), 1e300, 2**53, 2**60, True]


@pytest.mark.parametrize("sign", ARITHMETIC)
@pytest.mark.parametrize("number", NUMBERS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_numbers(sign: str, number: Any, dtype: str) -> None:
    method, function = PAIRS[sign]
    if sign == "-" and number is True:
        pytest.skip("subtraction takes no bools")
    for x in (values(5, 5, dtype=dtype), values(dtype=dtype)):
        check_same(method(x, number), function(x, number))
        check_same(method(number, x), function(number, x))


@pytest.mark.parametrize("sign", PAIRS)
def test_what_requires_grad_is_recorded(sign: str) -> None:
    method, _ = PAIRS[sign]
    leaf, plain = values(5, 5).requires_grad_(), values(5, 5)
    assert method(leaf, plain).requires_grad
    assert method(plain, leaf).requires_grad
    with offgrad.no_grad():
        check_same(method(leaf, plain), method(leaf.detach(), plain))
    with offgrad.inference_mode():
        assert method(leaf, plain).is_inference()
    assert not method(plain, plain).is_inference()


def graph(tensor: Tensor) -> list[str]:
    """Return the names of the operations that made `tensor`, and of their saved tensors."""
    names, nodes = [], [tensor.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None:
            names.append(f"{node.name()} {sorted(node._saved)} {node.needs_input_grad}")
            nodes += [each for each, _ in node.next_functions]
    return names


@pytest.mark.parametrize("sign", PAIRS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)], ids=str)
def test_recorded_alike(sign: str, dtype: str, needs: tuple[bool, bool]) -> None:
    found = []
    for call in PAIRS[sign]:
        generator = np.random.default_rng(1)
        a, b, c = (offgrad.tensor(generator.random((5, 5)), dtype=getattr(offgrad, dtype))
                   for _ in range(3))  # fmt: skip
        a.requires_grad_(needs[0])
        b.requires_grad_(needs[1])
        result = call(call(a, b), c)
        if sign != "@":
            result = call(2.5, call(result, 2))
        leaves = [each for each in (a, b) if each.requires_grad]
        weight = offgrad.tensor(generator.random((5, 5)), dtype=getattr(offgrad, dtype))
        first = offgrad.autograd.grad(result, leaves, weight, create_graph=True)
        terms = [each.square().sum() for each in first if each.requires_grad]
        second = offgrad.autograd.grad(sum(terms[1:], terms[0]), leaves, allow_unused=True) \
            if terms else ()  # fmt: skip
        arrays = [result, *first, *[each for each in second if each is not None]]
        found.append((graph(result), [each.detach().numpy().tobytes() for each in arrays]))
    assert found[0] == found[1]


@pytest.mark.parametrize("sign", PAIRS)
def test_a_tensor_and_itself_detached(sign: str) -> None:
    method, _ = PAIRS[sign]
    leaf = values(5, 5).requires_grad_()
    detached = leaf.detach()
    method(leaf, detached).sum().backward()
    first, leaf.grad = leaf.grad, None
    method(leaf, detached.clone()).sum().backward()
    assert first is not None
    assert leaf.grad is not None
    assert first.equal(leaf.grad)


@pytest.mark.parametrize("sign", PAIRS)
def test_a_view_whose_base_got_a_history_is_recorded(sign: str) -> None:
    method, _ = PAIRS[sign]
    base = offgrad.zeros(2, 5, 5)
    view = base[0]
    base.add_(values(5, 5).requires_grad_())
    assert method(view, values(5, 5)).requires_grad
    assert method(values(5, 5), view).requires_grad


@pytest.mark.parametrize("sign", PAIRS)
def test_tangents(sign: str) -> None:
    method, _ = PAIRS[sign]
    x, tangent = values(5, 5), values(5, 5)
    with forward_ad.dual_level(), offgrad.no_grad():
        dual = forward_ad.make_dual(x, tangent)
        assert forward_ad.unpack_dual(method(dual, values(5, 5))).tangent is not None


def test_autocast() -> None:
    a, b = values(5, 5), values(5, 5)
    with offgrad.autocast("cpu"):
        assert (a @ b).dtype == offgrad.bfloat16
        assert (a + b).dtype == offgrad.float32


def test_a_profile_sees_small_operators() -> None:
    from offgrad.profiler import ProfilerActivity, profile

    a, b = values(5, 5), values(5, 5)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        a @ b + a
    names = {each.key for each in prof.key_averages()}
    assert any("mm" in each.lower() for each in names)
    assert any("add" in each.lower() for each in names)


def test_subclasses_and_parameters() -> None:
    class Mine(Tensor):
        pass

    mine = values(5, 5).as_subclass(Mine)
    assert type(mine + values(5, 5)) is Mine
    parameter = offgrad.nn.Parameter(values(5, 5))
    assert (parameter * 2).requires_grad
    with offgrad.no_grad():
        check_same(parameter * 2, parameter.detach() * 2)


@pytest.mark.parametrize("sign", PAIRS)
def test_small_results_are_computed_directly(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> Any:
        raise AssertionError("the long way")

    monkeypatch.setattr(Op, "_apply", forbidden)
    method, _ = PAIRS[sign]
    a, b = values(5, 5), values(5, 5)
    leaf = values(5, 5).requires_grad_()
    assert not method(a, b).requires_grad
    assert method(leaf, b).requires_grad
    if sign != "@":
        assert method(leaf, values(5)).requires_grad
        assert method(leaf, 2.5).requires_grad


def test_errors_are_those_of_the_operations() -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        values(5, 5) + values(5, 4)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        values(5, 5) @ values(4, 5)
    with pytest.raises(TypeError):
        values(5, 5) + "a"
