"""RMSprop."""

from typing import Any

from offgrad import kernels
from offgrad._tensor.tensor import Tensor
from offgrad.optim.batched import Batch, BatchedOptimizer
from offgrad.optim.optimizer import ParamsT
from offgrad.optim.options import check_common, check_options, check_tensor_lr, number


class RMSprop(BatchedOptimizer):
    """Steps divided by the root of the mean square of gradients (Hinton; Graves, 2013).

    Keeps a buffer per parameter, and one each if `centered` and if `momentum` is not 0.

    Raises:
        ValueError: for a negative `lr`, `eps`, `momentum`, `weight_decay` or `alpha`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_tensor_lr(lr, foreach, capturable)
        check_options(lr=lr, eps=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha)
        check_common(foreach, differentiable)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "alpha": alpha,
            "eps": eps,
            "centered": centered,
            "weight_decay": weight_decay,
            "capturable": capturable,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def buffers(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return (
            "square_avg",
            "momentum_buffer" if number(group["momentum"]) > 0 else None,
            "grad_avg" if group["centered"] else None,
        )

    def run_kernel(self, batch: Batch) -> None:
        kernels.rmsprop_steps(
            *batch.arguments("lr", "alpha", "eps", "weight_decay", "momentum", "maximize")
        )
