"""autograd.functional: the same lines with offgrad and with torch, and the expected results."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad.autograd import functional, gradcheck, gradgradcheck

PRODUCTS = ["vjp", "jvp", "vhp", "hvp"]
MATRICES = ["jacobian", "hessian"]


def of(lib: Any, name: str) -> Any:
    """Return a function of the library's autograd.functional."""
    return getattr(importlib.import_module(f"{lib.__name__}.autograd.functional"), name)


def vector(lib: Any, *values: Any, requires_grad: bool = False, dtype: Any = None) -> Any:
    return lib.tensor(values, dtype=dtype or lib.float64, requires_grad=requires_grad)


def agree(result: Any, expected: Any) -> None:
    """Assert that tensors, in nested tuples, have the values and shapes of arrays in the same."""
    assert isinstance(result, tuple) == isinstance(expected, tuple)
    if isinstance(expected, tuple):
        assert len(result) == len(expected)
        for one, other in zip(result, expected, strict=True):
            agree(one, other)
    else:
        array = np.asarray(result.detach().numpy())
        assert array.shape == np.shape(expected)
        np.testing.assert_allclose(array, expected, rtol=1e-6, atol=1e-12)


def flat(result: Any) -> list[Any]:
    """Return the tensors of nested tuples."""
    if not isinstance(result, tuple):
        return [result]
    return [tensor for each in result for tensor in flat(each)]


def cubes(x: Any) -> Any:
    return x * x * x


def cube(x: Any) -> Any:
    return cubes(x).sum()


# Values and forms


def test_signatures_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    for name in PRODUCTS + MATRICES:
        ours, theirs = (inspect.signature(of(each, name)) for each in (offgrad, torch))
        assert [(p.name, p.default, p.kind) for p in ours.parameters.values()] == [
            (p.name, p.default, p.kind) for p in theirs.parameters.values()
        ]


def test_jacobian_of_one_tensor(lib: Any) -> None:
    agree(of(lib, "jacobian")(cubes, vector(lib, 1, -2, 3)), np.diag([3.0, 12.0, 27.0]))


def test_the_jacobian_has_the_shape_of_output_and_input(lib: Any) -> None:
    left = np.arange(6.0).reshape(2, 3)
    right = np.arange(12.0).reshape(3, 4) - 5
    a, b = lib.tensor(left), lib.tensor(right)
    by_a, by_b = of(lib, "jacobian")(lambda a, b: a @ b, (a, b))
    agree(by_a, np.einsum("ik,lj->ijkl", np.eye(2), right))
    agree(by_b, np.einsum("jl,ik->ijkl", np.eye(4), left))


@pytest.mark.parametrize("several_inputs", [False, True])
@pytest.mark.parametrize("several_outputs", [False, True])
def test_results_have_the_form_of_the_arguments(
    lib: Any, several_inputs: bool, several_outputs: bool
) -> None:
    x = vector(lib, 2, 3)
    inputs = (x,) if several_inputs else x

    def func(x: Any) -> Any:
        return (x * x,) if several_outputs else x * x

    def like(form: bool, value: Any) -> Any:
        return (value,) if form else value

    v = vector(lib, 1, 10)
    outputs = like(several_outputs, [4.0, 9.0])
    agree(of(lib, "vjp")(func, inputs, v), (outputs, like(several_inputs, [4.0, 60.0])))
    agree(of(lib, "vjp")(func, inputs, (v,)), (outputs, like(several_inputs, [4.0, 60.0])))
    agree(of(lib, "jvp")(func, inputs, v), (outputs, like(several_outputs, [4.0, 60.0])))
    agree(of(lib, "jvp")(func, inputs, (v,)), (outputs, like(several_outputs, [4.0, 60.0])))
    row = like(several_inputs, np.diag([4.0, 6.0]))
    agree(of(lib, "jacobian")(func, inputs), like(several_outputs, row))
    block = like(several_inputs, like(several_inputs, np.diag([12.0, 18.0])))
    agree(of(lib, "hessian")(cube, inputs), block)
    for name in ("vhp", "hvp"):
        agree(of(lib, name)(cube, inputs, v), (np.array(35.0), like(several_inputs, [12.0, 180.0])))


def test_several_inputs_and_outputs(lib: Any) -> None:
    a, b = vector(lib, 2, 3), lib.tensor(5.0, dtype=lib.float64)

    def func(a: Any, b: Any) -> Any:
        return a * b, b * b, a.sum()

    agree(
        of(lib, "jacobian")(func, (a, b)),
        (
            (np.diag([5.0, 5.0]), [2.0, 3.0]),
            (np.zeros(2), np.array(10.0)),
            (np.ones(2), np.array(0.0)),
        ),
    )
    outputs = ([10.0, 15.0], np.array(25.0), np.array(5.0))
    v_out = (
        vector(lib, 1, 2),
        lib.tensor(3.0, dtype=lib.float64),
        lib.tensor(4.0, dtype=lib.float64),
    )
    agree(of(lib, "vjp")(func, (a, b), v_out), (outputs, ([9.0, 14.0], np.array(38.0))))
    v_in = (vector(lib, 1, 2), lib.tensor(3.0, dtype=lib.float64))
    tangents = ([11.0, 19.0], np.array(30.0), np.array(3.0))
    agree(of(lib, "jvp")(func, (a, b), v_in), (outputs, tangents))


