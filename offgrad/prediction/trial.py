"""Trial: steps under several plans in turn, until the fastest one is known."""

from collections.abc import Sequence

from offgrad.prediction.choosing import fixed_policies
from offgrad.prediction.plan import Plan

_ROUNDS = 3
_MAX_ROUNDS = 10  # of short steps, whose times differ more by chance
_MAX_SECONDS = 5.0  # of all rounds, if there are more than three
_MAX_PREDICTED = 1.3  # of the chosen plan's time; measured predictions were up to 30% off
# Of the best time; slower plans take no part in the next round. Few steps may be slow by chance.
_MAX_MEASURED, _MAX_MEASURED_AT_FIRST = 1.1, 1.3


class Trial:
    """Gives each step a plan, and takes its time.

    In each round a plan has two steps, of which the second counts: the first one finds buffers and
    extents of files as another plan left them. There are three rounds, and up to ten if they last
    no longer than 5 seconds together: plans may differ by less than short steps do by chance.

    Args:
        plan: what replays chose. It is compared with the fixed policies within the same bound, as
            far as they are predicted to take at most 1.3 times as long.

    Attributes:
        best: the plan whose steps took the least time so far, as `typical` tells.
    """

    def __init__(self, plan: Plan) -> None:
        self.best = plan
        fixed = fixed_policies(plan.nbytes)
        most = plan.predicted.seconds * _MAX_PREDICTED
        others = [each for each in plan.others if each.policy in fixed and each.seconds <= most]
        plans = [plan, *(Plan(each.policy, plan.nbytes, each) for each in others)]
        self._seconds: dict[Plan, list[float]] = {each: [] for each in plans}
        self._rounds = 0
        self._spent_seconds = 0.0
        self._turns = _round(plans) if others else []

    @property
    def is_over(self) -> bool:
        """Whether `best` stays."""
        return not self._turns

    @property
    def plan(self) -> Plan:
        """For the step under way."""
        return self._turns[0][0] if self._turns else self.best

    def note(self, seconds: float) -> None:
        """Note what a step took, and turn to the plan of the next one."""
        plan, counts = self._turns.pop(0)
        self._spent_seconds += seconds
        if counts:
            self._seconds[plan].append(seconds)
            self.best = min(self._seconds, key=self._time)
        if not self._turns:
            self._rounds += 1
            is_early = self._rounds < _ROUNDS
            most = self._time(self.best) * (_MAX_MEASURED_AT_FIRST if is_early else _MAX_MEASURED)
            good = [each for each in self._seconds if self._time(each) <= most]
            if len(good) > 1 and self._rounds < self._max_rounds():
                self._turns = _round(good)

    def end(self) -> None:
        """Try no more: `best` stays."""
        self._turns = []

    def lines(self) -> list[str]:
        """Return what steps took, as lines of text."""
        return [
            f"  measured {typical(seconds):.3f} s: {plan}"
            for plan, seconds in self._seconds.items()
            if seconds
        ]

    def _max_rounds(self) -> int:
        """Return how many rounds there may be, as long as those so far."""
        of_seconds = int(_MAX_SECONDS * self._rounds / max(self._spent_seconds, 1e-9))
        return max(_ROUNDS, min(_MAX_ROUNDS, of_seconds))

    def _time(self, plan: Plan) -> float:
        return typical(self._seconds[plan])


def typical(seconds: Sequence[float]) -> float:
    """Return the mean of the fastest three quarters; infinite without any.

    A step may take much longer by chance, hardly shorter; the minimum is less sure than this mean.
    """
    fastest = sorted(seconds)[: max(1, len(seconds) * 3 // 4)]
    return sum(fastest) / len(fastest) if fastest else float("inf")


def _round(plans: Sequence[Plan]) -> list[tuple[Plan, bool]]:
    """Return steps of plans, and whether each counts."""
    return [(plan, counts) for plan in plans for counts in (False, True)]
