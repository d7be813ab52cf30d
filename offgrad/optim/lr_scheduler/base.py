"""LRScheduler, the base class: sets the learning rates of an optimizer's groups."""

import functools
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.optim.optimizer import Optimizer
from offgrad.optim.options import number

EPOCH_DEPRECATION_WARNING = (
    "The epoch parameter in `scheduler.step()` is deprecated: call it once an epoch. With an "
    "epoch, the rates come from the formula for that epoch, where the schedule has one."
)


class LRScheduler:
    """Base class of schedulers: a subclass defines `get_lr`, the rates of the next epoch.

    It may define `_get_closed_form_lr`, too: the rates of `last_epoch` from that alone.

    Args:
        optimizer: whose rates to set; each group gets ``"initial_lr"``.
        last_epoch: where to resume; -1 begins.

    Attributes:
        optimizer: the optimizer.
        base_lrs: the initial rate of each group.
        last_epoch: the number of steps taken.

    Raises:
        TypeError: if `optimizer` is no optimizer.
        KeyError: if it resumes, and a group has no ``"initial_lr"``.
    """

    optimizer: Any
    _last_lr: list[Any]
    _is_initial = False
    _get_lr_called_within_step = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = checked_optimizer(optimizer)
        groups = optimizer.param_groups
        for index, group in enumerate(groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", _copied(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in group {index}, which a resumed "
                    "schedule starts from: load the optimizer's state first, or start with "
                    "last_epoch=-1"
                )
        self.base_lrs: list[Any] = [_copied(group["initial_lr"]) for group in groups]
        self.last_epoch: int = last_epoch
        _note_steps(optimizer)
        self._initial_step()

    def _initial_step(self) -> None:
        """Set the rates of the first epoch."""
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes but the optimizer."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""
        self.__dict__.update(state_dict)

    def get_last_lr(self) -> list[Any]:
        """Return the rates that the last step has set."""
        return self._last_lr

    def get_lr(self) -> list[Any]:
        """Return the rate of each group for `last_epoch`; for subclasses to define."""
        raise NotImplementedError(f"{type(self).__name__} defines no get_lr()")

    def step(self, epoch: Any = None) -> None:
        """Set the rates of the next epoch, or those of `epoch`."""
        if self._step_count == 1:
            self._check_order()
        self._step_count += 1
        if epoch is not None:
            warn_of_epoch()
        self._update_lr(epoch)

    def _check_order(self) -> None:
        step = self.optimizer.step
        if not hasattr(step, "_wrapped_by_lr_sched"):
            warnings.warn(
                "`optimizer.step()` has been overridden after the scheduler was made, so the "
                "scheduler cannot see its calls: call it before `lr_scheduler.step()` (as PyTorch "
                "explains at optim.html#how-to-adjust-learning-rate)",
                UserWarning,
                stacklevel=3,
            )
        elif not getattr(self.optimizer, "_opt_called", False):
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`: the first rate "
                "of the schedule is skipped; call `optimizer.step()` first (as PyTorch explains at "
                "optim.html#how-to-adjust-learning-rate)",
                UserWarning,
                stacklevel=3,
            )

    def _update_lr(self, epoch: Any = None) -> None:
        with self._calling_get_lr():
            if epoch is None:
                self.last_epoch += 1
                values = self.get_lr()
            else:
                self.last_epoch = epoch
                closed = getattr(self, "_get_closed_form_lr", self.get_lr)
                values = closed()
        self._set_rates(values)

    @contextmanager
    def _calling_get_lr(self) -> Iterator[None]:
        self._get_lr_called_within_step = True
        try:
            yield
        finally:
            self._get_lr_called_within_step = False

    def _set_rates(self, values: Sequence[Any]) -> None:
        for group, value in zip(self.optimizer.param_groups, values, strict=False):
            set_option(group, "lr", value)
        self._last_lr = rates(self.optimizer)

    def _rates_to_change(self) -> list[Any]:
        """Return the rates of the groups, inside `get_lr`: it warns if the program called that."""
        if not self._get_lr_called_within_step:
            warnings.warn(
                "get_lr() is for subclasses; the current rates are those of `get_last_lr()`.",
                UserWarning,
                stacklevel=3,
            )
        return rates(self.optimizer)

    def _scaled(self, factor: float) -> list[Any]:
        return [rate * factor for rate in rates(self.optimizer)]

    def _scaled_base(self, factor: float) -> list[Any]:
        return [rate * factor for rate in self.base_lrs]


class _LRScheduler(LRScheduler):
    """The old name of `LRScheduler`, for subclasses."""


def checked_optimizer(optimizer: Any) -> Any:
    """Return an optimizer; raise TypeError for anything else."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
    return optimizer


def warn_of_epoch() -> None:
    """Warn that steps take no epoch."""
    warnings.warn(EPOCH_DEPRECATION_WARNING, UserWarning, stacklevel=3)


def rates(optimizer: Optimizer) -> list[Any]:
    """Return the learning rates of the groups; copies of tensors."""
    return [_copied(group["lr"]) for group in optimizer.param_groups]


def set_option(group: dict[str, Any], name: str, value: Any) -> None:
    """Set an option of a group; that of a tensor in place."""
    if isinstance(group[name], Tensor):
        grad_mode.call(False, group[name].fill_, number(value))
    else:
        group[name] = value


def per_group(value: Any, optimizer: Optimizer, name: str) -> list[Any]:
    """Return one value for each group: `value` itself for all, or the members of a list.

    Raises:
        ValueError: if a list has another length than the groups.
    """
    count = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups, {count}, got {len(value)}"
        )
    return list(value)


def momentum_name(optimizer: Optimizer) -> str:
    """Return the option that is an optimizer's momentum: ``"momentum"``, or first of ``"betas"``.

    Raises:
        ValueError: if it has neither.
    """
    for name in ("betas", "momentum"):
        if name in optimizer.defaults:
            return name
    raise ValueError(
        "cycle_momentum=True needs an optimizer with momentum or betas; pass cycle_momentum=False"
    )


def set_momentum(group: dict[str, Any], name: str, value: float) -> None:
    """Set the momentum of a group; `name` as from `momentum_name`."""
    group[name] = (value, *group[name][1:]) if name == "betas" else value


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _note_steps(optimizer: Any) -> None:
    """Make an optimizer note that `step` was called, as ``_opt_called``.

    The function holds no reference to the optimizer, whose memory is then free at once.
    """
    step: Any = optimizer.step
    if hasattr(step, "_wrapped_by_lr_sched"):
        return
    function = getattr(step, "__func__", None)
    reference = weakref.ref(optimizer)

    @functools.wraps(step)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        owner: Any = reference()
        owner._opt_called = True
        return step(*args, **kwargs) if function is None else function(owner, *args, **kwargs)

    # `wraps` noted the method, and with it the optimizer.
    wrapper.__wrapped__ = function or step
    wrapper._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    if function is not None:
        step = None
    optimizer.step = wrapper
