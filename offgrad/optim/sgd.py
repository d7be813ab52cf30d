"""Stochastic gradient descent."""

from collections.abc import Iterable, Sequence
from typing import Any

from offgrad_storage.interrupts import masked

from offgrad import kernels
from offgrad._tensor.tensor import Tensor
from offgrad.memory import contiguous
from offgrad.optim.batched import BatchedOptimizer
from offgrad.optim.optimizer import check_options, writable


class SGD(BatchedOptimizer):
    """Gradient descent with momentum (Sutskever et al., 2013).

    As in PyTorch, the learning rate multiplies the momentum buffer, not the gradients in it. Keeps
    one buffer per parameter if `momentum` is not 0.

    Raises:
        ValueError: for a negative `lr`, `momentum` or `weight_decay`, or `nesterov` without
            momentum or with dampening.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        check_options(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum == 0 or dampening != 0):
            raise ValueError("nesterov needs a momentum and no dampening")
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
                "maximize": maximize,
            },
        )

    def update_all(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[dict[str, Any]],
        group: dict[str, Any],
    ) -> None:
        momentum = group["momentum"]
        first_steps = [momentum != 0 and "momentum_buffer" not in each for each in states]
        buffers = [
            self.new_state(param) if is_first else state.get("momentum_buffer")
            for param, state, is_first in zip(params, states, first_steps, strict=True)
        ]
        arrays = (
            writable(params, "SGD"),
            [contiguous(each._array) for each in grads],
            [None if each is None else writable([each], "SGD")[0] for each in buffers],
        )
        with masked:
            kernels.sgd_steps(
                *arrays,
                first_steps,
                group["lr"],
                momentum,
                group["dampening"],
                group["weight_decay"],
                group["nesterov"],
                group["maximize"],
            )
            for state, buffer, is_first in zip(states, buffers, first_steps, strict=True):
                if is_first:
                    state["momentum_buffer"] = buffer
