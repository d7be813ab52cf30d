"""Pooling, padding and resampling."""

from typing import Any

import numpy as np

from offgrad.ops._nn.channel_shuffling import Rearrange
from offgrad.ops._nn.grid_sampling import GridSampler2D, GridSampler2DBackward
from offgrad.ops._nn.max_pooling import MaxPool, MaxPoolBackward, MaxPoolDoubleBackward
from offgrad.ops._nn.padding import ConstantPadNd
from offgrad.ops._nn.resampling import Resample
from offgrad.ops._nn.windows import sliding, with_dims
from tests.ops.opspec import OpSpec, apart, positive

MAX_POOL = (MaxPool, MaxPoolBackward)


def _blocks(x: Any, size: int) -> Any:
    """Return [..., H, W] as [..., H / size, W / size, size * size]."""
    *lead, h, w = x.shape
    split = x.reshape(*lead, h // size, size, w // size, size)
    return np.moveaxis(split, -3, -2).reshape(*lead, h // size, w // size, size * size)


def _gradient_of_max_pool(_: Any, grad: Any, codes: Any) -> Any:
    windows = with_dims((sliding(4, 2, 2, 0, 1, 2),) * 2)
    return MaxPoolBackward.apply(grad, codes, windows=windows, ndim=2, shape=(1, 1, 4, 4))


def _unpooled(m: Any, x: Any) -> Any:
    return m.nn.functional.max_unpool2d(*m.nn.functional.max_pool2d(x, 2, return_indices=True), 2)


def _sampled(m: Any, x: Any, grid: Any, **options: Any) -> Any:
    return m.nn.functional.grid_sample(x, grid * 0.45, align_corners=False, **options)


SPECS = [
    OpSpec("max_pool1d", MAX_POOL, lambda m, x: m.max_pool1d(x, 2, 1, 1, 2),
           [((1, 2, 5),), ((2, 4),), ((0, 2, 5),)], domain=apart),
    OpSpec("max_pool2d", MAX_POOL, lambda m, x: m.max_pool2d(x, 2),
           [((1, 2, 4, 6),), ((2, 4, 4),), ((0, 1, 4, 4),)],
           lambda x: _blocks(x, 2).max(-1), domain=apart, third=True),
    OpSpec("max_pool2d_overlapping", MAX_POOL,
           lambda m, x: m.nn.functional.max_pool2d(x, 3, 2, 1, ceil_mode=True),
           [((1, 1, 5, 6),)], domain=apart),
    OpSpec("max_pool3d", MAX_POOL, lambda m, x: m.max_pool3d(x, (2, 2, 1)),
           [((1, 1, 2, 4, 3),), ((1, 3, 2, 2),)], domain=apart),
    OpSpec("max_pool2d_large_window", MAX_POOL, lambda m, x: m.max_pool2d(x, (3, 100)),
           [((1, 1, 3, 100),)], lambda x: x.max((2, 3), keepdims=True), domain=apart),
    OpSpec("max_pool2d_backward", (*MAX_POOL[1:], MaxPoolDoubleBackward), _gradient_of_max_pool,
           [((1, 1, 2, 2), np.array([[[[0, 3], [1, 2]]]], np.uint8))], torch=False),
    OpSpec("adaptive_max_pool2d", MAX_POOL,
           lambda m, x: m.nn.functional.adaptive_max_pool2d(x, (2, 3)),
           [((1, 1, 3, 4),), ((1, 2, 2),)], domain=apart),
    OpSpec("max_unpool2d", (), _unpooled, [((1, 2, 4, 4),)], domain=apart),
    OpSpec("avg_pool1d", (Resample,), lambda m, x: m.avg_pool1d(x, 2, 1, 1),
           [((1, 2, 4),), ((0, 1, 4),)], third=True),
    OpSpec("avg_pool2d", (Resample,), lambda m, x: m.nn.functional.avg_pool2d(x, 2),
           [((1, 2, 4, 6),), ((0, 1, 2, 2),)], lambda x: _blocks(x, 2).mean(-1)),
    OpSpec("avg_pool2d_padded", (Resample,),
           lambda m, x: m.nn.functional.avg_pool2d(x, 3, 2, 1, True, False), [((1, 1, 5, 6),)]),
    OpSpec("avg_pool3d", (Resample,), lambda m, x: m.nn.functional.avg_pool3d(x, 2, 1),
           [((1, 1, 2, 3, 3),)]),
    OpSpec("adaptive_avg_pool2d", (Resample,),
           lambda m, x: m.nn.functional.adaptive_avg_pool2d(x, (2, 3)),
           [((1, 1, 3, 4),), ((1, 2, 2),)]),
    OpSpec("lp_pool2d", (Resample,), lambda m, x: m.nn.functional.lp_pool2d(x, 3, 2),
           [((1, 1, 4, 2),)], lambda x: (_blocks(x, 2) ** 3).sum(-1) ** (1 / 3), domain=positive),
    OpSpec("pad_constant", (ConstantPadNd,), lambda m, x: m.nn.functional.pad(x, (1, -1, 2, 0)),
           [((3, 2),), ((2, 0, 3),)], complex=True),
    OpSpec("pad_value", (ConstantPadNd,),
           lambda m, x: m.constant_pad_nd(x, (0, 2), 3), [((3,),), ((2, 1),)],
           lambda x: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 2)], constant_values=3)),
    *(
        OpSpec(f"pad_{mode}", (Resample,),
               lambda m, x, mode=mode: m.nn.functional.pad(x, (2, 1, 0, 1), mode=mode),
               [((1, 1, 2, 3),), ((1, 2, 3),), ((0, 1, 2, 3),)],
               lambda x, kind=kind: np.pad(x, [(0, 0)] * (x.ndim - 2) + [(0, 1), (2, 1)], kind),
               complex=True)
        for mode, kind in (("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap"))
    ),
    *(
        OpSpec(f"interpolate_{mode}", (Resample,),
               lambda m, x, mode=mode: m.nn.functional.interpolate(x, size=(3, 5), mode=mode),
               [((1, 2, 2, 3),), ((0, 1, 4, 4),)])
        for mode in ("nearest", "bilinear", "bicubic")
    ),
    OpSpec("interpolate_antialiased", (Resample,),
           lambda m, x: m.nn.functional.interpolate(
               x, size=(2, 2), mode="bicubic", antialias=True), [((1, 1, 5, 4),)]),
    OpSpec("interpolate_trilinear", (Resample,),
           lambda m, x: m.nn.functional.interpolate(
               x, scale_factor=2, mode="trilinear", align_corners=True), [((1, 1, 2, 1, 2),)]),
    *(
        OpSpec(f"grid_sample_{mode}_{padding}",
               (GridSampler2D, GridSampler2DBackward) if mode == "bilinear" else (),
               lambda m, x, g, mode=mode, padding=padding: _sampled(
                   m, x, g, mode=mode, padding_mode=padding),
               [((1, 2, 3, 4), (1, 2, 2, 2))], domain=lambda v: np.round(v, 1) + 0.037)
        for mode in ("bilinear", "bicubic")
        for padding in ("zeros", "border", "reflection")
    ),
    OpSpec("grid_sample_3d", (), _sampled, [((1, 1, 2, 3, 2), (1, 2, 1, 2, 3))],
           domain=lambda v: np.round(v, 1) + 0.037),
    OpSpec("affine_grid", (),
           lambda m, t: m.nn.functional.affine_grid(t, [2, 1, 2, 3], align_corners=True),
           [((2, 2, 3),)]),
    OpSpec("pixel_shuffle", (Rearrange,), lambda m, x: m.pixel_shuffle(x, 2), [((1, 4, 2, 1),)],
           complex=True),
    OpSpec("pixel_unshuffle", (Rearrange,), lambda m, x: m.pixel_unshuffle(x, 2),
           [((1, 1, 2, 4),)]),
    OpSpec("channel_shuffle", (Rearrange,), lambda m, x: m.channel_shuffle(x, 2), [((1, 4, 2),)]),
    OpSpec("fractional_max_pool2d", (),
           lambda m, x, u: m.nn.functional.fractional_max_pool2d(
               x, 2, (2, 3), _random_samples=u.detach()),
           [((1, 2, 5, 6), np.array([[[0.3, 0.8], [0.6, 0.1]]]))], domain=apart),
]  # fmt: skip
