"""The bits of a result do not depend on where in memory the arrays lie."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offgrad import kernels

Arrays = list[np.ndarray[Any, Any]]
SHAPES = [(6, 4), (1, 8), (3, 5), (1, 20), (4, 9), (1, 64), (8, 2)]


def _place(arrays: Arrays, rng: np.random.Generator) -> Arrays:
    """Copies of the arrays in one buffer, in random order, close to one another."""
    buffer = np.empty(sum(each.nbytes + 64 for each in arrays) + 256, np.uint8)
    position = int(rng.integers(0, 8)) * 8
    placed: list[Any] = [None] * len(arrays)
    for index in rng.permutation(len(arrays)):
        array = arrays[index]
        room = buffer[position : position + array.nbytes]
        placed[index] = room.view(array.dtype).reshape(array.shape)
        placed[index][...] = array
        position += -(-array.nbytes // 8) * 8 + int(rng.integers(0, 5)) * 8
    return placed


def _attention(q: Any, out: Any, lse: Any) -> None:
    q4, out4 = q[None, None], out[None, None]
    kernels.attention(q4, q4, q4, out4, lse[None, None], 0.3, causal=True)


# For each kernel: how to call it, the arrays it takes (x: the shape, r: rows, c: columns), and how
# many of them, the last, it writes.
CASES: dict[str, tuple[Callable[..., Any], str, int]] = {
    "softmax": (kernels.softmax, "xx", 1),
    "softmax_backward": (kernels.softmax_backward, "xxx", 1),
    "log_softmax": (kernels.log_softmax, "xx", 1),
    "log_softmax_backward": (kernels.log_softmax_backward, "xxx", 1),
    "gelu": (kernels.gelu, "xx", 1),
    "gelu_backward": (kernels.gelu_backward, "xxx", 1),
    "layer_norm": (lambda x, w, b, *out: kernels.layer_norm(x, w, b, 1e-5, *out), "xccxrr", 3),
    "layer_norm_backward": (kernels.layer_norm_backward, "xxcrrxcc", 3),
    "dropout": (lambda x, out: kernels.dropout(x, out, 0.3, 1, 2), "xx", 1),
    "cross_entropy": (
        lambda x, *out: kernels.cross_entropy(x, np.zeros(len(x), np.int64), *out),
        "xrr",
        2,
    ),
    "cross_entropy_backward": (
        lambda g, x, lse, out: kernels.cross_entropy_backward(
            g, x, np.zeros(len(x), np.int64), lse, out
        ),
        "rxrx",
        1,
    ),
    "sum_rows": (kernels.sum_rows, "xc", 1),
    "deviations": (lambda x, r, *out: kernels.squared_deviations(x, r, 1, *out), "xrr", 1),
    "deviations of columns": (
        lambda x, c, *out: kernels.squared_deviations(x, c, 0, *out),
        "xcc",
        1,
    ),
    "attention": (_attention, "xxr", 2),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_bits_do_not_depend_on_addresses(name: str, dtype: Any, rng: np.random.Generator) -> None:
    call, kinds, written = CASES[name]
    for rows, columns in SHAPES:
        shapes = {"x": (rows, columns), "r": (rows,), "c": (columns,)}
        arrays = [rng.normal(size=shapes[kind]).astype(dtype) for kind in kinds]
        results = set()
        for _ in range(60):
            placed = _place(arrays, rng)
            call(*placed)
            results.add(b"".join(each.tobytes() for each in placed[-written:]))
        assert len(results) == 1, f"{name} of {rows} x {columns}"
