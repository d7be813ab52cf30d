"""Phrases of PyTorch's errors about data loading that code and people match on."""

from typing import Any

import pytest

from tests.known_phrases import Programs, check


def load(**options: Any) -> Any:
    return lambda lib: lib.utils.data.DataLoader([1, 2], **options)


def wrong_getitems(lib: Any) -> None:
    class Three(lib.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 4

        def __getitems__(self, indices: Any) -> Any:
            return [1, 2, 3]

    lib.utils.data.StackDataset(Three()).__getitems__([0, 1, 2, 3])


def too_many_samples(lib: Any) -> None:
    class Short(lib.utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(range(4))

        def __len__(self) -> int:
            return 2

    loader = lib.utils.data.DataLoader(Short())
    len(loader)
    list(loader)


PROGRAMS: Programs = {
    "At least one dataset should be passed": lambda lib: lib.utils.data.StackDataset(),
    "Supported either": lambda lib: lib.utils.data.StackDataset([1], a=[2]),
    "Nested dataset's output size mismatch. Expected 4, got 3": wrong_getitems,
    "batch_size=None option disables auto-batching and is mutually exclusive": load(
        batch_size=None, drop_last=True
    ),
    "multi-process loading (num_workers > 0), but got": load(multiprocessing_context="fork"),
    "should specify a valid start method in": load(num_workers=1, multiprocessing_context="bad"),
    "multiprocessing_context option should be a valid context": load(
        num_workers=1, multiprocessing_context=object()
    ),
    "sampler option is mutually exclusive with shuffle": load(sampler=[0], shuffle=True),
    "batch_sampler option is mutually exclusive with": load(batch_sampler=[[0]], batch_size=2),
    "samples have been fetched. ": too_many_samples,
    "num_samples should be a positive integer value": lambda lib: lib.utils.data.RandomSampler([]),
    "batch_size should be a positive integer value": lambda lib: lib.utils.data.DataLoader(
        [1], batch_size=0
    ),
    "Size mismatch between tensors": lambda lib: lib.utils.data.TensorDataset(
        lib.ones(1), lib.ones(2)
    ),
    "Sum of input lengths does not equal the length of the input dataset": lambda lib: (
        lib.utils.data.random_split([1, 2], [1, 3])
    ),
    "datasets should not be an empty iterable": lambda lib: lib.utils.data.ConcatDataset([]),
    "default_collate: batch must contain tensors, numpy arrays, numbers, dicts": lambda lib: (
        lib.utils.data.default_collate([object()])
    ),
    "each element in list of batch should be of equal size": lambda lib: (
        lib.utils.data.default_collate([[1], [1, 2]])
    ),
    "absolute value of index should not exceed dataset length": lambda lib: (
        lib.utils.data.ConcatDataset([[1]])[-3]
    ),
    "attribute should not be set after": lambda lib: setattr(
        lib.utils.data.DataLoader([1]), "batch_size", 3
    ),
}


@pytest.mark.parametrize("phrase", PROGRAMS)
def test_phrases(phrase: str) -> None:
    check(PROGRAMS, phrase)
