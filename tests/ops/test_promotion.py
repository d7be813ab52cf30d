"""Type promotion is torch's, for every pair of dtypes, 0-dim tensors and Python numbers."""

import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

# Warnings of torch do not matter here.
pytestmark = pytest.mark.filterwarnings("ignore")

DTYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128",
]  # fmt: skip
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
}


def ones(m: Any, dtype: str, ndim: int) -> Any:
    return m.ones((2,) * ndim, dtype=getattr(m, dtype))


def name(dtype: Any) -> str:
    # There is no complex32: complex64 stands for it.
    return str(dtype).removeprefix("torch.").replace("complex32", "complex64")


def dtype_or_error(function: Callable[[], Any]) -> str:
    """Return the dtype of the result, or ``"RuntimeError"`` (a NotImplementedError is one)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return name(function().dtype)
        except RuntimeError:
            return "RuntimeError"


@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("second", DTYPES)
def test_two_tensors(first: str, second: str) -> None:
    for m in range(2):
        for n in range(2):
            pairs = [(ones(each, first, m), ones(each, second, n)) for each in (offgrad, torch)]
            (a, b), (x, y) = pairs
            assert name(offgrad.result_type(a, b)) == name(torch.result_type(x, y)), (m, n)
            assert name((a + b).dtype) == name((x + y).dtype), (m, n)
            assert name((a == b).dtype) == "bool"


@pytest.mark.parametrize("number", [True, 2, 2.5, 1j], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensor_and_number(dtype: str, number: Any) -> None:
    for ndim in range(2):
        a, x = ones(offgrad, dtype, ndim), ones(torch, dtype, ndim)
        assert name(offgrad.result_type(a, number)) == name(torch.result_type(x, number))
        for label, call in OPERATORS.items():
            if dtype == "float16" and isinstance(number, complex):
                continue  # torch's complex32 lacks most operations
            have = dtype_or_error(lambda: call(a, number))  # noqa: B023
            want = dtype_or_error(lambda: call(x, number))  # noqa: B023
            assert have == want, label
            if label == "pow" and (dtype == "bool" or number is True):
                continue
            have = dtype_or_error(lambda: call(number, a))  # noqa: B023
            want = dtype_or_error(lambda: call(number, x))  # noqa: B023
            assert have == want, f"reflected {label}"


@pytest.mark.parametrize("default", ["float32", "float64"])
def test_python_floats_become_the_default_dtype(default: str) -> None:
    def dtypes(m: Any) -> list[str]:
        before = m.get_default_dtype()
        m.set_default_dtype(getattr(m, default))
        try:
            integers = m.ones(2, dtype=m.int64)
            made = [
                m.tensor([1.0]), m.tensor(1j), m.tensor([]), m.tensor([1]), m.tensor(True),
                m.zeros(2), m.full((2,), 1.0), m.arange(3.0), m.arange(3), m.linspace(0, 1, 3),
                m.rand(2), m.randn(2), m.eye(2), integers / 2, integers + 1.5, integers * 1j,
                integers.sqrt(), m.ones(2) * 1j, m.ones(2, dtype=m.bool) + 0.5,
            ]  # fmt: skip
            return [name(each.dtype) for each in made]
        finally:
            m.set_default_dtype(before)

    assert dtypes(offgrad) == dtypes(torch)


REDUCTIONS: list[Callable[[Any], Any]] = [
    lambda x: x.sum(),
    lambda x: x.prod(),
    lambda x: x.cumsum(0),
    lambda x: x.amax(),
    lambda x: x.max(0)[0],
    lambda x: x.any(),
    lambda x: x.all(),
    lambda x: x.exp(),
    lambda x: x.sigmoid(),
    lambda x: x / 2,
    lambda x: x.float().mean(),
    lambda x: x.float().argmax(),
    lambda x: x.sum(dtype=x.float().dtype),
]


@pytest.mark.parametrize("dtype", [each for each in DTYPES if not each.startswith("complex")])
def test_results_of_one_tensor(dtype: str) -> None:
    for index, call in enumerate(REDUCTIONS):
        mine, theirs = (call(ones(m, dtype, 1)) for m in (offgrad, torch))
        assert name(mine.dtype) == name(theirs.dtype), index
        assert mine.shape == tuple(theirs.shape), index


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_conversion(source: str, target: str) -> None:
    def convert(m: Any) -> list[Any]:
        values = m.tensor([0.0, 1.0, 2.75, 100.0]).to(getattr(m, source)).to(getattr(m, target))
        assert name(values.dtype) == target
        return list(values.to(m.complex128).tolist())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert convert(offgrad) == convert(torch)


def test_gradients_come_back_in_the_dtype_of_their_tensor() -> None:
    def run(m: Any) -> list[Any]:
        a = m.tensor([1.0, 2.0], dtype=m.float32, requires_grad=True)
        b = m.tensor([3.0, 4.0], dtype=m.float64, requires_grad=True)
        c = m.tensor(2 + 1j, dtype=m.complex64, requires_grad=True)
        ((a * b * c).sum().abs() + (a @ b.to(m.float32))).backward()
        return [(name(each.grad.dtype), each.grad.tolist()) for each in (a, b, c)]

    for (have, values), (want, expected) in zip(run(offgrad), run(torch), strict=True):
        assert have == want
        assert values == pytest.approx(expected, rel=1e-5)
