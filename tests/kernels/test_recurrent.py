"""Compiled recurrent layers agree with the NumPy references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from offgrad import kernels
from offgrad.kernels import TimeSteps, _panels
from offgrad.kernels import _recurrent_numpy as references

Array = npt.NDArray[Any]
Agree = Callable[..., None]
COUNTS = np.array([19, 19, 10, 3, 1])
STARTS = np.cumsum(COUNTS) - COUNTS
STEPS = {
    "time-major": TimeSteps(np.arange(7) * 5, np.full(7, 5), 1),
    "batch-major": TimeSteps(np.arange(3), np.full(3, 37), 3),
    "backward": TimeSteps(np.arange(9)[::-1] * 3, np.full(9, 3), 1),
    "packed": TimeSteps(STARTS, COUNTS, 1),
    "packed, backward": TimeSteps(STARTS[::-1].copy(), COUNTS[::-1].copy(), 1),
}
every_order = pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
IMPLEMENTATIONS = (kernels, references)


def arrays(rng: np.random.Generator, dtype: Any, *shapes: tuple[int, ...]) -> list[Array]:
    return [np.asarray(rng.standard_normal(each) * 0.5, dtype) for each in shapes]


def function(place: Any, name: str) -> Any:
    return getattr(place, name, None) or getattr(place, f"{name}_numpy")


def compare(agree: Agree, run: Callable[[Any], list[Array | None]]) -> None:
    for mine, expected in zip(*(run(each) for each in IMPLEMENTATIONS), strict=True):
        if mine is not None:
            agree(mine, expected, factor=40)


@every_order
@pytest.mark.parametrize(("size", "states"), [(5, 5), (20, 7), (50, 50)])
def test_lstm(
    steps: TimeSteps, size: int, states: int, dtype: Any, rng: np.random.Generator, agree: Agree
) -> None:
    rows, batch = int(steps.counts.sum()), int(steps.counts.max())
    gates, weight, h, c, dout, dh, dc = arrays(
        rng, dtype, (rows, 4 * size), (4 * size, states), (batch, states), (batch, size),
        (rows, states), (batch, states), (batch, size),
    )  # fmt: skip
    projection = None if size == states else arrays(rng, dtype, (states, size))[0]

    def run(place: Any) -> list[Array | None]:
        g, last, cell, dlast, dcell = (each.copy() for each in (gates, h, c, dh, dc))
        cells, out = np.empty((rows, size), dtype), np.empty((rows, states), dtype)
        function(place, "lstm")(steps, g, weight, projection, last, cell, cells, out)
        dgates = np.empty_like(g)
        dprojected = None if projection is None else np.empty_like(out)
        function(place, "lstm_backward")(
            steps, g, cells, c, weight, projection, dout, dlast, dcell, dgates, dprojected
        )
        return [g, last, cell, cells, out, dlast, dcell, dgates, dprojected]

    compare(agree, run)


@every_order
def test_gru(steps: TimeSteps, dtype: Any, rng: np.random.Generator, agree: Agree) -> None:
    rows, batch, size = int(steps.counts.sum()), int(steps.counts.max()), 20
    gates, weight, bias, h, dout, dh = arrays(
        rng, dtype, (rows, 3 * size), (3 * size, size), (3 * size,), (batch, size), (rows, size),
        (batch, size),
    )  # fmt: skip

    def run(place: Any) -> list[Array | None]:
        g, last, dlast = gates.copy(), h.copy(), dh.copy()
        candidates, out = np.empty((rows, size), dtype), np.empty((rows, size), dtype)
        function(place, "gru")(steps, g, weight, bias, last, candidates, out)
        dinput, dstate = np.empty_like(g), np.empty_like(g)
        function(place, "gru_backward")(
            steps, g, candidates, h, weight, out, dout, dlast, dinput, dstate
        )
        return [g, last, candidates, out, dlast, dinput, dstate]

    compare(agree, run)


@every_order
@pytest.mark.parametrize("is_relu", [False, True])
def test_rnn(
    steps: TimeSteps, is_relu: bool, dtype: Any, rng: np.random.Generator, agree: Agree
) -> None:
    rows, batch, size = int(steps.counts.sum()), int(steps.counts.max()), 20
    products, weight, h, dout, dh = arrays(
        rng, dtype, (rows, size), (size, size), (batch, size), (rows, size), (batch, size)
    )

    def run(place: Any) -> list[Array | None]:
        out, last, dlast, dgates = products.copy(), h.copy(), dh.copy(), np.empty_like(products)
        function(place, "rnn")(steps, weight, last, out, is_relu)
        function(place, "rnn_backward")(steps, weight, out, dout, dlast, dgates, is_relu)
        return [out, last, dlast, dgates]

    compare(agree, run)


def test_threads_give_the_same_bits(rng: np.random.Generator) -> None:
    steps = TimeSteps(np.arange(40) * 40, np.full(40, 40), 1)
    gates, weight, h = arrays(rng, np.float32, (1600, 256), (256, 64), (40, 64))
    found = []
    for threads in (1, 3):
        kernels.set_num_threads(threads)
        g, last, cell = gates.copy(), h.copy(), h.copy()
        cells, out = np.empty((1600, 64), np.float32), np.empty((1600, 64), np.float32)
        kernels.lstm(steps, g, weight, None, last, cell, cells, out)
        found.append(out)
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("transposed", [False, True])
def test_panels(transposed: bool, dtype: Any, rng: np.random.Generator) -> None:
    (matrix,) = arrays(rng, dtype, (3, 70))
    packed = _panels.pack(np.ascontiguousarray(matrix.T) if transposed else matrix, transposed)
    whole = packed.transpose(1, 0, 2).reshape(3, -1)
    np.testing.assert_array_equal(whole[:, :70], matrix)
    assert not whole[:, 70:].any()
