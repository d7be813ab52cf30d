"""Norms of paged gradients, and clipping: the same bits, within a strict bound."""

from typing import Any

import numpy as np
import pytest
from offgrad_storage import StoreError

import offgrad
from offgrad import nn
from offgrad.nn import functional as F
from tests.paging.models import WIDTH, assert_same, batches, mlp, paging, result_of
from tests.paging.test_faults import faulty

pytestmark = pytest.mark.usefixtures("kind_of_cache")

PAGE = WIDTH * WIDTH * 4


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_clipping_needs_no_two_batches_at_once(norm_type: float) -> None:
    results = []
    for placement in (f"budget:{4 * PAGE},spill=disk", None):
        offgrad.manual_seed(3)
        with paging(placement):
            model = mlp(8)
        norms = []
        for x, y in batches(2):
            F.cross_entropy(model(x), y).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1e-2, norm_type).item())
        results.append(result_of(norms, model))
    assert_same(*results)


@pytest.mark.parametrize("kind", ["read", "write"])
@pytest.mark.parametrize("norm_type", [2.0, 3.0])
def test_each_fault_of_clipping(kind: str, norm_type: float) -> None:
    def prepared(placement: Any) -> Any:
        offgrad.manual_seed(3)
        with paging(placement, window=4 * PAGE):
            model = mlp(5)
        x, y = next(batches(1))
        F.cross_entropy(model(x), y).backward()
        return model

    def clip(model: nn.Module) -> float:
        return float(nn.utils.clip_grad_norm_(model.parameters(), 1e-2, norm_type).item())

    plain = prepared(None)
    before = result_of([], plain).gradients
    expected = result_of([clip(plain)], plain)
    partly = number = 0
    while True:
        with faulty() as (backend, store):
            model = prepared(store)
            backend.left[kind] = number
            try:
                norm, error = clip(model), None
            except StoreError as caught:
                norm, error = 0.0, caught.with_traceback(None)
            is_over = backend.left[kind] is not None
            backend.mend()
            if error is not None:
                found = result_of([], model).gradients
                pairs = zip(found, expected.gradients, before, strict=True)
                states = [(np.array_equal(a, b), np.array_equal(a, c)) for a, b, c in pairs]
                assert all(scaled or untouched for scaled, untouched in states)
                count = sum(scaled for scaled, _ in states)
                notes = " ".join(getattr(error, "__notes__", []))
                assert (f"scaled {count} of {len(states)} gradients" in notes) == (count > 0)
                partly += 0 < count < len(states)
                norm = clip(model)
            assert_same(result_of([norm], model), expected)
            clip(model)  # nothing is left of it: the norm is the present one
        if is_over:
            break
        number += 1
    assert partly
    assert number


def test_a_fault_is_forgotten_when_gradients_have_changed() -> None:
    with faulty() as (backend, store):
        offgrad.manual_seed(3)
        with paging(store, window=4 * PAGE):
            model = mlp(8)
        x, y = next(batches(1))
        F.cross_entropy(model(x), y).backward()
        grads: list[Any] = [each.grad for each in model.parameters()]
        norm = nn.utils.get_total_norm(grads)
        backend.left["read"], backend.is_lasting = 2, True
        with pytest.raises(StoreError) as info:
            nn.utils.clip_grads_with_norm_(model.parameters(), 1e-2, norm)
        assert "clipping has scaled" in info.value.__notes__[-1]
        backend.mend()
        for each in grads:
            each.fill_(1)
        total = nn.utils.clip_grad_norm_(model.parameters(), 1e-2)
        count = sum(each.numel() for each in model.parameters())
        assert total.item() == pytest.approx(count**0.5)
        assert nn.utils.clip_grad_norm_(model.parameters(), 1).item() == pytest.approx(1e-2)
