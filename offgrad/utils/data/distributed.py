"""DistributedSampler: the share of one of several processes. Internal."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

from offgrad import ops
from offgrad.ops import Generator
from offgrad.utils.data.sampler import Sampler

__all__ = ["DistributedSampler"]


class DistributedSampler(Sampler[Any]):
    """Every `num_replicas`-th index from `rank` on, of an order that all processes share.

    offgrad has no process groups, so `num_replicas` and `rank` must be given.

    Args:
        dataset: a dataset with a length.
        num_replicas: the number of processes.
        rank: which of them this is.
        shuffle: whether the order is random; call `set_epoch` before each epoch for a new one.
        seed: of the order; the same in all processes.
        drop_last: whether to drop samples, rather than to repeat some, so that all shares have
            one length.

    Raises:
        ValueError: `num_replicas` or `rank` is missing, or the rank is out of range.
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None or rank is None:
            raise ValueError(
                "Default process group has not been initialized: offgrad has none, so give "
                "DistributedSampler num_replicas and rank"
            )
        if not 0 <= rank < num_replicas:
            raise ValueError(f"Invalid rank {rank}: it must be in [0, {num_replicas - 1}]")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self.drop_last = drop_last
        count = len(dataset) / num_replicas
        self.num_samples = math.floor(count) if drop_last else math.ceil(count)
        self.total_size = self.num_samples * num_replicas
        self.shuffle = shuffle
        self.seed = seed

    def __iter__(self) -> Iterator[Any]:
        indices: Any = range(len(self.dataset))
        if self.shuffle:
            generator = Generator().manual_seed(self.seed + self.epoch)
            indices = ops.randperm(len(self.dataset), generator=generator).tolist()
        padded = itertools.islice(itertools.cycle(indices), self.total_size)
        return itertools.islice(padded, self.rank, None, self.num_replicas)

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Set the number that, with the seed, determines the order of the next iteration."""
        self.epoch = epoch
