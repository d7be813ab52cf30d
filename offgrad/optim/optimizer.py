"""Optimizer, the base class: groups of parameters, their options and state."""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from offgrad_storage.interrupts import masked

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.autograd.gradients import clear_grad
from offgrad.autograd.out_of_memory import title
from offgrad.autograd.tensor_base import TensorBase, describe, metadata
from offgrad.memory import OutOfMemoryError
from offgrad.optim.hooks import (
    OptimizerHooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
    with_step_hooks,
)
from offgrad.optim.loading import convert_state
from offgrad.optim.sparse_gradients import has_sparse_gradient

__all__ = [
    "Optimizer",
    "ParamsT",
    "register_optimizer_step_post_hook",
    "register_optimizer_step_pre_hook",
    "required",
]

ParamsT = Iterable[Any]
"""What an optimizer takes: parameters, groups of them as dicts, or pairs (name, parameter)."""


class _Required:
    def __repr__(self) -> str:
        return "<required parameter>"


required: Any = _Required()
"""As a default: each group must set this option."""


class Optimizer(OptimizerHooks):
    """Base class of optimisers, which change parameters by their gradients.

    A subclass defines `update`, or all of `step`.

    Attributes:
        param_groups: dicts with the key ``"params"`` and the options of each group;
            ``"param_names"`` if the parameters came with names.
        state: a dict for each parameter, such as its step count and momentum buffers.
        defaults: options of groups that do not set their own.

    Raises:
        TypeError, ValueError: as `add_param_group`; also for a single tensor or an empty list.
    """

    profile_hook_step = staticmethod(with_step_hooks)
    # Types of hooks, for annotations.
    OptimizerPreHook: Any = Callable[[Any, Any, Any], Any]
    OptimizerPostHook: Any = Callable[[Any, Any, Any], None]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "step" in cls.__dict__:
            cls.step = with_step_hooks(cls.step)  # type: ignore[method-assign]

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self._make_hooks()
        if isinstance(params, TensorBase):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, "
                f"got one {describe(params)}; put it into a list"
            )
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        self.defaults = defaults
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        self._learn_params()
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, ``param_group["params"]``, with its own options.

        Raises:
            TypeError: if the group is no dict, a parameter no tensor, or the parameters a set.
            ValueError: if a parameter is no leaf, or already in a group; if some parameters have
                names and some have not; if a required option is missing.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, got {type(param_group).__name__}")
        if self._num_known_groups != len(self.param_groups):
            self._learn_params()  # the program changed the list
        params, names = _params_and_names(param_group["params"])
        for group in self.param_groups[:1]:
            if ("param_names" in group) != bool(names):
                kind = "without names" if "param_names" in group else "with names"
                raise ValueError(
                    "all optimizer param groups should be with/without names. cannot add param "
                    f"group {kind} to the optimizer, whose first group is of the other kind"
                )
        new_ids = self._checked_ids(params)
        named = {"param_names": names} if names else {}
        filled = {**param_group, "params": params, **named}
        for name, default in self.defaults.items():
            if default is required and name not in filled:
                raise ValueError(
                    f"this optimizer needs a value of {name} in each parameter group, or as an "
                    "argument; a group has none"
                )
            filled.setdefault(name, default)
        param_group.update(filled)
        self.param_groups.append(param_group)
        self._known_ids |= new_ids
        self._num_known_groups += 1

    def _checked_ids(self, params: list[Tensor]) -> set[int]:
        new_ids: set[int] = set()
        for each in params:
            if not isinstance(each, TensorBase):
                raise TypeError(
                    "optimizer can only optimize Tensors, but one of the params is "
                    f"{type(each).__name__}"
                )
            if each._grad_fn is not None and not self.defaults.get("differentiable"):
                raise ValueError(
                    f"can't optimize a non-leaf Tensor, got a {describe(each)} that was computed; "
                    "detach it"
                )
            if id(each) in self._known_ids:
                self._learn_params()  # the program may have removed it from its group
            if id(each) in self._known_ids:
                raise ValueError(
                    "some parameters appear in more than one parameter group, got a "
                    f"{describe(each)} twice"
                )
            new_ids.add(id(each))
        if len(new_ids) < len(params):
            warnings.warn(
                "got a parameter group with duplicate parameters: each step updates them as often",
                UserWarning,
                stacklevel=4,
            )
        return new_ids

    def _learn_params(self) -> None:
        """Collect the ids of all parameters, so that adding a group checks the new ones alone."""
        self._known_ids = {id(each) for group in self.param_groups for each in group["params"]}
        self._num_known_groups = len(self.param_groups)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "defaults": self.defaults,
            "state": self.state,
            "param_groups": self.param_groups,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_hooks()
        self._learn_params()  # copies have new ids
        for group in self.param_groups:
            for name in _LATER_OPTIONS & self.defaults.keys():
                group.setdefault(name, self.defaults[name])

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or fill them with zeros."""
        for group in self.param_groups:
            for param in group["params"]:
                clear_grad(param, set_to_none)

    @with_step_hooks
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update each parameter that has a gradient; return the result of `closure`, if given.

        The closure is called first, with gradients enabled.

        Paged parameters come in batches. If one batch fails, as on a full drive, those before it
        are updated and the others are as before, with their gradients and states; the error says
        how many. The next call updates the others only, unless their gradients have changed.
        """
        loss = None
        if closure is not None:
            loss = grad_mode.call(True, closure)
        self._has_parts = any(
            each._storage.is_paged for group in self.param_groups for each in group["params"]
        )
        try:
            for group in self.param_groups:
                params = [each for each in group["params"] if each._grad is not None]
                if self._updated:
                    params = [each for each in params if not self._is_updated(each)]
                sparse = [each for each in params if has_sparse_gradient(each)]
                if sparse:
                    params = [each for each in params if not has_sparse_gradient(each)]
                    for param in sparse:
                        with masked:
                            self.update_sparse(param, param._grad, group)
                            self.note_updated([param])
                if params:
                    self.update_group(params, group)
        except BaseException as error:
            if self._updated:
                count = sum(len(group["params"]) for group in self.param_groups)
                error.add_note(
                    f"{type(self).__name__} has updated {len(self._updated)} of {count} "
                    "parameters; step() again updates the others"
                )
            raise
        self._updated = {}
        return loss

    # Parameters that an unfinished step has updated, with the versions of them and their gradients.
    _updated: "dict[int, tuple[int, ...]]" = {}
    # Whether a step may end after a part, as some parameters are paged.
    _has_parts = False

    def _is_updated(self, param: Tensor) -> bool:
        return self._updated.get(id(param)) == _versions(param)

    def note_updated(self, params: Sequence[Tensor]) -> None:
        """Note that this step has updated parameters, in case it fails at others."""
        if self._has_parts:
            self._updated = {**self._updated, **{id(each): _versions(each) for each in params}}

    def update_group(self, params: Sequence[Tensor], group: dict[str, Any]) -> None:
        """Update parameters of one group, all of which have a gradient: one after the other."""
        for param in params:
            state = self.state_of(param, group)
            grad: Any = param._grad
            if metadata(param).flags.c_contiguous:
                with masked:
                    self.update(param.detach(), grad, state, group)
                    self.note_updated([param])
                continue
            with masked:  # kernels need contiguous memory
                contiguous = param.detach().contiguous()
                self.update(contiguous, grad, state, group)
                grad_mode.call(False, param.copy_, contiguous)
                self.note_updated([param])

    def state_of(self, param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """Return the state of a parameter, a new one if there is none."""
        return self.state[param]

    def update(
        self, param: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """Update one contiguous parameter in place, and its `state`; for subclasses to define.

        Kernels get the arrays that they change from `writable`.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither step() nor update()")

    def update_sparse(self, param: Tensor, grad: Any, group: dict[str, Any]) -> None:
        """Update one parameter in place, and its state, by a sparse gradient."""
        raise RuntimeError(
            f"{type(self).__name__} does not support sparse gradients; use SparseAdam, or make the "
            "layer with sparse=False"
        )

    def new_state(self, param: Tensor, value: float = 0.0) -> Tensor:
        """Return a constant like `param`; memory reports count it as optimizer state.

        Of a complex parameter, real and imaginary parts are `value`.
        """
        spec = metadata(param)
        try:
            tensor = ops.zeros(spec.shape, dtype=spec.dtype)
        except OutOfMemoryError as error:
            error.begin_with(f"new optimizer state of {title(param)}")
            raise
        tensor._storage.role = "optimizer state"
        if value:
            as_real(tensor._array)[...] = value
        param._storage.place_alike(tensor, "optimizer state")
        return tensor

    def state_dict(self) -> dict[str, Any]:
        """Return options and state, with parameters replaced by their indices over all groups."""
        for hook in [*self._hooks("state_dict_pre").values()]:
            hook(self)
        indices: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            numbers = [indices.setdefault(id(each), len(indices)) for each in group["params"]]
            options = {key: value for key, value in group.items() if key != "params"}
            groups.append({**options, "params": numbers})
        # State of a parameter that is no longer in a group is keyed by the tensor itself.
        state = {indices.get(id(each), each): values for each, values in self.state.items()}
        result: dict[str, Any] = {"state": state, "param_groups": groups}
        for hook in [*self._hooks("state_dict_post").values()]:
            changed = hook(self, result)
            result = result if changed is None else changed
        return result

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load options and a copy of the state from the result of `state_dict`.

        Tensors get the dtype of their parameter, but for counts named ``"step"``. NumPy arrays
        become tensors.

        Raises:
            ValueError: if the groups differ in number or size.
        """
        state_dict = state_dict.copy()
        for hook in [*self._hooks("load_state_dict_pre").values()]:
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        groups = [_copied_group(each) for each in state_dict["param_groups"]]
        sizes = [len(group["params"]) for group in groups]
        expected = [len(group["params"]) for group in self.param_groups]
        if len(sizes) != len(expected):
            raise ValueError(
                f"loaded state dict has a different number of parameter groups: {len(sizes)}, not "
                f"{len(expected)}"
            )
        if sizes != expected:
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of "
                f"optimizer's group: {sizes}, not {expected}"
            )
        params_by_index: dict[int, Tensor] = {}
        for group, loaded in zip(self.param_groups, groups, strict=True):
            params_by_index.update(zip(loaded["params"], group["params"], strict=True))
            loaded["params"] = group["params"]
            if "param_names" in group:
                loaded.setdefault("param_names", group["param_names"])
        state: defaultdict[Any, Any] = defaultdict(dict)
        for index, values in state_dict["state"].items():
            param = params_by_index.get(index)
            if param is None:
                state[index] = values
            else:
                state[param] = convert_state(values, param)
        self._updated = {}
        self.__setstate__({"state": state, "param_groups": groups})
        for hook in [*self._hooks("load_state_dict_post").values()]:
            hook(self)

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for number, group in enumerate(self.param_groups):
            lines += [""] * bool(number)
            lines.append(f"Parameter Group {number}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])


def _versions(param: Tensor) -> tuple[int, ...]:
    storages = param._storage, param._grad._storage  # type: ignore[union-attr]
    return tuple(part for each in storages for part in (each.uid, each.version))


_LATER_OPTIONS = {
    "amsgrad",
    "capturable",
    "decoupled_weight_decay",
    "differentiable",
    "foreach",
    "fused",
    "maximize",
    "nesterov",
}
"""Options that state dicts of old versions of PyTorch lack."""


def _params_and_names(params: Any) -> tuple[list[Any], list[str]]:
    """Return parameters as a list, and their names if they come as pairs of name and parameter."""
    if isinstance(params, TensorBase):
        return [params], []
    if isinstance(params, set):
        raise TypeError(
            "parameters must come in an order that stays the same from run to run, which a set "
            "lacks; pass a list"
        )
    members = list(params)
    are_pairs = [isinstance(each, tuple) for each in members]
    if not any(are_pairs):
        return members, []
    if not all(are_pairs):
        raise ValueError(
            "all optimizer params should be with/without names. Some param names are missing: "
            f"{are_pairs.count(False)} of {len(members)}"
        )
    return [each[1] for each in members], [each[0] for each in members]


def _copied_group(group: dict[str, Any]) -> dict[str, Any]:
    return {key: deepcopy(value) for key, value in group.items()}


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


def as_real(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a contiguous array itself; of complex numbers, their parts side by side, a view."""
    if array.dtype.kind != "c":
        return array
    return array.reshape(-1).view(array.real.dtype)
