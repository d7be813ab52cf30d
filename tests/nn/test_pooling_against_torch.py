"""Pooling, padding, resampling: values, indices and first and second gradients equal torch's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

S1, S2, S3 = (2, 3, 9), (2, 3, 8, 7), (2, 2, 5, 6, 7)
UNBATCHED = {S1: S1[1:], S2: S2[1:], S3: S3[1:]}

Case = tuple[str, tuple[int, ...], dict[str, Any]]

CASES: list[Case] = [
    *(("max_pool1d", S1, o) for o in (
        {"kernel_size": 3}, {"kernel_size": [2], "stride": 1, "padding": 1, "dilation": 2},
        {"kernel_size": 4, "stride": 3, "ceil_mode": True})),
    *(("max_pool2d", S2, o) for o in (
        {"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True}, {"kernel_size": 2, "stride": 3})),
    *(("max_pool3d", S3, o) for o in (
        {"kernel_size": 2}, {"kernel_size": (1, 2, 2)}, {"kernel_size": 3, "stride": 2,
         "padding": 1, "ceil_mode": True}, {"kernel_size": 2, "dilation": 2, "stride": 1})),
    *(("avg_pool1d", S1, o) for o in (
        {"kernel_size": 3}, {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True,
         "count_include_pad": False})),
    *(("avg_pool2d", S2, o) for o in (
        {"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 3, "stride": 1, "padding": 1, "count_include_pad": False},
        {"kernel_size": (3, 2), "stride": 2, "padding": (1, 1), "ceil_mode": True},
        {"kernel_size": 2, "divisor_override": 3})),
    *(("avg_pool3d", S3, o) for o in (
        {"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True,
         "count_include_pad": False, "divisor_override": 5}, {"kernel_size": (1, 2, 3)})),
    *(("adaptive_avg_pool1d", S1, {"output_size": n}) for n in (1, 4, 9)),
    *(("adaptive_avg_pool2d", S2, {"output_size": n}) for n in (1, 3, (4, None), (1, 9))),
    *(("adaptive_avg_pool3d", S3, {"output_size": n}) for n in (1, (2, 3, 4))),
    *(("adaptive_max_pool1d", S1, {"output_size": n}) for n in (1, 4)),
    *(("adaptive_max_pool2d", S2, {"output_size": n}) for n in (1, (3, None), (4, 2))),
    *(("adaptive_max_pool3d", S3, {"output_size": n}) for n in (1, (2, 3, 4))),
    ("lp_pool1d", S1, {"norm_type": 3, "kernel_size": 2}),
    ("lp_pool2d", S2, {"norm_type": 2, "kernel_size": (3, 2), "stride": 2, "ceil_mode": True}),
    ("lp_pool3d", S3, {"norm_type": 2.0, "kernel_size": 2}),
    *(("pad", S2, {"pad": p, "value": v}) for p, v in (
        ((1, 2), None), ((1, 2, 0, 3), 1.5), ((-1, 2, 3, -2), 0.5), ((0, 0, 0, 0, 1, 0), 2),
        ((1, 1, 1, 1, 1, 1, 1, 1), 0), ((-3, -4), 0.0), ((), 1))),
    *(("pad", s, {"pad": p, "mode": m})
      for m in ("reflect", "replicate", "circular")
      for s, p in ((S1, (2, 3)), (S1, (0, 1)), (S2, (2, 1, 0, 3)), (S2, (0, 0, 1, 1)),
                   (S3, (1, 2, 0, 1, 3, 2)), (S3, (0, 0, 0, 0, 1, 2)), (S2, (0, 0, 0, 0)),
                   (S3, (0, 0, 1, 1, 0, 0)))),
    *(("pad", S2, {"pad": (-1, 2, 3, -2), "mode": m})
      for m in ("reflect", "replicate", "circular")),
    *(("interpolate", s, {"mode": m, **o})
      for m in ("nearest", "nearest-exact", "area")
      for s, o in ((S1, {"size": 5}), (S1, {"scale_factor": 2}), (S2, {"size": (11, 5)}),
                   (S2, {"scale_factor": (2, 1.7)}), (S3, {"scale_factor": 2}),
                   (S3, {"size": (3, 9, 7)}), (S2, {"scale_factor": 1.3,
                    "recompute_scale_factor": True}))),
    *(("interpolate", s, {"mode": m, "align_corners": a, **o})
      for a in (None, False, True)
      for s, m, o in ((S1, "linear", {"size": 5}), (S1, "linear", {"scale_factor": 2.5}),
                      (S2, "bilinear", {"scale_factor": 2}), (S2, "bilinear", {"size": (5, 13)}),
                      (S2, "bilinear", {"size": (1, 7)}), (S2, "bicubic", {"size": (5, 13)}),
                      (S2, "bicubic", {"scale_factor": (2, 1.4)}),
                      (S2, "bicubic", {"scale_factor": 1.4, "recompute_scale_factor": True}),
                      (S3, "trilinear", {"scale_factor": 2}), (S3, "trilinear", {"size": 4}))),
    *(("interpolate", S2, {"mode": m, "antialias": True, "align_corners": a, **o})
      for a in (False, True)
      for m in ("bilinear", "bicubic")
      for o in ({"size": (3, 4)}, {"scale_factor": 0.4}, {"size": (12, 3)})),
    ("interpolate", S2, {"mode": "lanczos", "antialias": True, "size": (3, 4)}),
    ("upsample", S2, {"scale_factor": 2, "mode": "bilinear"}),
    ("upsample_nearest", S2, {"scale_factor": 2}),
    ("upsample_bilinear", S2, {"size": (9, 9)}),
    ("pixel_shuffle", (2, 8, 3, 2), {"upscale_factor": 2}),
    ("pixel_shuffle", (9, 3, 2), {"upscale_factor": 3}),
    ("pixel_unshuffle", (2, 3, 4, 6), {"downscale_factor": 2}),
    ("channel_shuffle", (2, 6, 2, 2), {"groups": 3}),
]  # fmt: skip
INDEXED = [case for case in CASES if "max_pool" in case[0]]


def numbers(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def close(mine: Any, theirs: Any, tolerance: float) -> None:
    mine, theirs = mine.detach().numpy(), theirs.detach().numpy()
    assert mine.shape == theirs.shape
    assert mine.dtype == theirs.dtype
    np.testing.assert_allclose(mine, theirs, tolerance, tolerance)


def results(m: Any, call: Callable[..., Any], arrays: list[Any]) -> list[Any]:
    """Return the result of `call` and its first and second gradients."""
    inputs = [m.tensor(each, requires_grad=True) for each in arrays]
    output = call(m.nn.functional, *inputs)
    weight = m.tensor(numbers(tuple(output.shape), 1)).to(output.dtype).requires_grad_()
    firsts = m.autograd.grad((output * weight).sum(), inputs, create_graph=True)
    weights = [m.tensor(numbers(tuple(each.shape), 2)).to(each.dtype) for each in firsts]
    total = sum((each * each * v).sum() for each, v in zip(firsts, weights, strict=True))
    return [output, *firsts, *m.autograd.grad(total, [weight])]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{list(c[2].values())}")
@pytest.mark.filterwarnings("ignore")
def test_function(case: Case, dtype: Any) -> None:
    name, shape, options = case
    arrays = [numbers(shape).astype(dtype)]
    if name == "lp_pool1d":
        arrays = [np.abs(each) for each in arrays]
    mine, theirs = (
        results(m, lambda f, x: getattr(f, name)(x, **options), arrays) for m in (offgrad, torch)
    )
    for have, want in zip(mine, theirs, strict=True):
        close(have, want, 2e-5 if dtype == np.float32 else 1e-7)


@pytest.mark.parametrize("case", INDEXED, ids=lambda c: f"{c[0]}-{list(c[2].values())}")
def test_indices_and_unpooling(case: Case) -> None:
    name, shape, options = case
    array = np.round(numbers(shape), 1)  # with ties, of which the first counts
    array[0, 0].reshape(-1)[[1, 3]] = np.nan
    found = []
    for m in (offgrad, torch):
        x = m.tensor(array[0], requires_grad=True)  # without a batch
        values, indices = getattr(m.nn.functional, name)(x, return_indices=True, **options)
        again, _ = getattr(m.nn.functional, f"{name}_with_indices")(x, **options)
        assert again.detach().numpy().tobytes() == values.detach().numpy().tobytes()
        found.append([values.detach(), indices, *m.autograd.grad(values.sum(), x)])
    for have, want in zip(*found, strict=True):
        close(have, want, 0)


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_max_unpool(ndim: int) -> None:
    shape = (2, 2, 4, 6, 2)[: ndim + 2]
    found = []
    for m in (offgrad, torch):
        f = m.nn.functional
        x = m.tensor(numbers(shape), requires_grad=True)
        pool, unpool = getattr(f, f"max_pool{ndim}d"), getattr(f, f"max_unpool{ndim}d")
        y, indices = pool(x, 2, return_indices=True)
        results = [unpool(y, indices, 2, output_size=shape), unpool(y[0], indices[0], 2, 2)]
        grads = m.autograd.grad((results[0] ** 3).sum() + results[1].sum(), x)
        found.append([*results, *grads])
    for have, want in zip(*found, strict=True):
        close(have, want, 1e-12)


@pytest.mark.parametrize("ndim", [2, 3])
def test_fractional_max_pool(ndim: int) -> None:
    shape = (2, 3, 7, 8, 6)[: ndim + 2]
    u = np.random.default_rng(3).random((2, 3, ndim))
    found = []
    for m in (offgrad, torch):
        x = m.tensor(numbers(shape), requires_grad=True)
        pool = getattr(m.nn.functional, f"fractional_max_pool{ndim}d_with_indices")
        of_size = pool(x, 2, output_size=4, _random_samples=m.tensor(u))
        of_ratio = pool(x[0], 2, output_ratio=(0.5,) * ndim, _random_samples=m.tensor(u[:1]))
        grads = m.autograd.grad((of_size[0] ** 2).sum(), x)
        found.append([*of_size, *of_ratio, *grads])
    for have, want in zip(*found, strict=True):
        close(have, want, 1e-12)
    for m in (offgrad, torch):  # places of its own
        x = m.zeros(2, 3, *shape[2:])
        pool = getattr(m.nn, f"FractionalMaxPool{ndim}d")(2, output_ratio=0.6, return_indices=True)
        assert tuple(pool(x)[1].shape) == (2, 3, *(int(0.6 * size) for size in shape[2:]))


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("mode", "ndim"),
    [("bilinear", 2), ("nearest", 2), ("bicubic", 2), ("bilinear", 3), ("nearest", 3)],
)
def test_grid_sample(mode: str, ndim: int, padding_mode: str, align_corners: bool) -> None:
    arrays = [
        numbers((2, 3, 4, 5, 3)[: ndim + 2]),
        1.3 * numbers((2, 3, 2, 4, 1)[: ndim + 1] + (ndim,)),
    ]
    options = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    found = [
        results(m, lambda f, x, g: f.grid_sample(x, g, **options), arrays) for m in (offgrad, torch)
    ]
    for have, want in zip(*found, strict=True):
        close(have, want, 1e-9)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.filterwarnings("ignore:Since version")
@pytest.mark.parametrize("size", [(2, 1, 3, 4), (2, 1, 1, 2), (2, 1, 2, 3, 2)])
def test_affine_grid(size: tuple[int, ...], align_corners: bool) -> None:
    arrays = [numbers((2, len(size) - 2, len(size) - 1))]
    found = [
        results(m, lambda f, t: f.affine_grid(t, list(size), align_corners), arrays)
        for m in (offgrad, torch)
    ]
    for have, want in zip(*found, strict=True):
        close(have, want, 1e-12)


INTEGERS: dict[str, dict[str, Any]] = {
    "max_pool2d": {"kernel_size": 2},
    "avg_pool2d": {"kernel_size": 2},
    "pad": {"pad": (1, 2)},
    "pixel_unshuffle": {"downscale_factor": 2},
    **{f"pad {m}": {"pad": (1, 2), "mode": m} for m in ("reflect", "replicate", "circular")},
    **{f"interpolate {m}": {"size": (3, 7), "mode": m} for m in ("nearest", "bilinear", "bicubic")},
    "adaptive_avg_pool2d": {"output_size": 2},
    "max_pool1d": {"kernel_size": 2},
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int64", "uint8", "bool", "complex64"])
@pytest.mark.parametrize("name", INTEGERS)
def test_dtypes(name: str, dtype: str) -> None:
    """What PyTorch computes has its dtype and values; for what it refuses its error."""
    shape = (1, 2, 8) if INTEGERS[name].get("pad") or name.endswith("1d") else (1, 2, 4, 6)
    array = np.random.default_rng(1).integers(0, 200, shape)
    found: list[Any] = []
    for m in (offgrad, torch):
        x = m.tensor(array).to(getattr(m, dtype))
        try:
            result = getattr(m.nn.functional, name.split()[0])(x, **INTEGERS[name])
        except (RuntimeError, NotImplementedError) as error:
            found.append(type(error))
        else:
            found.append((str(result.dtype).split(".")[-1], result.to(m.complex128).numpy()))
    if isinstance(found[1], type):
        assert found[0] is found[1]
        return
    assert found[0][0] == found[1][0]
    tolerance = 1 if dtype == "uint8" and "bi" in name else 0
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-2, atol=tolerance)
