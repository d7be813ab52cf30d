"""Operations whose kernels treat large tensors in another way than small ones, on large ones."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from tests.ops.calls import call
from tests.ops.opspec import outputs_of

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

ROWS, COLUMNS = 410, 700  # more elements than a range of the kernels
RNG = np.random.default_rng(3)
INDEX = RNG.integers(0, 400, (ROWS, COLUMNS))
ROW_INDEX = RNG.integers(-ROWS, ROWS, 500)
MASK = RNG.random((ROWS, COLUMNS)) < 0.4
TARGET = RNG.random((ROWS, COLUMNS)).astype(np.float32)

Call = Callable[..., Any]


def _loss(name: str, reduction: str) -> Call:
    return lambda m, x: call(m, f"F.{name}", x, m.tensor(TARGET).to(x.dtype), reduction=reduction)


CALLS: dict[str, Call] = {
    **{
        f"{name}_{reduction}": _loss(name, reduction)
        for name in ("mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss")
        for reduction in ("mean", "sum", "none")
    },
    "bce_with_logits": _loss("binary_cross_entropy_with_logits", "mean"),
    "bce_with_logits_none": _loss("binary_cross_entropy_with_logits", "none"),
    "bce": lambda m, x: call(
        m, "F.binary_cross_entropy", x.sigmoid(), m.tensor(TARGET).to(x.dtype)
    ),
    "both_get_gradients": lambda m, x: call(m, "F.mse_loss", x, x * x),
    **{
        name: lambda m, x, name=name: call(m, f"F.{name}", x)
        for name in (
            "silu",
            "softplus",
            "logsigmoid",
            "mish",
            "elu",
            "selu",
            "celu",
            "leaky_relu",
            "relu6",
            "hardtanh",
            "softshrink",
            "hardshrink",
            "glu",
        )
    },
    **{
        name: lambda m, x, name=name: getattr(m, name)(x)
        for name in ("sigmoid", "tanh", "erf", "erfc", "square")
    },
    **{
        name: lambda m, x, name=name: getattr(m, name)(x / 4)
        for name in ("exp", "exp2", "expm1", "sinh", "cosh", "tan", "atan", "asinh")
    },
    **{
        name: lambda m, x, name=name: getattr(m, name)(x.tanh() * 0.7)
        for name in ("asin", "acos", "atanh", "log1p")
    },
    **{
        name: lambda m, x, name=name: getattr(m, name)(x.abs() + 1.5)
        for name in ("log", "log2", "log10", "rsqrt", "acosh")
    },
    "atan2": lambda m, x: m.atan2(x, x[:1].abs() + 0.5),
    "lerp": lambda m, x: m.lerp(x, x.flip(0), 0.3) + m.lerp(x, x[:1], 0.7),
    "lerp_tensor": lambda m, x: m.lerp(x, x.flip(0), x.sigmoid()),
    "silu_of_a_transpose": lambda m, x: call(m, "F.silu", x.mT) * x.mT,
    "erfinv": lambda m, x: m.erfinv(x.tanh()),
    "sigmoid_in_place": lambda m, x: (x * 1).sigmoid_(),
    "power_of_negative_numbers": lambda m, x: (
        (x + x.sign()) ** m.tensor(INDEX % 5 - 2.0).to(x.dtype)
    ),
    "power_of_numbers_and_a_row": lambda m, x: (x.abs() + 0.5) ** x[:1],
    **{
        f"power_{exponent}": lambda m, x, exponent=exponent: (x.abs() + 0.1) ** exponent
        for exponent in (0, 1, 3, -1, -2, -0.5, 1.7)
    },
    "number_to_the_power": lambda m, x: 2.5**x,
    "hypot": lambda m, x: m.hypot(x, x[0]),
    "logaddexp": lambda m, x: m.logaddexp(x, 2 * x[:, :1]),
    "logaddexp2": lambda m, x: m.logaddexp2(x, 2 * x.flip(0)),
    "remainder": lambda m, x: m.remainder(x, x[:1] + 5),
    "remainder_number": lambda m, x: x % -0.3,
    "remainder_in_place": lambda m, x: (x * 3).remainder_(0.7),
    "fmod": lambda m, x: m.fmod(x, x.flip(1) + 5),
    "floor_divide": lambda m, x: m.div(x, 0.3, rounding_mode="floor") + x,
    "clamp": lambda m, x: x.clamp(-0.5, 0.7),
    "clamp_of_a_transpose": lambda m, x: x.mT.clamp(min=-0.5),
    "masked_fill": lambda m, x: x.masked_fill(m.tensor(MASK), 2.5),
    "masked_fill_rows": lambda m, x: x.masked_fill(m.tensor(MASK[:, :1]), -1.0),
    "maximum": lambda m, x: m.maximum(x, x.flip(0)),
    "gather": lambda m, x: x.gather(0, m.tensor(INDEX)),
    "gather_last": lambda m, x: x.gather(1, m.tensor(INDEX)),
    "gather_of_a_transpose": lambda m, x: x.mT.gather(1, m.tensor(INDEX.T)),
    "scatter_add": lambda m, x: (x * 0).scatter_add(1, m.tensor(INDEX), x),
    "index": lambda m, x: x[m.tensor(ROW_INDEX)],
    "index_columns": lambda m, x: x[:, m.tensor(ROW_INDEX)],
    "index_of_a_transpose": lambda m, x: x.mT[m.tensor(ROW_INDEX)],
    "index_select": lambda m, x: x.index_select(1, m.tensor(ROW_INDEX % COLUMNS)),
    "index_add": lambda m, x: m.index_add(x * 2, 0, m.tensor(ROW_INDEX[:ROWS] % ROWS), x),
    "index_put_add": lambda m, x: m.index_put(
        x * 2, (m.tensor(ROW_INDEX),), x[m.tensor(ROW_INDEX % 7)] * 3, accumulate=True
    ),
    "take": lambda m, x: m.take(x, m.tensor(INDEX - 200)),
    "embedding": lambda m, x: m.nn.functional.embedding(m.tensor(ROW_INDEX % ROWS), x),
    "contiguous": lambda m, x: x.mT.contiguous() * 2,
    "contiguous_cube": lambda m, x: x.reshape(41, 10, 700).permute(2, 0, 1).contiguous() * 2,
    "rot90": lambda m, x: m.rot90(x),
    "flip": lambda m, x: x.flip(1),
    "cumsum": lambda m, x: x.cumsum(0) + x.cumsum(1),
    "sort": lambda m, x: tuple(m.sort(x, 0)) + tuple(m.sort(x, 1, descending=True)),
    "topk": lambda m, x: tuple(m.topk(x, 7, 0)) + tuple(m.topk(x, 3, largest=False)),
    "topk_many": lambda m, x: tuple(m.topk(x, 50)),
    "kthvalue": lambda m, x: tuple(m.kthvalue(x, 50, 1)),
    "median": lambda m, x: m.median(x),
    "max_dim": lambda m, x: tuple(x.max(0)) + tuple(x.min(1, keepdim=True)),
    "argmax": lambda m, x: m.argmax(x, 0) + m.argmin(x, 0),
    "max": lambda m, x: m.max(x) * x.amin(0) + m.amax(x, 1)[:1] - m.amin(x, (0, 1)),
    "logsumexp": lambda m, x: x.logsumexp(1).sum() + x.logsumexp((0, 1)) + x.logsumexp(0).mean(),
    "sum": lambda m, x: x.sum() * x.sum(0) + x.mean(1, keepdim=True) + x.mT.sum((0, 1)),
    "std": lambda m, x: x.std(0) + x.var(),
}


def _gradients(m: Any, function: Call, dtype: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Return values, and first and second derivatives, in random directions."""
    rng = np.random.default_rng(5)
    x = m.tensor(np.random.default_rng(4).standard_normal((ROWS, COLUMNS)).astype(dtype))
    x.requires_grad_()
    outputs = outputs_of(function(m, x))
    recorded = [each for each in outputs if each.requires_grad]
    starts = [
        m.tensor(np.asarray(rng.standard_normal(tuple(each.shape))).astype(dtype))
        for each in recorded
    ]
    force = {"force": True} if m is torch else {}  # also of tensors of zeros without memory
    values = [each.detach().numpy() for each in outputs]
    if not recorded:
        return values, [], []
    first = m.autograd.grad(recorded, [x], starts, create_graph=True)[0]
    second = None
    if first.requires_grad:
        second = m.autograd.grad((first * first).sum(), [x], allow_unused=True)[0]
    return (
        values,
        [first.detach().numpy(**force)],
        [] if second is None else [second.numpy(**force)],
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CALLS)
def test_values_and_derivatives(name: str, dtype: Any) -> None:
    mine = _gradients(offgrad, CALLS[name], dtype)
    theirs = _gradients(torch, CALLS[name], dtype)
    for factor, have, want in zip((1, 1, 30), mine, theirs, strict=True):
        for a, b in zip(have, want, strict=True):
            assert a.shape == b.shape
            size = np.abs(b).max()
            unit = factor * (2e-5 if a.dtype == np.float32 else 1e-10)
            np.testing.assert_allclose(a, b, unit, unit * size)
