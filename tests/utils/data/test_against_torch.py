"""Datasets, samplers, collation and DataLoader give what PyTorch's give, errors included."""

import warnings
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest

import offgrad
import offgrad.utils.data

torch = pytest.importorskip("torch")
torch_data: Any = pytest.importorskip("torch.utils.data")

Point = namedtuple("Point", ["x", "y"])

CALLS = """
RandomSampler(r, replacement=1)
RandomSampler(r, num_samples=0)
RandomSampler(r, num_samples=2.5)
RandomSampler([])
len(RandomSampler(r, False, 23)), len(list(RandomSampler(r, False, 23)))
sorted(RandomSampler(r)), len(list(RandomSampler(r, True, 5)))
WeightedRandomSampler([1, 2], 0)
WeightedRandomSampler([1, 2], True)
WeightedRandomSampler([[1, 2]], 1)
WeightedRandomSampler([1, 2], 1, 1)
list(WeightedRandomSampler([1, 2], 3, False))
list(WeightedRandomSampler([0, 1, 0], 3))
sorted(WeightedRandomSampler([5, 1, 2], 3, False))
BatchSampler(r, 0, True)
BatchSampler(r, True, True)
BatchSampler(r, 2, 1)
list(BatchSampler(r, 3, True)), list(BatchSampler(r, 3, False)), len(BatchSampler(r, 3, False))
len(BatchSampler(r, 3, True)), len(SequentialSampler(r)), list(SequentialSampler(r))
Sampler(r)
len(Sampler())
list(SubsetRandomSampler([3])), len(SubsetRandomSampler([3, 4]))
DistributedSampler(r)
DistributedSampler(r, 3, 3)
list(DistributedSampler(r, 3, 1, shuffle=False)), len(DistributedSampler(r, 3, 1))
list(DistributedSampler(r, 3, 1, shuffle=False, drop_last=True))
list(DistributedSampler(range(2), 5, 4, shuffle=False))
list(DistributedSampler(range(0), 5, 4, shuffle=False))
DataLoader(r, num_workers=-1)
DataLoader(r, timeout=-1)
DataLoader(r, prefetch_factor=2)
DataLoader(r, num_workers=1, prefetch_factor=-1)
DataLoader(r, persistent_workers=True)
DataLoader(Numbers(7), shuffle=True)
DataLoader(Numbers(7), sampler=r)
DataLoader(Numbers(7), batch_sampler=r)
DataLoader(r, sampler=r, shuffle=True)
DataLoader(r, batch_sampler=[[1]], batch_size=2)
DataLoader(r, batch_sampler=[[1]], drop_last=True)
DataLoader(r, batch_size=None, drop_last=True)
DataLoader(r, batch_size=0)
DataLoader(r, multiprocessing_context="fork")
DataLoader(r, num_workers=1, multiprocessing_context="bad")
DataLoader(r, num_workers=1, multiprocessing_context=3)
DataLoader(r, num_workers=999).num_workers
DataLoader([], shuffle=True)
list(DataLoader([]))
len(DataLoader(Numbers(7)))
len(DataLoader(Sized(7), 2)), len(DataLoader(Sized(7), 2, drop_last=True))
len(DataLoader(Sized(7), None)), len(DataLoader(r, 3)), len(DataLoader(r, 3, drop_last=True))
list(DataLoader(Sized(7), 2))
list(DataLoader(Numbers(7), None)), list(DataLoader(Numbers(7), 2, drop_last=True))
warned(Sized(7))
list(DataLoader(r, 3)), list(DataLoader(r, 3, drop_last=True))
list(DataLoader(r, None, sampler=[3, 4])), list(DataLoader(r, 2, sampler=[3, 4]))
list(DataLoader(r, batch_sampler=[[1, 2], [3]])), DataLoader(r, batch_sampler=[[1]]).batch_size
list(DataLoader(r, 4, collate_fn=sum))
list(DataLoader(r, pin_memory=True))
sorted(t.item() for t in DataLoader(r, shuffle=True))
setattr(DataLoader(r), "batch_size", 3)
setattr(DataLoader(r), "dataset", 3)
setattr(DataLoader(r), "num_workers", 3)
[len(x) for x in random_split(r, [0.55, 0.45])]
[len(x) for x in random_split(r, [0.25, 0.25, 0.5])]
sorted(i for part in random_split(r, [3, 7]) for i in part)
random_split(r, [5, 4])
random_split(r, [0.3, 0.3])
random_split(r, [1.5, -0.5])
[len(x) for x in random_split(r, [0.99, 0.01])]
TensorDataset(t.ones(2), t.ones(3))
TensorDataset(t.ones(4, 3), t.arange(4))[2], TensorDataset(t.ones(4, 3), t.arange(4))[1:3]
len(TensorDataset(t.ones(4, 3)))
StackDataset()
StackDataset(r, a=r)
StackDataset(r, range(3))
StackDataset(r, r)[3], StackDataset(a=r, b=r)[3], len(StackDataset(r))
StackDataset(a=r).__getitems__([1, 2]), StackDataset(Subset(r, r)).__getitems__([1, 2])
ConcatDataset([])
ConcatDataset([Numbers(7)])
ConcatDataset([r, r])[-1], ConcatDataset([r, range(3)])[10], len(ConcatDataset([r, range(3)]))
ConcatDataset([r, r])[-21]
ConcatDataset([r, r])[20]
ConcatDataset([r, r]).cumulative_sizes
ConcatDataset([r, r]).cummulative_sizes
len(ChainDataset([Sized(7), Sized(7)])), list(ChainDataset([Sized(2), Sized(3)]))
list(ChainDataset([Numbers(7), r]))
list(Numbers(2) + Numbers(3))
Subset(r, [1, 2])[[0, 1]]
Subset(r, [1, 2])[0], Subset(r, [1, 2]).__getitems__([0, 1]), len(Subset(r, [1, 2]))
Dataset()[0]
len(Dataset())
iter(IterableDataset())
Dataset() + Dataset()
default_collate([1, 2])
default_collate([1.5, 2])
default_collate([True, False])
default_collate(["a", "b"]), default_collate([b"a"])
default_collate([None])
default_collate([{"a": 1}, {"a": 2}])
default_collate([(1, 2.0), (3, 4.0)])
default_collate([[1, 2], [3, 4]])
default_collate([Point(1, 2), Point(3, 4)])
default_collate([[1], [1, 2]])
default_collate([np.float32(1), np.float32(2)])
default_collate([np.ones(2), np.ones(2)])
default_collate([np.array(1.0), np.array(2.0)])
default_collate([np.array(["a"])])
default_collate([object()])
default_collate([t.ones(2), t.ones(3)])
default_collate([])
default_collate([1, "a"])
default_collate([OrderedDict(a=1)]), default_collate([defaultdict(int, a=1)])
default_collate([{1, 2}])
default_collate([2j])
default_convert([1, np.ones(2), np.float32(2), "a", {"b": np.ones(1)}, Point(1, np.ones(1)), (1,)])
default_convert(np.array("a"))
get_worker_info()
"""


