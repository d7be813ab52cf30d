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
                   (S3, (1, 2, 0, 1, 3, 2)))),
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
