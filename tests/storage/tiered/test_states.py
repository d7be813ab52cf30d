"""The states of arrays, and the check of the figures that follow from them."""

from __future__ import annotations

import numpy as np
import pytest
from offgrad_storage.tiered.invariants import check_invariants
from offgrad_storage.tiered.ram import RamTier
from offgrad_storage.tiered.states import TierEntry

from tests.storage.tiered.gated import Gated, put


def test_an_illegal_transition_is_refused() -> None:
    tier = RamTier(100)
    entry = TierEntry(0, np.zeros(100, np.uint8), {})
    with pytest.raises(RuntimeError, match="it is new, so it cannot become ram"):
        tier.on_copied(entry, np.zeros(100, np.uint8))
    tier.begin_copy(entry)
    with pytest.raises(RuntimeError, match="it is copying in, so it cannot become copying in"):
        tier.begin_copy(entry)
    check_invariants(tier)
    assert tier.budget.used_nbytes == 100
    tier.on_copy_failed(entry)
    check_invariants(tier)
    assert tier.budget.used_nbytes == 0


def test_the_check_notices_a_wrong_figure(gated: Gated) -> None:
    handle = put(gated.store, 0)
    gated.store._check()
    tier = gated.store._tiers.ram
    tier.budget.resident_nbytes += 1
    with pytest.raises(AssertionError):
        gated.store._check()
    tier.budget.resident_nbytes -= 1
    tier.order.discard(handle._entry.serial)
    with pytest.raises(AssertionError):
        gated.store._check()
    tier.order.add(handle._entry.serial)
    gated.store._check()
