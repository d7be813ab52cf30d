"""Fetchers: from indices to the batch that the program gets."""

from collections.abc import Callable
from typing import Any

from offgrad.utils.data._utils.collate import default_collate, stacks_tensors
from offgrad.utils.data.dataset import IterableDataset, Subset, TensorDataset


class MapFetcher:
    """Fetches samples by index."""

    def __init__(
        self, dataset: Any, auto_collation: bool, collate_fn: Callable[[Any], Any], drop_last: bool
    ) -> None:
        self.dataset = dataset
        self.auto_collation = auto_collation
        self.collate_fn = collate_fn
        self.drop_last = drop_last

    def fetch(self, index: Any) -> Any:
        """Return the batch of a list of indices, or, without batches, the sample of an index."""
        if not self.auto_collation:
            return self.collate_fn(self.dataset[index])
        if self.collate_fn is default_collate and stacks_tensors():
            columns = _gathered(self.dataset, index)
            if columns is not None:
                return columns
        if getattr(self.dataset, "__getitems__", None):
            return self.collate_fn(self.dataset.__getitems__(index))
        return self.collate_fn([self.dataset[each] for each in index])


def _gathered(dataset: Any, index: list[Any]) -> list[Any] | None:
    """Return the batch of a `TensorDataset`, or of a `Subset` of one, by one indexing of each
    tensor; None for other datasets and indices.
    """
    while type(dataset) is Subset:
        dataset, index = dataset.dataset, [dataset.indices[each] for each in index]
    if (
        type(dataset) is not TensorDataset
        or not index
        or any(type(each) is not int for each in index)
    ):
        return None
    return [tensor[index] for tensor in dataset.tensors]


class IterableFetcher(MapFetcher):
    """Takes samples from an iterator over the dataset, as many as there are indices."""

    def __init__(
        self, dataset: Any, auto_collation: bool, collate_fn: Callable[[Any], Any], drop_last: bool
    ) -> None:
        super().__init__(dataset, auto_collation, collate_fn, drop_last)
        self._samples = iter(dataset)
        self._ended = False

    def fetch(self, index: Any) -> Any:
        """Return the next batch or sample.

        Raises:
            StopIteration: none is left.
        """
        if self._ended:
            raise StopIteration
        if not self.auto_collation:
            return self.collate_fn(next(self._samples))
        batch = []
        for _ in index:
            try:
                batch.append(next(self._samples))
            except StopIteration:
                self._ended = True
                break
        if not batch or (self.drop_last and len(batch) < len(index)):
            raise StopIteration
        return self.collate_fn(batch)


def make_fetcher(
    dataset: Any, auto_collation: bool, collate_fn: Callable[[Any], Any], drop_last: bool
) -> MapFetcher:
    """Return the fetcher for the kind of dataset."""
    kind = IterableFetcher if isinstance(dataset, IterableDataset) else MapFetcher
    return kind(dataset, auto_collation, collate_fn, drop_last)
