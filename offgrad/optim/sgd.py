"""Stochastic gradient descent."""

from typing import Any

from offgrad import kernels
from offgrad._tensor.tensor import Tensor
from offgrad.optim.batched import Batch, BatchedOptimizer, Counts
from offgrad.optim.optimizer import ParamsT
from offgrad.optim.options import check_common, check_options, number, numbers
from offgrad.optim.sparse_gradients import add_at, elements


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
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_options(lr=lr, momentum=momentum, weight_decay=weight_decay)
        check_common(foreach, differentiable, fused)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
        }
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                "Nesterov momentum requires a momentum and zero dampening, got "
                f"{momentum} and {dampening}"
            )
        super().__init__(params, defaults)

    def state_of(self, param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return self.state[param] if self.buffers(group)[0] else {}

    def buffers(self, group: dict[str, Any]) -> tuple[str | None, ...]:
        return ("momentum_buffer" if number(group["momentum"]) != 0 else None,)

    def lacking_state(
        self, param: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> dict[str, Any]:
        name = self.buffers(group)[0]
        if name is None or state.get(name) is not None:
            return {}
        return {name: self.new_state(param)}

    def next_counts(self, state: dict[str, Any], options: dict[str, Any]) -> Counts:
        return {}

    def run_kernel(self, batch: Batch) -> None:
        kernels.sgd_steps(
            *batch.arguments(
                "lr",
                "momentum",
                "dampening",
                "weight_decay",
                "nesterov",
                "maximize",
                counts=[batch.is_first],
            )
        )

    def update_sparse(self, param: Tensor, grad: Any, group: dict[str, Any]) -> None:
        """Update the rows of a sparse gradient; a momentum buffer is sparse, too.

        Raises:
            RuntimeError: for weight decay, whose gradient is not sparse.
        """
        options = numbers(group)
        if options["weight_decay"]:
            raise RuntimeError(
                "SGD: weight_decay has a dense gradient, so it cannot go with sparse ones; set it "
                "to 0"
            )
        step = -grad.detach() if options["maximize"] else grad.detach()
        momentum = options["momentum"]
        if momentum:
            state = self.state[param]
            buffer = state.get("momentum_buffer")
            if buffer is None:
                buffer = step.clone()
            else:
                buffer = buffer * momentum + step * (1 - options["dampening"])
            state["momentum_buffer"] = buffer
            step = step + buffer * momentum if options["nesterov"] else buffer
        index, values = elements(step)
        add_at(param, index, -options["lr"] * values, "SGD")
