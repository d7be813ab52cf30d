"""Norms of paged gradients, and clipping: the same bits, within a strict bound."""

from typing import Any

import pytest

import offgrad
from offgrad import nn, optim
from offgrad.nn import functional as F
from tests.paging.models import WIDTH, assert_same, batches, mlp, paging, result_of

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


@pytest.mark.parametrize("codec", ["bfloat16", "float16", "int8"])
def test_optimizer_state_may_be_stored_rounded(codec: str) -> None:
    def losses(**options: Any) -> list[float]:
        offgrad.manual_seed(3)
        with offgrad.offload_model("disk", window=4 * PAGE, **options):
            model = mlp(6)
        optimizer = optim.AdamW(model.parameters(), lr=1e-3)
        found = []
        for x, y in batches(6):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    exact, rounded = losses(), losses(state=f"cast:{codec},then=disk")
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.05)


def test_parameters_and_gradients_are_never_rounded() -> None:
    for options in ({"policy": "disk:bfloat16"}, {"policy": "disk", "gradients": "disk:int8"}):
        policy = options.pop("policy")
        model = mlp(1)
        model(offgrad.ones(2, WIDTH)).sum().backward()
        with pytest.raises(ValueError, match="must come back bit for bit"):
            offgrad.offload_model(model, policy, **options)
