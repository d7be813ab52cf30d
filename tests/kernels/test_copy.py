from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from offgrad import kernels, memory

BASE = (70, 61, 83)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.transpose(0, 2, 1),
        lambda x: x.transpose(2, 1, 0),
        lambda x: x.transpose(2, 0, 1),
        lambda x: x[:, ::2].transpose(2, 1, 0)[3:],
        lambda x: x.transpose(2, 1, 0)[::-1],
        lambda x: x.transpose(2, 1, 0)[:, ::-1, ::-1],
        lambda x: np.rot90(x, 1, (0, 2)),
        lambda x: x[::-1, :, ::-1],
        lambda x: x[::-1, ::3],
        lambda x: x[..., :9][..., ::-1],
        lambda x: x[:, ::2, 5:37][..., ::-1],
        lambda x: np.broadcast_to(x[:1], (5, *x.shape[1:])).transpose(0, 2, 1),
        lambda x: np.broadcast_to(x[:, :1], (70, 40, 83)).transpose(2, 1, 0),
        lambda x: x[..., :5].transpose(2, 1, 0).repeat(9, 0),
        lambda x: x[:, :40, :64].reshape(70, 40, 8, 8).transpose(0, 3, 1, 2),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.complex128, np.bool_])
def test_any_layout(view: Any, dtype: Any, rng: np.random.Generator, backend: str) -> None:
    source = view((rng.normal(size=BASE) * 100).astype(dtype))
    out = np.zeros(source.shape, dtype)
    kernels.copy_into(out, source)
    np.testing.assert_array_equal(out, source)
    np.testing.assert_array_equal(memory.copy(source), source)


@pytest.mark.parametrize(
    "part",
    [
        lambda out: out[:, 2:63],
        lambda out: out[..., 7:90],
        lambda out: out[:, 3:64, ::-1][..., :83],
        lambda out: out[1:71, 1:62, 1:84],
        lambda out: out[:70, ::2][:, :61, :83],
        lambda out: out.transpose(1, 2, 0)[:70, :61, :83],
    ],
)
@pytest.mark.parametrize(
    "view",
    [lambda x: x, lambda x: x[::-1], lambda x: x.transpose(2, 1, 0).copy().transpose(2, 1, 0)],
)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
def test_into_a_part(
    view: Any, part: Any, dtype: Any, rng: np.random.Generator, backend: str
) -> None:
    """Nothing beside the part changes."""
    source = view((rng.normal(size=BASE) * 100).astype(dtype))
    shape = (140, 140, 140)
    expected, out = np.ones(shape, dtype), np.ones(shape, dtype)
    whole = tuple(slice(size) for size in source.shape)
    part(expected)[whole] = source
    kernels.copy_into(part(out)[whole], source)
    np.testing.assert_array_equal(out, expected)


def test_an_array_that_cannot_be_written_to(rng: np.random.Generator) -> None:
    source = rng.normal(size=(500, 400)).astype(np.float32)
    source.flags.writeable = False
    np.testing.assert_array_equal(memory.copy(source.T), source.T)


def test_every_bit_is_copied() -> None:
    bits = np.arange(500 * 400, dtype=np.uint32).reshape(500, 400) * np.uint32(40503 * 65537)
    copied = memory.copy(bits.view(np.float32).T)
    np.testing.assert_array_equal(copied.view(np.uint32), bits.T)


def test_a_new_process_copies_with_the_loops() -> None:
    """Kernels are imported at their first use: a copy is one, of which no name tells."""
    program = (
        "import offgrad\n"
        "offgrad.ones(600, 600).mT.contiguous()\n"
        "from offgrad.kernels import _copy\n"
        "assert sum(_copy._tiles_loop.counts()) == 1, _copy._tiles_loop.counts()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
