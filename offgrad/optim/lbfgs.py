"""L-BFGS."""

from collections.abc import Callable
from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.optim.line_search import Point, strong_wolfe
from offgrad.optim.optimizer import Optimizer, ParamsT
from offgrad.optim.options import check_options, number

_LEAST_CURVATURE = 1e-10
"""Pairs of changes with less of it do not enter the history."""


class LBFGS(Optimizer):
    """The quasi-Newton method of limited memory (Nocedal, 1980), for one group of parameters.

    A step calls the closure several times: up to `max_eval` times in `max_iter` iterations. Keeps
    two vectors of all parameters for each of `history_size` iterations, and three more.

    Args:
        params: as of other optimizers; real or complex.
        lr: factor of each step; of the first trial of a line search.
        max_iter, max_eval: bounds of one step; `max_eval` is 1.25 times `max_iter` by default.
        tolerance_grad: a step ends when no gradient is larger.
        tolerance_change: a step ends when no parameter, nor the loss, changes by more.
        history_size: the number of iterations from which it estimates curvature.
        line_search_fn: ``"strong_wolfe"``, or None for steps of `lr`.

    Raises:
        ValueError: for a negative `lr`, or several groups.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        check_options(lr=lr)
        defaults = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
        }
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ValueError(
                f"LBFGS doesn't support per-parameter options: got {len(self.param_groups)} groups"
            )

    def step(self, closure: Callable[[], Any]) -> Any:
        """Take one step; return the loss before it.

        Args:
            closure: clears the gradients, computes the loss, calls backward, and returns the loss.
        """
        group = self.param_groups[0]
        params = group["params"]
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            raise RuntimeError(
                f"only 'strong_wolfe' is supported, got line_search_fn={group['line_search_fn']!r}"
            )
        run = _Step(params, self.state[params[0]], group, closure)
        return grad_mode.call(False, run.run)


class _Step:
    """One step of `LBFGS`.

    Attributes:
        evaluations: how often this step called the closure.
    """

    def __init__(
        self,
        params: list[Tensor],
        state: dict[str, Any],
        group: dict[str, Any],
        closure: Callable[[], Any],
    ) -> None:
        self._params = params
        self._parts = [ops.view_as_real(each) if each.is_complex() else each for each in params]
        self._state = state
        self._group = group
        self._closure = closure
        self.evaluations = 0

    def run(self) -> Any:
        state, group = self._state, self._group
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        first_loss = self._call()
        loss, gradient = float(first_loss), self._gradient()
        if _largest(gradient) <= group["tolerance_grad"]:
            return first_loss
        for iteration in range(1, group["max_iter"] + 1):
            is_last = iteration == group["max_iter"]
            state["n_iter"] += 1
            self._choose_direction(gradient)
            previous_loss, state["prev_loss"] = loss, loss
            state["prev_flat_grad"] = gradient.clone()
            direction = state["d"]
            slope = float(gradient.dot(direction))
            state["t"] = number(group["lr"])
            if state["n_iter"] == 1:
                state["t"] *= min(1.0, 1.0 / float(gradient.abs().sum()))
            if slope > -group["tolerance_change"]:
                break
            start = Point(0, loss, gradient, slope)
            loss, gradient = self._move(start, direction, is_last)
            if (
                is_last
                or self.evaluations >= group["max_eval"]
                or _largest(gradient) <= group["tolerance_grad"]
                or _largest(direction) * abs(state["t"]) <= group["tolerance_change"]
                or abs(loss - previous_loss) < group["tolerance_change"]
            ):
                break
        return first_loss

    def _call(self) -> Any:
        self.evaluations += 1
        self._state["func_evals"] += 1
        return grad_mode.call(True, self._closure)

    def _gradient(self) -> Tensor:
        """Return the gradient of all parameters, flat; zeros for those without."""
        parts = []
        for param in self._params:
            grad: Any = ops.zeros_like(param) if param.grad is None else param.grad
            grad = grad.detach().to_dense()
            parts.append((ops.view_as_real(grad) if grad.is_complex() else grad).reshape(-1))
        return ops.cat(parts)

    def _choose_direction(self, gradient: Tensor) -> None:
        """Set the direction of descent, after adding the last change to the history."""
        state = self._state
        if state["n_iter"] == 1:
            state |= {"d": -gradient, "t": 0, "old_dirs": [], "old_stps": [], "ro": []}
            state["H_diag"] = 1
            return
        gradients, steps, inverses = state["old_dirs"], state["old_stps"], state["ro"]
        change, step = gradient - state["prev_flat_grad"], state["d"] * state["t"]
        curvature = change.dot(step)
        if curvature > _LEAST_CURVATURE:
            for history, value in (
                (gradients, change),
                (steps, step),
                (inverses, 1.0 / curvature),
            ):
                del history[: max(0, len(history) + 1 - self._group["history_size"])]
                history.append(value)
            state["H_diag"] = curvature / change.dot(change)
        # The recursion of two loops: Nocedal and Wright, algorithm 7.4.
        weights = state.setdefault("al", [None] * self._group["history_size"])
        direction = -gradient
        for i in reversed(range(len(gradients))):
            weights[i] = steps[i].dot(direction) * inverses[i]
            direction.add_(gradients[i] * -weights[i])
        direction.mul_(state["H_diag"])
        for i in range(len(gradients)):
            correction = gradients[i].dot(direction) * inverses[i]
            direction.add_(steps[i] * (weights[i] - correction))
        state["d"] = direction

    def _move(self, start: Point, direction: Tensor, is_last: bool) -> tuple[float, Tensor]:
        """Change the parameters; return loss and gradient, those before where no one needs them."""
        state = self._state
        if self._group["line_search_fn"] is None:
            self._add(direction, state["t"])
            if is_last:
                return start.loss, start.gradient
            return float(self._call()), self._gradient()
        origin = [each.clone() for each in self._parts]

        def evaluate(step: float) -> Point:
            self._add(direction, step)
            loss, gradient = float(self._call()), self._gradient()
            for part, before in zip(self._parts, origin, strict=True):
                part.copy_(before)
            return Point(step, loss, gradient, float(gradient.dot(direction)))

        tolerance = self._group["tolerance_change"]
        remaining = self._group["max_eval"] - self.evaluations
        best, _ = strong_wolfe(
            evaluate, start, state["t"], _largest(direction), tolerance, remaining
        )
        state["t"] = best.step
        self._add(direction, best.step)
        return best.loss, best.gradient

    def _add(self, direction: Tensor, step: float) -> None:
        offset = 0
        for part in self._parts:
            change = direction[offset : offset + part.numel()]
            part.add_(change.reshape(part.shape) * step)
            offset += part.numel()


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
