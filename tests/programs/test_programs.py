"""Programs as people write them give the same numbers on both libraries."""

import functools
import warnings

import numpy as np
import pytest

import offgrad
from tests.programs import (
    architectures,
    blocks,
    dense,
    generative,
    language,
    learning,
    loops,
    numerics,
    reinforcement,
    sequences,
    states,
    structures,
    vision,
)
from tests.programs.common import PROGRAMS

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

MODULES = (
    architectures,
    blocks,
    dense,
    generative,
    language,
    learning,
    loops,
    numerics,
    reinforcement,
    sequences,
    states,
    structures,
    vision,
)


@functools.cache
def expected(name: str) -> list[float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PROGRAMS[name](torch)


def test_every_module_has_programs() -> None:
    assert {f.__module__ for f in PROGRAMS.values()} == {m.__name__ for m in MODULES}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of nn.utils.weight_norm
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    np.testing.assert_allclose(PROGRAMS[name](offgrad), expected(name), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["densenet", "pix2pix", "llama"])
@pytest.mark.parametrize("policy", ["disk,min=0", "pool,min=0"])
def test_program_offloaded(name: str, policy: str) -> None:
    with offgrad.offload(policy):
        found = PROGRAMS[name](offgrad)
    np.testing.assert_allclose(found, expected(name), rtol=1e-4, atol=1e-6)
