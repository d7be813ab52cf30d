"""Optimizer, the base class: groups of parameters, their options and state."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.autograd.gradients import clear_grad
from offgrad.autograd.tensor_base import TensorBase, describe


class Optimizer:
    """Base class of optimisers, which change parameters by their gradients.

    A subclass defines `update`.

    Attributes:
        param_groups: dicts with the key ``"params"`` and the options of each group.
        state: a dict for each parameter, such as its step count and momentum buffers.
        defaults: options of groups that do not set their own.

    Raises:
        TypeError, ValueError: as `add_param_group`; also for a single tensor or an empty list.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        if isinstance(params, TensorBase):
            raise TypeError(
                "an optimizer takes several parameters, got one tensor; put it into a list"
            )
        groups = list(params)
        if not groups:
            raise ValueError("an optimizer needs at least one parameter, got an empty list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        self.defaults = defaults
        self.state: dict[Tensor, dict[str, Any]] = {}
        self.param_groups: list[dict[str, Any]] = []
        self._learn_params()
        for group in groups:
            Optimizer.add_param_group(self, group)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Add a group of parameters, ``group["params"]``, with its own options.

        Raises:
            TypeError: if a parameter is no tensor.
            ValueError: if a parameter is no leaf, or already in a group.
        """
        if self._num_known_groups != len(self.param_groups):
            self._learn_params()  # the program changed the list
        params = group["params"]
        new_params = [params] if isinstance(params, TensorBase) else list(params)
        new_ids: set[int] = set()
        for each in new_params:
            if not isinstance(each, TensorBase):
                raise TypeError(f"an optimizer takes tensors, got {type(each).__name__}")
            if each._grad_fn is not None:
                raise ValueError(
                    f"an optimizer takes leaf tensors, got a {describe(each)} that was computed; "
                    "detach it"
                )
            if id(each) in self._known_ids:
                self._learn_params()  # the program may have removed it from its group
            if id(each) in self._known_ids or id(each) in new_ids:
                raise ValueError(f"a parameter belongs to one group, got a {describe(each)} twice")
            new_ids.add(id(each))
        self.param_groups.append({**self.defaults, **group, "params": new_params})
        self._known_ids |= new_ids
        self._num_known_groups += 1

    def _learn_params(self) -> None:
        """Collect the ids of all parameters, so that adding a group checks the new ones alone."""
        self._known_ids = {id(each) for group in self.param_groups for each in group["params"]}
        self._num_known_groups = len(self.param_groups)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_known_ids": set(), "_num_known_groups": -1}  # copies have new ids

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or fill them with zeros."""
        for group in self.param_groups:
            for param in group["params"]:
                clear_grad(param, set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update each parameter that has a gradient; return the result of `closure`, if given.

        The closure is called first, with gradients enabled.
        """
        loss = None
        if closure is not None:
            loss = grad_mode.call(True, closure)
        for group in self.param_groups:
            params = [each for each in group["params"] if each._grad is not None]
            if params:
                self.update_group(params, group)
        return loss

    def update_group(self, params: Sequence[Tensor], group: dict[str, Any]) -> None:
        """Update parameters of one group, all of which have a gradient: one after the other."""
        for param in params:
            state = self.state.setdefault(param, {})
            # Kernels need contiguous memory.
            contiguous = param.detach().contiguous()
            grad: Any = param._grad
            self.update(contiguous, grad, state, group)
            if contiguous._storage is not param._storage:
                grad_mode.call(False, param.copy_, contiguous)

    def update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """Update one contiguous parameter in place, and its `state`; for subclasses to define.

        Kernels get the arrays that they change from `writable`.
        """
        raise NotImplementedError

    def new_state(self, param: Tensor) -> Tensor:
        """Return zeros like `param`; memory reports count them as optimizer state."""
        tensor = ops.zeros_like(param)
        tensor._storage.role = "optimizer state"
        return tensor

    def state_dict(self) -> dict[str, Any]:
        """Return options and state, with parameters replaced by their indices over all groups."""
        indices: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            numbers = [indices.setdefault(id(each), len(indices)) for each in group["params"]]
            groups.append({**group, "params": numbers})
        # State of a parameter that is no longer in a group is keyed by the tensor itself.
        state = {indices.get(id(each), each): dict(values) for each, values in self.state.items()}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load options and a copy of the state from the result of `state_dict`.

        Floating point state gets the dtype of its parameter, but for counts named ``"step"``.

        Raises:
            ValueError: if the groups differ in number or size.
        """
        groups = state_dict["param_groups"]
        sizes = [len(group["params"]) for group in groups]
        expected = [len(group["params"]) for group in self.param_groups]
        if sizes != expected:
            raise ValueError(
                f"the state dict must have groups of the sizes {expected}, got {sizes}"
            )
        params_by_index: dict[int, Tensor] = {}
        for group, saved in zip(self.param_groups, groups, strict=True):
            params_by_index.update(zip(saved["params"], group["params"], strict=True))
            group.update({key: value for key, value in saved.items() if key != "params"})
        self.state = {
            params_by_index[index]: {
                key: _copied(value, None if key == "step" else params_by_index[index])
                for key, value in values.items()
            }
            for index, values in state_dict["state"].items()
            if index in params_by_index
        }

    def __repr__(self) -> str:
        options = ", ".join(f"{key}={value!r}" for key, value in self.defaults.items())
        return f"{type(self).__name__}({options})"


def _copied(value: Any, param: Tensor | None) -> Any:
    if isinstance(value, Tensor):
        copy = value.detach().clone()
        if param is not None and param.is_floating_point() and copy.is_floating_point():
            copy = copy.to(param.dtype)
        copy._storage.role = "optimizer state"
        return copy
    return value


def writable(tensors: Iterable[Tensor], operation: str) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of contiguous tensors, for `operation` to change.

    A graph may have saved a parameter, or the state of an optimizer, so each tensor gets a new
    version and pending writes of its memory end first, as with in-place operations.
    """
    arrays = []
    for each in tensors:
        each._storage.write(operation)
        arrays.append(each._array)
    return arrays


def check_options(**options: float) -> None:
    """Raise ValueError for negative options and NaN."""
    for name, value in options.items():
        if not value >= 0:
            raise ValueError(f"{name} must not be negative, got {value}")
