"""Datasets, samplers and DataLoader, as in ``torch.utils.data``."""

from offgrad._missing import missing as _missing
from offgrad.utils.data._utils.collate import default_collate, default_convert
from offgrad.utils.data._utils.worker import get_worker_info
from offgrad.utils.data.dataloader import DataLoader
from offgrad.utils.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from offgrad.utils.data.distributed import DistributedSampler
from offgrad.utils.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "random_split",
]

__getattr__ = _missing("offgrad.utils.data")
