"""Packs of small arrays are tensor memory: the limit counts, frees and named."""

from pathlib import Path
from typing import Any

import pytest
from offgrad_storage import DiskStore

import offgrad
from offgrad import memory
from offgrad.policies import Offload
from tests.session.graphs import bits, gradient, normal
from tests.session.helpers import alive, unary_chain

PACKS = "packs of small arrays"


def packs_nbytes() -> int:
    return memory.memory_by_holder().get(PACKS, 0)


@pytest.mark.parametrize("rule", ["disk,min=0", "zarr,min=0"])
def test_packs_count_until_they_are_written(rule: str, named_stores: str) -> None:
    x = normal(1, 16, 16)
    expected = bits(*gradient(unary_chain(x, 9), x))
    base = alive()
    with offgrad.offload(rule, directory=named_stores):
        loss = unary_chain(x, 9)
    held = packs_nbytes()
    assert held >= 9 * x.nbytes
    assert memory.allocated() >= base + held
    described = memory.allocator.counter.describe(1)
    assert f"{memory.format_nbytes(held)} {PACKS}" in described
    with memory.limit(memory.allocated() + held // 2):
        offgrad.empty(held // 4).zero_()
    assert packs_nbytes() == 0
    assert bits(*gradient(loss, x)) == expected


def test_prefetches_do_not_ask_for_packs_that_do_not_fit(tmp_path: Path) -> None:
    x = normal(1, 64, 64)
    expected = bits(*gradient(unary_chain(x, 9), x))
    asked: list[int] = []

    def hold(shape: Any, dtype: Any) -> Any:
        asked.append(shape[0])
        return memory.empty(shape, dtype)

    with DiskStore(tmp_path, allocate=memory.empty, hold=hold) as store:
        with offgrad.offload(Offload(store, min_nbytes=0)):
            loss = unary_chain(x, 9)
        store.flush()
        store.trim()
        asked.clear()
        with memory.limit(memory.allocated() + 4 * x.nbytes):
            assert bits(*gradient(loss, x)) == expected
    # Each use asks once; a prefetch would have asked for each array ahead, at each use.
    assert len(asked) <= 9