def test_hessian_of_several_inputs(lib: Any) -> None:
    a, b = vector(lib, 2, 3), lib.tensor(5.0, dtype=lib.float64)

    def func(a: Any, b: Any) -> Any:
        return cube(a) * b

    agree(
        of(lib, "hessian")(func, (a, b)),
        ((np.diag([60.0, 90.0]), [12.0, 27.0]), ([12.0, 27.0], np.array(0.0))),
    )
    v = (vector(lib, 1, 2), lib.tensor(3.0, dtype=lib.float64))
    for name in ("vhp", "hvp"):
        value, product = of(lib, name)(func, (a, b), v)
        agree(value, np.array(175.0))
        agree(product, ([96.0, 261.0], np.array(66.0)))


def test_hessian_of_one_element_in_any_shape(lib: Any) -> None:
    x = vector(lib, 2, 3)
    for name in ("vhp", "hvp"):
        value, product = of(lib, name)(lambda x: cube(x).reshape(1, 1), x, x)
        agree(value, [[35.0]])
        agree(product, [24.0, 54.0])
    agree(of(lib, "hessian")(lambda x: cube(x).reshape(1, 1), x), np.diag([12.0, 18.0]))


def test_v_may_be_left_out_where_it_is_one_element(lib: Any) -> None:
    x = vector(lib, 3)
    agree(of(lib, "vjp")(lambda x: (cube(x),), x), ((np.array(27.0),), [27.0]))
    agree(of(lib, "jvp")(cubes, x), ([27.0], [27.0]))
    for name in ("vhp", "hvp"):
        agree(of(lib, name)(cube, x), (np.array(27.0), [18.0]))


