"""When, First and mappings of lists in a session."""

from typing import Any

import offgrad
from offgrad import nn
from offgrad.policies import Offload, When


def test_a_list_of_rules_on_a_model(every_store: Any) -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Sequential(nn.Tanh()))
    x = offgrad.randn(128, 64)
    policy = [
        When("keep", op="Addmm"),
        When(Offload(every_store["pool"]), module="1"),
        When(Offload(every_store["disk"]), output=True, module="2"),
    ]
    with offgrad.offload(policy) as session:
        loss = model(x).sum()
    stored = 128 * 256 * 4
    assert every_store["pool"].stats().logical_nbytes == stored
    assert every_store["disk"].stats().logical_nbytes == stored
    assert session.ledger.kept_nbytes == session.ledger.logical_nbytes - 2 * stored
    loss.backward()


def test_a_mapping_of_lists(every_store: Any) -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Tanh())
    rules = [When(Offload(every_store["pool"]), op="Gelu"), Offload(every_store["disk"])]
    with offgrad.offload({"1": rules, "2": rules}, model=model):
        loss = model(offgrad.randn(128, 64)).sum()
    assert every_store["pool"].stats().live_handles == 1
    assert every_store["disk"].stats().live_handles == 1
    loss.backward()


def test_a_tensor_kept_by_one_rule_may_be_stored_by_another(every_store: Any) -> None:
    x = offgrad.randn(200, 200, requires_grad=True)
    policy = [When("keep", op="Sin"), Offload(every_store["disk"], min_nbytes=0)]
    with offgrad.offload(policy) as session:
        y = x.clone()
        loss = (y.sin() + y.cos() + y.sin()).sum()
    assert every_store["disk"].stats().live_handles == 1
    assert session.ledger.unique_nbytes == 160_000
    loss.backward()
