"""Stochastic gradient descent."""

from collections.abc import Iterable
from typing import Any

from offgrad import kernels
from offgrad._tensor.tensor import Tensor
from offgrad.memory import contiguous
from offgrad.optim.optimizer import Optimizer, check_options, writable


class SGD(Optimizer):
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

    def update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        is_first_step = group["momentum"] != 0 and "momentum_buffer" not in state
        if is_first_step:
            state["momentum_buffer"] = self.new_state(param)
        buffer = state.get("momentum_buffer")
        kernels.sgd_step(
            writable(param, "SGD"),
            contiguous(grad._array).reshape(-1),
            None if buffer is None else writable(buffer, "SGD"),
            group["lr"],
            group["momentum"],
            group["dampening"],
            group["weight_decay"],
            group["nesterov"],
            is_first_step,
            group["maximize"],
        )
