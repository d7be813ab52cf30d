"""Schedulers made of schedulers."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from offgrad.optim.lr_scheduler.base import LRScheduler, rates
from offgrad.optim.lr_scheduler.plateau import ReduceLROnPlateau
from offgrad.optim.optimizer import Optimizer


class _Combined(LRScheduler):
    """Schedulers of one optimizer; their states are in the state dict."""

    _schedulers: list[Any]

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes, with the state dicts of the schedulers."""
        state = super().state_dict()
        del state["_schedulers"]
        return {**state, "_schedulers": [each.state_dict() for each in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""
        rest = {key: value for key, value in state_dict.items() if key != "_schedulers"}
        super().load_state_dict(rest)
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)

    def _check_optimizers(self, schedulers: Sequence[Any], optimizer: Any) -> None:
        name = type(self).__name__
        for index, each in enumerate(schedulers):
            if each.optimizer is not optimizer:
                raise ValueError(
                    f"{name}: the schedulers must have one optimizer, but scheduler {index}, a "
                    f"{type(each).__name__}, has another than the first: {each.optimizer}"
                )


class SequentialLR(_Combined):
    """One scheduler after the other.

    Args:
        optimizer: the optimizer of all schedulers.
        schedulers: the schedulers; none is a `ReduceLROnPlateau`.
        milestones: the epochs at which the next begins.
        last_epoch: where to resume.

    Raises:
        ValueError, TypeError: if the arguments do not fit together.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: list[LRScheduler],
        milestones: list[int],
        last_epoch: int = -1,
    ) -> None:
        if not schedulers:
            raise ValueError("SequentialLR expects at least one scheduler, got an empty list")
        for index, each in enumerate(schedulers):
            if not hasattr(each, "optimizer"):
                raise TypeError(
                    f"SequentialLR: scheduler {index} has no attribute optimizer: a "
                    f"{type(each).__name__}"
                )
            if isinstance(each, ReduceLROnPlateau):
                raise ValueError(
                    "SequentialLR passes no metric, which ReduceLROnPlateau needs, but scheduler "
                    f"{index} is one"
                )
            self._check_optimizers(schedulers[: index + 1], optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "SequentialLR needs a milestone between each two schedulers, got "
                f"{len(schedulers)} schedulers and {len(milestones)} milestones"
            )
        self._schedulers = schedulers
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        self.optimizer = optimizer
        # Each has made its first step; only that of the first counts.
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for scheduler in schedulers:
            _undo_step(scheduler)
        schedulers[0]._initial_step()
        self._last_lr = schedulers[0].get_last_lr()

    def step(self) -> None:  # type: ignore[override]
        """Set the rates of the next epoch."""
        self.last_epoch += 1
        index = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[index]
        if index > 0 and self._milestones[index - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


def _undo_step(scheduler: Any) -> None:
    for each in getattr(scheduler, "_schedulers", ()):
        _undo_step(each)
    if hasattr(scheduler, "last_epoch"):
        scheduler.last_epoch -= 1


class ChainedScheduler(_Combined):
    """Schedulers that all step, one after the other.

    Raises:
        ValueError: without schedulers, or for schedulers of several optimizers.
    """

    def __init__(
        self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None
    ) -> None:
        if not schedulers:
            raise ValueError("ChainedScheduler needs one scheduler or more, got none")
        optimizer = optimizer or schedulers[0].optimizer
        self._check_optimizers(schedulers, optimizer)
        self._schedulers = list(schedulers)
        self.optimizer = optimizer
        self._last_lr = rates(self._schedulers[-1].optimizer)

    def step(self) -> None:  # type: ignore[override]
        """Let each scheduler step."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = rates(self.optimizer)
