"""UseOrder: predicts the order in which pages will be used from the order so far."""

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice, pairwise
from typing import TypeAlias

Key: TypeAlias = Hashable

NEVER = 1 << 62
"""The number of a use that is not predicted."""

_MAX_AHEAD = 512
_FIRST_REACH = 64
_MAX_SKIPPED = 16
_MAX_LEARNED = 1 << 16
_CONTEXTS = 4, 2
"""How many uses in a row predict the next; the later where the earlier have not been seen.

Two are too few: the gradient of a parameter and the parameter take turns before its state follows.
"""


class UseOrder:
    """Learns which use follows each four uses in a row, and predicts a whole step from that.

    Training repeats one order, so each prediction is right from the second step on. Where the order
    changes, as from training to evaluation, a few predictions are wrong until it is learned.
    """

    def __init__(self) -> None:
        self._next: dict[int, dict[tuple[Key, ...], Key]] = {each: {} for each in _CONTEXTS}
        self._announced: dict[Key, Key] = {}
        self._recent: deque[Key] = deque([None] * _CONTEXTS[0], _CONTEXTS[0])
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
        recent = (*self._recent,)
        for count, known in self._next.items():
            context = recent[-count:]
            known.pop(context, None)
            known[context] = key  # the latest last
            if len(known) > _MAX_LEARNED:
                for old in [*islice(known, _MAX_LEARNED // 2)]:
                    del known[old]
        self._recent.append(key)
        self._last = key
        if self._skip_to(key):
            self._pop()
            self._reach = min(2 * self._reach, _MAX_LEARNED)
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
        """Return the number of the page's next predicted use, `NEVER` if there is none."""
        numbers = self._numbers.get(key)
        return numbers[0] if numbers else NEVER

    def distance(self, key: Key) -> int:
        """Return how many uses are predicted before the page's next; `NEVER` or so for none."""
        return self.next_use(key) - self._begin

    @property
    def first(self) -> int:
        """The number of the next use."""
        return self._begin

    def upcoming(self, begin: int = 0) -> Iterator[tuple[int, Key]]:
        """Yield numbers and keys of the next predicted uses, from number `begin` on.

        As far as decisions look ahead.
        """
        skipped = max(0, begin - self._begin)
        return enumerate(islice(self._plan, skipped, _MAX_AHEAD), self._begin + skipped)

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
        longest = _CONTEXTS[0]
        reach = min(self._reach, len(self._next[longest]) + 1)
        if len(plan) >= reach:
            return
        context = deque(self._recent, longest)
        context.extend(plan[each] for each in range(-min(longest, len(plan)), 0))
        while len(plan) < reach:
            key = self._after((*context,))
            if key is None:
                return
            self._numbers.setdefault(key, deque()).append(self._begin + len(plan))
            plan.append(key)
            context.append(key)

    def _after(self, recent: tuple[Key, ...]) -> Key:
        """Return what is used after uses in a row, None if that is not known."""
        for count, known in self._next.items():
            key = known.get(recent[-count:])
            if key is not None:
                return key
        return self._announced.get(recent[-1])
