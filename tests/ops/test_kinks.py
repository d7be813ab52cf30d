"""Values and gradients at kinks and for NaN are torch's.

Where torch's vectorised loops and the rest of a length differ, the loops count: the points are
repeated to whole vectors.
"""

from typing import Any

import numpy as np
import pytest

import offgrad
from tests.ops.calls import call

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

POINTS = [
    -7.0, -6.0, -3.5, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0, 25.0,
    float("nan"), float("inf"), float("-inf"),
]  # fmt: skip
VECTORS = [*POINTS, -0.0] * 8
FUNCTIONS = [
    "relu", "leaky_relu", "elu", "selu", "celu", "softplus", "softsign", "hardtanh", "relu6",
    "hardsigmoid", "hardswish", "mish", "logsigmoid", "tanhshrink", "softshrink", "hardshrink",
    "silu",
]  # fmt: skip
PIECES = [
    "elu", "selu", "celu", "hardtanh", "relu6", "hardsigmoid", "hardswish", "softshrink",
    "hardshrink",
]  # fmt: skip
PAIRS = ["l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss"]


def _compare(mine: Any, theirs: Any) -> None:
    for have, want in zip(mine, theirs, strict=True):
        assert have.tolist() == pytest.approx(want.tolist(), rel=1e-5, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations(name: str, dtype: str, backend: str) -> None:
    def run(m: Any) -> Any:
        x = m.tensor(VECTORS, dtype=getattr(m, dtype), requires_grad=True)
        y = call(m, f"F.{name}", x)
        return y, *m.autograd.grad(y, x, m.ones_like(y))

    _compare(run(offgrad), run(torch))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", PIECES)
def test_gradients_of_pieces_in_half(name: str, dtype: str, backend: str) -> None:
    def run(m: Any) -> Any:
        x = m.tensor(VECTORS, dtype=getattr(m, dtype), requires_grad=True)
        return m.autograd.grad(call(m, f"F.{name}", x), x, m.ones_like(x))

    for have, want in zip(run(offgrad), run(torch), strict=True):
        assert have.tolist() == pytest.approx(want.tolist(), rel=2e-2, abs=1e-3, nan_ok=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("grad", [float("nan"), float("inf")])
@pytest.mark.parametrize("repeated", [1, 200])  # the second is as large as kernels take
@pytest.mark.parametrize("name", ["relu", "threshold", *PIECES])
def test_gradients_that_are_not_finite(
    name: str, repeated: int, grad: float, dtype: str, backend: str
) -> None:
    """Where a piece is constant nothing passes, not even NaN."""
    parameters = [0.5, 2.0] if name == "threshold" else []

    def run(m: Any) -> Any:
        x = m.tensor(VECTORS * repeated, dtype=getattr(m, dtype), requires_grad=True)
        y = call(m, f"F.{name}", x, *parameters)
        return m.autograd.grad(y, x, m.full_like(x, grad))

    _compare(run(offgrad), run(torch))


@pytest.mark.parametrize("name", ["hardshrink", "softshrink", "threshold"])
def test_bounds_are_rounded_to_the_dtype(name: str) -> None:
    """Also those of NumPy, which are wider than 0.1 of the input."""
    parameters = [np.float64(0.1)] * (2 if name == "threshold" else 1)

    def run(m: Any) -> Any:
        x = m.tensor([0.1, -0.1, 0.10000001, 0.2] * 16, requires_grad=True)
        y = call(m, f"F.{name}", x, *parameters)
        assert y.dtype == m.float32
        return y, *m.autograd.grad(y, x, m.ones_like(y))

    _compare(run(offgrad), run(torch))


@pytest.mark.parametrize("name", ["elu", "selu", "celu"])
def test_exponential_units_keep_the_sign_of_zero(name: str, backend: str) -> None:
    def signs(m: Any) -> Any:
        return m.signbit(call(m, f"F.{name}", m.tensor(VECTORS))).tolist()

    assert signs(offgrad) == signs(torch)


@pytest.mark.parametrize("name", ["elu", "selu", "celu", "hardswish", "softplus"])
def test_second_derivatives(name: str, backend: str) -> None:
    """Also at the thresholds: -3, 0, 3, and 20 of softplus."""

    def run(m: Any) -> Any:
        x = m.tensor([*VECTORS, *[20.0] * 16], requires_grad=True)
        grad = m.ones_like(x).requires_grad_()
        y = call(m, f"F.{name}", x)
        first = m.autograd.grad(y, x, grad, create_graph=True)[0]
        return m.autograd.grad(first, (grad, x), m.ones_like(x))

    _compare(run(offgrad), run(torch))


@pytest.mark.parametrize("name", PAIRS)
def test_losses_of_pairs(name: str) -> None:
    def run(m: Any) -> Any:
        x = m.tensor(POINTS[:-3], requires_grad=True)
        target = m.tensor([float(round(each)) for each in POINTS[:-3]], requires_grad=True)
        y = call(m, f"F.{name}", x, target, reduction="none")
        return y, *m.autograd.grad(y, (x, target), m.ones(len(POINTS) - 3))

    _compare(run(offgrad), run(torch))


def test_binary_cross_entropy_at_the_ends() -> None:
    def run(m: Any) -> Any:
        x = m.tensor([0.0, 1.0, 0.0, 1.0, 0.5], requires_grad=True)
        target = m.tensor([0.0, 0.0, 1.0, 1.0, 0.5])
        y = call(m, "F.binary_cross_entropy", x, target, reduction="none")
        return y, *m.autograd.grad(y, x, m.ones(5))

    _compare(run(offgrad), run(torch))


@pytest.mark.parametrize("name", ["cosine_similarity", "normalize", "pairwise_distance"])
def test_distances_of_zeros(name: str) -> None:
    def run(m: Any) -> Any:
        x = m.zeros(2, 3, requires_grad=True)
        y = call(m, f"F.{name}", *([x] if name == "normalize" else [x, m.ones(2, 3)]))
        return y.detach().reshape(-1), m.autograd.grad(y.sum(), x)[0].reshape(-1)

    _compare(run(offgrad), run(torch))


def test_cdist_of_equal_rows() -> None:
    for p in (1.0, 2.0, 3.0):

        def run(m: Any, p: float = p) -> Any:
            x = m.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
            y = m.cdist(x, x.detach(), p)
            return y.detach().reshape(-1), m.autograd.grad(y.sum(), x)[0].reshape(-1)

        _compare(run(offgrad), run(torch))


@pytest.mark.parametrize("mode", ["use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist"])
@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, float("inf")])
def test_second_derivatives_of_distances_of_0_and_of_ties(p: float, mode: str) -> None:
    """By the gradient of the distances, of which the first derivative is a linear function."""
    x = offgrad.tensor([[1.0, 1.0], [3.0, 4.0], [1.0, 1.0], [2.0, 2.0]], dtype=offgrad.float64)
    x.requires_grad_()
    weight = offgrad.ones(4, 4, dtype=offgrad.float64, requires_grad=True)
    distances = offgrad.cdist(x, x.detach(), p, mode)
    (slope,) = offgrad.autograd.grad((weight * distances).sum(), x, create_graph=True)
    (found,) = offgrad.autograd.grad((slope**2).sum(), weight, retain_graph=True)
    expected = offgrad.zeros(4, 4, dtype=offgrad.float64)
    for i in range(4):
        for j in range(4):
            (part,) = offgrad.autograd.grad(distances[i, j], x, retain_graph=True)
            expected[i, j] = 2 * (slope.detach() * part).sum()
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-12)
    assert (found.diagonal() == 0).all()


