"""Numbers beside float16 and bfloat16, against PyTorch: computed in float32 and rounded once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

NUMBERS = (0.1, -1.7, 3.3, 100_000.0, 1e-5, 2)
OPERATIONS: dict[str, Callable[..., Any]] = {
    "mul": lambda t, x, number: x * number,
    "rmul": lambda t, x, number: number * x,
    "mul_": lambda t, x, number: x.clone().mul_(number),
    "mul by a tensor": lambda t, x, number: x * t.tensor(number),
    "mul by a float64": lambda t, x, number: x * t.tensor(number, dtype=t.float64),
    "div": lambda t, x, number: x / number,
    "rdiv": lambda t, x, number: number / x,
    "div_": lambda t, x, number: x.clone().div_(number),
    "div by a tensor": lambda t, x, number: x / t.tensor(number),
    "floor": lambda t, x, number: t.div(x, number, rounding_mode="floor"),
    "trunc": lambda t, x, number: t.div(x, number, rounding_mode="trunc"),
    "floor_divide": lambda t, x, number: x // number,
    "add": lambda t, x, number: x + number,
    "sub": lambda t, x, number: number - x,
    "remainder": lambda t, x, number: x % number,
    "addcmul": lambda t, x, number: t.addcmul(x, x, x, value=number),
    "addcdiv": lambda t, x, number: t.addcdiv(x, x, x.abs() + 1, value=number),
    "leaky_relu": lambda t, x, number: t.nn.functional.leaky_relu(x, number),
}
ACTIVATIONS: dict[str, tuple[float, ...]] = {
    "hardshrink": (0.3,), "softshrink": (0.3,), "hardtanh": (-0.7, 0.9), "hardsigmoid": (),
    "relu6": (), "leaky_relu": (0.13,), "threshold": (0.1, -0.3),
}  # fmt: skip


def _numbers(size: int) -> Any:
    return np.random.default_rng(0).standard_normal(size).astype(np.float32) * 3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_numbers_are_not_rounded_to_two_bytes_first(name: str, dtype: str) -> None:
    values = _numbers(2000)
    for number in NUMBERS:
        result, expected = [
            OPERATIONS[name](t, t.tensor(values).to(getattr(t, dtype)), number)
            for t in (offgrad, torch)
        ]
        assert str(result.dtype).split(".")[-1] == str(expected.dtype).split(".")[-1]
        np.testing.assert_array_equal(result.float().numpy(), expected.float().numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_alpha_scales_in_float32(dtype: str) -> None:
    values = _numbers(2000)
    for alpha in (0.1, -1.7, 3.3, 2):
        result, expected = [
            t.add(x, x.flip(0), alpha=alpha).float().numpy()
            for t in (offgrad, torch)
            for x in [t.tensor(values).to(getattr(t, dtype))]
        ]
        differing = result != expected  # PyTorch fuses product and sum; its last ones round between
        assert differing.mean() < 0.01
        np.testing.assert_allclose(result, expected, atol=0.25)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("operation", ["mul", "div"])
def test_gradients_keep_their_dtypes(operation: str, dtype: str) -> None:
    values = _numbers(2000)
    grads = []
    for t in (offgrad, torch):
        x = t.tensor(values).to(getattr(t, dtype)).requires_grad_()
        factor = t.tensor(0.3, requires_grad=True)
        result = getattr(t, operation)(x, factor)
        result.backward(t.ones_like(result) / 16)
        assert x.grad.dtype == x.dtype
        assert factor.grad.dtype == t.float32
        grads.append((x.grad.float().numpy(), factor.grad.item()))
    (x_grad, factor_grad), (x_expected, factor_expected) = grads
    np.testing.assert_array_equal(x_grad, x_expected)
    np.testing.assert_allclose(factor_grad, factor_expected, rtol=2e-2)


@pytest.mark.parametrize("size", [1000, 100_000])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_round_once_at_every_size(name: str, dtype: str, size: int) -> None:
    values, pairs = _numbers(size), []
    for t in (offgrad, torch):
        x = t.tensor(values).to(getattr(t, dtype)).requires_grad_()
        result = getattr(t.nn.functional, name)(x, *ACTIVATIONS[name])
        result.backward(t.tensor(values).to(getattr(t, dtype)))
        pairs.append((result.detach().float().numpy(), x.grad.float().numpy()))
    np.testing.assert_array_equal(*[result for result, _ in pairs])
    np.testing.assert_array_equal(*[grad for _, grad in pairs])


@pytest.mark.parametrize("number", [np.int8(-128), np.int64(-(2**63)), complex(1.7e308, 1.7e308)])
def test_numbers_whose_magnitude_overflows(number: Any) -> None:
    for dtype in ("float32", "float64", "complex128"):
        if isinstance(number, complex) and dtype != "complex128":
            continue
        result, expected = [
            (t.ones(2, dtype=getattr(t, dtype)) * number).tolist() for t in (offgrad, torch)
        ]
        assert result == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_products_are_scaled_before_they_overflow(dtype: str) -> None:
    large = 3e4 if dtype == "float16" else 1e30
    results = []
    for t in (offgrad, torch):
        zero, a, b = (t.tensor([x], dtype=getattr(t, dtype)) for x in (0.0, large, 1 / large))
        product = t.addcmul(zero, a, a, value=1 / large)
        results.append((product.item(), t.addcdiv(zero, b, a, value=large).item()))
    assert results[0] == results[1]


def test_numbers_as_tensors_of_one_element_are_exact() -> None:
    values = _numbers(60)
    result, expected = [
        (t.tensor(values).half() * t.tensor([2049])).float().numpy() for t in (offgrad, torch)
    ]
    np.testing.assert_array_equal(result, expected)


def test_hardshrink_refuses_what_does_not_fit() -> None:
    for t in (offgrad, torch):
        with pytest.raises(RuntimeError):
            t.nn.functional.hardshrink(t.ones(2).half(), 1e6)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "prod": lambda t, x: (x[:, :20] / 2).prod(1),
    "sum": lambda t, x: x.sum(0),
    "logsumexp": lambda t, x: x.logsumexp(1),
    "softmax": lambda t, x: x.softmax(1),
    "layer_norm": lambda t, x: t.nn.functional.layer_norm(x, (500,)),
    "batch_norm": lambda t, x: t.nn.functional.batch_norm(x, None, None, training=True),
    "cross_entropy": lambda t, x: t.nn.functional.cross_entropy(
        x, t.arange(40) % 7, reduction="none"
    ),
    "max_pool": lambda t, x: t.nn.functional.max_pool1d(x[None], 5),
    "attention": lambda t, x: t.nn.functional.scaled_dot_product_attention(
        *(x[:, :64].reshape(1, 2, 20, 64) for _ in range(3)), is_causal=True
    ),
    "linear": lambda t, x: t.nn.functional.linear(x, x[:36], x[:36, 0]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_results_are_nearer_to_the_exact_ones_than_two_roundings(name: str, dtype: str) -> None:
    x = offgrad.tensor(_numbers(20_000).reshape(40, 500)).to(getattr(offgrad, dtype))
    result = REDUCTIONS[name](offgrad, x)
    exact = REDUCTIONS[name](offgrad, x.double()).numpy()
    assert str(result.dtype) == f"torch.{dtype}"
    digits = 11 if dtype == "float16" else 8
    bound = np.abs(exact) * 2.0**-digits * 1.01 + np.abs(exact).max() * 2e-6 + 2.0**-25
    assert (np.abs(result.double().numpy() - exact) <= bound).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_indices_of_halves(dtype: str) -> None:
    values = np.random.default_rng(1).permutation(200).astype(np.float32)  # exact in both
    calls: list[Callable[[Any], Any]] = [
        lambda x: x.topk(7).indices,
        lambda x: x.argsort(descending=True),
        lambda x: x.argmax(),
        lambda x: x.kthvalue(9).indices,
    ]
    for call in calls:
        result, expected = [
            call(t.tensor(values).to(getattr(t, dtype))).numpy() for t in (offgrad, torch)
        ]
        np.testing.assert_array_equal(result, expected)
