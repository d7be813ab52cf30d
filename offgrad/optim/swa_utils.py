"""Averages of models over their training, and the learning rate for it.

(P. Izmailov et al., "Averaging weights leads to wider optima and better generalization",
arXiv:1803.05407.)
"""

import math as _math
from collections.abc import Callable as _Callable
from collections.abc import Iterable as _Iterable
from copy import deepcopy as _deepcopy
from itertools import chain as _chain
from typing import Any as _Any

from offgrad import ops as _ops
from offgrad._tensor.tensor import Tensor as _Tensor
from offgrad.autograd import grad_mode as _grad_mode
from offgrad.nn.modules.module import Module as _Module
from offgrad.ops._core.device import check_device as _check_device
from offgrad.optim.lr_scheduler.base import LRScheduler as _LRScheduler
from offgrad.optim.lr_scheduler.base import per_group as _per_group
from offgrad.optim.optimizer import Optimizer as _Optimizer

__all__ = [
    "AveragedModel",
    "SWALR",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]


def get_ema_multi_avg_fn(decay: float = 0.999) -> _Callable[..., None]:
    """Return a function for `AveragedModel` that moves the average by ``1 - decay``.

    Raises:
        ValueError: for a decay outside [0, 1].
    """
    _check_decay(decay)

    def ema_update(averages: _Iterable[_Tensor], values: _Iterable[_Tensor], _: _Any) -> None:
        for average, value in zip(averages, values, strict=True):
            if average.is_floating_point() or average.is_complex():
                average.add_((value - average) * (1 - decay))
            else:
                average.copy_(average * decay + value * (1 - decay))

    return lambda *arguments: _grad_mode.call(False, ema_update, *arguments)


def get_swa_multi_avg_fn() -> _Callable[..., None]:
    """Return a function for `AveragedModel` that keeps the mean of all values."""

    def swa_update(averages: _Iterable[_Tensor], values: _Iterable[_Tensor], count: _Any) -> None:
        for average, value in zip(averages, values, strict=True):
            average.copy_(average + (value - average) / (float(count) + 1))

    return lambda *arguments: _grad_mode.call(False, swa_update, *arguments)


def get_ema_avg_fn(decay: float = 0.999) -> _Callable[..., _Tensor]:
    """Return a function of one average and value that moves the average by ``1 - decay``.

    Raises:
        ValueError: for a decay outside [0, 1].
    """
    _check_decay(decay)

    def ema_update(average: _Tensor, value: _Tensor, num_averaged: _Any) -> _Tensor:
        return average * decay + value * (1 - decay)

    return lambda *arguments: _grad_mode.call(False, ema_update, *arguments)


def get_swa_avg_fn() -> _Callable[..., _Tensor]:
    """Return a function of one average and value that keeps the mean of all values."""

    def swa_update(average: _Tensor, value: _Tensor, num_averaged: _Any) -> _Tensor:
        return average + (value - average) / (float(num_averaged) + 1)

    return lambda *arguments: _grad_mode.call(False, swa_update, *arguments)


def _check_decay(decay: float) -> None:
    if decay < 0.0 or decay > 1.0:
        raise ValueError(f"Invalid decay value {decay}: it must be from 0 to 1")