class _Side:
    """Evaluates calls on one of the libraries."""

    def __init__(self, library: Any, data: Any) -> None:
        class Numbers(data.IterableDataset):  # type: ignore[misc]
            def __init__(self, count: int) -> None:
                self.count = count

            def __iter__(self) -> Any:
                return iter(range(self.count))

        class Sized(Numbers):
            def __len__(self) -> int:
                return self.count - 2

        def warned(dataset: Any) -> int:
            loader = data.DataLoader(dataset)
            return len(loader) + len(list(loader))

        self.names = {name: getattr(data, name) for name in offgrad.utils.data.__all__}
        self.names |= {"t": library, "r": range(10), "Numbers": Numbers, "Sized": Sized}
        self.names |= {"warned": warned, "np": np, "Point": Point}
        self.names |= {"OrderedDict": OrderedDict, "defaultdict": defaultdict}
        self.tensor = library.Tensor

    def run(self, call: str) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result = self.plain(eval(call, self.names))
            except Exception as error:
                result = type(error)
        return result, [each.category for each in caught]

    def plain(self, value: Any) -> Any:
        """Return `value` with tensors as lists, and classes by name."""
        if isinstance(value, self.tensor):
            return "tensor", np.asarray(value).dtype, value.tolist()
        if isinstance(value, np.ndarray):
            return str(value)
        if isinstance(value, dict):
            return type(value).__name__, {key: self.plain(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return type(value).__name__, [self.plain(each) for each in value]
        plain = isinstance(value, bool | int | float | complex | str | bytes)
        return value if plain else type(value).__name__


@pytest.fixture(scope="module")
def sides() -> tuple[_Side, _Side]:
    return _Side(torch, torch_data), _Side(offgrad, offgrad.utils.data)


@pytest.mark.parametrize("call", CALLS.strip().splitlines())
def test_call(call: str, sides: tuple[_Side, _Side]) -> None:
    theirs, ours = sides
    assert ours.run(call) == theirs.run(call)
