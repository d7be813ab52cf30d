"""Samplers: the order in which a DataLoader asks for samples. Internal."""

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, TypeVar

from offgrad import ops
from offgrad.ops import Generator

__all__ = [
    "BatchSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]

_T_co = TypeVar("_T_co", covariant=True)


class Sampler(Generic[_T_co]):
    """Base class: subclasses define ``__iter__``, which yields indices or lists of them."""

    def __iter__(self) -> Iterator[_T_co]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__")


class SequentialSampler(Sampler[int]):
    """The indices in order."""

    data_source: Sized

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


def _check_count(count: Any, name: str) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count <= 0:
        raise ValueError(f"{name} should be a positive integer value, got {name}={count!r}")


def draw_seed(generator: Any = None) -> int:
    """Draw a seed of 63 bits."""
    return int(ops.randint(0, 2**63 - 1, (), generator=generator).item())


class RandomSampler(Sampler[int]):
    """Indices in random order, or drawn with replacement.

    Args:
        data_source: the dataset, of which only the length counts.
        replacement: whether an index may come again before all others came.
        num_samples: how many to draw; the length of the dataset if None. Without replacement,
            more of them take several permutations.
        generator: draws; if None, each iteration draws a seed from the default generator.

    Raises:
        TypeError: `replacement` is no bool.
        ValueError: `num_samples` is no positive integer.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Any = None,
    ) -> None:
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        if not isinstance(replacement, bool):
            raise TypeError(
                f"replacement should be a boolean value, got replacement={replacement!r}"
            )
        _check_count(self.num_samples, "num_samples")

    @property
    def num_samples(self) -> int:
        """The number of indices."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        size, left = len(self.data_source), self.num_samples
        generator = self.generator
        if generator is None:
            generator = Generator().manual_seed(draw_seed())
        while left > 0:
            if self.replacement:
                drawn = ops.randint(size, (min(left, 4096),), generator=generator).tolist()
            else:
                drawn = ops.randperm(size, generator=generator).tolist()[:left]
            yield from drawn
            left -= len(drawn)

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """The given indices in random order."""

    indices: Sequence[int]

    def __init__(self, indices: Sequence[int], generator: Any = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        for index in ops.randperm(len(self.indices), generator=self.generator).tolist():
            yield self.indices[index]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """Indices drawn with probabilities in proportion to weights.

    Args:
        weights: one for each index; they need not sum to 1.
        num_samples: how many to draw.
        replacement: whether an index may come more than once.
        generator: draws; the default generator if None.

    Raises:
        ValueError: `num_samples` is no positive integer, `replacement` no bool, or `weights` has
            not one dimension.
    """

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Any = None,
    ) -> None:
        _check_count(num_samples, "num_samples")
        if not isinstance(replacement, bool):
            raise ValueError(
                f"replacement should be a boolean value, got replacement={replacement!r}"
            )
        self.weights = ops.as_tensor(weights, dtype="float64")
        if self.weights.dim() != 1:
            raise ValueError(
                f"weights must have one dimension, got the shape {tuple(self.weights.shape)}"
            )
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        drawn = ops.multinomial(
            self.weights, self.num_samples, self.replacement, generator=self.generator
        )
        yield from drawn.tolist()

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Lists of `batch_size` indices of another sampler.

    Args:
        sampler: any iterable of indices.
        batch_size: their number.
        drop_last: whether a shorter last list is left out.

    Raises:
        ValueError: `batch_size` is no positive integer, or `drop_last` no bool.
    """

    def __init__(
        self, sampler: Sampler[int] | Iterable[int], batch_size: int, drop_last: bool
    ) -> None:
        _check_count(batch_size, "batch_size")
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, got drop_last={drop_last!r}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        while batch := list(itertools.islice(indices, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            yield batch

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)
