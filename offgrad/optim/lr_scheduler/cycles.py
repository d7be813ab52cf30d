"""Cycles of the learning rate and of momentum (L. Smith)."""

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

from offgrad.optim.lr_scheduler.base import (
    LRScheduler,
    checked_optimizer,
    momentum_name,
    per_group,
    set_momentum,
    set_option,
)
from offgrad.optim.optimizer import Optimizer


class CyclicLR(LRScheduler):
    """The rate goes up and down between two bounds (Smith, arXiv:1506.01186); step it per batch.

    Args:
        optimizer: the optimizer.
        base_lr, max_lr: the bounds; one for all groups, or a list.
        step_size_up, step_size_down: batches up, and down (by default as many).
        mode: the height of cycle n: ``"triangular"`` 1, ``"triangular2"`` ``2**(1 - n)``, and
            ``"exp_range"`` ``gamma**batch``.
        gamma: for ``"exp_range"``.
        scale_fn, scale_mode: a function for the height in place of a mode; it is given the number
            of the ``"cycle"``, from 1, or of the batch with ``"iterations"``.
        cycle_momentum: whether the momentum, or first beta, goes down as the rate goes up.
        base_momentum, max_momentum: its bounds.
        last_epoch: where to resume.

    Raises:
        ValueError: for lists of another length than the groups, another mode, or `cycle_momentum`
            of an optimizer without momentum.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        groups = checked_optimizer(optimizer).param_groups
        base_lrs = per_group(base_lr, optimizer, "base_lr")
        if last_epoch == -1:
            for group, rate in zip(groups, base_lrs, strict=True):
                set_option(group, "lr", rate)
        self.max_lrs = per_group(max_lr, optimizer, "max_lr")
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up) + float(down)
        self.step_ratio = step_size_up / self.total_size
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError(
                "mode must be 'triangular', 'triangular2' or 'exp_range', or scale_fn given, got "
                f"{mode!r}"
            )
        self.mode, self.gamma = mode, gamma
        self._scale_fn_custom = scale_fn
        self.scale_mode = scale_mode
        if scale_fn is None:
            self.scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            name = momentum_name(optimizer)
            self.use_beta1 = name == "betas"
            self.base_momentums = per_group(base_momentum, optimizer, "base_momentum")
            self.max_momentums = per_group(max_momentum, optimizer, "max_momentum")
            bounds = zip(groups, self.base_momentums, self.max_momentums, strict=True)
            for group, low, high in bounds:
                if last_epoch == -1:
                    set_momentum(group, name, high)
                group["max_momentum"], group["base_momentum"] = high, low
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x: float) -> float:
        """Return the height of a cycle, or at a batch, as `scale_mode` says."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return float(1 / 2.0 ** (x - 1) if self.mode == "triangular2" else self.gamma**x)

    def get_lr(self) -> list[Any]:
        """Return the rates, and set the momenta."""
        self._rates_to_change()
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        is_rising = x <= self.step_ratio
        height = x / self.step_ratio if is_rising else (x - 1) / (self.step_ratio - 1)
        height *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            name = "betas" if self.use_beta1 else "momentum"
            bounds = zip(self.base_momentums, self.max_momentums, strict=True)
            for group, (low, high) in zip(self.optimizer.param_groups, bounds, strict=True):
                set_momentum(group, name, high - (high - low) * height)
        pairs = zip(self.base_lrs, self.max_lrs, strict=True)
        return [low + (high - low) * height for low, high in pairs]

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes; of a `scale_fn` that is an object, its attributes."""
        state = super().state_dict()
        function = state.pop("_scale_fn_custom")
        is_object = function is not None and not isinstance(function, FunctionType)
        state["_scale_fn_custom"] = function.__dict__.copy() if is_object else None
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`; a `scale_fn` stays that of the scheduler."""
        rest = dict(state_dict)
        attributes = rest.pop("_scale_fn_custom", None)
        if attributes is not None and self._scale_fn_custom is not None:
            self._scale_fn_custom.__dict__.update(attributes)
        super().load_state_dict(rest)


