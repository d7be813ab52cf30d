"""ReduceLROnPlateau."""

import math
from typing import Any

from offgrad.optim.lr_scheduler.base import (
    LRScheduler,
    checked_optimizer,
    rates,
    set_option,
    warn_of_epoch,
)
from offgrad.optim.optimizer import Optimizer


class ReduceLROnPlateau(LRScheduler):
    """The rate times `factor` after more than `patience` steps without a better metric.

    Args:
        optimizer: the optimizer.
        mode: whether the ``"min"`` or the ``"max"`` of the metric is best.
        factor: below 1.
        patience: steps without improvement that it tolerates.
        threshold, threshold_mode: the least improvement, ``"rel"`` to the best or ``"abs"``.
        cooldown: steps after a reduction in which it counts none.
        min_lr: the lowest rate; one for all groups, or a list.
        eps: reductions by less are not made.

    Raises:
        ValueError: for a factor of 1 or more, another mode, or as many `min_lr` as not groups.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: list[float] | float = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown!")
        self.factor = factor
        self.optimizer = checked_optimizer(optimizer)
        count = len(optimizer.param_groups)
        are_many = isinstance(min_lr, (list, tuple))
        self.default_min_lr: Any = None if are_many else min_lr
        self.min_lrs: list[Any] = [*min_lr] if are_many else [min_lr] * count  # type: ignore[misc]
        if len(self.min_lrs) != count:
            raise ValueError(f"expected {count} min_lrs, got {len(self.min_lrs)}")
        self.patience, self.cooldown, self.eps = patience, cooldown, eps
        self.last_epoch = 0
        self._last_lr = rates(optimizer)
        self.mode_worse = math.inf if mode == "min" else -math.inf
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self._reset()

    def _reset(self) -> None:
        self.best: float = self.mode_worse
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    def step(self, metrics: Any, epoch: Any = None) -> None:  # type: ignore[override]
        """Note a metric, a number or a tensor of one element; reduce the rates if they are due."""
        current = float(metrics)
        if epoch is None:
            epoch = self.last_epoch + 1
        else:
            warn_of_epoch()
        self.last_epoch = epoch
        if self.is_better(current, self.best):
            self.best = current
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce_lr(epoch)
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = rates(self.optimizer)

    def _reduce_lr(self, epoch: Any) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            if self.default_min_lr is None:
                raise RuntimeError(
                    f"the optimizer has {len(groups)} parameter groups now, but "
                    f"{len(self.min_lrs)} when this scheduler was made: give the attribute min_lrs "
                    "a value for each group"
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, lowest in zip(groups, self.min_lrs, strict=True):
            before = float(group["lr"])
            after = max(before * self.factor, lowest)
            if before - after > self.eps:
                set_option(group, "lr", after)

    @property
    def in_cooldown(self) -> bool:
        """Whether a reduction was less than `cooldown` steps ago."""
        return self.cooldown_counter > 0

    def is_better(self, a: float, best: float) -> bool:
        """Return whether a metric is better than the best so far."""
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "rel":
            bound = best * (1.0 + sign * self.threshold)
        else:
            bound = best + sign * self.threshold
        return a > bound if self.mode == "max" else a < bound
