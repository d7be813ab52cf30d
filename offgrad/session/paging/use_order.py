"""UseOrder: predicts the order in which pages will be used from the order so far."""

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice, pairwise
from typing import TypeAlias

Key: TypeAlias = Hashable

_NEVER = 1 << 62
_FIRST_REACH = 64
_MAX_SKIPPED = 16
_MAX_LEARNED = 1 << 16


class UseOrder:
    """Learns which use follows each two uses in a row, and predicts a whole step from that.

    Training repeats one order, so each prediction is right from the second step on. Where the order
    changes, as from training to evaluation, a few predictions are wrong until it is learned.
    """

    def __init__(self) -> None:
        self._next: dict[tuple[Key, Key], Key] = {}
        self._announced: dict[Key, Key] = {}
        self._before: Key = None
        self._last: Key = None
        # The predicted uses, numbered from `_begin` on, and the numbers of each page's uses.
        self._plan: deque[Key] = deque()
        self._begin = 0
        self._numbers: dict[Key, deque[int]] = {}
        self._reach = _FIRST_REACH
        self.rebuilds = 0

    @property
    def last(self) -> Key:
        """The page used last."""
        return self._last

    def use(self, key: Key) -> None:
        """Learn that the page is used now."""
        if key == self._last:
            return
        pair = self._before, self._last
        self._next.pop(pair, None)
        self._next[pair] = key  # the latest last
        if len(self._next) > _MAX_LEARNED:
            for old in [*islice(self._next, _MAX_LEARNED // 2)]:
                del self._next[old]
        self._before, self._last = self._last, key
        if self._skip_to(key):
            self._pop()
            self._reach *= 2
        else:
            self._plan.clear()
            self._numbers.clear()
            self._reach = _FIRST_REACH
            self.rebuilds += 1
        self._extend()

    def announce(self, keys: Sequence[Key]) -> None:
        """Learn an order that is known in advance, for uses that no step has shown yet."""
        self._announced = {}
        for each, after in pairwise(keys):
            self._announced.setdefault(each, after)
        if not self._plan:
            self._extend()

    def next_use(self, key: Key) -> int:
        """Return the number of the page's next predicted use, a large number if there is none."""
        numbers = self._numbers.get(key)
        return numbers[0] if numbers else _NEVER

    def upcoming(self, count: int) -> Iterator[tuple[int, Key]]:
        """Yield numbers and keys of the next predicted uses, `count` at most."""
        return enumerate(islice(self._plan, count), self._begin)

    def _skip_to(self, key: Key) -> bool:
        """Drop predictions before the use of `key`, if it is among the next ones."""
        if self.next_use(key) - self._begin > _MAX_SKIPPED:
            return False
        while self._plan[0] != key:
            self._pop()
        return True

    def _pop(self) -> None:
        numbers = self._numbers[self._plan.popleft()]
        numbers.popleft()
        self._begin += 1

    def _extend(self) -> None:
        """Predict further, one step ahead at most."""
        plan = self._plan
        before, last = self._before, self._last
        if plan:
            last = plan[-1]
            before = plan[-2] if len(plan) > 1 else self._last
        reach = min(self._reach, len(self._next) + 1)
        while len(plan) < reach:
            key = self._next.get((before, last))
            if key is None:
                key = self._announced.get(last)
                if key is None:
                    return
            self._numbers.setdefault(key, deque()).append(self._begin + len(plan))
            plan.append(key)
            before, last = last, key