class AveragedModel(_Module):
    """A copy of a model whose parameters are the average of those given to `update_parameters`.

    Args:
        model: the model, copied.
        device: the CPU or None.
        avg_fn: returns a new average from the average, a value, and the number of values so far;
            by default their mean.
        multi_avg_fn: changes all averages in place, from lists of averages and values, and the
            number.
        use_buffers: whether to average the buffers, too, rather than copy them.

    Attributes:
        module: the copy.
        n_averaged: how many models are in the average.

    Raises:
        AssertionError: for both functions.
    """

    n_averaged: _Tensor

    def __init__(
        self,
        model: _Module,
        device: _Any = None,
        avg_fn: _Callable[..., _Tensor] | None = None,
        multi_avg_fn: _Callable[..., None] | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("got avg_fn and multi_avg_fn; pass one of them")
        _check_device(device)
        self.module = _deepcopy(model)
        self.register_buffer("n_averaged", _ops.tensor(0))
        self.avg_fn = avg_fn
        self.multi_avg_fn = multi_avg_fn
        self.use_buffers = use_buffers

    def forward(self, *args: _Any, **kwargs: _Any) -> _Any:
        """Return the result of the averaged model."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: _Module) -> None:
        """Take the parameters of a model into the average."""
        _grad_mode.call(False, self._update_parameters, model)

    def _update_parameters(self, model: _Module) -> None:
        averages, values = ([each.detach() for each in self._averaged(m)] for m in (self, model))
        count = self.n_averaged
        if count == 0:
            for average, value in zip(averages, values, strict=True):
                average.copy_(value)
        elif self.multi_avg_fn is not None or self.avg_fn is None:
            update = self.multi_avg_fn or get_swa_multi_avg_fn()
            update(averages, values, count)
        else:
            for average, value in zip(averages, values, strict=True):
                average.copy_(self.avg_fn(average, value, count))
        if not self.use_buffers:
            pairs = zip(self.module.buffers(), model.buffers(), strict=True)
            for buffer, value in pairs:
                buffer.detach().copy_(value.detach())
        self.n_averaged.add_(1)

    def _averaged(self, model: _Module) -> _Iterable[_Tensor]:
        model = self.module if model is self else model
        return _chain(model.parameters(), model.buffers() if self.use_buffers else ())


def update_bn(loader: _Iterable[_Any], model: _Module, device: _Any = None) -> None:
    """Set the running statistics of a model's batch norms to those of the data.

    Args:
        loader: batches; of a list or tuple, the first member is the model's input.
        model: its mode stays as it was.
        device: the CPU or None.
    """
    _check_device(device)
    norms = [each for each in model.modules() if _is_batch_norm(each)]
    if not norms:
        return
    momenta = [each.momentum for each in norms]
    was_training = model.training
    for each in norms:
        each.reset_running_stats()
        each.momentum = None
    try:
        model.train()
        for batch in loader:
            first = batch[0] if isinstance(batch, (list, tuple)) else batch
            _grad_mode.call(False, model, first)
    finally:
        for each, momentum in zip(norms, momenta, strict=True):
            each.momentum = momentum
        model.train(was_training)


def _is_batch_norm(module: _Any) -> bool:
    return any(kind.__name__ == "_BatchNorm" for kind in type(module).__mro__)


class SWALR(_LRScheduler):
    """The rate goes to `swa_lr` in `anneal_epochs`, and stays.

    Args:
        optimizer: the optimizer.
        swa_lr: the last rate; one for all groups, or a list.
        anneal_epochs: steps until then.
        anneal_strategy: ``"cos"`` or ``"linear"``.
        last_epoch: where to resume.

    Raises:
        ValueError: for another strategy, or epochs that are no integer from 0.
    """

    def __init__(
        self,
        optimizer: _Optimizer,
        swa_lr: float | list[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        rates = _per_group(swa_lr, optimizer, "swa_lr")
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["swa_lr"] = rate
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}")
        self._anneal_strategy = anneal_strategy
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be an integer of at least 0, got {anneal_epochs}")
        self.anneal_epochs = anneal_epochs
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[_Any]:
        """Return the rates."""
        now = self._rates_to_change()
        step = self._step_count - 1
        before, after = self._part(step - 1), self._part(step)
        found = []
        for group, rate in zip(self.optimizer.param_groups, now, strict=True):
            target = group["swa_lr"]
            # The rate before annealing, of which the rate now is a mean with the target.
            start = target if before == 1 else (rate - before * target) / (1 - before)
            found.append(target * after + start * (1 - after))
        return found

    def _part(self, step: int) -> float:
        """Return how much of the way to the last rate is done after a step."""
        if self.anneal_epochs == 0:
            return 1.0
        part = max(0.0, min(1.0, step / self.anneal_epochs))
        return part if self._anneal_strategy == "linear" else (1 - _math.cos(_math.pi * part)) / 2
