"""Datasets: by index, by iteration, and combinations of them. Internal."""

import bisect
import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from offgrad import ops

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor

__all__ = [
    "ChainDataset",
    "ConcatDataset",
    "Dataset",
    "IterableDataset",
    "StackDataset",
    "Subset",
    "TensorDataset",
    "random_split",
]

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)


class Dataset(Generic[_T_co]):
    """Samples by index or key. Subclasses define ``__getitem__``, and mostly ``__len__``.

    A subclass may define ``__getitems__(indices)`` to fetch the samples of a batch at once.
    """

    def __getitem__(self, index: Any) -> _T_co:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__")

    def __add__(self, other: "Dataset[Any]") -> "ConcatDataset":
        return ConcatDataset([self, other])


class IterableDataset(Dataset[_T_co], Iterable[_T_co]):
    """Samples by iteration. Subclasses define ``__iter__``.

    Each worker process of a DataLoader iterates over a copy of its own: `get_worker_info` tells
    ``__iter__`` which part of the samples to yield.
    """

    def __add__(self, other: Dataset[Any]) -> "ChainDataset":  # type: ignore[override]
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Any, ...]]):
    """The samples are the slices of tensors along their first dimension, as tuples.

    Raises:
        AssertionError: the sizes of the first dimension differ.
    """

    tensors: "tuple[Tensor, ...]"

    def __init__(self, *tensors: "Tensor") -> None:
        if any(each.size(0) != tensors[0].size(0) for each in tensors):
            sizes = [each.size(0) for each in tensors]
            raise AssertionError(
                f"Size mismatch between tensors: the first dimensions must be equal, got {sizes}"
            )
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple([each[index] for each in self.tensors])

    def __len__(self) -> int:
        return int(self.tensors[0].size(0))


class StackDataset(Dataset[Any]):
    """Samples of several datasets side by side: as tuples, or as dicts for keyword arguments.

    Raises:
        ValueError: there are no datasets, both kinds of arguments, or the lengths differ.
    """

    def __init__(self, *args: Dataset[Any], **kwargs: Dataset[Any]) -> None:
        if args and kwargs:
            raise ValueError(
                "StackDataset: Supported either datasets by position or by name, got "
                f"{len(args)} by position and {sorted(kwargs)} by name"
            )
        if not args and not kwargs:
            raise ValueError("StackDataset: At least one dataset should be passed")
        self.datasets: Any = args or kwargs
        lengths = [len(each) for each in self._all()]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"Size mismatch between datasets: the lengths must be equal, got {lengths}"
            )
        self._length = lengths[0]

    def _all(self) -> list[Any]:
        datasets = self.datasets
        return list(datasets.values() if isinstance(datasets, dict) else datasets)

    def _joined(self, parts: Sequence[Any]) -> Any:
        if isinstance(self.datasets, dict):
            return dict(zip(self.datasets, parts, strict=True))
        return tuple(parts)

    def __getitem__(self, index: Any) -> Any:
        return self._joined([each[index] for each in self._all()])

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        columns = [_fetch(each, indices) for each in self._all()]
        for column in columns:
            if len(column) != len(indices):
                raise ValueError(
                    "Nested dataset's output size mismatch. Expected "
                    f"{len(indices)}, got {len(column)}: __getitems__ must return one sample for "
                    "each index"
                )
        return [self._joined(parts) for parts in zip(*columns, strict=True)]

    def __len__(self) -> int:
        return self._length


def _fetch(dataset: Any, indices: Sequence[Any]) -> list[Any]:
    """Return the samples at `indices`, at once if the dataset has ``__getitems__``."""
    if callable(getattr(dataset, "__getitems__", None)):
        return dataset.__getitems__(indices)  # type: ignore[no-any-return]
    return [dataset[index] for index in indices]


