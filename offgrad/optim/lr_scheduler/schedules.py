"""Schedules that are a formula of the epoch."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

from offgrad.optim.lr_scheduler.base import LRScheduler, rates
from offgrad.optim.optimizer import Optimizer

Factor = Callable[[int], float]


class _ByFunctions(LRScheduler):
    """A scheduler with a function for each group; state dicts hold callable objects only."""

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Factor | list[Factor], last_epoch: int = -1
    ) -> None:
        count = len(optimizer.param_groups)
        are_many = isinstance(lr_lambda, (list, tuple))
        self.lr_lambdas: list[Factor] = [*lr_lambda] if are_many else [lr_lambda] * count  # type: ignore[list-item, misc]
        if len(self.lr_lambdas) != count:
            raise ValueError(f"Expected {count} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes; of the functions, the attributes of those that are objects."""
        state = super().state_dict()
        del state["lr_lambdas"]
        state["lr_lambdas"] = [
            None if isinstance(each, FunctionType) else each.__dict__.copy()
            for each in self.lr_lambdas
        ]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the result of `state_dict`; functions stay those of the scheduler."""
        for function, attributes in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=False):
            if attributes is not None:
                function.__dict__.update(attributes)
        rest = {key: value for key, value in state_dict.items() if key != "lr_lambdas"}
        super().load_state_dict(rest)


class LambdaLR(_ByFunctions):
    """The initial rate times a function of the epoch.

    Raises:
        ValueError: for a list of functions that are not one for each group.
    """

    def get_lr(self) -> list[Any]:
        """Return the rates."""
        self._rates_to_change()
        pairs = zip(self.lr_lambdas, self.base_lrs, strict=True)
        return [base * function(self.last_epoch) for function, base in pairs]


class MultiplicativeLR(_ByFunctions):
    """The rate times a function of the epoch, at each step after the first.

    Raises:
        ValueError: for a list of functions that are not one for each group.
    """

    def get_lr(self) -> list[Any]:
        """Return the rates."""
        now = self._rates_to_change()
        if self._is_initial:
            return now
        pairs = zip(self.lr_lambdas, now, strict=True)
        return [rate * function(self.last_epoch) for function, rate in pairs]


class StepLR(LRScheduler):
    """The rate times `gamma` every `step_size` epochs."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rates."""
        now = self._rates_to_change()
        if self.last_epoch == 0 or self.last_epoch % self.step_size != 0:
            return now
        return self._scaled(self.gamma)

    def _get_closed_form_lr(self) -> list[Any]:
        return self._scaled_base(self.gamma ** (self.last_epoch // self.step_size))


class MultiStepLR(LRScheduler):
    """The rate times `gamma` at each epoch of `milestones`."""

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rates."""
        now = self._rates_to_change()
        if self.last_epoch not in self.milestones:
            return now
        return self._scaled(self.gamma ** self.milestones[self.last_epoch])

    def _get_closed_form_lr(self) -> list[Any]:
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return self._scaled_base(self.gamma**passed)


class ConstantLR(LRScheduler):
    """The rate times `factor` until epoch `total_iters`.

    Raises:
        ValueError: for a factor outside [0, 1].
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1.0 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 <= factor <= 1.0:
            raise ValueError(f"factor must be between 0 and 1, got {factor}")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rates."""
        now = self._rates_to_change()
        if self.last_epoch == 0:
            return self._scaled(self.factor)
        if self.last_epoch != self.total_iters:
            return now
        return self._scaled(1.0 / self.factor)

    def _get_closed_form_lr(self) -> list[Any]:
        is_over = self.last_epoch >= self.total_iters
        return self._scaled_base(self.factor + is_over * (1 - self.factor))


class LinearLR(LRScheduler):
    """The rate times a factor that goes linearly from one value to another.

    Raises:
        ValueError: for `start_factor` outside (0, 1] or `end_factor` outside [0, 1].
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1.0:
            raise ValueError(f"start_factor must be above 0 and at most 1, got {start_factor}")
        if not 0 <= end_factor <= 1.0:
            raise ValueError(f"end_factor must be between 0 and 1, got {end_factor}")
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rates."""
        now = self._rates_to_change()
        if self.last_epoch == 0:
            return self._scaled(self.start_factor)
        if self._is_initial or self.last_epoch > self.total_iters:
            return now
        rise = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * rise
        return self._scaled(1.0 + rise / before)

    def _get_closed_form_lr(self) -> list[Any]:
        part = min(self.total_iters, self.last_epoch) / self.total_iters
        return self._scaled_base(self.start_factor + (self.end_factor - self.start_factor) * part)


class ExponentialLR(LRScheduler):
    """The rate times `gamma` at each step after the first."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rates."""
        now = self._rates_to_change()
        return now if self._is_initial else self._scaled(self.gamma)

    def _get_closed_form_lr(self) -> list[Any]:
        return self._scaled_base(self.gamma**self.last_epoch)


class PolynomialLR(LRScheduler):
    """The rate decays to 0 in `total_iters` epochs, as a power of the epochs that are left."""

    def __init__(
        self,
        optimizer: Optimizer,
        total_iters: int = 5,
        power: float = 1.0,
        last_epoch: int = -1,
    ) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rates."""
        now = self._rates_to_change()
        if self._is_initial or self.last_epoch > self.total_iters:
            return now
        left = 1.0 - self.last_epoch / self.total_iters
        before = 1.0 - (self.last_epoch - 1) / self.total_iters
        return self._scaled((left / before) ** self.power)

    def _get_closed_form_lr(self) -> list[Any]:
        left = 1.0 - min(self.total_iters, self.last_epoch) / self.total_iters
        return self._scaled_base(left**self.power)


class CosineAnnealingLR(LRScheduler):
    """The rate goes along a cosine to `eta_min` in `T_max` epochs, and back.

    (I. Loshchilov, F. Hutter, "SGDR", arXiv:1608.03983, without restarts.)
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rates."""
        now = self._rates_to_change()
        if self._is_initial:
            return now
        epoch, lowest = self.last_epoch, self.eta_min
        if self._step_count == 1 and epoch > 0:
            return self._get_closed_form_lr()
        if (epoch - 1 - self.T_max) % (2 * self.T_max) == 0:  # it was lowest, where factors fail
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            pairs = zip(now, self.base_lrs, strict=True)
            return [rate + (base - lowest) * rise for rate, base in pairs]
        factor = (1 + math.cos(math.pi * epoch / self.T_max)) / (
            1 + math.cos(math.pi * (epoch - 1) / self.T_max)
        )
        return [factor * (rate - lowest) + lowest for rate in rates(self.optimizer)]

    def _get_closed_form_lr(self) -> list[Any]:
        height = (1 + math.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """The rate goes along a cosine to `eta_min`, then starts again at the initial rate.

    (I. Loshchilov, F. Hutter, "SGDR", arXiv:1608.03983.)

    Args:
        optimizer: the optimizer.
        T_0: epochs until the first restart.
        T_mult: factor of the epochs until the next.
        eta_min: the lowest rate.
        last_epoch: where to resume.

    Raises:
        ValueError: if `T_0` or `T_mult` is no positive integer.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if T_0 <= 0 or not isinstance(T_0, int):
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if T_mult < 1 or not isinstance(T_mult, int):
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        if not isinstance(eta_min, (float, int)):
            raise ValueError(f"eta_min must be a number, got {eta_min!r}")
        self.T_0, self.T_i, self.T_mult = T_0, T_0, T_mult
        self.eta_min = eta_min
        self.T_cur: Any = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rates."""
        self._rates_to_change()
        height = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]

    def step(self, epoch: Any = None) -> None:
        """Set the rates of the next epoch, or those of `epoch`, which may lie between two.

        Raises:
            ValueError: for a negative epoch.
        """
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        else:
            self._go_to(epoch)
        self.last_epoch = math.floor(epoch)
        with self._calling_get_lr():
            values = self.get_lr()
        self._set_rates(values)

    def _update_lr(self, epoch: Any = None) -> None:
        self.step(epoch)

    def _go_to(self, epoch: float) -> None:
        if epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        start, period = 0, self.T_0
        if self.T_mult == 1:
            start = int(epoch // period) * period
        elif epoch >= period:
            restarts = int(math.log(epoch / period * (self.T_mult - 1) + 1, self.T_mult))
            start = period * (self.T_mult**restarts - 1) // (self.T_mult - 1)
            period *= self.T_mult**restarts
        self.T_cur, self.T_i = epoch - start, period
