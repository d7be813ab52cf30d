"""Packs of small arrays take room of a budget, and count as memory."""

import pytest

import offgrad
from offgrad.policies import Budget
from offgrad.session.named_stores import max_pack_nbytes
from tests.session.bound import chain, check_bound
from tests.session.graphs import normal
from tests.session.helpers import MIB


@pytest.mark.parametrize("policy", ["disk", "zarr"])
@pytest.mark.parametrize("nbytes", [300_000, 2 * MIB, 5 * MIB])
def test_a_budget_with_packs_is_a_bound_at_every_instant(
    policy: str, nbytes: int, named_stores: str
) -> None:
    x = normal(1, 128, 128)
    session = offgrad.offload(
        Budget(nbytes, policy), directory=named_stores, prefetch_nbytes=1 << 20
    )
    check_bound(chain(x, 150), [x], session, nbytes, backwards=2)


def test_packs_are_a_sixteenth_of_a_small_budget() -> None:
    assert max_pack_nbytes(None) == max_pack_nbytes(1 << 30) == 4 * MIB
    assert max_pack_nbytes(16 * MIB) == max_pack_nbytes(31 * MIB) == MIB
    assert max_pack_nbytes(MIB - 1) == max_pack_nbytes(0) == 0
