"""Adagrad."""

from typing import Any

import numpy as np

from offgrad import kernels
from offgrad._tensor.tensor import Tensor
from offgrad.optim.batched import Batch, BatchedOptimizer, new_count
from offgrad.optim.optimizer import ParamsT
from offgrad.optim.options import check_common, check_options, number, numbers
from offgrad.optim.sparse_gradients import add_at, elements


class Adagrad(BatchedOptimizer):
    """Steps divided by the root of the sum of squared gradients (Duchi et al., 2011).

    Keeps one buffer per parameter, from the start.

    Raises:
        ValueError: for a negative `lr`, `lr_decay`, `weight_decay`, `initial_accumulator_value` or
            `eps`.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_options(
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
        )
        check_common(foreach, differentiable, fused)
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "foreach": foreach,
            "maximize": maximize,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param] = self.first_state(param, group)

    def share_memory(self) -> None:
        """Nothing: threads share memory anyway, and a forked process gets a copy."""

    def buffers(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return ("sum",)

    def first_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        total = self.new_state(param, number(group["initial_accumulator_value"]))
        return {"step": new_count(), "sum": total}

    def run_kernel(self, batch: Batch) -> None:
        kernels.adagrad_steps(
            *batch.arguments(
                "lr", "lr_decay", "eps", "weight_decay", "maximize", counts=[batch.steps()]
            )
        )

    def update_sparse(self, param: Tensor, grad: Any, group: dict[str, Any]) -> None:
        """Update the rows of a sparse gradient, and their sums.

        Raises:
            RuntimeError: for weight decay, whose gradient is not sparse.
        """
        options, state = numbers(group), self.state[param]
        if options["weight_decay"]:
            raise RuntimeError(
                "Adagrad: weight_decay has a dense gradient, so it cannot go with sparse ones; "
                "set it to 0"
            )
        state["step"] += 1
        index, values = elements(-grad if options["maximize"] else grad)
        total = state["sum"]
        add_at(total, index, values * values.conj(), "Adagrad")
        rate = options["lr"] / (1 + (number(state["step"]) - 1) * options["lr_decay"])
        add_at(
            param,
            index,
            -rate * values / (np.sqrt(total._array[index]) + options["eps"]),
            "Adagrad",
        )
