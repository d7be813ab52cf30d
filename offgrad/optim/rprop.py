"""Rprop."""

from typing import Any

from offgrad import kernels
from offgrad._tensor.tensor import Tensor
from offgrad.optim.batched import Batch, BatchedOptimizer, new_count
from offgrad.optim.optimizer import ParamsT
from offgrad.optim.options import check_common, check_options, check_tensor_lr, number


class Rprop(BatchedOptimizer):
    """Steps by the sign of gradients, larger as long as it stays (Riedmiller and Braun, 1993).

    Keeps two buffers per parameter.

    Raises:
        ValueError: for a negative `lr`, or etas that are not ``0 < etas[0] < 1 < etas[1]``.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_tensor_lr(lr, foreach, capturable)
        check_options(lr=lr)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(
                f"Invalid eta values: {etas[0]}, {etas[1]}; they lie below and above 1"
            )
        check_common(foreach, differentiable)
        defaults = {
            "lr": lr,
            "etas": etas,
            "step_sizes": step_sizes,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults)

    def buffers(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return "prev", "step_size"

    def first_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        step_size = self.new_state(param, number(group["lr"]))
        return {"step": new_count(), "prev": self.new_state(param), "step_size": step_size}

    def run_kernel(self, batch: Batch) -> None:
        kernels.rprop_steps(*batch.arguments("etas", "step_sizes", "maximize"))
