"""Adadelta."""

from typing import Any

from offgrad import kernels
from offgrad._tensor.tensor import Tensor
from offgrad.optim.batched import Batch, BatchedOptimizer
from offgrad.optim.optimizer import ParamsT
from offgrad.optim.options import check_common, check_options, check_tensor_lr


class Adadelta(BatchedOptimizer):
    """Steps scaled by the running means of past changes and gradients (Zeiler, 2012).

    Keeps two buffers per parameter.

    Raises:
        ValueError: for `rho` outside [0, 1], or a negative `lr`, `eps` or `weight_decay`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_tensor_lr(lr, foreach, capturable)
        check_options(lr=lr)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"Invalid rho value: {rho}; 0 to 1 is allowed")
        check_options(eps=eps, weight_decay=weight_decay)
        check_common(foreach, differentiable)
        defaults = {
            "lr": lr,
            "rho": rho,
            "eps": eps,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "capturable": capturable,
            "foreach": foreach,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults)

    def buffers(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return "square_avg", "acc_delta"

    def run_kernel(self, batch: Batch) -> None:
        kernels.adadelta_steps(*batch.arguments("lr", "rho", "eps", "weight_decay", "maximize"))
