"""The version of the package."""

import re
from typing import Any


class TorchVersion(str):
    """A version as text that compares with texts and tuples by its numbers.

    Text that is no version compares as text.
    """

    def _pair(self, other: Any) -> tuple[Any, Any]:
        mine, theirs = _numbers(self), _numbers(other)
        if not mine or not theirs:
            return str(self), str(other)
        length = max(len(mine), len(theirs))
        return tuple(numbers + (0,) * (length - len(numbers)) for numbers in (mine, theirs))  # type: ignore[return-value]

    def __eq__(self, other: object) -> bool:
        mine, theirs = self._pair(other)
        return bool(mine == theirs)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Any) -> bool:
        mine, theirs = self._pair(other)
        return bool(mine < theirs)

    def __le__(self, other: Any) -> bool:
        return bool(self < other or self == other)

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    __hash__ = str.__hash__


def _numbers(version: Any) -> tuple[int, ...]:
    """Return the numbers of a version as text or a tuple, but for a local part after "+"."""
    parts = version
    if isinstance(version, str):
        if not version[:1].isdigit():
            return ()
        parts = re.findall(r"\d+", version.partition("+")[0])
    if not isinstance(parts, (tuple, list)):
        return ()
    return tuple(int(each) for each in parts)


__version__ = TorchVersion("0.1.0")
