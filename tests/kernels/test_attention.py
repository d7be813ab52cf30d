from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from offgrad import kernels

Array = npt.NDArray[Any]
Agree = Callable[..., None]


class Case(NamedTuple):
    q: Array
    k: Array
    v: Array
    grad: Array

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> Case:
        b, h, t, s, d, e = shape
        shapes = [(b, h, t, d), (b, h, s, d), (b, h, s, e), (b, h, t, e)]
        return cls(*(rng.normal(size=size).astype(dtype) for size in shapes))


def run(case: Case, *rest: Any) -> list[Array]:
    """out, lse, dq, dk and dv of the kernels."""
    q, k, v, grad = case
    out = np.full(grad.shape, np.nan, q.dtype)
    lse = np.full(q.shape[:3], np.nan, np.float64 if q.dtype == np.float64 else np.float32)
    dq, dk, dv = (np.full_like(a, np.nan, order="C") for a in (q, k, v))
    kernels.attention(q, k, v, out, lse, *rest)
    kernels.attention_backward(grad, q, k, v, out, lse, dq, dk, dv, *rest)
    return [out, lse, dq, dk, dv]


def oracle(
    case: Case,
    scale: float,
    causal: bool = False,
    mask: Array | None = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
) -> list[Array]:
    """The same by the formula in float64, with the whole T x S matrix."""
    q, k, v, grad = (a.astype(np.float64) for a in case)
    scores = q @ k.swapaxes(2, 3) * scale
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if causal:
        scores = np.where(np.tri(*scores.shape[2:]) > 0, scores, -np.inf)
    highest = scores.max(axis=3, keepdims=True, initial=-np.inf)
    empty = highest == -np.inf
    powers = np.exp(scores - np.where(empty, 0, highest))
    total = powers.sum(axis=3, keepdims=True)
    p = powers / np.where(empty, 1, total)
    with np.errstate(divide="ignore"):
        lse = np.where(empty, np.inf, highest + np.log(total))[..., 0]
    keep = kernels.dropout_mask(p.shape, dropout_p, seed, offset) / (1 - dropout_p)
    dp = (grad @ v.swapaxes(2, 3)) * keep
    ds = p * (dp - (p * dp).sum(axis=3, keepdims=True)) * scale
    dropped = p * keep
    return [dropped @ v, lse, ds @ k, ds.swapaxes(2, 3) @ q, dropped.swapaxes(2, 3) @ grad]


SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (2, 3, 7, 7, 4, 5),
    (1, 2, 130, 130, 8, 8),
    (2, 1, 300, 40, 16, 3),
    (1, 2, 40, 300, 3, 16),
    (2, 2, 3, 6, 8, 8),
    (1, 2, 43, 300, 3, 16),
    (1, 2, 133, 150, 16, 16),
    (1, 2, 140, 140, 32, 8),
    (1, 2, 140, 140, 8, 32),
    (2, 3, 70, 70, 64, 128),
    (1, 2, 140, 140, 129, 8),
    (0, 2, 3, 3, 4, 4),
    (2, 2, 0, 3, 4, 4),
    (1, 2, 3, 0, 4, 4),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_formula(
    shape: tuple[int, ...],
    causal: bool,
    dropout_p: float,
    dtype: Any,
    rng: np.random.Generator,
    agree: Agree,
    backend: str,
) -> None:
    case = Case.of(shape, dtype, rng)
    rest = (0.4, causal, None, dropout_p, 7, 2**63)
    for actual, expected in zip(run(case, *rest), oracle(case, *rest), strict=True):
        agree(actual, expected, 4, floor=1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("mask_shape", [(150, 150), (2, 1, 1, 150), (2, 3, 150, 150), (150, 1)])
def test_masks(
    mask_shape: tuple[int, ...],
    kind: str,
    causal: bool,
    dtype: Any,
    rng: np.random.Generator,
    agree: Agree,
    backend: str,
) -> None:
    case = Case.of((2, 3, 150, 150, 8, 8), dtype, rng)
    mask: Array = rng.random(mask_shape) < 0.6
    mask[..., 0, :] = False  # rows that see nothing
    if kind == "float":
        mask = np.where(mask, rng.normal(size=mask_shape), -np.inf).astype(dtype)
    results = run(case, 0.4, causal, mask)
    for actual, expected in zip(results, oracle(case, 0.4, causal, mask), strict=True):
        agree(actual, expected, 4)
    if mask_shape == (150, 150):
        out, lse, dq = results[:3]
        np.testing.assert_array_equal(out[:, :, 0], 0)
        np.testing.assert_array_equal(dq[:, :, 0], 0)
        np.testing.assert_array_equal(lse[:, :, 0], np.inf)


@pytest.mark.parametrize("variant", ["plain", "causal", "bool", "float"])
def test_against_torch(
    variant: str, dtype: Any, rng: np.random.Generator, agree: Agree, backend: str
) -> None:
    torch = pytest.importorskip("torch")
    case = Case.of((2, 3, 140, 90, 16, 16), dtype, rng)
    mask: Array | None = None
    if variant in ("bool", "float"):
        mask = rng.random((140, 90)) < 0.5
        mask[3] = False
        if variant == "float":
            mask = np.where(mask, 0.5, -np.inf).astype(dtype)
    tensors = [torch.from_numpy(a).requires_grad_() for a in case[:3]]
    result = torch.nn.functional.scaled_dot_product_attention(
        *tensors,
        attn_mask=None if mask is None else torch.from_numpy(mask),
        is_causal=variant == "causal",
    )
    result.backward(torch.from_numpy(case.grad))
    out, _, *gradients = run(case, 0.25, variant == "causal", mask)
    agree(out, result.detach().numpy(), 2)
    for gradient, tensor in zip(gradients, tensors, strict=True):
        agree(gradient, tensor.grad.numpy(), 2)


def test_strides_change_no_bit(dtype: Any, rng: np.random.Generator, backend: str) -> None:
    packed: Array = rng.normal(size=(2, 200, 3, 3, 24)).astype(dtype)  # B, T, qkv, H, D
    q, k, v = (packed[:, :, i].swapaxes(1, 2) for i in range(3))
    grad = rng.normal(size=(2, 24, 200, 3)).astype(dtype).transpose(0, 3, 2, 1)
    assert not any(a.flags.c_contiguous for a in (q, k, v, grad))
    rest = (0.2, True, None, 0.1, 1, 2)
    strided = run(Case(q, k, v, grad), *rest)
    contiguous = run(Case(*(np.ascontiguousarray(a) for a in (q, k, v, grad))), *rest)
    for actual, expected in zip(strided, contiguous, strict=True):
        assert actual.tobytes() == expected.tobytes()
    # Outputs may be strided views, too; backward gets them so.
    out = np.empty((2, 200, 3, 24), dtype).swapaxes(1, 2)
    lse = np.empty((2, 3, 200), dtype)
    kernels.attention(q, k, v, out, lse, *rest)
    assert np.ascontiguousarray(out).tobytes() == strided[0].tobytes()
    dq, dk, dv = (np.empty_like(packed)[:, :, i].swapaxes(1, 2) for i in range(3))
    kernels.attention_backward(grad, q, k, v, out, lse, dq, dk, dv, *rest)
    for actual, expected in zip((dq, dk, dv), strided[2:], strict=True):
        assert np.ascontiguousarray(actual).tobytes() == expected.tobytes()


@pytest.mark.parametrize("wanted", range(8))
def test_only_requested_gradients_are_written(wanted: int, rng: np.random.Generator) -> None:
    case = Case.of((1, 2, 20, 20, 4, 4), np.float32, rng)
    out, lse, *everything = run(case, 0.5, True)
    some = [np.empty_like(a) if wanted >> i & 1 else None for i, a in enumerate(everything)]
    q, k, v, grad = case
    kernels.attention_backward(grad, q, k, v, out, lse, some[0], some[1], some[2], 0.5, True)
    for array, expected in zip(some, everything, strict=True):
        if array is not None:
            np.testing.assert_array_equal(array, expected)


def test_nan_reaches_only_rows_that_see_it(rng: np.random.Generator, backend: str) -> None:
    case = Case.of((1, 1, 200, 200, 4, 4), np.float32, rng)
    case.k[0, 0, 150] = np.nan
    out = run(case, 0.5, True)[0]
    assert np.isfinite(out[0, 0, :150]).all()
    assert np.isnan(out[0, 0, 150:]).all()


def test_large_scores_do_not_overflow(rng: np.random.Generator, backend: str) -> None:
    case = Case.of((1, 1, 30, 30, 4, 4), np.float32, rng)
    for array in run(case, 1e4):
        assert np.isfinite(array).all()


@pytest.mark.parametrize("width", [32, 136])
def test_infinities_come_without_a_warning(width: int, backend: str) -> None:
    q = np.full((4, 2, 200, width), 1e38, np.float32)
    k = np.ones_like(q)
    out, lse, *_ = run(Case(q, k, k, k), 100.0)
    assert np.isnan(out).all()
    assert not np.isfinite(lse).any()


@pytest.mark.parametrize("causal", [False, True])
def test_a_mask_that_hides_nothing_changes_nothing(
    causal: bool, dtype: Any, rng: np.random.Generator, agree: Agree, backend: str
) -> None:
    case = Case.of((2, 2, 150, 140, 16, 8), dtype, rng)
    mask = np.ones((150, 140), bool)
    for actual, expected in zip(
        run(case, 0.3, causal, None, 0.2, 5), run(case, 0.3, causal, mask, 0.2, 5), strict=True
    ):
        agree(actual, expected, 4, floor=1)


def test_inputs_may_be_read_only_expanded_or_reversed(
    dtype: Any, rng: np.random.Generator, backend: str
) -> None:
    q, k, v, _ = Case.of((2, 3, 140, 140, 16, 16), dtype, rng)
    grad = np.broadcast_to(rng.normal(size=(1, 1, 1, 16)).astype(dtype), q.shape)
    inputs = Case(q[:, ::-1], np.broadcast_to(k[:, :1], k.shape), v[..., ::-1], grad)
    expected = run(Case(*(np.array(each, order="C") for each in inputs)), 0.3, True)
    for actual, each in zip(run(inputs, 0.3, True), expected, strict=True):
        assert actual.tobytes() == each.tobytes()


def test_outputs_may_be_reversed_but_not_read_only(
    dtype: Any, rng: np.random.Generator, backend: str
) -> None:
    q, k, v, _ = Case.of((1, 2, 20, 20, 4, 4), dtype, rng)
    out, backwards = np.empty_like(q), np.empty_like(q)[:, :, ::-1]
    lse = np.empty((1, 2, 20), dtype)
    kernels.attention(q, k, v, out, lse, 0.3)
    kernels.attention(q, k, v, backwards, lse, 0.3)
    np.testing.assert_array_equal(backwards, out)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kernels.attention(q, k, v, out, lse, 0.3)


def test_float16(rng: np.random.Generator, agree: Agree, backend: str) -> None:
    case = Case.of((1, 2, 20, 20, 4, 4), np.float16, rng)
    for actual, expected in zip(run(case, 0.5), oracle(case, 0.5), strict=True):
        agree(actual, expected, 2 if actual.dtype == np.float16 else 500)


def test_memory_does_not_grow_with_the_square(rng: np.random.Generator, backend: str) -> None:
    import tracemalloc

    case = Case.of((1, 1, 4096, 4096, 8, 8), np.float32, rng)
    run(Case.of((1, 1, 256, 256, 8, 8), np.float32, rng), 0.3, True)  # compiled before
    tracemalloc.start()
    try:
        run(case, 0.3, True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4096 * 4096 * 4 / 4  # a quarter of one T x S matrix


def test_errors(rng: np.random.Generator) -> None:
    q, k, v, grad = Case.of((1, 2, 3, 4, 5, 6), np.float32, rng)
    lse = np.empty((1, 2, 3), np.float32)
    with pytest.raises(ValueError, match=r"got q \(1, 2, 3, 5\), k \(1, 2, 4, 6\)"):
        kernels.attention(q, v, v, grad, lse, 1.0)
    with pytest.raises(ValueError, match=r"broadcast to .* \(1, 2, 3, 4\), got \(3, 3\)"):
        kernels.attention(q, k, v, grad, lse, 1.0, mask=np.ones((3, 3), bool))
    with pytest.raises(ValueError, match="probability"):
        kernels.attention(q, k, v, grad, lse, 1.0, dropout_p=2.0)
    with pytest.raises(ValueError, match=r"dq must have shape \(1, 2, 3, 5\), got \(1, 2, 4, 5\)"):
        kernels.attention_backward(grad, q, k, v, grad, lse, k, None, None, 1.0)
