"""The shape of a tensor: a tuple that prints as PyTorch's, and that counts elements."""

import math
from collections.abc import Iterable
from operator import index
from typing import Any, SupportsIndex


class Size(tuple[int, ...]):
    """A tuple of sizes; slices, sums and products of it are sizes, too.

    Raises:
        TypeError: for an item that is not an integer.
    """

    __slots__ = ()

    def __new__(cls, sizes: Iterable[Any] = ()) -> "Size":
        """Check the sizes; tensors of one integer become integers."""
        items = tuple(sizes)
        for position, each in enumerate(items):
            if not hasattr(each, "__index__"):
                raise TypeError(
                    f"Size() takes integers, got {each!r} ({type(each).__name__}) as item "
                    f"{position}"
                )
        return tuple.__new__(cls, [index(each) for each in items])

    def numel(self) -> int:
        """Return the number of elements of a tensor of this shape."""
        return math.prod(self)

    def __getitem__(self, item: Any) -> Any:
        result = tuple.__getitem__(self, item)
        return tuple.__new__(Size, result) if isinstance(item, slice) else result

    def __add__(self, other: Any) -> Any:
        return Size(tuple.__add__(self, other)) if isinstance(other, tuple) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return Size(tuple.__add__(other, self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> "Size":
        return tuple.__new__(Size, tuple.__mul__(self, count))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"torch.Size([{', '.join(map(str, self))}])"

    def __reduce__(self) -> Any:
        return Size, (tuple(self),)


Size.__module__ = "offgrad"
