"""Quantized tensors and fake quantization, compared with PyTorch."""

import pickle
from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

RNG = np.random.default_rng(0)
X = (RNG.standard_normal((3, 5)) * 4).astype(np.float32)
X[0, 0], X[1, 1] = 0, 100


def quantized(m: Any, kind: str = "qint8") -> Any:
    return m.quantize_per_tensor(m.tensor(X), 0.07, 3, getattr(m, kind))


def by_channel(m: Any, axis: int = 0) -> Any:
    count = X.shape[axis]
    scales, zeros = m.arange(1, count + 1) * 0.05, m.arange(count)
    return m.quantize_per_channel(m.tensor(X), scales, zeros, axis, m.quint8)


MADE: dict[str, Any] = {
    "qint8": quantized,
    "quint8": lambda m: quantized(m, "quint8"),
    "qint32": lambda m: quantized(m, "qint32"),
    "rows": by_channel,
    "columns": lambda m: by_channel(m, 1),
    "dynamic": lambda m: m.quantize_per_tensor_dynamic(m.tensor(X), m.qint8, False),
    "dynamic reduced": lambda m: m.quantize_per_tensor_dynamic(m.tensor(X), m.quint8, True),
    "dynamic positive": lambda m: m.quantize_per_tensor_dynamic(m.tensor(X).abs(), m.quint8, False),
    "dynamic zero": lambda m: m.quantize_per_tensor_dynamic(m.zeros(2), m.quint8, False),
    "list": lambda m: m.quantize_per_tensor(
        [m.tensor(X), m.ones(2)], m.tensor([0.1, 0.2]), m.tensor([0, 1]), m.qint8
    )[1],
    "view": lambda m: quantized(m).view(5, 3),
    "transposed": lambda m: quantized(m).t(),
    "row": lambda m: quantized(m)[1],
    "relu": lambda m: m.relu(quantized(m)),
    "clone": lambda m: by_channel(m).clone(),
}


@pytest.mark.parametrize("name", MADE)
def test_quantized(name: str) -> None:
    mine, theirs = MADE[name](offgrad), MADE[name](torch)
    np.testing.assert_array_equal(mine.int_repr().numpy(), theirs.int_repr().numpy())
    np.testing.assert_array_equal(mine.dequantize().numpy(), theirs.dequantize().numpy())
    assert mine.shape == tuple(theirs.shape)
    assert mine.is_quantized
    assert mine.element_size() == theirs.element_size()
    assert str(mine.dtype) == str(theirs.dtype)
    assert str(mine.qscheme()) == str(theirs.qscheme())
    if str(mine.qscheme()).endswith("per_tensor_affine"):
        assert (mine.q_scale(), mine.q_zero_point()) == (theirs.q_scale(), theirs.q_zero_point())
    else:
        assert mine.q_per_channel_axis() == theirs.q_per_channel_axis()
        assert mine.q_per_channel_scales().tolist() == theirs.q_per_channel_scales().tolist()
    if name in ("qint8", "row", "rows"):
        assert repr(mine) == repr(theirs)
    assert pickle.loads(pickle.dumps(mine)).equal(mine)


def test_functions_and_errors() -> None:
    for m in (offgrad, torch):
        x = quantized(m)
        assert (m.q_scale(x), m.q_zero_point(x)) == (0.07, 3)
        assert m.int_repr(x).dtype == m.int8
        assert m.dequantize(m.ones(2, dtype=m.float64)).dtype == m.float32
        with pytest.raises(NotImplementedError):
            x + x
        with pytest.raises(RuntimeError):
            x.q_per_channel_axis()
        for dtype, source in ((m.int8, m.ones(2)), (m.qint8, m.ones(2, dtype=m.float64))):
            with pytest.raises(RuntimeError):
                m.quantize_per_tensor(source, 0.1, 0, dtype)
        with pytest.raises((RuntimeError, NotImplementedError)):
            m.ones(1).q_scale()
    assert pickle.loads(pickle.dumps(offgrad.qint8)) is offgrad.qint8
    assert pickle.loads(pickle.dumps(offgrad.per_tensor_affine)) is offgrad.per_tensor_affine


FAKE: dict[str, Any] = {
    "tensor": lambda m, x: m.fake_quantize_per_tensor_affine(x, 0.1, 3, -8, 7),
    "tensor parameters": lambda m, x: m.fake_quantize_per_tensor_affine(
        x, m.tensor([0.3]), m.tensor([2], dtype=m.int32), 0, 255
    ),
    "rows": lambda m, x: m.fake_quantize_per_channel_affine(
        x, m.tensor([0.1, 0.2, 0.4]), m.tensor([0, 1, -2], dtype=m.int32), 0, -8, 7
    ),
    "columns": lambda m, x: m.fake_quantize_per_channel_affine(
        x, m.arange(1.0, 6) / 3, m.zeros(5), 1, -128, 127
    ),
}


@pytest.mark.parametrize("name", FAKE)
def test_fake_quantization(name: str) -> None:
    found = []
    for m in (offgrad, torch):
        x = m.tensor(X, requires_grad=True)
        out = FAKE[name](m, x)
        (out * out).sum().backward()
        found.append((out.detach().numpy(), x.grad.numpy(), type(out.grad_fn).__name__))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-6)
    assert found[0][2] == found[1][2]


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("per_row", [False, True])
def test_ranges_that_follow(per_row: bool, symmetric: bool) -> None:
    found = []
    for m in (offgrad, torch):
        count = 3 if per_row else 1
        state = [
            m.full((count,), float("inf")),
            m.full((count,), -float("inf")),
            m.ones(count),
            m.zeros(count, dtype=m.int32),
        ]
        for step in range(3):
            x = m.tensor(X * (step + 1))
            out = m.fused_moving_avg_obs_fake_quant(
                x, m.tensor([1]), m.tensor([1]), *state, 0.1, -128, 127, 0, per_row, symmetric
            )
        found.append([out, *state])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-5)


def test_errors_of_fake_quantization() -> None:
    for m in (offgrad, torch):
        with pytest.raises(RuntimeError):
            m.fake_quantize_per_tensor_affine(m.ones(2), 0.1, 0, 7, -8)
        with pytest.raises(RuntimeError):
            m.fake_quantize_per_tensor_affine(m.ones(2), 0.1, 100, -8, 7)
        with pytest.raises(RuntimeError):
            m.fake_quantize_per_channel_affine(m.ones(2), m.ones(3), m.zeros(2), 0, -8, 7)