def mixed(lib: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a function of two inputs and two outputs without symmetry, and where to take it."""
    generator = np.random.default_rng(1)
    a, b = (lib.tensor(generator.uniform(0.5, 1.5, shape)) for shape in ((2, 3), (3,)))

    def func(a: Any, b: Any) -> Any:
        return (a @ b).sin() * a.sum(), (a * b).exp() / b

    return func, (a, b)


def test_products_are_those_with_the_jacobian(lib: Any) -> None:
    func, inputs = mixed(lib)
    blocks = of(lib, "jacobian")(func, inputs)
    whole = np.block(
        [
            [block.reshape(size, -1).numpy() for block in row]
            for size, row in zip((2, 6), blocks, strict=True)
        ]
    )
    generator = np.random.default_rng(2)
    left = [generator.standard_normal(shape) for shape in ((2,), (2, 3))]
    right = [generator.standard_normal(shape) for shape in ((2, 3), (3,))]
    _, products = of(lib, "vjp")(func, inputs, tuple(map(lib.tensor, left)))
    expected = np.concatenate([each.ravel() for each in left]) @ whole
    agree(products, (expected[:6].reshape(2, 3), expected[6:]))
    _, products = of(lib, "jvp")(func, inputs, tuple(map(lib.tensor, right)))
    expected = whole @ np.concatenate([each.ravel() for each in right])
    agree(products, (expected[:2], expected[2:].reshape(2, 3)))


def test_products_are_those_with_the_hessian(lib: Any) -> None:
    func, inputs = mixed(lib)

    def scalar(a: Any, b: Any) -> Any:
        first, second = func(a, b)
        return first.sum() * second.sum()

    blocks = of(lib, "hessian")(scalar, inputs)
    whole = np.block(
        [
            [block.reshape(size, -1).numpy() for block in row]
            for size, row in zip((6, 3), blocks, strict=True)
        ]
    )
    np.testing.assert_allclose(whole, whole.T)
    v = [np.random.default_rng(3).standard_normal(each.shape) for each in inputs]
    expected = whole @ np.concatenate([each.ravel() for each in v])
    for name in ("vhp", "hvp"):
        _, products = of(lib, name)(scalar, inputs, tuple(map(lib.tensor, v)))
        agree(products, (expected[:6].reshape(2, 3), expected[6:]))


def test_dtypes(lib: Any) -> None:
    single, double = vector(lib, 1, 2, dtype=lib.float32), vector(lib, 3, 4)

    def func(a: Any, b: Any) -> Any:
        return a * b, a * 2

    v_in, v_out = (single, double), (double, single)
    assert [each.dtype for each in flat(of(lib, "jacobian")(func, v_in))] == [
        lib.float32,
        lib.float64,
    ] * 2
    outputs, products = of(lib, "vjp")(func, v_in, v_out)
    assert [each.dtype for each in outputs + products] == [
        lib.float64,
        lib.float32,
        lib.float32,
        lib.float64,
    ]
    outputs, products = of(lib, "jvp")(func, v_in, v_in)
    assert [each.dtype for each in outputs + products] == [lib.float64, lib.float32] * 2
    hessian = of(lib, "hessian")(lambda a, b: (a * a * b).sum(), v_in)
    assert [each.dtype for each in flat(hessian)] == [lib.float32, lib.float64] * 2


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", ["int64", "float16", "float32"])
def test_v_of_another_dtype_is_converted(lib: Any, name: str, dtype: str) -> None:
    func, factor = (cubes, [3.0, 12.0]) if name in ("vjp", "jvp") else (cube, [6.0, 12.0])
    _, product = of(lib, name)(
        func, vector(lib, 1, 2), lib.tensor([1, 2], dtype=getattr(lib, dtype))
    )
    assert product.dtype == lib.float64
    agree(product, np.multiply(factor, [1, 2]))


def test_an_independent_output_has_a_zero_derivative(lib: Any) -> None:
    x, constant = vector(lib, 1, 2), vector(lib, 5, 6, 7)
    agree(
        of(lib, "jacobian")(lambda a, b: constant, (x, constant)),
        (np.zeros((3, 2)), np.zeros((3, 3))),
    )
    agree(of(lib, "jacobian")(lambda x: x.long(), x), np.zeros((2, 2)))
    agree(of(lib, "hessian")(lambda x: constant.sum(), x), np.zeros((2, 2)))
    agree(of(lib, "hessian")(lambda x: x.sum(), x), np.zeros((2, 2)))
    agree(of(lib, "vjp")(lambda x: constant, x, constant), ([5, 6, 7], [0, 0]))
    agree(
        of(lib, "jvp")(lambda x: (constant, x * 2), x, x),
        (([5, 6, 7], [2, 4]), ([0, 0, 0], [2, 4])),
    )
    for name in ("vhp", "hvp"):
        agree(of(lib, name)(lambda a, b: cube(a), (x, x), (x, x)), (np.array(9), ([6, 24], [0, 0])))
        agree(of(lib, name)(lambda x: x.sum(), x, x), (np.array(3), [0, 0]))
        agree(of(lib, name)(lambda x: constant.sum(), x, x), (np.array(18), [0, 0]))


def test_the_function_may_return_its_input(lib: Any) -> None:
    x = vector(lib, 1, 2, requires_grad=True)
    agree(of(lib, "jacobian")(lambda x: x, x), np.eye(2))
    output, product = of(lib, "jvp")(lambda x: (x, x), x, x)
    agree(output, ([1, 2], [1, 2]))
    agree(product, ([1, 2], [1, 2]))
    assert not any(each.requires_grad or each is x for each in output)


def test_one_tensor_given_twice_is_two_inputs(lib: Any) -> None:
    x = vector(lib, 2, 3, requires_grad=True)
    for create_graph in (False, True):
        result = of(lib, "jacobian")(lambda a, b: a * a + b, (x, x), create_graph=create_graph)
        agree(result, (np.diag([4.0, 6.0]), np.eye(2)))


# Zero dimensions and zero elements; strides


def test_zero_dimensions(lib: Any) -> None:
    x = lib.tensor(3.0, dtype=lib.float64)
    agree(of(lib, "jacobian")(cubes, x), np.array(27.0))
    agree(of(lib, "hessian")(cubes, x), np.array(18.0))
    for name, factor in (("vjp", 27), ("jvp", 27), ("vhp", 18), ("hvp", 18)):
        agree(of(lib, name)(cubes, x), (np.array(27.0), np.array(float(factor))))
        agree(of(lib, name)(cubes, x, x), (np.array(27.0), np.array(3.0 * factor)))


def test_zero_elements(lib: Any) -> None:
    none = lib.zeros(0, 3, dtype=lib.float64)
    agree(of(lib, "vjp")(cubes, none, none), (np.zeros((0, 3)), np.zeros((0, 3))))
    agree(of(lib, "jvp")(cubes, none, none), (np.zeros((0, 3)), np.zeros((0, 3))))
    for name in ("vhp", "hvp"):
        agree(of(lib, name)(cube, none, none), (np.array(0.0), np.zeros((0, 3))))
    agree(of(lib, "jacobian")(lambda x: x.sum() * lib.ones(2), none), np.zeros((2, 0, 3)))


@pytest.mark.parametrize("create_graph", [False, True])
def test_jacobians_of_no_outputs_are_empty(create_graph: bool) -> None:
    # torch raises here, from its stack().
    x = vector(offgrad, 1, 2, requires_grad=True)
    agree(functional.jacobian(lambda x: x[:0], x, create_graph), np.zeros((0, 2)))
    agree(functional.hessian(cube, x[:0], create_graph), np.zeros((0, 0)))
    both = functional.jacobian(lambda x: (x[:0], x * x), x, create_graph)
    agree(both, (np.zeros((0, 2)), np.diag([2.0, 4.0])))


@pytest.mark.parametrize("create_graph", [False, True])
def test_strides(lib: Any, create_graph: bool) -> None:
    values = np.arange(1.0, 7).reshape(2, 3)
    base = lib.tensor(values, requires_grad=True)
    third = np.einsum("ik,jl->ijkl", np.eye(3), np.eye(2)) * (3 * values.T**2)
    agree(of(lib, "jacobian")(cubes, base.t(), create_graph=create_graph), third)
    agree(
        of(lib, "jacobian")(lambda x: cubes(x.t()), base.t().t(), create_graph),
        third.transpose(0, 1, 3, 2),
    )
    row = base[:, ::2][0]
    agree(of(lib, "hessian")(cube, row, create_graph=create_graph), np.diag([6.0, 18.0]))
    wide = vector(lib, 2).expand(3)
    agree(of(lib, "jacobian")(cubes, wide, create_graph=create_graph), np.diag([12.0] * 3))
    for name, factor in (("vjp", 12.0), ("jvp", 12.0), ("vhp", 12.0), ("hvp", 12.0)):
        func = cubes if name in ("vjp", "jvp") else cube
        agree(of(lib, name)(func, wide, wide, create_graph)[1], [2 * factor] * 3)
    agree(of(lib, "vjp")(lambda x: cubes(x).t(), base, base.t(), create_graph)[1], 3 * values**3)


# Recording, arguments of the function, unchanged inputs


@pytest.mark.parametrize("name", PRODUCTS + MATRICES)
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("recording", [False, True])
def test_recording(
    lib: Any, name: str, requires_grad: bool, create_graph: bool, recording: bool
) -> None:
    x = vector(lib, 1, 2, requires_grad=requires_grad)
    seen: list[Any] = []

    def func(given: Any) -> Any:
        seen.append((given.requires_grad, given is x, lib.is_grad_enabled(), given.is_leaf))
        return cubes(given) if name in ("vjp", "jvp", "jacobian") else cube(given)

    arguments = (x,) if name in MATRICES else (x, vector(lib, 1, 1))
    with lib.set_grad_enabled(recording):
        result = of(lib, name)(func, *arguments, create_graph=create_graph)
        assert lib.is_grad_enabled() is recording
    assert [each[:3] for each in seen] == [(True, False, True)]
    if name != "hessian":  # Which is the Jacobian of a function that is recorded itself.
        assert seen[0][3] is not (create_graph and requires_grad)
    for each in flat(result):
        assert each.requires_grad is create_graph
        assert (each.grad_fn is not None) is create_graph
    assert x.grad is None


@pytest.mark.parametrize("name", PRODUCTS + MATRICES)
def test_gradients_of_results(lib: Any, name: str) -> None:
    x, v, w = (vector(lib, *values, requires_grad=True) for values in ((1, 2), (3, 4), (5, 6)))

    def func(x: Any) -> Any:
        result = cubes(x) * w
        return result if name in ("vjp", "jvp", "jacobian") else result.sum()

    matrix = name in MATRICES
    result = of(lib, name)(func, *((x,) if matrix else (x, v)), create_graph=True)
    product = result if matrix else result[1]
    found = lib.autograd.grad(product.sum(), [x, w] if matrix else [x, w, v])
    order = 1 if name in ("vjp", "jvp", "jacobian") else 2
    by_x = np.array([6.0, 12]) if order == 1 else np.array([6.0, 6])
    inner = np.array([3.0, 12]) if order == 1 else np.array([6.0, 12])
    wide, tall = (1.0, 1.0) if matrix else (np.array([3.0, 4]), np.array([5.0, 6]))
    agree(found[0], by_x * wide * np.array([5.0, 6]))
    agree(found[1], inner * wide)
    if not matrix:
        agree(found[2], inner * tall)


def test_gradients_of_the_outputs(lib: Any) -> None:
    x = vector(lib, 1, 2, requires_grad=True)
    for name in PRODUCTS:
        func = cubes if name in ("vjp", "jvp") else cube
        output, _ = of(lib, name)(func, x, vector(lib, 1, 1), create_graph=True)
        agree(lib.autograd.grad(output.sum(), x)[0], [3.0, 12.0])


def test_jacobians_of_jacobians(lib: Any) -> None:
    x = vector(lib, 2, 3)
    jacobian, hessian = of(lib, "jacobian"), of(lib, "hessian")

    def power(x: Any) -> Any:
        return (x**4).sum()

    def first(x: Any) -> Any:
        return jacobian(power, x, create_graph=True)

    def second(x: Any) -> Any:
        return jacobian(first, x, create_graph=True)

    agree(first(x), [32.0, 108.0])
    agree(jacobian(first, x), np.diag([48.0, 108.0]))
    agree(jacobian(first, x), hessian(power, x).numpy())
    third = np.zeros((2, 2, 2))
    third[0, 0, 0], third[1, 1, 1] = 48, 72
    agree(jacobian(second, x), third)
    agree(jacobian(lambda x: hessian(power, x, create_graph=True), x), third)
    fourth = np.zeros((2, 2, 2, 2))
    fourth[0, 0, 0, 0] = fourth[1, 1, 1, 1] = 24
    agree(jacobian(lambda x: jacobian(second, x, create_graph=True), x), fourth)
    agree(hessian(lambda x: hessian(power, x, create_graph=True).sum(), x), np.diag([24.0, 24.0]))


def test_products_of_products(lib: Any) -> None:
    x, v = vector(lib, 2, 3), vector(lib, 1, 10)
    forward, backward = of(lib, "jvp"), of(lib, "vjp")

    def slope(x: Any) -> Any:
        return backward(cube, x, create_graph=True)[1]

    agree(forward(slope, x, v), ([12.0, 27.0], [12.0, 180.0]))
    agree(backward(slope, x, v), ([12.0, 27.0], [12.0, 180.0]))
    agree(forward(lambda x: forward(cubes, x, v, create_graph=True)[1], x, v)[1], [12.0, 1800.0])
    agree(
        of(lib, "jacobian")(lambda v: forward(cubes, x, v, create_graph=True)[1], v),
        np.diag([12.0, 27]),
    )


def test_nothing_else_is_touched(lib: Any) -> None:
    x, w = vector(lib, 1, 2, requires_grad=True), vector(lib, 3, 4, requires_grad=True)
    outside = w * w
    for _ in range(2):  # The graph of `outside` must outlive each call.
        agree(of(lib, "jacobian")(lambda x: x * outside, x), np.diag([9.0, 16.0]))
        agree(of(lib, "hessian")(lambda x: (x * x * outside).sum(), x), np.diag([18.0, 32.0]))
        for name in PRODUCTS:
            func: Callable[..., Any] = cubes if name in ("vjp", "jvp") else cube
            of(lib, name)(lambda x, func=func: func(x * outside), x, x)
    assert x.grad is None
    assert w.grad is None
    outside.sum().backward()
    agree(w.grad, [6.0, 8.0])


@pytest.mark.parametrize("name", PRODUCTS + MATRICES)
def test_errors_of_the_function_pass_through(lib: Any, name: str) -> None:
    def func(x: Any) -> Any:
        raise KeyError("its own")

    x = vector(lib, 1, requires_grad=True)
    with lib.no_grad():
        with pytest.raises(KeyError, match="its own"):
            of(lib, name)(func, x)
        assert not lib.is_grad_enabled()
    assert lib.is_grad_enabled()


def test_in_place_operations_within(lib: Any) -> None:
    x = vector(lib, 1, 2, 3, requires_grad=True)

    def func(x: Any) -> Any:
        y = (x * x).add_(1)
        return (y * y).mul_(2)

    # 2 (x^2 + 1)^2
    agree(of(lib, "jacobian")(func, x), np.diag([16.0, 80.0, 240.0]))
    agree(of(lib, "hessian")(lambda x: func(x).sum(), x), np.diag([32.0, 104.0, 224.0]))
    agree(of(lib, "vjp")(func, x, lib.ones_like(x))[1], [16.0, 80.0, 240.0])
    agree(of(lib, "jvp")(func, x, lib.ones_like(x))[1], [16.0, 80.0, 240.0])
    agree(x, [1.0, 2.0, 3.0])


def test_in_place_operations_on_views_within(lib: Any) -> None:
    x = vector(lib, 1, 2, 3)

    def func(x: Any) -> Any:
        y = x.clone()
        y[1:].add_(x[:2])
        y[0] = x[2] * x[2]
        return y

    agree(of(lib, "jacobian")(func, x), [[0.0, 0.0, 6.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    agree(of(lib, "jvp")(func, x, lib.ones_like(x))[1], [6.0, 2.0, 2.0])


@pytest.mark.parametrize("create_graph", [False, True])
def test_inputs_may_not_be_changed(lib: Any, create_graph: bool) -> None:
    x = vector(lib, 1, 2, requires_grad=True)
    for name in ("vjp", "jvp", "jacobian"):
        arguments = (x,) if name == "jacobian" else (x, x)
        with pytest.raises(RuntimeError, match="leaf"):
            of(lib, name)(lambda x: x.mul_(2), *arguments, create_graph=create_graph)
    agree(x, [1.0, 2.0])


def test_functions_that_cannot_be_differentiated_twice() -> None:
    # torch gives zeros here: its node that raises is not on the way to v or the inputs.
    class Square(offgrad.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @offgrad.autograd.once_differentiable
        def backward(ctx: Any, *grads: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grads[0] * x * 2

    x = vector(offgrad, 1, 2)
    agree(functional.jacobian(Square.apply, x), np.diag([2.0, 4.0]))
    agree(functional.vjp(Square.apply, x, x)[1], [2.0, 8.0])
    with pytest.raises(RuntimeError, match="once_differentiable"):
        functional.jvp(Square.apply, x, x)
    for product in (functional.vhp, functional.hvp):
        with pytest.raises(RuntimeError, match="once_differentiable"):
            product(lambda x: Square.apply(x).sum(), x, x)


# Complex numbers: the gradient of a real L by x + iy is dL/dx + i dL/dy


def test_complex_inputs(lib: Any) -> None:
    values = np.array([1 + 2j, 3 - 1j])
    z, v = lib.tensor(values), lib.tensor([1j, 2 + 1j], dtype=lib.complex128)

    def norms(z: Any) -> Any:
        return (z * z.conj()).real

    agree(of(lib, "jacobian")(norms, z), np.diag(2 * values))
    agree(of(lib, "vjp")(norms, z, vector(lib, 1, 2))[1], 2 * values * [1, 2])
    agree(of(lib, "jvp")(norms, z, v)[1], 2 * (values.conj() * v.numpy()).real)
    for name in ("vhp", "hvp"):
        agree(of(lib, name)(lambda z: norms(z).sum(), z, v)[1], 2 * v.numpy())


def test_complex_outputs_of_products(lib: Any) -> None:
    values = np.array([1 + 2j, 3 - 1j])
    z, v = lib.tensor(values), lib.tensor([1j, 2 + 1j], dtype=lib.complex128)
    agree(of(lib, "vjp")(lambda z: z * z, z, v), (values**2, v.numpy() * 2 * values.conj()))
    agree(of(lib, "jvp")(lambda z: z * z, z, v), (values**2, v.numpy() * 2 * values))
    x = vector(lib, 1, 2)
    agree(of(lib, "vjp")(lambda x: x * z, x, v)[1], (v.numpy() * values.conj()).real)
    agree(of(lib, "jvp")(lambda x: x * z, x, x)[1], [1, 2] * values)


@pytest.mark.parametrize(
    "call",
    [
        lambda lib, z, x: of(lib, "jacobian")(lambda z: z * z, z),
        lambda lib, z, x: of(lib, "jacobian")(lambda x: x * z, x),
        lambda lib, z, x: of(lib, "hessian")(lambda z: (z * z.conj()).real.sum(), z),
        lambda lib, z, x: of(lib, "vhp")(lambda z: (z * z).sum(), z, z),
        lambda lib, z, x: of(lib, "hvp")(lambda z: (z * z).sum(), z, z),
        lambda lib, z, x: of(lib, "vjp")(lambda z: (z * z).sum(), z),
        lambda lib, z, x: of(lib, "jvp")(lambda z: z * z, z[:1]),
        lambda lib, z, x: of(lib, "vjp")(lambda z: z * z, z, x),
        lambda lib, z, x: of(lib, "vjp")(cubes, x, z),
        lambda lib, z, x: of(lib, "jvp")(cubes, x, z),
        lambda lib, z, x: of(lib, "jvp")(cubes, z, x),
        lambda lib, z, x: of(lib, "hvp")(lambda z: (z * z.conj()).real.sum(), z, x),
    ],
)
def test_complex_where_it_has_no_meaning(lib: Any, call: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match=r"complex|real"):
        call(lib, lib.tensor([1 + 2j, 3 - 1j], dtype=lib.complex128), vector(lib, 1, 2))


# Errors


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (TypeError, lambda lib, x: of(lib, "jacobian")(cubes, [x])),
        (TypeError, lambda lib, x: of(lib, "vjp")(cubes, None, x)),
        (TypeError, lambda lib, x: of(lib, "jvp")(cubes, 3.0, x)),
        (TypeError, lambda lib, x: of(lib, "hessian")(lambda a, b: cube(a), (x, 3))),
        (TypeError, lambda lib, x: of(lib, "jacobian")(lambda x: [x * x], x)),
        (TypeError, lambda lib, x: of(lib, "vjp")(lambda x: None, x, x)),
        (TypeError, lambda lib, x: of(lib, "jvp")(lambda x: (x, 3), x, x)),
        (TypeError, lambda lib, x: of(lib, "hvp")(lambda x: 3.0, x, x)),
        (TypeError, lambda lib, x: of(lib, "vjp")(cubes, x, [x])),
        (TypeError, lambda lib, x: of(lib, "jvp")(cubes, x, [1.0, 2.0])),
        (TypeError, lambda lib, x: of(lib, "jacobian")(None, x)),
        (IndexError, lambda lib, x: of(lib, "jacobian")(lambda: x, ())),
        (IndexError, lambda lib, x: of(lib, "jacobian")(lambda x: (), x)),
        (RuntimeError, lambda lib, x: of(lib, "vjp")(cubes, x)),
        (RuntimeError, lambda lib, x: of(lib, "vjp")(lambda x: (cube(x), cube(x)), x)),
        (RuntimeError, lambda lib, x: of(lib, "jvp")(cubes, x)),
        (RuntimeError, lambda lib, x: of(lib, "jvp")(lambda a, b: cube(a), (x[:1], x[1:]))),
        (RuntimeError, lambda lib, x: of(lib, "vhp")(cube, x)),
        (RuntimeError, lambda lib, x: of(lib, "hvp")(cube, x)),
        (RuntimeError, lambda lib, x: of(lib, "vjp")(cubes, x, (x, x))),
        (RuntimeError, lambda lib, x: of(lib, "vjp")(lambda x: (x, x), x, x)),
        (RuntimeError, lambda lib, x: of(lib, "jvp")(cubes, x, ())),
        (RuntimeError, lambda lib, x: of(lib, "vjp")(cubes, x, x.reshape(1, 2))),
        (RuntimeError, lambda lib, x: of(lib, "jvp")(cubes, x, x[:1])),
        (RuntimeError, lambda lib, x: of(lib, "vhp")(cube, x, x[0])),
        (RuntimeError, lambda lib, x: of(lib, "hvp")(cube, x, lib.ones(3))),
        (RuntimeError, lambda lib, x: of(lib, "vhp")(cubes, x, x)),
        (RuntimeError, lambda lib, x: of(lib, "hvp")(cubes, x, x)),
        (RuntimeError, lambda lib, x: of(lib, "hessian")(cubes, x)),
        (RuntimeError, lambda lib, x: of(lib, "vhp")(lambda x: (cube(x),), x, x)),
        (RuntimeError, lambda lib, x: of(lib, "hvp")(lambda x: (cube(x), cube(x)), x, x)),
        (RuntimeError, lambda lib, x: of(lib, "hessian")(lambda x: (cube(x),), x)),
        (RuntimeError, lambda lib, x: of(lib, "jacobian")(cubes, x.long())),
        (RuntimeError, lambda lib, x: of(lib, "vjp")(cubes, x.long(), x)),
        (RuntimeError, lambda lib, x: of(lib, "jvp")(lambda x: x.long(), x, x)),
        (AssertionError, lambda lib, x: of(lib, "jacobian")(cubes, x, strategy="sideways")),
        (AssertionError, lambda lib, x: of(lib, "hessian")(cube, x, outer_jacobian_strategy="up")),
        (RuntimeError, lambda lib, x: of(lib, "jacobian")(cubes, x, strict=True, vectorize=True)),
        (RuntimeError, lambda lib, x: of(lib, "hessian")(cube, x, strict=True, vectorize=True)),
        (
            RuntimeError,
            lambda lib, x: of(lib, "jacobian")(cubes, x, strict=True, strategy="forward-mode"),
        ),
        (
            NotImplementedError,
            lambda lib, x: of(lib, "jacobian")(cubes, x, strategy="forward-mode"),
        ),
        (
            NotImplementedError,
            lambda lib, x: of(lib, "hessian")(cube, x, outer_jacobian_strategy="forward-mode"),
        ),
        (
            NotImplementedError,
            lambda lib, x: of(lib, "jacobian")(
                cubes, x, create_graph=True, strategy="forward-mode"
            ),
        ),
    ],
)
def test_errors(lib: Any, error: type[Exception], call: Callable[..., Any]) -> None:
    with pytest.raises(error) as caught:
        call(lib, vector(lib, 1, 2))
    assert type(caught.value) is error


def test_a_name_that_does_not_exist(lib: Any) -> None:
    with pytest.raises(AttributeError):
        of(lib, "derivative")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_options_that_give_the_same_in_another_way(lib: Any) -> None:
    x = vector(lib, 1, 2)
    for name, func, option in (
        ("jacobian", cubes, "strategy"),
        ("hessian", cube, "outer_jacobian_strategy"),
    ):
        plain = of(lib, name)(func, x)
        for strategy in ("reverse-mode", "forward-mode"):
            found = of(lib, name)(func, x, vectorize=True, **{option: strategy})
            assert found.tolist() == plain.tolist()
        recorded = of(lib, name)(func, x.requires_grad_(), vectorize=True, create_graph=True)
        assert recorded.requires_grad


def test_messages_name_the_argument() -> None:
    x = vector(offgrad, 1, 2)
    with pytest.raises(
        RuntimeError, match=r"should be torch\.Size\(\[2\]\) but got .*\[3\].* entry 0"
    ):
        functional.vjp(cubes, x, offgrad.ones(3))
    with pytest.raises(TypeError, match=r"The v given to jvp must be .*got int at index 1"):
        functional.jvp(cubes, x, (x, 1))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"hessian should contain a single element.*\[2\].*sum"):
        functional.hessian(cubes, x)
    with pytest.raises(RuntimeError, match="is independent of input 1"):
        functional.jacobian(lambda a, b: a * a, (x, x), strict=True)


# strict


@pytest.mark.parametrize("name", PRODUCTS + MATRICES)
@pytest.mark.parametrize("create_graph", [False, True])
def test_strict(lib: Any, name: str, create_graph: bool) -> None:
    x = vector(lib, 1, 2, requires_grad=True)
    second = name in ("hessian", "vhp", "hvp")

    def run(func: Callable[..., Any], *inputs: Any) -> Any:
        v = () if name in MATRICES else (inputs if name != "vjp" else x.detach(),)
        return of(lib, name)(
            (lambda *given: func(*given).sum()) if second else func,
            inputs,
            *v,
            create_graph=create_graph,
            strict=True,
        )

    result = run(cubes, x)
    assert all(each.requires_grad is create_graph for each in flat(result))
    for func, *inputs in (
        (lambda x: vector(lib, 1, 2), x),
        (lambda x: x.detach() * 2, x),
        (lambda a, b: cubes(a), x, x),
        (lambda a, b: cubes(a) + b * 0 if second else cubes(b), x, x),
    ):
        with pytest.raises(RuntimeError):
            run(func, *inputs)


@pytest.mark.parametrize("name", ["vjp", "jvp", "jacobian"])
def test_strict_with_a_constant_jacobian(lib: Any, name: str) -> None:
    x = vector(lib, 1, 2, requires_grad=True)
    v = () if name == "jacobian" else (x.detach(),)
    of(lib, name)(lambda x: x * 2, x, *v, strict=True)
    with pytest.raises(RuntimeError):
        of(lib, name)(lambda x: x * 2, x, *v, strict=True, create_graph=True)
    with pytest.raises(RuntimeError):
        of(lib, name)(lambda x: x, x, *v, strict=True, create_graph=True)
    if v:  # It depends on v, which is enough.
        of(lib, name)(lambda x: x * 2, x, x, strict=True, create_graph=True)


def test_strict_sees_every_output(lib: Any) -> None:
    x = vector(lib, 1, 2)
    for name in ("jvp", "jacobian", "vjp"):
        v: tuple[Any, ...] = {"jvp": (x,), "vjp": ((x, x),)}.get(name, ())
        with pytest.raises(RuntimeError, match="utput 1"):
            of(lib, name)(lambda x: (x * x, vector(lib, 1, 2)), x, *v, strict=True)


# Saved tensors elsewhere


def test_under_hooks_of_saved_tensors(lib: Any) -> None:
    func, inputs = mixed(lib)

    def scalar(*inputs: Any) -> Any:
        return sum(each.sum() for each in func(*inputs))

    counts = {"pack": 0, "unpack": 0}

    def pack(tensor: Any) -> Any:
        counts["pack"] += 1
        return tensor.detach().numpy().copy()

    def unpack(array: Any) -> Any:
        counts["unpack"] += 1
        return lib.tensor(array)

    plain = everything(lib, func, scalar, inputs)
    with lib.autograd.graph.saved_tensors_hooks(pack, unpack):
        hooked = everything(lib, func, scalar, inputs)
    assert counts["unpack"] >= counts["pack"] > 50
    # Not to the bit: pack copies to contiguous memory, for which BLAS may run another kernel.
    agree(tuple(flat(hooked)), tuple(each.detach().numpy() for each in flat(plain)))


@pytest.mark.parametrize("policy", ["pool", "disk", "keep"])
def test_under_a_policy(policy: str) -> None:
    func, inputs = mixed(offgrad)

    def scalar(*inputs: Any) -> Any:
        return sum(each.sum() for each in func(*inputs))

    plain = everything(offgrad, func, scalar, inputs)
    with offgrad.offload(policy):
        offloaded = everything(offgrad, func, scalar, inputs)
    for one, other in zip(flat(offloaded), flat(plain), strict=True):
        assert np.array_equal(one.detach().numpy(), other.detach().numpy())


def everything(
    lib: Any, func: Callable[..., Any], scalar: Callable[..., Any], inputs: tuple[Any, ...]
) -> Any:
    """Return the results of every function, of two orders, and of a Jacobian's gradient."""
    outputs = tuple(each.detach() for each in func(*inputs))
    leaves = tuple(each.detach().requires_grad_() for each in inputs)
    recorded = of(lib, "jacobian")(func, leaves, create_graph=True)
    total = sum((each * each).sum() for each in flat(recorded))
    return (
        of(lib, "jacobian")(func, inputs),
        of(lib, "hessian")(scalar, inputs),
        of(lib, "vjp")(func, inputs, outputs),
        of(lib, "jvp")(func, inputs, inputs),
        of(lib, "vhp")(scalar, inputs, inputs),
        of(lib, "hvp")(scalar, inputs, inputs),
        lib.autograd.grad(total, leaves),
    )


# Of offgrad alone


@pytest.mark.parametrize("name", PRODUCTS + MATRICES)
def test_results_are_differentiable(name: str) -> None:
    def run(x: Any, *v: Any) -> Any:
        func = cubes if name in ("vjp", "jvp", "jacobian") else cube
        result = of(offgrad, name)(lambda x: func(x.sin()), x, *v, create_graph=True)
        return tuple(flat(result))

    x, v = (vector(offgrad, *values, requires_grad=True) for values in ((0.5, 2), (3, 4)))
    inputs = (x,) if name in MATRICES else (x, v)
    assert gradcheck(run, inputs)
    assert gradgradcheck(run, inputs)


def test_a_whole_jacobian_keeps_no_graph() -> None:
    x = offgrad.randn(200, dtype=offgrad.float64)
    before = offgrad.memory.allocated()
    result = functional.jacobian(lambda x: (x * 2).exp(), x)
    assert offgrad.memory.allocated() - before == result.nbytes


def test_it_can_be_reached_from_autograd() -> None:
    assert offgrad.autograd.functional is importlib.import_module("offgrad.autograd.functional")
    assert functional.__all__ == sorted(PRODUCTS + MATRICES)