class ConcatDataset(Dataset[Any]):
    """The samples of several datasets, one dataset after the other.

    Attributes:
        cumulative_sizes: for each dataset, the number of samples up to its end.

    Raises:
        AssertionError: there are no datasets, or an `IterableDataset` is among them.
    """

    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        self.datasets: list[Any] = list(datasets)
        if not self.datasets:
            raise AssertionError("ConcatDataset: datasets should not be an empty iterable")
        for each in self.datasets:
            if isinstance(each, IterableDataset):
                raise AssertionError(
                    "ConcatDataset does not support IterableDataset; use ChainDataset"
                )
        self.cumulative_sizes = self.cumsum(self.datasets)

    @staticmethod
    def cumsum(sequence: Iterable[Any]) -> list[int]:
        """Return the running totals of the lengths."""
        return list(itertools.accumulate(len(each) for each in sequence))

    @property
    def cummulative_sizes(self) -> list[int]:
        """The former name of `cumulative_sizes`; it warns."""
        warnings.warn(
            "`cummulative_sizes` is now spelled `cumulative_sizes`", FutureWarning, stacklevel=2
        )
        return self.cumulative_sizes

    def __getitem__(self, index: int) -> Any:
        if index < 0:
            if -index > len(self):
                raise ValueError(
                    "absolute value of index should not exceed dataset length, got "
                    f"{index} for {len(self)} samples"
                )
            index += len(self)
        which = bisect.bisect_right(self.cumulative_sizes, index)
        start = self.cumulative_sizes[which - 1] if which else 0
        return self.datasets[which][index - start]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class ChainDataset(IterableDataset[Any]):
    """The samples of several `IterableDataset`, one dataset after the other."""

    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        for each in self.datasets:
            yield from self._checked(each)

    def __len__(self) -> int:
        return sum(len(self._checked(each)) for each in self.datasets)

    @staticmethod
    def _checked(dataset: Any) -> Any:
        if not isinstance(dataset, IterableDataset):
            raise AssertionError(
                f"ChainDataset only supports IterableDataset, got {type(dataset).__name__}; use "
                "ConcatDataset"
            )
        return dataset


class Subset(Dataset[_T_co]):
    """The samples of a dataset at chosen indices."""

    dataset: Dataset[_T_co]
    indices: Sequence[Any]

    def __init__(self, dataset: Dataset[_T_co], indices: Sequence[Any]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: Any) -> _T_co:
        if isinstance(index, list):
            return self.dataset[[self.indices[each] for each in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: list[Any]) -> list[_T_co]:
        return _fetch(self.dataset, [self.indices[each] for each in indices])

    def __len__(self) -> int:
        return len(self.indices)


def random_split(
    dataset: Dataset[_T], lengths: Sequence[int | float], generator: Any = None
) -> list[Subset[_T]]:
    """Split a dataset into disjoint random subsets.

    Args:
        dataset: a dataset with a length.
        lengths: the lengths of the subsets, or fractions that sum to 1; samples left over by
            rounding go to the first subsets, one each.
        generator: draws the permutation; the default generator if None.

    Raises:
        ValueError: the lengths do not sum to the dataset's, or a fraction is not from 0 to 1.
    """
    size = len(dataset)  # type: ignore[arg-type]
    counts = list(lengths)
    total = sum(counts)
    if math.isclose(total, 1) and total <= 1:
        counts = _counts_of(counts, size)
    if sum(counts) != size:
        raise ValueError(
            "Sum of input lengths does not equal the length of the input dataset, got "
            f"{list(lengths)} for {size} samples"
        )
    order = ops.randperm(int(sum(counts)), generator=generator).tolist()
    ends = list(itertools.accumulate(counts))
    return [
        Subset(dataset, order[int(end - count) : int(end)])
        for end, count in zip(ends, counts, strict=True)
    ]


def _counts_of(fractions: Sequence[float], size: int) -> list[int | float]:
    """Return the lengths of subsets that are fractions of `size` samples."""
    for index, fraction in enumerate(fractions):
        if not 0 <= fraction <= 1:
            raise ValueError(f"the fraction at index {index} must be from 0 to 1, got {fraction}")
    counts = [math.floor(size * fraction) for fraction in fractions]
    for index in range(size - sum(counts)):
        counts[index % len(counts)] += 1
    for index, count in enumerate(counts):
        if count == 0:
            warnings.warn(
                f"Length of split at index {index} is 0. That subset has no samples.", stacklevel=3
            )
    return list(counts)
