"""Results into memory that is given: written where nothing is recorded, refused elsewhere."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.parity.conftest import constant, leaf, raises

# Functions of a vector [0.25, 4] and a scalar operand, with `out` for the vector's shape.
CALLS: dict[str, Callable[..., Any]] = {
    "add": lambda lib, x, **out: lib.add(x, x, **out),
    "add a number": lambda lib, x, **out: lib.add(x, 2, **out),
    "add alpha": lambda lib, x, **out: lib.add(x, x, alpha=3, **out),
    "sub": lambda lib, x, **out: lib.sub(x, 2, **out),
    "mul": lambda lib, x, **out: lib.mul(x, x, **out),
    "div": lambda lib, x, **out: lib.div(x, 2, **out),
    "pow": lambda lib, x, **out: lib.pow(x, 2, **out),
    "exp": lambda lib, x, **out: lib.exp(x, **out),
    "log": lambda lib, x, **out: lib.log(x, **out),
    "sqrt": lambda lib, x, **out: lib.sqrt(x, **out),
    "square": lambda lib, x, **out: lib.square(x, **out),
    "reciprocal": lambda lib, x, **out: lib.reciprocal(x, **out),
    "sin": lambda lib, x, **out: lib.sin(x, **out),
    "cos": lambda lib, x, **out: lib.cos(x, **out),
    "tanh": lambda lib, x, **out: lib.tanh(x, **out),
    "sigmoid": lambda lib, x, **out: lib.sigmoid(x, **out),
    "neg": lambda lib, x, **out: lib.neg(x, **out),
    "abs": lambda lib, x, **out: lib.abs(x, **out),
    "floor": lambda lib, x, **out: lib.floor(x, **out),
    "clamp": lambda lib, x, **out: lib.clamp(x, 0.5, 3, **out),
    "maximum": lambda lib, x, **out: lib.maximum(x, x.flip(0), **out),
    "minimum": lambda lib, x, **out: lib.minimum(x, x.flip(0), **out),
    "where": lambda lib, x, **out: lib.where(x > 1, x, x * 3, **out),
    "matmul": lambda lib, x, **out: lib.matmul(lib.ones(2, 2, dtype=x.dtype), x, **out),
    "cumsum": lambda lib, x, **out: lib.cumsum(x, 0, **out),
    "sum": lambda lib, x, **out: lib.sum(x.expand(3, 2), 0, **out),
    "mean": lambda lib, x, **out: lib.mean(x.expand(3, 2), 0, **out),
    "cat": lambda lib, x, **out: lib.cat([x[1:], x[:1]], **out),
    "stack": lambda lib, x, **out: lib.stack([x[0], x[1]], **out),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_result_is_written_and_returned(lib: Any, name: str) -> None:
    x, out = constant(lib, 0.25, 4), constant(lib, -7, -7)
    address = out.data_ptr()
    found = CALLS[name](lib, x, out=out)
    assert found is out
    assert out.data_ptr() == address
    assert out.tolist() == CALLS[name](lib, x).tolist()
    assert out._version == 1
    assert out.is_leaf
    assert x.tolist() == [0.25, 4]


@pytest.mark.parametrize("name", CALLS)
def test_refused_where_an_operand_requires_grad(lib: Any, name: str) -> None:
    out = constant(lib, -7, -7)
    for x in (leaf(lib, 0.25, 4), leaf(lib, 0.25, 4) * 1):
        with raises(RuntimeError) as info:
            CALLS[name](lib, x, out=out)
        assert "out" in str(info.value)
    assert out.tolist() == [-7, -7]
    assert out._version == 0
    assert not out.requires_grad


@pytest.mark.parametrize("name", CALLS)
def test_refused_where_the_target_requires_grad(lib: Any, name: str) -> None:
    x = constant(lib, 0.25, 4)
    start = leaf(lib, -7, -7)
    for out in (start, start * 1, start[:], start.view(2)):
        with raises(RuntimeError):
            CALLS[name](lib, x, out=out)
        assert out.tolist() == [-7, -7]
        assert out._version == 0


@pytest.mark.parametrize("name", CALLS)
def test_allowed_in_no_grad_mode(lib: Any, name: str) -> None:
    x, out, parameter = leaf(lib, 0.25, 4), constant(lib, -7, -7), leaf(lib, -7, -7)
    with lib.no_grad():
        expected = CALLS[name](lib, x).tolist()
        assert CALLS[name](lib, x, out=out) is out
        assert CALLS[name](lib, x, out=parameter) is parameter
    assert out.tolist() == parameter.tolist() == expected
    assert not out.requires_grad
    assert parameter.requires_grad
    assert parameter.is_leaf
    assert parameter._version == 1


def test_non_differentiable_outputs_are_not_refused(lib: Any) -> None:
    out = lib.tensor([False, False])
    assert lib.eq(leaf(lib, 1, 2), 1, out=out) is out
    assert out.tolist() == [True, False]


CASTS: dict[str, tuple[str, Callable[[Any, Any], Any], Any]] = {
    "float64 to float32": ("float32", lambda lib, out: lib.add(constant(lib, 1, 2), 1, out=out),
                           [2, 3]),
    "float64 to float16": ("float16", lambda lib, out: lib.exp(constant(lib, 0, 0), out=out),
                           [1, 1]),
    "float64 to complex": ("complex128", lambda lib, out: lib.add(constant(lib, 1, 2), 1, out=out),
                           [2, 3]),
    "int to float": ("float32", lambda lib, out: lib.add(lib.tensor([1, 2]), 1, out=out), [2, 3]),
    "int function to float": ("float32", lambda lib, out: lib.exp(lib.tensor([0, 0]), out=out),
                              [1, 1]),
    "int64 to int8": ("int8", lambda lib, out: lib.add(lib.tensor([1, 2]), 1, out=out), [2, 3]),
    "comparison to float": ("float32", lambda lib, out: lib.eq(lib.tensor([1, 2]), 1, out=out),
                            [1, 0]),
    "float to int": ("int64", lambda lib, out: lib.add(constant(lib, 1, 2), 1, out=out), None),
    "int function to int": ("int64", lambda lib, out: lib.exp(lib.tensor([0, 0]), out=out), None),
    "complex to float": ("float64", lambda lib, out: lib.add(constant(lib, 1, 2), 1j, out=out),
                         None),
    "int to bool": ("bool", lambda lib, out: lib.add(lib.tensor([1, 0]), 1, out=out), None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASTS)
def test_casts(lib: Any, name: str) -> None:
    dtype, call, expected = CASTS[name]
    out = lib.zeros(2, dtype=getattr(lib, dtype))
    if expected is None:
        with raises(RuntimeError):
            call(lib, out)
        assert out.tolist() == lib.zeros(2, dtype=getattr(lib, dtype)).tolist()
    else:
        call(lib, out)
        assert out.dtype == getattr(lib, dtype)
        assert out.tolist() == expected


def test_into_a_view(lib: Any) -> None:
    whole = lib.zeros(3, 2, dtype=lib.float64)
    view = whole.t()[1, ::2]
    lib.mul(constant(lib, 1, 2), 5, out=view)
    assert whole.tolist() == [[0, 5], [0, 0], [0, 10]]
    assert whole._version == 1


def test_into_an_operand(lib: Any) -> None:
    x = constant(lib, 1, 2)
    lib.add(x, x, out=x)
    assert x.tolist() == [2, 4]


def test_into_expanded_memory_is_refused(lib: Any) -> None:
    out = lib.zeros(1, dtype=lib.float64)
    with raises(RuntimeError):
        lib.add(constant(lib, 1, 2), 1, out=out.expand(2))
    assert out.tolist() == [0]


def test_only_a_tensor_will_do(lib: Any) -> None:
    with pytest.raises(TypeError):
        lib.add(constant(lib, 1, 2), 1, out=[0, 0])


def test_a_saved_tensor_that_was_written_to_is_refused(lib: Any) -> None:
    x = leaf(lib, 1, 2)
    y = x * 1
    loss = (y * y).sum()
    with lib.no_grad():
        lib.add(y, 1, out=y)
    with pytest.raises(RuntimeError, match="version 1"):
        loss.backward()


def test_a_later_use_of_the_written_tensor(lib: Any) -> None:
    out, x = constant(lib, 0, 0), leaf(lib, 3, 4)
    lib.add(constant(lib, 1, 2), 1, out=out)
    (out * x).sum().backward()
    assert x.grad.tolist() == [2, 3]


FACTORIES: dict[str, Callable[..., Any]] = {
    "zeros": lambda lib, **out: lib.zeros(2, **out),
    "ones": lambda lib, **out: lib.ones(2, **out),
    "full": lambda lib, **out: lib.full((2,), 1, **out),
    "arange": lambda lib, **out: lib.arange(2, **out),
    "linspace": lambda lib, **out: lib.linspace(0, 1, 2, **out),
    "eye": lambda lib, **out: lib.eye(2, 1, **out),
    "randint": lambda lib, **out: lib.randint(0, 2, (2,), **out),
    "sum": lambda lib, **out: lib.sum(lib.ones(2, 2), 0, **out),
    "prod": lambda lib, **out: lib.prod(lib.ones(2, 2), 0, **out),
    "cumsum": lambda lib, **out: lib.cumsum(lib.ones(2), 0, **out),
}


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_the_dtype_is_that_of_out(lib: Any, name: str, dtype: str) -> None:
    shape = (2, 1) if name == "eye" else (2,)
    out = lib.full(shape, 7, dtype=getattr(lib, dtype))
    assert FACTORIES[name](lib, out=out) is out
    assert out.dtype == getattr(lib, dtype)
    assert 7 not in out.flatten().tolist()
    assert FACTORIES[name](lib, out=out, dtype=out.dtype) is out
    for other in {"float32", "float64", "int64"} - {dtype}:
        with raises(RuntimeError):
            FACTORIES[name](lib, out=out, dtype=getattr(lib, other))


EXACT: dict[str, Callable[..., Any]] = {
    "matmul": lambda lib, x, out: lib.matmul(x, x, out=out),
    "clamp": lambda lib, x, out: lib.clamp(x, 0, 1, out=out),
    "where": lambda lib, x, out: lib.where(x > 0, x, x, out=out),
    "gather": lambda lib, x, out: lib.gather(x, 0, lib.zeros(2, 2, dtype=lib.int64), out=out),
    "floor": lambda lib, x, out: lib.floor(x, out=out),
    "neg": lambda lib, x, out: lib.neg(x, out=out),
    "tril": lambda lib, x, out: lib.tril(x, out=out),
    "softmax": lambda lib, x, out: lib.softmax(x, 0, out=out),
    "sort": lambda lib, x, out: lib.sort(x, out=(out, lib.zeros(2, 2, dtype=lib.int64))),
}


@pytest.mark.parametrize("name", EXACT)
def test_some_results_do_not_convert(lib: Any, name: str) -> None:
    x = lib.ones(2, 2)
    EXACT[name](lib, x, lib.zeros(2, 2))
    out = lib.zeros(2, 2, dtype=lib.float64)
    with raises(RuntimeError):
        EXACT[name](lib, x, out)
    assert out.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("name", ["empty_like", "zeros_like", "ones_like", "rand_like"])
def test_functions_without_out(lib: Any, name: str) -> None:
    with raises(TypeError):
        getattr(lib, name)(lib.ones(2), out=lib.zeros(2))
