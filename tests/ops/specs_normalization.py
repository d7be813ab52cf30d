"""Normalisation."""

from typing import Any

import numpy as np

from offgrad.ops._nn.batch_normalization import BatchNorm, BatchNormBackward
from offgrad.ops._nn.group_normalization import GroupNorm, GroupNormBackward
from offgrad.ops._nn.rms_normalization import RmsNorm, RmsNormBackward
from tests.ops.opspec import OpSpec

MEAN, VAR = np.array([0.5, -1.0, 0.25]), np.array([0.5, 2.0, 1.25])
BATCHES = [((4, 3), (3,), (3,)), ((2, 3, 4), (3,), (3,)), ((2, 3, 2, 2), (3,), (3,))]
GROUPS = [((2, 4, 3), (4,), (4,)), ((2, 4), (4,), (4,)), ((2, 4, 2, 1), (4,), (4,))]


def _normal(x: Any, axes: tuple[int, ...], eps: float = 1e-5) -> Any:
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + eps)


def _scaled(x: Any, weight: Any, bias: Any) -> Any:
    shape = (-1, *(1,) * (x.ndim - 2))
    return x * weight.reshape(shape) + bias.reshape(shape)


def _batch(x: Any, weight: Any, bias: Any) -> Any:
    return _scaled(_normal(x, tuple(i for i in range(x.ndim) if i != 1)), weight, bias)


def _group(x: Any, weight: Any, bias: Any) -> Any:
    parts = x.reshape(x.shape[0], 2, -1)
    return _scaled(_normal(parts, (2,)).reshape(x.shape), weight, bias)


def _instance(x: Any, weight: Any, bias: Any) -> Any:
    return _scaled(_normal(x, tuple(range(2, x.ndim))), weight, bias)


def _running(m: Any, like: Any) -> tuple[Any, Any]:
    return m.tensor(MEAN.tolist(), dtype=like.dtype), m.tensor(VAR.tolist(), dtype=like.dtype)


BATCH, GROUP = (BatchNorm, BatchNormBackward), (GroupNorm, GroupNormBackward)

SPECS = [
    OpSpec("batch_norm", BATCH,
           lambda m, x, w, b: m.nn.functional.batch_norm(x, None, None, w, b, True),
           BATCHES, _batch, third=True),
    OpSpec("batch_norm_channels_last", BATCH,
           lambda m, x: m.nn.functional.batch_norm(x.movedim(-1, 1), None, None, training=True),
           [((2, 2, 2, 3),)]),
    OpSpec("batch_norm_eval", BATCH,
           lambda m, x, w, b: m.nn.functional.batch_norm(x, *_running(m, x), w, b),
           [*BATCHES, ((0, 3), (3,), (3,))],
           lambda x, w, b: _scaled(_scaled(x, 1 / np.sqrt(VAR + 1e-5),
                                           -MEAN / np.sqrt(VAR + 1e-5)), w, b)),
    OpSpec("batch_norm_torch", BATCH,
           lambda m, x: m.batch_norm(x, None, None, *_running(m, x), True, 0.1, 0.01, False),
           [((4, 3),)], lambda x: _normal(x, (0,), 0.01)),
    OpSpec("native_batch_norm", BATCH,
           lambda m, x, w: m.native_batch_norm(x, w, None, None, None, True, 0.1, 0.01)[0],
           [((4, 3), (3,))]),
    OpSpec("instance_norm", BATCH,
           lambda m, x, w, b: m.nn.functional.instance_norm(x, None, None, w, b),
           [((2, 3, 4), (3,), (3,)), ((2, 3, 2, 2), (3,), (3,))], _instance),
    OpSpec("instance_norm_running", BATCH,
           lambda m, x: m.nn.functional.instance_norm(x, *_running(m, x), use_input_stats=False),
           [((2, 3, 4),)]),
    OpSpec("group_norm", GROUP, lambda m, x, w, b: m.nn.functional.group_norm(x, 2, w, b),
           GROUPS, _group, third=True),
    OpSpec("group_norm_plain", GROUP, lambda m, x: m.group_norm(x, 1), [((2, 3, 2),)],
           lambda x: _normal(x, (1, 2))),
    OpSpec("native_group_norm", GROUP,
           lambda m, x: m.native_group_norm(x, None, None, 2, 4, 3, 2, 0.1)[0], [((2, 4, 3),)]),
    OpSpec("native_layer_norm", (), lambda m, x: m.native_layer_norm(x, (3,), None, None, 0.1)[0],
           [((2, 3),)], lambda x: _normal(x, (1,), 0.1)),
    OpSpec("rms_norm", (RmsNorm, RmsNormBackward),
           lambda m, x, w: m.nn.functional.rms_norm(x, (3,), w, 0.1),
           [((2, 3), (3,)), ((3,), (3,)), ((2, 2, 3), (3,)), ((0, 3), (3,))],
           lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 0.1) * w, third=True),
    OpSpec("rms_norm_plain", (RmsNorm, RmsNormBackward),
           lambda m, x: m.nn.functional.rms_norm(x, (2, 3)), [((2, 2, 3),)],
           lambda x: x / np.sqrt((x * x).mean((1, 2), keepdims=True))),
    *(
        OpSpec(f"local_response_norm_{size}", (),
               lambda m, x, size=size: m.nn.functional.local_response_norm(x, size, 0.5, 0.75, 2.0),
               [((2, 4, 3),), ((0, 4, 3),)])
        for size in (1, 2, 3)
    ),
]  # fmt: skip
