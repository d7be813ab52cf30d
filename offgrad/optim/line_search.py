"""A line search for a step that satisfies the strong Wolfe conditions.

Source: J. Nocedal, S. Wright, "Numerical Optimization", 2nd edition, algorithms 3.5 and 3.6 and
equation 3.59; the safeguards are those of PyTorch, so that both try the same steps.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from offgrad._tensor.tensor import Tensor

SUFFICIENT_DECREASE = 1e-4
CURVATURE = 0.9
_CLOSEST = 0.1
"""A trial this close to an end of the bracket, as part of its length, makes little progress."""


class Point(NamedTuple):
    """A point on the line.

    Attributes:
        step: its distance from the start, in lengths of the direction.
        loss: the loss there.
        gradient: of the loss, flat.
        slope: of the loss along the direction.
    """

    step: float
    loss: float
    gradient: Tensor
    slope: float


Evaluate = Callable[[float], Point]


def strong_wolfe(
    evaluate: Evaluate,
    start: Point,
    step: float,
    size: float,
    tolerance_change: float,
    max_trials: int,
) -> tuple[Point, int]:
    """Return the best point found, and the number of points tried.

    Args:
        evaluate: returns the point of a step.
        start: the point of step 0.
        step: the first to try.
        size: the largest element of the direction, as magnitude.
        tolerance_change: the search ends when no element could change by more.
        max_trials: how many points it tries after the first.
    """
    return _Search(evaluate, start, max_trials).run(step, size, tolerance_change)


class _Search:
    def __init__(self, evaluate: Evaluate, start: Point, max_trials: int) -> None:
        self._evaluate = evaluate
        self._start = start
        self._max_trials = max_trials
        self._trials = 0

    def run(self, step: float, size: float, tolerance: float) -> tuple[Point, int]:
        ends = self._bracket(step)
        if len(ends) == 2:
            ends = self._zoom(ends, size, tolerance)
        best = min(ends, key=lambda each: each.loss)
        return best, self._trials

    def _try(self, step: float) -> Point:
        self._trials += 1
        return self._evaluate(step)

    def _decreases_too_little(self, point: Point) -> bool:
        start = self._start
        return point.loss > start.loss + SUFFICIENT_DECREASE * point.step * start.slope

    def _is_flat(self, point: Point) -> bool:
        return abs(point.slope) <= -CURVATURE * self._start.slope

    def _bracket(self, step: float) -> list[Point]:
        """Return one point that satisfies the conditions, or two with such a point in between."""
        before, now = self._start, self._try(step)
        for expansions in range(self._max_trials):
            rises = expansions > 1 and now.loss >= before.loss
            if self._decreases_too_little(now) or rises:
                return [before, now]
            if self._is_flat(now):
                return [now]
            if now.slope >= 0:
                return [before, now]
            least = now.step + 0.01 * (now.step - before.step)
            before, now = now, self._try(_interpolate(before, now, least, now.step * 10))
        return [self._start, now]

    def _zoom(self, ends: list[Point], size: float, tolerance: float) -> list[Point]:
        """Return two points after shrinking the interval between them, the best one among them."""
        lacks_progress = False
        low = 0 if ends[0].loss <= ends[1].loss else 1
        while self._trials <= self._max_trials:
            first, last = sorted(each.step for each in ends)
            if (last - first) * size < tolerance:
                break
            step = _interpolate(ends[0], ends[1], first, last)
            margin = _CLOSEST * (last - first)
            if min(last - step, step - first) >= margin:
                lacks_progress = False
            elif lacks_progress or not first < step < last:
                step = last - margin if abs(step - last) < abs(step - first) else first + margin
                lacks_progress = False
            else:
                lacks_progress = True
            now = self._try(step)
            if self._decreases_too_little(now) or now.loss >= ends[low].loss:
                ends[1 - low] = now
                low = 0 if ends[0].loss <= ends[1].loss else 1
                continue
            is_done = self._is_flat(now)
            if not is_done and now.slope * (ends[1 - low].step - ends[low].step) >= 0:
                ends[1 - low] = ends[low]
            ends[low] = now
            if is_done:
                break
        return [ends[low], ends[1 - low]]


def _interpolate(a: Point, b: Point, least: float, most: float) -> float:
    """Return the minimum of the cubic through two points, within bounds; else their middle."""
    if a.step > b.step:
        a, b = b, a
    shape = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.step - b.step)
    square = shape**2 - a.slope * b.slope
    if not square >= 0:
        return (least + most) / 2
    root = math.sqrt(square)
    part = (b.slope + root - shape) / (b.slope - a.slope + 2 * root)
    return min(max(b.step - (b.step - a.step) * part, least), most)
