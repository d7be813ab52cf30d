"""Small calls that compile every loop, for `offgrad warmup`.

A loop is compiled for the types of its arguments, so these calls pass the types of training steps.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from offgrad import kernels
from offgrad.kernels import _bfloat16_tiles, _jit
from offgrad.kernels._arrays import Array
from offgrad.kernels._elementary import LOOPS
from offgrad.kernels._shared_ranges import Cells
from offgrad.kernels._waiting import prepare

DTYPES = ("float32", "float64")


class Compilation(NamedTuple):
    """What a unit of work took.

    Attributes:
        compiled: loops that were compiled.
        loaded: loops that were in the cache.
        seconds: duration.
        folder: of the cache; None if compiled loops cannot be cached.
    """

    compiled: int
    loaded: int
    seconds: float
    folder: str | None


def compile_unit(name: str, dtype: str) -> Compilation:
    """Compile the loops of a unit of `UNITS`, or load them from the cache.

    Args:
        name: a key of `UNITS`.
        dtype: one of `DTYPES`.

    Raises RuntimeError if kernels run on NumPy.
    """
    if kernels.backend() != "numba":
        raise RuntimeError("kernels run on NumPy: there is nothing to compile")
    before = _counts()
    began = time.perf_counter()
    UNITS[name](np.ones((4, 8), dtype))
    seconds = time.perf_counter() - began
    compiled, loaded = (now - then for now, then in zip(_counts(), before, strict=True))
    used = [folder for kernel in _jit.loops for folder in kernel.folders()]
    return Compilation(compiled, loaded, seconds, used[0] if used and None not in used else None)


class Cache(NamedTuple):
    """The compiled loops on disk.

    Attributes:
        cached: loops of which some types have been compiled, for this version of offgrad.
        loops: all that this CPU can run.
        folder: of the cache; None if compiled loops cannot be cached.
    """

    cached: int
    loops: int
    folder: str | None


def cache() -> Cache:
    """Look at the cache, without compiling."""
    for module in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
        importlib.import_module(module.name)
    extensions = _bfloat16_tiles.instructions()
    beyond = set() if extensions else {"bfloat16_product_loop"}
    if extensions != "amx":
        beyond.add("split_product_loop")
    found = [loop.cache() for loop in _jit.loops if loop.function.__qualname__ not in beyond]
    folders = [folder for folder, _ in found]
    folder = None if None in folders else folders[0]
    return Cache(sum(is_cached for _, is_cached in found), len(found), folder)


def _counts() -> tuple[int, int]:
    counts = [kernel.counts() for kernel in _jit.loops]
    return sum(compiled for compiled, _ in counts), sum(loaded for _, loaded in counts)


def _statistics(x: Array) -> Array:
    return np.ones(len(x), x.dtype)


def _target(x: Array) -> Array:
    return np.zeros(len(x), np.int64)


def _large(x: Array) -> Array:
    """Return an array that NumPy would compute too slowly."""
    return np.ones((600, 512), x.dtype)


def _heads(x: Array, width: int) -> Array:
    return np.ones((1, 1, 4, width), x.dtype)


def _attention(x: Array, width: int) -> None:
    q, lse = _heads(x, width), _statistics(x)[None, None]
    kernels.attention(q, q, q, q.copy(), lse, 1.0, causal=True)


def _attention_backward(x: Array, width: int) -> None:
    q, lse = _heads(x, width), _statistics(x)[None, None]
    dq, dk, dv = (q.copy() for _ in range(3))
    kernels.attention_backward(q, q, q, q, q, lse, dq, dk, dv, 1.0, causal=True)


def _gather(x: Array) -> None:
    source = _large(x)
    kernels.gather(source, np.zeros(source.shape, np.int64), 1, source.copy())


def _scatter_add(x: Array) -> None:
    source = _large(x)
    kernels.scatter_add(source.copy(), np.zeros(source.shape, np.int64), source, 1)
    kernels.scatter(source.copy(), np.zeros(source.shape, np.int64), source, 1)


def _select(x: Array) -> None:
    values = _large(x)
    kernels.select(values > 1, values, values, values.copy())
    kernels.nan_to_zero(values, values.copy())


def _copy(x: Array) -> None:
    source = _large(x)
    kernels.copy_into(np.empty(source.T.shape, x.dtype), source.T)


def _copy_rows(x: Array) -> None:
    source = _large(x)
    kernels.copy_into(np.empty_like(source), source)
    part = source[:, : source.shape[1] // 2]
    kernels.copy_into(np.empty_like(source)[:, : part.shape[1]], part)


def _copy_turned_rows(x: Array) -> None:
    source = _large(x)
    kernels.copy_into(source.copy(), source[:, ::-1])


def _take_rows(x: Array) -> None:
    table, index = np.ones((2, 512), x.dtype), np.zeros(300, np.int64)
    kernels.take_rows(table, index, 0, np.empty((index.size, 512), x.dtype))


def _difference_loss(x: Array) -> None:
    values = _large(x)
    kernels.mse().total(values, values)
    kernels.mse().values(values, values, values.copy())


def _difference_loss_backward(x: Array) -> None:
    values = _large(x)
    for scale in (x.dtype.type(1), values):
        kernels.mse().slopes(values, values, scale, values.copy())


def _logits_loss(x: Array) -> None:
    values = _large(x)
    kernels.binary_cross_entropy_with_logits().values(values, values, values.copy())


def _logits_loss_backward(x: Array) -> None:
    values = _large(x)
    slopes = kernels.binary_cross_entropy_with_logits().slopes
    slopes(values, values, x.dtype.type(1), values.copy())


def _product(x: Array) -> None:
    side = np.ones((128, 128), x.dtype)
    kernels.matmul(side, side, side.copy())


def _split_product(x: Array) -> None:
    before = kernels.allow_split_products(True)
    try:
        _product(x)
    finally:
        kernels.allow_split_products(before)


def _halves(x: Array) -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16):
        side = np.ones((128, 128), dtype)
        kernels.matmul(side, side, side.copy())
        kernels.convert(side, np.empty(side.shape, x.dtype))
        kernels.convert(np.ones(side.shape, x.dtype), side)
        kernels.convert(side[:, 1:], np.empty((128, 127), x.dtype))
        kernels.convert(np.ones((128, 127), x.dtype), side[:, 1:])
        large = np.ones((600, 512), dtype)
        for other in (large, np.ones((), np.float32)):
            kernels.elementwise(np.add, large.copy(), large, other)


def _layer_norm(x: Array) -> None:
    rows = _statistics(x)
    kernels.layer_norm(x, x[0], x[0], 1e-5, x.copy(), rows, rows.copy())


def _layer_norm_backward(x: Array) -> None:
    rows = _statistics(x)
    kernels.layer_norm_backward(x, x, x[0], rows, rows, x.copy(), x[0].copy(), x[0].copy())


def _rms_norm_backward(x: Array) -> None:
    kernels.rms_norm_backward(x, x, x[0], _statistics(x), x.copy(), x[0].copy())


def _batch_norm(x: Array) -> None:
    for each in (x, x[None]):
        row = np.ones(each.shape[1], x.dtype)
        kernels.batch_norm(each, None, None, 1e-5, each.copy(), row, row.copy(), row.copy())


def _batch_norm_backward(x: Array) -> None:
    for each in (x, x[None]):
        row = np.ones(each.shape[1], x.dtype)
        outputs = each.copy(), row.copy(), row.copy()
        kernels.batch_norm_backward(each, each, None, row, row, *outputs, training=True)


def _group_norm(x: Array) -> None:
    kernels.group_norm(x[None, None], None, None, 1e-5, x[None, None].copy(), x[:1, :1], x[:1, :1])


def _group_norm_backward(x: Array) -> None:
    group, ones = x[None, None], np.ones((1, 1), x.dtype)
    kernels.group_norm_backward(group, group, None, ones, ones, group.copy(), None, None)


def _ctc(x: Array) -> tuple[Array, kernels.CtcTargets, Array, Array]:
    one = np.ones(1, np.int64)
    targets = kernels.CtcTargets(one, one - 1, one, one + 3, 0)
    return x[:, None], targets, np.ones(1, x.dtype), np.ones((1, 4, 3), x.dtype)


def _ctc_backward(x: Array) -> None:
    kernels.ctc_loss_backward(np.ones(1, x.dtype), *_ctc(x), x[:, None].copy())


def _distances(x: Array) -> None:
    rows, square = x[None], np.ones((1, 4, 4), x.dtype)
    kernels.distances(rows, rows, 2, square)
    kernels.euclidean_distances(rows, rows, square)


def _distances_backward(x: Array) -> None:
    rows, square = x[None], np.ones((1, 4, 4), x.dtype)
    kernels.distances_backward(square, rows, rows, square, 2, rows.copy())


def _grid_sample(x: Array) -> None:
    images, places, values = x[None, None], x.reshape(1, -1, 2), x.reshape(1, 1, -1)[..., :16]
    kernels.grid_sample(images, places, kernels.Sampling("bilinear", "zeros", False), values.copy())


def _grid_sample_backward(x: Array) -> None:
    images, places, grad = x[None, None], x.reshape(1, -1, 2), x.reshape(1, 1, -1)[..., :16].copy()
    gradients = images.copy(), places.copy()
    kernels.grid_sample_backward(
        grad, images, places, kernels.Sampling("bilinear", "zeros", False), *gradients
    )


def _cross_entropy(x: Array) -> None:
    kernels.cross_entropy(x, _target(x), _statistics(x), _statistics(x))


def _cross_entropy_backward(x: Array) -> None:
    kernels.cross_entropy_backward(_statistics(x), x, _target(x), _statistics(x), x.copy())


def _windows(x: Array) -> tuple[tuple[kernels.Windows, ...], Array]:
    """Return pairs of rows and columns of an image, and where their maxima are."""
    ends = [np.arange(0, size, 2) for size in x.shape]
    high, low = (kernels.Windows(each, each * 0 + 2, 1, 2, 2, 0, len(each)) for each in ends)
    single = kernels.Windows(np.zeros(1, np.int64), np.ones(1, np.int64), 1, 1)
    codes = np.zeros((1, 1, len(ends[0]), len(ends[1])), np.uint8)
    return (single, high, low), codes


def _max_pool_pairs(x: Array) -> None:
    windows, codes = _windows(x)
    kernels.max_pool(x[None, None], windows, codes.astype(x.dtype), codes)


def _max_pool(x: Array) -> None:
    (single, high, low), codes = _windows(x)
    apart = low._replace(first=1)  # not all are regular
    kernels.max_pool(x[None, None], (single, high, apart), codes.astype(x.dtype), codes)


def _max_pool_backward(x: Array) -> None:
    windows, codes = _windows(x)
    kernels.max_pool_backward(codes.astype(x.dtype), codes, windows, x[None, None].copy())


def _resample(x: Array) -> None:
    height, width = (
        kernels.Taps(size, np.arange(size)[None], np.full((1, size), 0.5)) for size in x.shape
    )
    kernels.resample(x, (height, width), x.copy())


def _adamw(x: Array) -> None:
    kernels.adamw_step(x, x.copy(), x.copy(), x.copy(), 0.1, 0.9, 0.9, 0.1, 0.1, 1)


def _sgd(x: Array) -> None:
    kernels.sgd_step(x, x.copy(), x.copy(), 0.1, 0.9)


def _optimizer(steps: Callable[..., None], states: int, *rest: Any) -> Callable[[Array], None]:
    return lambda x: steps(*([x.copy()] for _ in range(2 + states)), *rest)


def _states(x: Array, *shapes: tuple[int, int]) -> tuple[kernels.TimeSteps, Any]:
    """Return two steps of eight elements, and arrays of ones."""
    steps = kernels.TimeSteps(np.array([0, 8]), np.array([8, 8]), 1)
    return steps, [np.ones(shape, x.dtype) for shape in shapes]


def _lstm(x: Array) -> None:
    steps, (gates, weight, h, c, *others) = _states(
        x, (16, 8), (8, 2), (8, 2), (8, 2), *[(16, 2)] * 2
    )
    kernels.lstm(steps, gates, weight, None, h, c, *others)


def _lstm_backward(x: Array) -> None:
    shapes = (16, 8), (16, 2), (8, 2), (8, 2), (16, 2), (8, 2), (8, 2), (16, 8)
    steps, (gates, cells, first, weight, dout, dh, dc, dgates) = _states(x, *shapes)
    kernels.lstm_backward(steps, gates, cells, first, weight, None, dout, dh, dc, dgates, None)


def _gru(x: Array) -> None:
    shapes = (16, 6), (6, 2), (1, 6), (8, 2), (16, 2), (16, 2)
    steps, (gates, weight, bias, *others) = _states(x, *shapes)
    kernels.gru(steps, gates, weight, bias[0], *others)


def _gru_backward(x: Array) -> None:
    shapes = (16, 6), (16, 2), (8, 2), (6, 2), (16, 2), (16, 2), (8, 2), (16, 6), (16, 6)
    steps, arrays = _states(x, *shapes)
    kernels.gru_backward(steps, *arrays)


def _rnn(x: Array) -> None:
    steps, (weight, h, out) = _states(x, (2, 2), (8, 2), (16, 2))
    kernels.rnn(steps, weight, h, out, False)


def _rnn_backward(x: Array) -> None:
    shapes = (2, 2), (16, 2), (16, 2), (8, 2), (16, 2)
    steps, (weight, out, dout, dh, dgates) = _states(x, *shapes)
    kernels.rnn_backward(steps, weight, out, dout, dh, dgates, False)


_CONVOLUTIONS = (  # of large arrays, with steps, and of each channel by itself
    ((48, 16, 4, 4), (16, 16, 3, 3), 1),
    ((1, 16, 16, 16), (16, 16, 3, 3), 1),
    ((16, 4, 8, 8), (8, 4, 2, 2), 1),
    ((1, 2, 4, 4), (2, 1, 3, 3), 2),
)


def _convolutions(x: Array) -> Iterator[tuple[Array, Array, kernels.Steps]]:
    for image, weight, groups in _CONVOLUTIONS:
        padding = (weight[2] // 2,) * 2
        yield (
            np.ones(image, x.dtype),
            np.ones(weight, x.dtype),
            kernels.Steps((1, 1), padding, (1, 1), groups),
        )


def _upper(image: Array, weight: Array) -> Array:
    extra = 1 - weight.shape[2] % 2
    return np.ones((len(image), len(weight), *(n + extra for n in image.shape[2:])), image.dtype)


def _convolution(x: Array) -> None:
    for image, weight, steps in _convolutions(x):
        kernels.convolve(image, weight, _upper(image, weight), steps)


def _convolution_input(x: Array) -> None:
    for image, weight, steps in _convolutions(x):
        kernels.convolve_transposed(_upper(image, weight), weight, image, steps)


def _convolution_weight(x: Array) -> None:
    for image, weight, steps in _convolutions(x):
        kernels.convolve_weight(_upper(image, weight), image, weight, steps)


def _elementwise(kernel: Callable[..., None], inputs: int, *rest: Any) -> Callable[[Array], None]:
    return lambda x: kernel(*([x] * inputs), x.copy(), *rest)


def _large_elementwise(
    kernel: Callable[..., None], inputs: int, *rest: Any
) -> Callable[[Array], None]:
    return lambda x: kernel(*([_large(x)] * inputs), _large(x), *rest)


def _glu(x: Array) -> None:
    kernels.glu(x.reshape(2, 2, -1), x.reshape(2, -1)[:, :8].copy())


def _glu_backward(x: Array) -> None:
    halves = x.reshape(2, 2, -1)
    kernels.glu_backward(halves[:, 0].copy(), halves, halves.copy())


def _prelu(x: Array) -> None:
    x = x.reshape(-1, 4, x.shape[-1])
    kernels.prelu(x, x[0, :, 0].copy(), x.copy())


def _prelu_backward(x: Array) -> None:
    x = x.reshape(-1, 4, x.shape[-1])
    kernels.prelu_backward(x, x, x[0, :, 0].copy(), x.copy(), x[0, :, 0].copy())


def _elementary(ufunc: Any) -> Callable[[Array], None]:
    return lambda x: kernels.elementary(ufunc, *([_large(x)] * ufunc.nin), out=_large(x))


def _in_place(x: Array) -> None:
    kernels.add_scaled(x, x, 2.0, x.copy())
    kernels.add_product(x, x, x, 2.0, x.copy())
    for ufunc in (np.add, np.subtract, np.multiply, np.divide):
        for other in (x.copy(), x[0, :1]):
            kernels.in_place(ufunc, x.copy(), other)


def _arithmetic(ufunc: Any) -> Callable[[Array], None]:
    def run(x: Array) -> None:
        many, one = _large(x), _large(x)[0, :1]
        row, column = _large(x)[0], _large(x)[:, :1].copy()
        for other in (many, one, row, column):
            kernels.elementwise(ufunc, _large(x), many, other)
            kernels.elementwise(ufunc, _large(x), other, many)

    return run


def _xlogy(x: Array) -> None:
    many, one = _large(x), _large(x)[0, :1]
    for each in ((many, many), (many, one), (one, many)):
        kernels.xlogy(*each, many.copy())


def _all(*calls: Callable[[Array], object]) -> Callable[[Array], object]:
    """Return one unit of calls that share loops: two processes would compile these twice."""

    def run(x: Array) -> None:
        for call in calls:
            call(x)

    return run


UNITS: dict[str, Callable[[Array], object]] = {
    "waiting": lambda x: prepare(Cells()),
    "convolution": _all(_convolution, _convolution_weight, _convolution_input),
    "attention": lambda x: _attention(x, 32),
    "attention backward": lambda x: _attention_backward(x, 32),
    "attention of wide heads": lambda x: _attention(x, 136),
    "attention of wide heads, backward": lambda x: _attention_backward(x, 136),
    "products": _product,
    "AdamW": _adamw,
    "layer norm backward": _layer_norm_backward,
    "cross-entropy": _cross_entropy,
    "cross-entropy backward": _cross_entropy_backward,
    "GELU": _elementwise(kernels.gelu, 1),
    "layer norm": _layer_norm,
    "RMS norm": lambda x: kernels.rms_norm(x, x[0], 1e-5, x.copy(), _statistics(x)),
    "RMS norm backward": _rms_norm_backward,
    "batch norm": _batch_norm,
    "batch norm backward": _batch_norm_backward,
    "CTC": lambda x: kernels.ctc_loss(*_ctc(x)),
    "CTC backward": _ctc_backward,
    "grid sampling": _grid_sample,
    "grid sampling backward": _grid_sample_backward,
    "distances": _distances,
    "distances backward": _distances_backward,
    "group norm": _group_norm,
    "group norm backward": _group_norm_backward,
    "GELU backward": _elementwise(kernels.gelu_backward, 2),
    "embedding backward": lambda x: kernels.embedding_backward(x, _target(x), x.copy()),
    "embedding bag": lambda x: kernels.embedding_bag(
        x, np.zeros(4, np.int64), np.arange(5), x.copy()
    ),
    "dropout": _elementwise(kernels.dropout, 1, 0.5, 0),
    "sum of rows": _all(
        lambda x: kernels.sum_rows(np.tile(x, (500, 1)), x[0].copy()),
    ),
    "squared deviations": _all(
        lambda x: kernels.squared_deviations(x, x[0].copy(), 0, x[0].copy()),
        lambda x: kernels.squared_deviations(x, x[:, 0].copy(), 1, x[:, 0].copy()),
    ),
    "SGD": _sgd,
    "norm of gradients": lambda x: kernels.sum_of_squares([[x]]),
    "clipping of gradients": lambda x: kernels.scale_all([x.copy()], 0.5),
    "Adadelta": _optimizer(kernels.adadelta_steps, 2, 0.1, 0.9, 0.1, 0.1, False),
    "Adagrad": _optimizer(kernels.adagrad_steps, 1, [1], 0.1, 0.1, 0.1, 0.1, False),
    "Adamax": _optimizer(kernels.adamax_steps, 2, [1], 0.1, 0.9, 0.9, 0.1, 0.1, False),
    "ASGD": _optimizer(kernels.asgd_steps, 1, [(0.1, 1)], 0.1, 0.1, False),
    "NAdam": _optimizer(
        kernels.nadam_steps, 2, [1], [0.1], 0.1, 0.9, 0.9, 0.1, 0.1, 0.1, False, False
    ),
    "RAdam": _optimizer(kernels.radam_steps, 2, [1], 0.1, 0.9, 0.9, 0.1, 0.1, False, False),
    "RMSprop": _optimizer(kernels.rmsprop_steps, 3, 0.1, 0.9, 0.1, 0.1, 0.9, False),
    "Rprop": _optimizer(kernels.rprop_steps, 2, 0.5, 1.2, 0.1, 9.0, False),
    "softmax": _all(
        _elementwise(kernels.softmax, 1),
        lambda x: kernels.softmax_planes(x[None], x[None].copy(), False),
    ),
    "softmax backward": _all(
        _elementwise(kernels.softmax_backward, 2),
        lambda x: kernels.softmax_planes_backward(x[None], x[None], x[None].copy(), False),
    ),
    "log-softmax": _elementwise(kernels.log_softmax, 1),
    "cross-entropy of planes": lambda x: kernels.log_sum_exp_planes(x[None], x[:1].copy()),
    "cross-entropy of planes, backward": lambda x: kernels.scaled_softmax_planes(
        x[None], x[:1], x[:1], x[None].copy()
    ),
    "log-softmax backward": _elementwise(kernels.log_softmax_backward, 2),
    "copy of a transpose": _copy,
    "copy of rows": _copy_rows,
    "rows of a table": _take_rows,
    "copy of turned rows": _copy_turned_rows,
    "cumulative sum of rows": lambda x: kernels.cumsum(_large(x), _large(x), 1),
    "cumulative sum of columns": lambda x: kernels.cumsum(_large(x), _large(x), 0),
    "gather": _gather,
    "scatter": _scatter_add,
    "selection": _select,
    "loss of differences": _difference_loss,
    "loss of differences, backward": _difference_loss_backward,
    "loss of logits": _logits_loss,
    "loss of logits, backward": _logits_loss_backward,
    "sums of rows": lambda x: kernels.sum_axes(_large(x), (1,)),
    "sums of planes": lambda x: kernels.sum_axes(_large(x).reshape(600, 8, -1), (1,)),
    "cumulative log-sum-exp": lambda x: kernels.log_cumsum_exp(x, x.copy()),
    "max pooling of pairs": _max_pool_pairs,
    "max pooling": _max_pool,
    "max pooling, backward": _max_pool_backward,
    "resampling": _resample,
    "recurrence": lambda x: kernels.recurrence(x, x, x.copy()),
    "running extreme": lambda x: kernels.running_extreme(x, np.zeros(x.shape, np.int64), True),
    "sigmoid": _elementwise(kernels.sigmoid, 1),
    "sigmoid and tanh, backward": _large_elementwise(kernels.quadratic_backward, 2, 0, 1, -1),
    "SiLU": _elementwise(kernels.silu, 1),
    "SiLU backward": _elementwise(kernels.silu_backward, 2),
    "softplus": _elementwise(kernels.softplus, 1, 1, 20),
    "softplus backward": _elementwise(kernels.softplus_backward, 2, 1, 20),
    "ELU": _elementwise(kernels.elu, 1, 1, 1, 1),
    "ReLU": _elementwise(kernels.relu, 1),
    "ReLU backward": _elementwise(kernels.relu_backward, 2),
    "hardsigmoid": _elementwise(kernels.hardsigmoid, 1),
    "hardswish": _elementwise(kernels.hardswish, 1),
    "hardswish backward": _elementwise(kernels.hardswish_backward, 2),
    "shrinking": _elementwise(kernels.shrink, 1, 1, 1),
    "threshold": _elementwise(kernels.threshold, 1, 1, 1),
    "GLU": _glu,
    "GLU backward": _glu_backward,
    "PReLU": _all(_prelu, lambda x: _prelu(x.T[..., None].copy())),
    "PReLU backward": _all(_prelu_backward, lambda x: _prelu_backward(x.T[..., None].copy())),
    "clip": lambda x: kernels.clip(_large(x), _large(x), x.dtype.type(0), x.dtype.type(1)),
    "sign": _large_elementwise(kernels.sign, 1),
    "angle": _large_elementwise(kernels.angle, 1),
    "logit backward": _large_elementwise(kernels.logit_backward, 2, 0, 0),
    "interpolation": _all(
        _large_elementwise(kernels.lerp, 3),
        lambda x: kernels.lerp(_large(x), _large(x), x.dtype.type(0.25), _large(x)),
    ),
    "triangles": lambda x: kernels.triangle(_large(x), _large(x), 0, upper=True),
    "products of rows": lambda x: kernels.prod_axes(_large(x), (1,), False, np.ones(600, x.dtype)),
    "cumulative product": lambda x: kernels.cumprod(_large(x), _large(x)),
    "ELU backward": _elementwise(kernels.elu_backward, 2, 1, 1, 1),
    "two slopes, backward": _elementwise(kernels.two_slopes_backward, 2, 0, 6, 1, 0, 1),
    **{f"{ufunc.__name__} of many": _elementary(ufunc) for ufunc in LOOPS},
    "in_place": _in_place,
    **{
        f"{ufunc.__name__} of two": _arithmetic(ufunc)
        for ufunc in kernels.ARITHMETIC
        if ufunc.nin == 2
    },
    "arithmetic of one": _all(*[_elementary(each) for each in kernels.ARITHMETIC if each.nin == 1]),
    "reciprocal of the root": _large_elementwise(kernels.rsqrt, 1),
    "first elements in order": lambda x: kernels.sorted_indices(_large(x), True, 0, 4),
    "elements of a rank": lambda x: kernels.sorted_indices(_large(x), False, 4, 5),
    "16-bit floats": _halves,
    "products in parts": _split_product,
    "erf": _large_elementwise(kernels.erf, 1),
    "erfc": _large_elementwise(kernels.erfc, 1),
    "erfinv": _large_elementwise(kernels.erfinv, 1),
    "i0": _large_elementwise(kernels.i0, 1),
    "i0, backward": _large_elementwise(kernels.i0_backward, 2),
    "i0e": _large_elementwise(kernels.i0e, 1),
    "i0e, backward": _large_elementwise(kernels.i0e_backward, 2),
    "i1": _large_elementwise(kernels.i1, 1),
    "i1, backward": _large_elementwise(kernels.i1_backward, 2),
    "i1e": _large_elementwise(kernels.i1e, 1),
    "i1e, backward": _large_elementwise(kernels.i1e_backward, 2),
    "ndtr": _large_elementwise(kernels.ndtr, 1),
    "ndtr, backward": _large_elementwise(kernels.ndtr_backward, 2),
    "log_ndtr": _large_elementwise(kernels.log_ndtr, 1),
    "log_ndtr, backward": _large_elementwise(kernels.log_ndtr_backward, 2),
    "erfcx": _large_elementwise(kernels.erfcx, 1),
    "erfcx, backward": _large_elementwise(kernels.erfcx_backward, 2),
    "lgamma": _large_elementwise(kernels.lgamma, 1),
    "lgamma, backward": _large_elementwise(kernels.lgamma_backward, 2),
    "trigamma": _large_elementwise(kernels.trigamma, 1),
    "digamma": _large_elementwise(kernels.digamma, 1),
    "entropy": _large_elementwise(kernels.entr, 1),
    "entropy, backward": _large_elementwise(kernels.entr_backward, 2),
    "x log y": _xlogy,
    "hypot": _large_elementwise(kernels.hypot, 2),
    "fmod": _large_elementwise(kernels.fmod, 2),
    "remainder": _large_elementwise(kernels.remainder, 2),
    "floor division": _large_elementwise(kernels.floor_divide, 2),
    "recurrent layers": _all(_lstm, _lstm_backward, _gru, _gru_backward, _rnn, _rnn_backward),
    "GELU by tanh": _elementwise(kernels.gelu, 1, "tanh"),
    "GELU by tanh, backward": _elementwise(kernels.gelu_backward, 2, "tanh"),
}
"""Calls by name, those of a training step and the slowest first: then processes end together."""
