"""The predicted order of uses, and the reads and writes that follow from it."""

from typing import Any

import pytest

from offgrad import optim
from offgrad.nn import functional as F
from offgrad.session.paging.use_order import NEVER, UseOrder
from tests.paging.models import WIDTH, batches, mlp, paging

PAGE = WIDTH * WIDTH * 4
DEPTH = 12


def follow(order: UseOrder, keys: Any) -> int:
    """Use pages in an order; return how many uses were not the next that was predicted."""
    wrong = 0
    for key in keys:
        wrong += order.distance(key) != 0
        order.use(key)
    return wrong


def test_pages_that_take_turns_are_predicted() -> None:
    order = UseOrder()
    step = [
        each for layer in range(9) for each in (f"p{layer}", "g", f"p{layer}", "g", f"s{layer}")
    ]
    follow(order, step * 3)
    assert follow(order, step * 2) == 0
    assert follow(order, ["another", *step]) <= 5


def test_the_reach_of_a_bound() -> None:
    order = UseOrder()
    assert order.reach(10, lambda key: 1) is None
    keys = list(range(20))
    follow(order, keys * 4)
    first = order.next_use(0)
    assert order.reach(10, lambda key: 1) == first + 10
    assert order.reach(10, lambda key: 11) == first
    assert order.reach(20, lambda key: 1) is None
    assert order.next_use("unknown") == NEVER


def train(steps: int, inside: bool) -> tuple[Any, list[int], list[int]]:
    """Train; return the offload, and the wrong predictions and writes after each step."""
    with paging("disk", window=9 * PAGE) as offload:
        model = mlp(DEPTH)
    optimizer = optim.AdamW(model.parameters())
    if inside:
        optim.step_in_backward(optimizer)
    wrong, writes = [], []
    for x, y in batches(steps):
        F.cross_entropy(model(x), y).backward()
        if not inside:
            optimizer.step()
            optimizer.zero_grad()
        wrong.append(offload._order.rebuilds)
        writes.append(offload.ledger.writes)
    return offload, wrong, writes


@pytest.mark.parametrize("inside", [False, True])
def test_each_page_is_predicted_and_written_once_a_step(inside: bool) -> None:
    offload, wrong, writes = train(6, inside)
    assert 0 < wrong[2] == wrong[-1]
    changed = DEPTH * (3 if inside else 4)  # a parameter, two of state, and a stored gradient
    assert writes[-1] - writes[2] <= 3 * changed
    waiting = [each for each in offload._pages() if each.is_resident and each.is_dirty]
    assert len(waiting) <= 5  # the others have been written before their room was needed
