"""The order of eviction, against Belady's and against a plain sort."""

from __future__ import annotations

import random

from offgrad_storage.tiered.eviction_order import EvictionOrder

_NOW = -1  # a serial that is used before all others


def _order() -> EvictionOrder:
    order = EvictionOrder()
    order.request(_NOW)
    return order


def _evict(order: EvictionOrder) -> int:
    serial = order.furthest(_NOW)
    assert serial is not None
    order.discard(serial)
    return serial


def test_without_a_plan_the_oldest_goes_first() -> None:
    order = _order()
    for serial in (3, 1, 2):
        order.add(serial)
    assert [_evict(order) for _ in range(3)] == [1, 2, 3]
    assert order.furthest(_NOW) is None


def test_planned_members_go_last_and_the_furthest_first() -> None:
    order = _order()
    for serial in range(6):
        order.add(serial)
    order.plan([4, 0, 2, 99])
    assert [_evict(order) for _ in range(6)] == [1, 3, 5, 2, 0, 4]


def test_nothing_is_evicted_for_a_later_use() -> None:
    order = _order()
    for serial in range(3):
        order.add(serial)
    order.plan([2, 0, 1, 7])
    assert order.furthest(7) is None
    assert order.furthest(8) is None
    order.plan([2, 7, 0])
    assert order.furthest(7) == 1
    order.discard(1)
    assert order.furthest(7) == 0


def test_requested_members_go_last_and_the_latest_request_first() -> None:
    order = _order()
    for serial in range(4):
        order.add(serial)
    order.request(1)
    order.request(0)
    order.request(1)
    assert [_evict(order) for _ in range(4)] == [2, 3, 0, 1]
    order.cancel_request(1)
    order.add(1)
    order.add(5)
    assert _evict(order) == 1


def test_beladys_pages() -> None:
    # The reference string of the textbooks: nine faults with three frames, and none can do better.
    pages = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1]
    order = _order()
    order.plan(pages)
    frames: set[int] = set()
    faults = 0
    for page in pages:
        if page not in frames:
            faults += 1
            if len(frames) == 3:
                frames.remove(_evict(order))
            frames.add(page)
            order.add(page)
        order.record_use(page)
    assert faults == 9


def test_any_actions_against_a_plain_sort() -> None:
    chance = random.Random(0)
    order = _order()
    members: set[int] = set()
    plan: list[int] = []
    for _ in range(5000):
        serial = chance.randrange(30)
        match chance.choice(["add", "add", "discard", "use", "plan", "forget", "check", "check"]):
            case "add":
                members.add(serial)
                order.add(serial)
            case "discard":
                members.discard(serial)
                order.discard(serial)
            case "use":
                if serial in plan:
                    plan.remove(serial)
                order.record_use(serial)
            case "forget":
                members.discard(serial)
                plan = [each if each != serial else -2 for each in plan]
                order.forget(serial)
            case "plan" if chance.random() < 0.1:
                plan = [chance.randrange(30) for _ in range(20)]
                order.plan(plan)
            case _:
                unplanned = sorted(members - set(plan))
                last = sorted(members & set(plan), key=plan.index)[-1:]
                assert order.furthest(_NOW) == next(iter(unplanned + last), None)
    assert len(order._heap) <= 2 * len(members) + 64
