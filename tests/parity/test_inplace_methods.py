"""Every method that changes a tensor in place, and assignment: values, dtypes, gradients."""

from collections.abc import Callable
from math import exp, sqrt, tanh
from typing import Any, NamedTuple

import pytest

from tests.parity.conftest import constant, leaf, raises


class Case(NamedTuple):
    """An in-place method, its function of each element, and that function's derivative."""

    change: Callable[[Any, Any], Any]
    value: Callable[[float], float]
    slope: Callable[[float], float]


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def iadd(target: Any, value: Any) -> Any:
    target += value
    return target


def isub(target: Any, value: Any) -> Any:
    target -= value
    return target


def imul(target: Any, value: Any) -> Any:
    target *= value
    return target


def itruediv(target: Any, value: Any) -> Any:
    target /= value
    return target


def ipow(target: Any, value: Any) -> Any:
    target **= value
    return target


def assign(target: Any, index: Any, value: Any) -> Any:
    target[index] = value
    return target


START = (0.5, 2.0)

CASES: dict[str, Case] = {
    "add_": Case(lambda lib, t: t.add_(2), lambda x: x + 2, lambda x: 1),
    "add_ alpha": Case(lambda lib, t: t.add_(3, alpha=2), lambda x: x + 6, lambda x: 1),
    "add_ tensor": Case(
        lambda lib, t: t.add_(constant(lib, 3, 3), alpha=0.5), lambda x: x + 1.5, lambda x: 1
    ),
    "sub_": Case(lambda lib, t: t.sub_(2), lambda x: x - 2, lambda x: 1),
    "sub_ alpha": Case(lambda lib, t: t.sub_(2, alpha=3), lambda x: x - 6, lambda x: 1),
    "mul_": Case(lambda lib, t: t.mul_(3), lambda x: 3 * x, lambda x: 3),
    "mul_ tensor": Case(
        lambda lib, t: t.mul_(constant(lib, 3)), lambda x: 3 * x, lambda x: 3
    ),
    "div_": Case(lambda lib, t: t.div_(4), lambda x: x / 4, lambda x: 0.25),
    "div_ floor": Case(
        lambda lib, t: t.div_(0.75, rounding_mode="floor"), lambda x: x // 0.75, lambda x: 0
    ),
    "pow_ 2": Case(lambda lib, t: t.pow_(2), lambda x: x**2, lambda x: 2 * x),
    "pow_ 0": Case(lambda lib, t: t.pow_(0), lambda x: 1, lambda x: 0),
    "pow_ -1.5": Case(lambda lib, t: t.pow_(-1.5), lambda x: x**-1.5, lambda x: -1.5 * x**-2.5),
    "pow_ tensor": Case(
        lambda lib, t: t.pow_(constant(lib, 3, 3)), lambda x: x**3, lambda x: 3 * x**2
    ),
    "relu_": Case(lambda lib, t: t.sub_(1).relu_(), lambda x: max(x - 1, 0), lambda x: x > 1),
    "sigmoid_": Case(
        lambda lib, t: t.sigmoid_(), sigmoid, lambda x: sigmoid(x) * (1 - sigmoid(x))
    ),
    "tanh_": Case(lambda lib, t: t.tanh_(), tanh, lambda x: 1 - tanh(x) ** 2),
    "exp_": Case(lambda lib, t: t.exp_(), exp, exp),
    "sqrt_": Case(lambda lib, t: t.sqrt_(), sqrt, lambda x: 0.5 / sqrt(x)),
    "neg_": Case(lambda lib, t: t.neg_(), lambda x: -x, lambda x: -1),
    "clamp_": Case(lambda lib, t: t.clamp_(0, 1), lambda x: min(x, 1), lambda x: x < 1),
    "clamp_ min": Case(lambda lib, t: t.clamp_(min=1), lambda x: max(x, 1), lambda x: x > 1),
    "clamp_ max": Case(lambda lib, t: t.clamp_(max=1), lambda x: min(x, 1), lambda x: x < 1),
    "zero_": Case(lambda lib, t: t.zero_(), lambda x: 0, lambda x: 0),
    "fill_": Case(lambda lib, t: t.fill_(7), lambda x: 7, lambda x: 0),
    "fill_ tensor": Case(lambda lib, t: t.fill_(constant(lib, 7)), lambda x: 7, lambda x: 0),
    "copy_": Case(lambda lib, t: t.copy_(constant(lib, 7, 7)), lambda x: 7, lambda x: 0),
    "copy_ of itself": Case(lambda lib, t: t.copy_(t * 3), lambda x: 3 * x, lambda x: 3),
    "masked_fill_": Case(
        lambda lib, t: t.masked_fill_(t.detach() > 1, 7.0),
        lambda x: 7 if x > 1 else x,
        lambda x: x <= 1,
    ),
    "+=": Case(lambda lib, t: iadd(t, 2), lambda x: x + 2, lambda x: 1),
    "-=": Case(lambda lib, t: isub(t, 2), lambda x: x - 2, lambda x: 1),
    "*=": Case(lambda lib, t: imul(t, 2), lambda x: x * 2, lambda x: 2),
    "/=": Case(lambda lib, t: itruediv(t, 2), lambda x: x / 2, lambda x: 0.5),
    "**=": Case(lambda lib, t: ipow(t, 3), lambda x: x**3, lambda x: 3 * x**2),
    "[:] =": Case(lambda lib, t: assign(t, slice(None), 7.0), lambda x: 7, lambda x: 0),
    "[...] =": Case(lambda lib, t: assign(t, ..., t * 3), lambda x: 3 * x, lambda x: 3),
    "[mask] =": Case(
        lambda lib, t: assign(t, t.detach() > 1, 7.0),
        lambda x: 7 if x > 1 else x,
        lambda x: x <= 1,
    ),
    "[mask] *=": Case(
        lambda lib, t: assign(t, t.detach() > 1, t[t.detach() > 1] * 5),
        lambda x: 5 * x if x > 1 else x,
        lambda x: 5 if x > 1 else 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(lib: Any, name: str) -> None:
    case = CASES[name]
    x = leaf(lib, *START)
    y = x * 1
    address = y.data_ptr()
    assert case.change(lib, y) is y
    assert y.data_ptr() == address
    assert y._version > 0
    assert y.requires_grad
    assert y.tolist() == pytest.approx([case.value(each) for each in START])
    y.backward(constant(lib, 1, 10))
    slopes = [float(case.slope(each)) for each in START]
    assert x.grad.tolist() == pytest.approx([slopes[0], 10 * slopes[1]])


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_through_a_view(lib: Any, name: str) -> None:
    case = CASES[name]
    x = leaf(lib, [[9.0, *START, 9.0], [3.0, 3.0, 3.0, 3.0]])
    y = x * 1
    view = y[0, 1:3]
    case.change(lib, view)
    expected = [case.value(each) for each in START]
    assert y.tolist() == [[9, pytest.approx(expected[0]), pytest.approx(expected[1]), 9], [3] * 4]
    assert view.tolist() == pytest.approx(expected)
    y.backward(constant(lib, [[1, 1, 10, 1], [1, 1, 1, 1]]))
    slopes = [float(case.slope(each)) for each in START]
    assert x.grad[0].tolist() == pytest.approx([1, slopes[0], 10 * slopes[1], 1])
    assert x.grad[1].tolist() == [1] * 4


@pytest.mark.parametrize("name", CASES)
def test_second_derivative(lib: Any, name: str) -> None:
    """Of the result's cube, against the chain rule and differences of the slope."""
    case = CASES[name]
    x = leaf(lib, *START)
    y = case.change(lib, x * 1)
    (first,) = lib.autograd.grad((y * y.detach() ** 2).sum(), x, create_graph=True)
    assert first.tolist() == pytest.approx(
        [case.value(each) ** 2 * case.slope(each) for each in START]
    )
    step = 1e-6
    curve = [(case.slope(each + step) - case.slope(each - step)) / (2 * step) for each in START]
    expected = [case.value(each) ** 2 * c for each, c in zip(START, curve, strict=True)]
    if first.requires_grad:
        (second,) = lib.autograd.grad(first.sum(), x, allow_unused=True)
        found = [0.0, 0.0] if second is None else second.tolist()
        assert found == pytest.approx(expected, abs=1e-5)
    else:
        assert expected == pytest.approx([0, 0], abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_leaves_that_require_grad_refuse(lib: Any, name: str) -> None:
    x = leaf(lib, *START)
    with raises(RuntimeError) as info:
        CASES[name].change(lib, x)
    assert "leaf" in str(info.value)
    with raises(RuntimeError) as info:
        CASES[name].change(lib, x.view(2))
    assert "leaf" in str(info.value)
    assert x.tolist() == list(START)
    assert x._version == 0
    assert x.is_leaf
    with lib.no_grad():
        CASES[name].change(lib, x)
    assert x.tolist() == pytest.approx([CASES[name].value(each) for each in START])
    assert x.is_leaf
    assert x.requires_grad
    assert x._version > 0


@pytest.mark.parametrize("name", CASES)
def test_constants_stay_constants(lib: Any, name: str) -> None:
    x = constant(lib, *START)
    CASES[name].change(lib, x)
    assert not x.requires_grad
    assert x.grad_fn is None
    assert x.tolist() == pytest.approx([CASES[name].value(each) for each in START])


# Operands that require grad, into constants and into results.

TAKES: dict[str, tuple[Callable[[Any, Any], Any], list[float], list[float]]] = {
    "add_": (lambda t, v: t.add_(v), [1, 1], [1, 10]),
    "add_ alpha": (lambda t, v: t.add_(v, alpha=2), [1, 1], [2, 20]),
    "sub_": (lambda t, v: t.sub_(v), [1, 1], [-1, -10]),
    "mul_": (lambda t, v: t.mul_(v), [3, 5], [0.5, 20]),
    "div_": (lambda t, v: t.div_(v), [1 / 3, 0.2], [-0.5 / 9, -20 / 25]),
    "copy_": (lambda t, v: t.copy_(v), [0, 0], [1, 10]),
    "assign": (lambda t, v: assign(t, slice(None), v), [0, 0], [1, 10]),
    "assign one": (lambda t, v: assign(t, 1, v[0]), [1, 0], [10, 0]),
    "fill_": (lambda t, v: t.fill_(v[0]), [0, 0], [11, 0]),
    "masked_fill_": (
        lambda t, v: t.masked_fill_(t.detach() > 1, v[1]), [1, 0], [0, 10],
    ),
    "+=": (iadd, [1, 1], [1, 10]),
    "-=": (isub, [1, 1], [-1, -10]),
    "*=": (imul, [3, 5], [0.5, 20]),
    "/=": (itruediv, [1 / 3, 0.2], [-0.5 / 9, -20 / 25]),
    "clamp_": (lambda t, v: t.clamp_(min=v - 2), [0, 0], [1, 10]),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKES)
def test_gradient_of_operands(lib: Any, name: str) -> None:
    change, of_target, of_operand = TAKES[name]
    x, w = leaf(lib, *START), leaf(lib, 3, 5)
    y = x * 1
    change(y, w)
    y.backward(constant(lib, 1, 10))
    assert w.grad.tolist() == pytest.approx(of_operand)
    found = [0, 0] if x.grad is None else x.grad.tolist()
    assert found == pytest.approx([of_target[0], 10 * of_target[1]])


@pytest.mark.parametrize("name", TAKES)
def test_a_constant_becomes_part_of_the_graph(lib: Any, name: str) -> None:
    change, _, of_operand = TAKES[name]
    c, w = constant(lib, *START), leaf(lib, 3, 5)
    change(c, w)
    assert c.requires_grad
    assert not c.is_leaf
    c.backward(constant(lib, 1, 10))
    assert w.grad.tolist() == pytest.approx(of_operand)


@pytest.mark.parametrize("name", TAKES)
def test_a_constant_in_no_grad_mode_does_not(lib: Any, name: str) -> None:
    c, w = constant(lib, *START), leaf(lib, 3, 5)
    with lib.no_grad():
        TAKES[name][0](c, w)
    assert not c.requires_grad
    assert c.is_leaf


def test_copy_broadcasts_and_casts(lib: Any) -> None:
    x = leaf(lib, 1, 2, dtype=lib.float32)
    y = lib.zeros(3, 2, dtype=lib.float64)
    assert y.copy_(x) is y
    assert y.dtype == lib.float64
    y.backward(constant(lib, [[1, 2], [3, 4], [5, 6]]))
    assert x.grad.dtype == lib.float32
    assert x.grad.tolist() == [9, 12]


def test_the_target_keeps_its_dtype(lib: Any) -> None:
    x, w = leaf(lib, 1, 2, dtype=lib.float32), leaf(lib, 3, 4)
    y = x * 1
    y.mul_(w)
    assert y.dtype == lib.float32
    y.sum().backward()
    assert x.grad.dtype == lib.float32
    assert w.grad.dtype == lib.float64
    assert (x.grad.tolist(), w.grad.tolist()) == ([3, 4], [1, 2])


def test_the_target_keeps_its_shape(lib: Any) -> None:
    x, w = leaf(lib, [[1, 2], [3, 4]]), leaf(lib, 10, 20)
    y = x * 1
    y.add_(w).mul_(constant(lib, [[2], [3]]))
    assert y.tolist() == [[22, 44], [39, 72]]
    y.sum().backward()
    assert (x.grad.tolist(), w.grad.tolist()) == ([[2, 2], [3, 3]], [5, 5])


SHAPES: dict[str, Callable[[Any], Any]] = {
    "add_ longer": lambda lib: lib.ones(2).add_(lib.ones(3)),
    "add_ of more dimensions": lambda lib: lib.ones(2).add_(lib.ones(2, 2)),
    "add_ of one dimension to none": lambda lib: lib.tensor(1.0).add_(lib.ones(1)),
    "mul_": lambda lib: lib.ones(1).mul_(lib.ones(2)),
    "copy_": lambda lib: lib.ones(2).copy_(lib.ones(3)),
    "copy_ of more dimensions": lambda lib: lib.ones(2).copy_(lib.ones(1, 2)),
    "masked_fill_": lambda lib: lib.ones(2).masked_fill_(lib.ones(2, 2) > 0, 1.0),
    "fill_ of a vector": lambda lib: lib.ones(2).fill_(lib.ones(1)),
    "clamp_ without bounds": lambda lib: lib.ones(2).clamp_(),
    "clamp_ to more dimensions": lambda lib: lib.ones(2).clamp_(lib.ones(2, 2)),
    "assignment": lambda lib: assign(lib.ones(2), slice(None), lib.ones(3)),
    "assignment through a mask": lambda lib: assign(
        lib.ones(3), lib.tensor([True, True, False]), lib.ones(3)
    ),
    "assignment through an index": lambda lib: assign(lib.ones(3), lib.tensor([0, 1]), lib.ones(3)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_do_not_fit_refuse(lib: Any, name: str) -> None:
    with pytest.raises((RuntimeError, IndexError)):
        SHAPES[name](lib)


DTYPES: dict[str, tuple[str, Callable[[Any, Any], Any], Any]] = {
    "int += float": ("int64", lambda lib, t: t.add_(0.5), None),
    "int *= float tensor": ("int64", lambda lib, t: t.mul_(lib.ones(2)), None),
    "int /= int": ("int64", lambda lib, t: t.div_(2), None),
    "int //= int": ("int64", lambda lib, t: t.div_(2, rounding_mode="floor"), [0, 1]),
    "int sqrt": ("int64", lambda lib, t: t.sqrt_(), None),
    "int exp": ("int64", lambda lib, t: t.exp_(), None),
    "int tanh": ("int64", lambda lib, t: t.tanh_(), None),
    "int relu": ("int64", lambda lib, t: t.sub_(2).relu_(), [0, 0]),
    "int clamp to float": ("int64", lambda lib, t: t.clamp_(min=0.5), None),
    "int clamp": ("int64", lambda lib, t: t.clamp_(max=1), [1, 1]),
    "int fill float": ("int64", lambda lib, t: t.fill_(2.7), [2, 2]),
    "int copy float": ("int64", lambda lib, t: t.copy_(lib.tensor([2.7, -2.7])), [2, -2]),
    "int assign float": ("int64", lambda lib, t: assign(t, 0, 2.7), [2, 2]),
    "int ** float": ("int64", lambda lib, t: t.pow_(0.5), None),
    "int ** -1": ("int64", lambda lib, t: t.pow_(-1), None),
    "int ** int": ("int64", lambda lib, t: t.pow_(3), [1, 8]),
    "int8 += int64": ("int8", lambda lib, t: t.add_(lib.tensor([1, 2])), [2, 4]),
    "int8 += float": ("int8", lambda lib, t: t.add_(lib.ones(2)), None),
    "uint8 wraps": ("uint8", lambda lib, t: t.sub_(2), [255, 0]),
    "bool += int": ("bool", lambda lib, t: t.add_(1), None),
    "bool fill": ("bool", lambda lib, t: t.fill_(2.5), [True, True]),
    "float += complex": ("float32", lambda lib, t: t.add_(1j), None),
    "float /= int": ("float32", lambda lib, t: t.div_(2), [0.5, 1]),
    "float16 += float64": (
        "float16", lambda lib, t: t.add_(constant(lib, 1, 2)), [2, 4],
    ),
    "complex += float": ("complex64", lambda lib, t: t.add_(1), [2, 3]),
    "complex *= complex": ("complex64", lambda lib, t: t.mul_(2j), [2j, 4j]),
    "float masked fill int": (
        "float32", lambda lib, t: t.masked_fill_(t > 1, 5), [1, 5],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_dtype_rules(lib: Any, name: str) -> None:
    dtype, change, expected = DTYPES[name]
    t = lib.tensor([1, 2]).to(getattr(lib, dtype))
    if expected is None:
        with raises(RuntimeError):
            change(lib, t)
        assert t.tolist() == lib.tensor([1, 2]).to(getattr(lib, dtype)).tolist()
        assert t._version == 0
    else:
        change(lib, t)
        assert t.dtype == getattr(lib, dtype)
        assert t.tolist() == expected


def test_masks_are_of_booleans(lib: Any) -> None:
    with raises(RuntimeError):
        lib.ones(2).masked_fill_(lib.tensor([1, 0]), 3.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda lib, t: t.add_(1),
        lambda lib, t: t.mul_(lib.ones(3)),
        lambda lib, t: t.exp_(),
        lambda lib, t: t.copy_(lib.ones(3)),
        lambda lib, t: assign(t, slice(None), lib.ones(3)),
    ],
)
def test_expanded_memory_is_refused(lib: Any, change: Callable[[Any, Any], Any]) -> None:
    x = lib.zeros(1)
    with raises(RuntimeError) as info:
        change(lib, x.expand(3))
    assert "clone" in str(info.value)
    assert x.tolist() == [0]
    assert x._version == 0


def test_expanded_to_its_own_shape_is_not(lib: Any) -> None:
    x = lib.zeros(3)
    x.expand(3).add_(1)
    x[:1].expand(1).add_(1)
    assert x.tolist() == [2, 1, 1]


def test_chains_return_the_tensor(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    z = y.add_(1).mul_(3).pow_(2)
    assert z is y
    assert y.tolist() == [36, 81]
    y.sum().backward()
    assert x.grad.tolist() == [36, 54]


def test_an_operator_rebinds_the_same_object(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = z = x * 1
    y += 1
    y *= 2
    assert y is z
    z.sum().backward()
    assert x.grad.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("t_", ()),
        ("transpose_", (0, 1)),
        ("squeeze_", ()),
        ("unsqueeze_", (0,)),
    ],
)
def test_changes_of_shape(lib: Any, name: str, arguments: tuple[int, ...]) -> None:
    x = leaf(lib, [[1], [2]])
    if not hasattr(lib.Tensor, name):
        pytest.skip(f"{name} is optional, and not there")
    y = x * 1
    expected = getattr(y, name[:-1])(*arguments)
    weight = expected.detach().clone().exp_()
    found = getattr(y, name)(*arguments)
    assert found is y
    assert y.shape == expected.shape
    assert y._version == 1
    (y * weight).sum().backward()
    assert x.grad.flatten().tolist() == pytest.approx([exp(1), exp(2)])
    with raises(RuntimeError):
        getattr(x, name)(*arguments)
