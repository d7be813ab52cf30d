"""What all optimisers share: groups of parameters, their options, their state."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.autograd.tensor_base import TensorBase, describe


class Optimizer:
    """Changes parameters by their gradients.

    Attributes:
        param_groups: dicts with the key ``"params"`` and the options of each group.
        state: for each parameter a dict of what the optimiser remembers.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if isinstance(params, TensorBase):
            raise TypeError("an optimizer takes several parameters; put the one tensor into a list")
        groups = list(params)
        if not groups:
            raise ValueError("an optimizer needs at least one parameter, got an empty list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        self.defaults = defaults
        self.state: dict[Tensor, dict[str, Any]] = {}
        self.param_groups: list[dict[str, Any]] = []
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add parameters with options of their own.

        Raises:
            TypeError: if something is no tensor.
            ValueError: if it is no leaf, or in a group already.
        """
        params = group["params"]
        given = [params] if isinstance(params, TensorBase) else list(params)
        known = {id(each) for other in self.param_groups for each in other["params"]}
        for each in given:
            if not isinstance(each, TensorBase):
                raise TypeError(f"an optimizer changes tensors, got {type(each).__name__}")
            if each._grad_fn is not None:
                raise ValueError(
                    f"an optimizer changes leaves, got a {describe(each)} that was computed"
                )
            if id(each) in known:
                raise ValueError(f"a parameter belongs to one group, got a {describe(each)} twice")
            known.add(id(each))
        self.param_groups.append({**self.defaults, **group, "params": given})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or fill them with zeros."""
        for group in self.param_groups:
            for param in group["params"]:
                if set_to_none:
                    param.grad = None
                elif param.grad is not None:
                    param.grad.detach_().zero_()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change every parameter that has a gradient; return what `closure`, if given, returns."""
        loss = None
        if closure is not None:
            with grad_mode.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    state = self.state.setdefault(param, {})
                    # Kernels want contiguous memory.
                    work = param.detach().contiguous()
                    self.update(work, param.grad, state, group)
                    if work._storage is not param._storage:
                        with grad_mode.no_grad():
                            param.copy_(work)
        return loss

    def update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """Change one parameter in place."""
        raise NotImplementedError

    def new_state(self, param: Tensor) -> Tensor:
        """Return zeros like `param`, counted as optimizer state."""
        tensor = ops.zeros_like(param)
        tensor._storage.role = "optimizer state"
        return tensor

    def state_dict(self) -> dict[str, Any]:
        """Return options and state, with parameters as numbers in the order of the groups."""
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            indices = [numbers.setdefault(id(each), len(numbers)) for each in group["params"]]
            groups.append({**group, "params": indices})
        # What belongs to no group any more goes by the tensor itself.
        state = {numbers.get(id(each), each): dict(values) for each, values in self.state.items()}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over options and a copy of the state from what `state_dict` returned.

        Raises:
            ValueError: if the groups differ in number or size.
        """
        groups = state_dict["param_groups"]
        sizes = [len(group["params"]) for group in groups]
        own = [len(group["params"]) for group in self.param_groups]
        if sizes != own:
            raise ValueError(f"the groups must have the sizes {own}, the state dict's have {sizes}")
        by_number: dict[int, Tensor] = {}
        for group, saved in zip(self.param_groups, groups, strict=True):
            by_number.update(zip(saved["params"], group["params"], strict=True))
            group.update({key: value for key, value in saved.items() if key != "params"})
        self.state = {
            by_number[number]: {key: _copied(value) for key, value in values.items()}
            for number, values in state_dict["state"].items()
            if number in by_number
        }

    def __repr__(self) -> str:
        options = ", ".join(f"{key}={value!r}" for key, value in self.defaults.items())
        return f"{type(self).__name__}({options})"


def _copied(value: Any) -> Any:
    if isinstance(value, TensorBase):
        copy: Tensor = value.detach().clone()  # type: ignore[attr-defined]
        copy._storage.role = "optimizer state"
        return copy
    return value


def flat(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the memory of a contiguous tensor as one dimension."""
    return tensor._array.reshape(-1)


def check_options(**options: float) -> None:
    """Raise ValueError unless every option is a number that is not negative."""
    for name, value in options.items():
        if not value >= 0:
            raise ValueError(f"{name} must not be negative, got {value}")
