"""The reads and writes of a step, replayed on drives of other bandwidths."""

from collections.abc import Sequence
from typing import NamedTuple

from offgrad.session.named_stores import INFLIGHT_NBYTES

_FREE, _FREE_SECONDS = 0.01, 1e-3


def free_stall(seconds: float) -> float:
    """Return how long a step of `seconds` may wait where overlap counts as free."""
    return max(_FREE * seconds, _FREE_SECONDS)


class Transfer(NamedTuple):
    """A write, a read ahead, or the use of what was read.

    Attributes:
        kind: ``"write"``, ``"read"`` or ``"use"``.
        key: of a read and its use, the same.
        nbytes: of it.
        seconds: of computing before it, since the start of the step.
    """

    kind: str
    key: int
    nbytes: int
    seconds: float


def stall_seconds(transfers: Sequence[Transfer], bandwidth: float) -> float:
    """Return how long computing waits for a drive that transfers one array after the other."""
    stall = free_at = 0.0
    pending: list[tuple[float, int]] = []
    inflight, first = 0, 0
    ends: dict[int, float] = {}
    for kind, key, nbytes, seconds in transfers:
        now = seconds + stall
        if kind == "use":
            stall += max(0.0, ends.pop(key, now) - now)
            continue
        if kind == "write":
            while first < len(pending) and (
                pending[first][0] <= now or inflight + nbytes > INFLIGHT_NBYTES
            ):
                end, held = pending[first]
                stall += max(0.0, end - now)
                now = max(now, end)
                inflight -= held
                first += 1
            inflight += nbytes
        free_at = max(free_at, now) + nbytes / bandwidth
        if kind == "write":
            pending.append((free_at, nbytes))
        else:
            ends[key] = free_at
    return stall


def free_bandwidth(transfers: Sequence[Transfer], seconds: float) -> float | None:
    """Return the least bandwidth, in bytes a second, at which the drive costs 1% of the step, or
    1 ms of a short one.

    None if nothing is transferred.

    Args:
        transfers: of the step.
        seconds: of its computing.
    """
    if not any(each.nbytes for each in transfers) or not seconds:
        return None
    low, high = 1e5, 1e13
    most = free_stall(seconds)
    for _ in range(40):
        middle = (low * high) ** 0.5
        if stall_seconds(transfers, middle) <= most:
            high = middle
        else:
            low = middle
    return high
