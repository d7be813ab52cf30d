"""Fixtures for kernels: restored settings, and one call of every kernel."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from offgrad import kernels

Array = npt.NDArray[Any]
Calls = dict[str, Callable[[], list[Array]]]


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    """Restore backend and number of threads."""
    backend, threads = kernels.backend(), kernels.get_num_threads()
    yield
    kernels.set_backend(backend)
    kernels.set_num_threads(threads)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1234)


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> np.dtype[Any]:
    return np.dtype(str(request.param))


@pytest.fixture(params=["numba", "numpy"])
def backend(request: pytest.FixtureRequest) -> str:
    kernels.set_backend(request.param)
    return str(request.param)


@pytest.fixture(scope="session")
def agree() -> Callable[..., None]:
    """Compare with tolerances for the result's dtype, relative to the expected values' size.

    `floor` is the minimum size, for results in which terms of about this size cancel.
    """

    def check(actual: Array, expected: Any, factor: float = 1.0, floor: float = 0.0) -> None:
        expected = np.asarray(expected)
        unit = {2: 1e-2, 4: 2e-6, 8: 4e-15}[actual.dtype.itemsize] * factor
        finite = np.abs(expected[np.isfinite(expected)])
        size = max(floor, float(finite.max()) if finite.size else 0.0)
        assert actual.shape == expected.shape
        np.testing.assert_allclose(
            actual.astype(np.float64), expected.astype(np.float64), rtol=unit, atol=unit * size
        )

    return check


@pytest.fixture(scope="session")
def all_calls() -> Calls:
    """Every kernel on inputs that fill several ranges; each call returns its outputs, fresh."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(700, 513)).astype(np.float32)
    g = rng.normal(size=x.shape).astype(np.float32)
    weight = rng.normal(size=513).astype(np.float32)
    target = rng.integers(0, 513, 700)
    q, k, v, grad = rng.normal(size=(4, 2, 3, 200, 16)).astype(np.float32)

    def new(*shape: int) -> Array:
        return np.full(shape, np.nan, dtype=np.float32)

    def elementwise(kernel: Callable[..., None], *arguments: Any) -> Callable[[], list[Array]]:
        def call() -> list[Array]:
            out = np.full_like(x, np.nan)
            kernel(*arguments[:-1], out, *arguments[-1])
            return [out]

        return call

    def cross_entropy() -> list[Array]:
        losses, lse, dx = new(700), new(700), np.full_like(x, np.nan)
        kernels.cross_entropy(x, target, losses, lse, None, -100, 0.1)
        kernels.cross_entropy_backward(losses, x, target, lse, dx, None, -100, 0.1)
        return [losses, lse, dx]

    def layer_norm() -> list[Array]:
        out, dx = np.full_like(x, np.nan), np.full_like(x, np.nan)
        mean, rstd, dweight, dbias = new(700), new(700), new(513), new(513)
        kernels.layer_norm(x, weight, weight, 1e-5, out, mean, rstd)
        kernels.layer_norm_backward(g, x, weight, mean, rstd, dx, dweight, dbias)
        return [out, mean, rstd, dx, dweight, dbias]

    def batch_norm() -> list[Array]:
        results = []
        for each, grad in ((x, g), (x.reshape(7, 100, 513), g.reshape(7, 100, 513))):
            mean, invstd, variance, dweight, dbias = np.ones((5, each.shape[1]), np.float32)
            out, dx = np.empty_like(each), np.empty_like(each)
            kernels.batch_norm(each, None, None, 1e-5, out, mean, invstd, variance)
            outputs = dx, dweight, dbias
            kernels.batch_norm_backward(grad, each, None, mean, invstd, *outputs, training=True)
            results += [out, mean, invstd, variance, *outputs]
        return results

    def group_norm() -> list[Array]:
        each, grad = x.reshape(7, 20, 5, 513), g.reshape(7, 20, 5, 513)
        (mean, rstd), (dweight, dbias) = np.ones((2, 7, 20), np.float32), np.ones((2, 100), "f")
        out, dx = np.empty_like(each), np.empty_like(each)
        kernels.group_norm(each, None, None, 1e-5, out, mean, rstd)
        kernels.group_norm_backward(grad, each, None, mean, rstd, dx, dweight, dbias)
        return [out, mean, rstd, dx, dweight, dbias]

    def rms_norm() -> list[Array]:
        out, dx, rstd, dweight = np.empty_like(x), np.empty_like(x), new(700), new(513)
        kernels.rms_norm(x, weight, 1e-5, out, rstd)
        kernels.rms_norm_backward(g, x, weight, rstd, dx, dweight)
        return [out, rstd, dx, dweight]

    def adamw() -> list[Array]:
        param, mean, square = x.copy(), np.zeros_like(x), np.zeros_like(x)
        kernels.adamw_step(param, g, mean, square, 1e-2, 0.9, 0.99, 1e-8, 0.1, 1)
        return [param, mean, square]

    def sgd() -> list[Array]:
        param, buffer = x.copy(), g.copy()
        kernels.sgd_step(param, g, buffer, 0.1, 0.9)
        return [param, buffer]

    def attention() -> list[Array]:
        out, lse, dq, dk, dv = np.empty_like(q), new(2, 3, 200), *(np.empty_like(q) for _ in "qkv")
        rest = (0.25, True, None, 0.2, 3, 4)
        kernels.attention(q, k, v, out, lse, *rest)
        kernels.attention_backward(grad, q, k, v, out, lse, dq, dk, dv, *rest)
        return [out, lse, dq, dk, dv]

    def embedding() -> list[Array]:
        out = new(513, 513)
        kernels.embedding_backward(g, target, out)
        return [out]

    def sum_rows() -> list[Array]:
        out = new(513)
        kernels.sum_rows(x, out)
        return [out]

    def deviations() -> list[Array]:
        outs = [new(len(x)), new(513)]
        kernels.squared_deviations(x, x[:, 0].copy(), 1, outs[0])
        kernels.squared_deviations(x, x[0].copy(), 0, outs[1])
        return outs

    def distances() -> list[Array]:
        rows, others = x[None, :300], x[None, 300:]
        outs = [new(1, len(rows[0]), len(others[0])) for _ in range(2)]
        gradient = new(*rows.shape)
        kernels.distances(rows, others, 1.5, outs[0])
        kernels.euclidean_distances(rows, others, outs[1])
        kernels.distances_backward(outs[1], rows, others, outs[0], 1.5, gradient)
        return [*outs, gradient]

    def grid_sample() -> list[Array]:
        images, places = x[:320, :384].reshape(2, 3, 160, 128), np.tanh(x[:400, :400])
        grid = places.reshape(2, -1, 2)
        out, dx, dgrid = new(2, 3, grid.shape[1]), new(*images.shape), new(*grid.shape)
        sampling = kernels.Sampling("bicubic", "reflection", False)
        kernels.grid_sample(images, grid, sampling, out)
        kernels.grid_sample_backward(out, images, grid, sampling, dx, dgrid)
        return [out, dx, dgrid]

    picks = rng.integers(0, 700, x.shape)

    def along_dims() -> list[Array]:
        picked, sums, rows = np.empty_like(x), np.zeros_like(x), np.zeros_like(x)
        kernels.gather(x, picks, 0, picked)
        kernels.scatter_add(sums, picks, x, 0)
        kernels.scatter_add(sums, picks % 513, x, 1)
        columns = np.empty_like(x)
        kernels.add_rows(x, picks[:, 0], 0, rows)
        kernels.add_rows(x, picks[0] % 513, 1, columns)
        return [picked, sums, rows, columns]

    def scans_and_orders() -> list[Array]:
        sums = [np.empty_like(x) for _ in range(4)]
        for number, out in enumerate(sums):
            kernels.cumsum(x, out, number % 2, number > 1)
        return [
            *sums,
            kernels.sorted_indices(x, False),
            kernels.sorted_indices(x, True, 0, 9),
            kernels.sorted_indices(x, False, 7, 8),
        ]

    def reductions() -> list[Array]:
        highest, lse, slopes = np.empty(513, np.float32), new(700), np.empty_like(x)
        kernels.reduce_axes(np.maximum.reduce, x, (0,), highest)
        kernels.log_sum_exp(x, lse)
        kernels.log_sum_exp_backward(lse, x, lse, slopes)
        sums = [kernels.sum_axes(x, axes) for axes in ((0,), (1,), (0, 1))]
        return [highest, lse, slopes, *sums, kernels.arg_extreme(np.argmax, x)]

    def losses() -> list[Array]:
        results = []
        probabilities = 1 / (1 + np.exp(-x))
        for loss in (kernels.mse(), kernels.huber(0.5), kernels.soft_margin()):
            slopes = np.empty_like(x)
            loss.slopes(x, g, np.float32(0.5), slopes)
            results += [np.asarray(loss.total(x, g)), slopes]
        for loss in (kernels.binary_cross_entropy(), kernels.binary_cross_entropy_with_logits()):
            slopes = np.empty_like(x)
            loss.slopes(probabilities, g, g, slopes)
            results += [np.asarray(loss.total(probabilities, g)), slopes]
        return results

    def copies() -> list[Array]:
        out = np.empty(x.shape[::-1], np.float32)
        kernels.copy_into(out, x.T)
        return [out]

    images = [
        (
            kernels.Steps((stride,) * 2, (kernel // 2,) * 2, (1, 1), groups),
            rng.normal(size=(samples, channels, side, side)).astype(np.float32),
            rng.normal(size=(outputs, channels // groups, kernel, kernel)).astype(np.float32),
            rng.normal(size=(samples, outputs, *[-(-side // stride)] * 2)).astype(np.float32),
        )
        for samples, channels, outputs, side, kernel, stride, groups in (
            (9, 32, 80, 22, 3, 1, 1),
            (9, 24, 40, 31, 3, 2, 1),
            (9, 6, 40, 31, 3, 2, 1),
            (4, 16, 24, 40, 1, 1, 1),
            (3, 64, 64, 40, 5, 1, 64),
        )
    ]

    def convolutions() -> list[Array]:
        results = []
        for steps, image, kernel, upper in images:
            out, dx, dweight = (np.full_like(each, np.nan) for each in (upper, image, kernel))
            kernels.convolve(image, kernel, out, steps, kernel[:, 0, 0, 0].copy())
            kernels.convolve_transposed(upper, kernel, dx, steps)
            kernels.convolve_weight(upper, image, dweight, steps)
            results += [out, dx, dweight]
        return results

    def error_functions() -> list[Array]:
        results = [np.empty_like(x) for _ in range(7)]
        kernels.erf(x, results[0])
        kernels.erfc(x, results[1])
        kernels.erfinv(np.tanh(x), results[2])
        for kernel, out in zip(
            (kernels.fmod, kernels.remainder, kernels.floor_divide, kernels.hypot),
            results[3:],
            strict=True,
        ):
            kernel(x, g, out)
        return results

    def elementary() -> list[Array]:
        results = [np.empty_like(x) for _ in range(4)]
        for ufunc, out in zip((np.log1p, np.sinh, np.tan), results, strict=False):
            kernels.elementary(ufunc, 3e4 * x, out=out)
        kernels.elementary(np.arctan2, x, g, out=results[3])
        return results

    return {
        "along_dims": along_dims,
        "elementary": elementary,
        "convolutions": convolutions,
        "error_functions": error_functions,
        "sigmoid": elementwise(kernels.sigmoid, x, ()),
        "quadratic_backward": elementwise(kernels.quadratic_backward, g, x, (0, 1, -1)),
        "elu": elementwise(kernels.elu, x, (1, 2, 0.5)),
        "elu_backward": elementwise(kernels.elu_backward, g, x, (1, 2, 0.5)),
        "two_slopes_backward": elementwise(kernels.two_slopes_backward, g, x, (0, 1, 1, 0, 1)),
        "relu": elementwise(kernels.relu, x, ()),
        "relu_backward": elementwise(kernels.relu_backward, g, x, ()),
        "hardswish": elementwise(kernels.hardswish, x, ()),
        "hardswish_backward": elementwise(kernels.hardswish_backward, g, x, ()),
        "shrink": elementwise(kernels.shrink, x, (0.5, 0.2)),
        "silu": elementwise(kernels.silu, x, ()),
        "silu_backward": elementwise(kernels.silu_backward, g, x, ()),
        "softplus": elementwise(kernels.softplus, x, (1, 20)),
        "softplus_backward": elementwise(kernels.softplus_backward, g, x, (1, 20)),
        "mish": elementwise(kernels.mish, x, ()),
        "mish_backward": elementwise(kernels.mish_backward, g, x, ()),
        "scans_and_orders": scans_and_orders,
        "reductions": reductions,
        "losses": losses,
        "copies": copies,
        "gelu": elementwise(kernels.gelu, x, ()),
        "gelu_backward": elementwise(kernels.gelu_backward, g, x, ()),
        "gelu_tanh": elementwise(kernels.gelu, x, ("tanh",)),
        "gelu_tanh_backward": elementwise(kernels.gelu_backward, g, x, ("tanh",)),
        "softmax": elementwise(kernels.softmax, x, ()),
        "softmax_backward": elementwise(kernels.softmax_backward, g, x, ()),
        "log_softmax": elementwise(kernels.log_softmax, x, ()),
        "log_softmax_backward": elementwise(kernels.log_softmax_backward, g, x, ()),
        "dropout": elementwise(kernels.dropout, x, (0.3, 1, 2)),
        "cross_entropy": cross_entropy,
        "layer_norm": layer_norm,
        "batch_norm": batch_norm,
        "rms_norm": rms_norm,
        "group_norm": group_norm,
        "adamw": adamw,
        "sgd": sgd,
        "attention": attention,
        "embedding": embedding,
        "sum_rows": sum_rows,
        "deviations": deviations,
        "distances": distances,
        "grid_sample": grid_sample,
    }


@pytest.fixture(scope="session")
def digests(all_calls: Calls) -> Callable[[], dict[str, str]]:
    """Run every kernel and digest the bytes of its outputs, by name."""

    def run() -> dict[str, str]:
        return {
            name: hashlib.sha256(b"".join(a.tobytes() for a in call())).hexdigest()
            for name, call in all_calls.items()
        }

    return run
