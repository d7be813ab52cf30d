"""The bound of `bench_out_of_core`: `least_nbytes` against counts by hand and an exact search."""

import random
from itertools import combinations

import pytest

from benchmarks._lib.least_traffic import Use, least_nbytes


def test_nothing_moves_where_all_pages_fit() -> None:
    events = [[Use("a", 8, changes=True)], [Use("b", 8), Use("a", 8)]]
    assert least_nbytes(events, 16) == 0


@pytest.mark.parametrize(("changes", "times"), [(False, 1), (True, 2)])
def test_a_scan_of_pages_in_turn(changes: bool, times: int) -> None:
    """Of n pages in turn, of which k fit, the best choice misses (n - k) / (n - 1) of the uses."""
    events = [[Use(name, 6, changes=changes)] for name in "abcd"]
    assert least_nbytes(events, 12) == pytest.approx(times * 6 * 4 * 2 / 3)


def test_an_unchanged_page_is_read_and_not_written() -> None:
    events = [[Use("a", 1)], [Use("b", 1)]]
    assert least_nbytes(events, 1) == 2


def test_a_change_is_written_once_for_many_reads() -> None:
    a, b = Use("a", 1), Use("b", 1)
    events = [[a._replace(changes=True)], [b], [a], [b], [a], [b]]
    assert least_nbytes(events, 1) == 1 + 6  # a's change, and each use is a read


def test_a_new_page_is_not_read_and_a_freed_one_not_written() -> None:
    fresh = Use("g", 4, changes=True, is_new=True)
    assert least_nbytes([[fresh._replace(is_last=True)], [Use("a", 4)]], 8) == 0
    events = [[fresh], [Use("a", 8)], [Use("g", 4, is_last=True)]]
    assert least_nbytes(events, 12) == 0
    assert least_nbytes(events, 8) == 4 + 4 + 4  # g is written and read; half of a leaves


def test_a_new_page_has_to_be_written() -> None:
    events = [[Use("g", 1, is_new=True)], [Use("a", 1)], [Use("g", 1, is_last=True)]]
    assert least_nbytes(events, 1) == 3


def test_without_pages_that_could_stay_nothing_moves() -> None:
    assert least_nbytes([[Use("g", 1, is_new=True, is_last=True)]], 1) == 0
    assert least_nbytes([], 1) == 0


def test_a_page_used_twice_by_an_event_is_refused() -> None:
    with pytest.raises(ValueError, match="an event uses a page once"):
        least_nbytes([[Use("a", 1), Use("a", 1)]], 2)


def test_an_event_larger_than_the_window_is_refused() -> None:
    with pytest.raises(ValueError, match="a window of 5 bytes, but an event uses 6"):
        least_nbytes([[Use("a", 4), Use("b", 2)]], 5)


@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_evictions_moves_less(seed: int) -> None:
    """Compare with an exact search over whole pages, a step later and later."""
    rng = random.Random(seed)
    sizes = {name: rng.randint(1, 3) for name in "abcde"}
    events = [
        [Use(name, sizes[name], rng.random() < 0.4) for name in rng.sample("abcde", 2)]
        for _ in range(7)
    ]
    least = least_nbytes(events, 8)
    exact = (_cost(events, 8, 24) - _cost(events, 8, 12)) / 12
    assert 0.6 * exact - 1e-9 <= least <= exact + 1e-9


def _cost(events: list[list[Use]], window_nbytes: int, steps: int) -> int:
    """Return the least bytes that so many steps move, from nothing in memory."""
    sizes = {use.page: use.nbytes for event in events for use in event}
    costs: dict[frozenset[tuple[object, bool]], int] = {frozenset(): 0}  # by pages and their dirt
    for event in events * steps:
        used = {use.page: use.changes for use in event}
        found: dict[frozenset[tuple[object, bool]], int] = {}
        for pages, cost in costs.items():
            here = dict(pages)
            others = [name for name in here if name not in used]
            fetched = sum(sizes[name] for name in used if name not in here)
            for count in range(len(others) + 1):
                for kept in combinations(others, count):
                    if sum(sizes[name] for name in (*kept, *used)) > window_nbytes:
                        continue
                    written = sum(sizes[name] for name in others if name not in kept and here[name])
                    state = {name: here[name] for name in kept}
                    state |= {name: here.get(name, False) or used[name] for name in used}
                    key = frozenset(state.items())
                    total = cost + fetched + written
                    found[key] = min(total, found.get(key, total))
        costs = found
    return min(costs.values())