class OneCycleLR(LRScheduler):
    """The rate goes up once and down again (Smith, Topin, arXiv:1708.07120); step it per batch.

    Args:
        optimizer: the optimizer.
        max_lr: the highest rate; one for all groups, or a list.
        total_steps: the number of batches, or else `epochs` times `steps_per_epoch`.
        pct_start: the part of the cycle in which the rate goes up.
        anneal_strategy: ``"cos"`` or ``"linear"``.
        cycle_momentum: whether the momentum, or first beta, goes down as the rate goes up.
        base_momentum, max_momentum: its bounds.
        div_factor: `max_lr` divided by the initial rate.
        final_div_factor: the initial rate divided by the last.
        three_phase: go down to the initial rate as fast as up, then to the last one.
        last_epoch: where to resume.

    Raises:
        ValueError: for numbers of steps that are not positive, `pct_start` outside [0, 1], another
            strategy, lists of another length than the groups, `cycle_momentum` of an optimizer
            without momentum, or a step too many.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        groups = checked_optimizer(optimizer).param_groups
        self.total_steps = _total_steps(total_steps, epochs, steps_per_epoch)
        if not (isinstance(pct_start, (float, int)) and 0 <= pct_start <= 1):
            raise ValueError(f"pct_start must be a number from 0 to 1, got {pct_start!r}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}")
        self._schedule_phases = _phases(self.total_steps, pct_start, three_phase)
        self._anneal_func_type = anneal_strategy
        rates = per_group(max_lr, optimizer, "max_lr")
        if last_epoch == -1:
            for group, rate in zip(groups, rates, strict=True):
                group["initial_lr"] = rate / div_factor
                group["max_lr"] = rate
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            name = momentum_name(optimizer)
            self.use_beta1 = name == "betas"
            lows = per_group(base_momentum, optimizer, "base_momentum")
            highs = per_group(max_momentum, optimizer, "max_momentum")
            if last_epoch == -1:
                for group, low, high in zip(groups, lows, highs, strict=True):
                    set_momentum(group, name, high)
                    group["max_momentum"], group["base_momentum"] = high, low
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rates, and set the momenta."""
        self._rates_to_change()
        step = self.last_epoch
        if step > self.total_steps:
            raise ValueError(
                f"the schedule has {self.total_steps} steps, and this is step "
                f"{step}; pass a larger total_steps"
            )
        start, phase = 0.0, self._schedule_phases[-1]
        for each in self._schedule_phases:
            if step <= each["end_step"] or each is phase:
                phase = each
                break
            start = each["end_step"]
        part = (step - start) / (phase["end_step"] - start)
        found = []
        for group in self.optimizer.param_groups:
            found.append(self._anneal(group[phase["start_lr"]], group[phase["end_lr"]], part))
            if self.cycle_momentum:
                bounds = group[phase["start_momentum"]], group[phase["end_momentum"]]
                name = "betas" if self.use_beta1 else "momentum"
                set_momentum(group, name, self._anneal(*bounds, part))
        return found

    def _anneal(self, start: float, end: float, part: float) -> float:
        if self._anneal_func_type == "linear":
            return (end - start) * part + start
        return end + (start - end) / 2.0 * (1 + math.cos(math.pi * part))


def _total_steps(total: Any, epochs: Any, steps_per_epoch: Any) -> int:
    counts = {"epochs": epochs, "steps_per_epoch": steps_per_epoch}
    if total is not None:
        counts = {"total_steps": total}
    elif epochs is None or steps_per_epoch is None:
        raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
    product = 1
    for name, count in counts.items():
        if count <= 0 or not isinstance(count, int):
            raise ValueError(f"Expected positive integer {name}, but got {count}")
        product *= count
    return product


def _phases(steps: int, pct_start: float, three_phase: bool) -> list[dict[str, Any]]:
    """Return the phases of a cycle: their last steps, and the options between which they go."""
    up = float(pct_start * steps) - 1
    ends: list[float] = [up, 2 * up, steps - 1] if three_phase else [up, steps - 1]
    rates = ["initial_lr", "max_lr", *(["initial_lr"] if three_phase else []), "min_lr"]
    momenta = ["max_momentum", "base_momentum", "max_momentum", "max_momentum"]
    return [
        {
            "end_step": end,
            "start_lr": rates[number],
            "end_lr": rates[number + 1],
            "start_momentum": momenta[number],
            "end_momentum": momenta[number + 1],
        }
        for number, end in enumerate(ends)
    ]