def test_an_ignored_row_passes_no_nan() -> None:
    def run(m: Any) -> Any:
        x = m.tensor([[0.0, float("-inf")], [-1.0, -2.0]], requires_grad=True)
        y = call(m, "F.nll_loss", x, m.tensor([1, 0]), ignore_index=1)
        return y.reshape(1), m.autograd.grad(y, x)[0].reshape(-1)

    _compare(run(offgrad), run(torch))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["i1", "i1e", "entr", "log_ndtr"])
def test_derivatives_of_special_functions_at_0_and_far_off(name: str, dtype: str) -> None:
    def run(m: Any) -> Any:
        x = m.tensor([0.0, 1e-30, 0.5, 1.0, 1.5, 9.0, 20.0, 100.0], dtype=getattr(m, dtype))
        x = m.cat([x, -x[4:6]] if name == "log_ndtr" else [x, -x]).requires_grad_()
        first = m.autograd.grad(getattr(m.special, name)(x).sum(), x, create_graph=True)[0]
        return first.detach(), *m.autograd.grad(first.sum(), x)

    for have, want in zip(run(offgrad), run(torch), strict=True):
        assert have.tolist() == pytest.approx(want.tolist(), rel=1e-3, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("name", ["xlogy", "xlog1py"])
def test_no_gradient_passes_a_logarithm_that_is_not_finite(name: str) -> None:
    def run(m: Any) -> Any:
        x = m.tensor([0.0, 1.0, 2.0] * 4, requires_grad=True)
        other = m.tensor([-2.0, -1.0, 0.0, float("inf")]).repeat_interleave(3)
        return m.autograd.grad(getattr(m.special, name)(x, other), x, m.zeros(12))

    _compare(run(offgrad), run(torch))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("repeated", [1, 2000])
@pytest.mark.parametrize("name", ["remainder", "fmod", "floor_divide"])
def test_signs_of_zeros_in_division(name: str, repeated: int, dtype: str, backend: str) -> None:
    numbers = [0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 4.0, float("inf"), float("-inf"), float("nan")]

    def run(m: Any) -> Any:
        a = m.tensor(numbers * repeated).to(getattr(m, dtype))
        results = [call(m, name, a, b) for b in (2.0, -2.0, a.flip(0), m.tensor(-1).to(a.dtype))]
        return [
            (each.float().tolist(), m.signbit(each[~m.isnan(each)]).tolist()) for each in results
        ]

    for have, want in zip(run(offgrad), run(torch), strict=True):
        assert have[0] == pytest.approx(want[0], nan_ok=True)
        assert have[1] == want[1]


def test_losses_warn_of_shapes_that_broadcast() -> None:
    for m in (offgrad, torch):
        for name in PAIRS:
            with pytest.warns(UserWarning, match="broadcast|target size"):
                y = call(m, f"F.{name}", m.ones(2, 3), m.zeros(3))
            assert y.item() in (0.5, 1)
