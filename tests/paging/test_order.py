"""The predicted order of uses, and the reads and writes that follow from it."""

from typing import Any

import pytest

import offgrad
from benchmarks._lib.least_traffic import Use, least_nbytes
from offgrad import optim
from offgrad.nn import functional as F
from offgrad.session.paging import page_table
from offgrad.session.paging.page import Page
from offgrad.session.paging.page_cache import PageCache
from offgrad.session.paging.use_order import UseOrder
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


def train(steps: int, inside: bool) -> tuple[list[int], list[int]]:
    """Train; return the wrong predictions and the writes after each step."""
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
    return wrong, writes


@pytest.mark.parametrize("inside", [False, True])
def test_each_page_is_predicted_and_written_once_a_step(inside: bool) -> None:
    wrong, writes = train(6, inside)
    assert 0 < wrong[2] == wrong[-1]
    changed = DEPTH * (3 if inside else 4)  # a parameter, two of state, and a stored gradient
    assert writes[-1] - writes[2] <= 3 * changed


def test_a_streaming_cache_writes_pages_before_they_are_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[bool] = []
    evict = PageCache._evict

    def counted(cache: PageCache, page: Page) -> bool:
        was_dirty = page.is_dirty
        has_left = evict(cache, page)
        if has_left:
            left.append(was_dirty)
        return has_left

    monkeypatch.setattr(PageCache, "_evict", counted)
    train(6, inside=True)
    assert all(left[-20:])
    monkeypatch.setattr(page_table, "_STREAMING", 2)
    train(6, inside=True)
    assert sum(left[-20:]) <= 10


def test_state_that_is_used_in_turn_moves_little_more_than_it_must() -> None:
    """Of pages that are used in turn, those stay that the window has room for."""
    window = 12 * PAGE
    offload = offgrad.offload_model("keep", state="disk", window=window)
    with offload:
        model = mlp(DEPTH)
    optimizer = optim.AdamW(model.parameters())
    moved = []
    for x, y in batches(12):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        moved.append(offload.ledger.read_nbytes + offload.ledger.written_nbytes)
    pages = [
        [Use((layer, moment), PAGE, changes=True) for moment in "mv"] for layer in range(DEPTH)
    ]
    least = least_nbytes(pages, window)
    assert least <= (moved[-1] - moved[3]) / 8 <= 1.3 * least < 2 * 2 * DEPTH * PAGE


def test_where_uses_turn_back_no_page_is_read_that_could_have_stayed() -> None:
    """Backward uses the last pages of forward first: a read ahead must not evict those."""
    window = 9 * PAGE
    with paging("disk", window=window) as offload:
        model = mlp(DEPTH).requires_grad_(False)
    x = offgrad.randn(4, WIDTH, requires_grad=True)
    read = []
    for _ in range(10):
        model(x).sum().backward()
        read.append(offload.ledger.read_nbytes)
    forward = [[Use(layer, PAGE)] for layer in range(DEPTH)]
    assert (read[-1] - read[3]) / 6 == least_nbytes([*forward, *forward[::-1]], window)
