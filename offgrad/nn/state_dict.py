"""State dicts: parameters and buffers by qualified name, to save and to load."""

import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.autograd.handles import RemovableHandle
from offgrad.nn.hooks.registry import Hook, HookMethods, WithModule
from offgrad.nn.parameter import Parameter, is_lazy

if TYPE_CHECKING:
    from offgrad.nn.modules.module import Module

EXTRA_STATE = "_extra_state"


class IncompatibleKeys(NamedTuple):
    """Names that `Module.load_state_dict` did not find, and names that it did not expect."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not any(self):
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self[0]}, unexpected_keys={self[1]})"


class _ModuleState(OrderedDict[str, Any]):
    """The part of a state dict for a module and those below, during loading."""

    # Tensors and their new values; copied after all shapes have been checked.
    copies: "list[tuple[Tensor, Any]]"


class StateMethods(HookMethods):
    """`state_dict` and `load_state_dict`, and their hooks."""

    _version: int = 1

    if TYPE_CHECKING:  # not annotations at runtime, where get_type_hints() would look for Module
        _parameters: dict[str, Parameter | None]
        _buffers: dict[str, Tensor | None]
        _modules: dict[str, Module | None]
    _non_persistent_buffers_set: set[str]

    # Hooks

    def register_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(module, prefix, keep_vars)`` before `state_dict` reads the module."""
        return self._own_hooks().add("state_dict_pre", hook)

    def register_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(module, state_dict, prefix, local_metadata)`` after `state_dict` has read the
        module and all below. The hook may change the dict, and must return None.
        """
        own = self._own_hooks()
        return own.add("state_dict", hook, flags=[own.must_return_none])

    def _register_state_dict_hook(self, hook: Hook) -> RemovableHandle:
        """As `register_state_dict_post_hook`, but the hook may return a replacement of the dict."""
        return self._own_hooks().add("state_dict", hook)

    def register_load_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(module, state_dict, prefix, local_metadata, strict, *lists)`` before the
        module is loaded; the lists are missing_keys, unexpected_keys and error_msgs. The hook may
        change them, and the dict, which is a copy.
        """
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def _register_load_state_dict_pre_hook(
        self, hook: Hook, with_module: bool = False
    ) -> RemovableHandle:
        """As `register_load_state_dict_pre_hook`, without the module unless `with_module`."""
        run = WithModule(hook, self) if with_module else hook
        return self._own_hooks().add("load_state_dict_pre", run)

    def register_load_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(module, incompatible_keys)`` after the module and all below were loaded.

        The hook may change the lists `missing_keys` and `unexpected_keys`, to which `strict` is
        applied afterwards, and must return None.
        """
        return self._own_hooks().add("load_state_dict_post", hook)

    # Saving

    def state_dict(
        self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Return parameters and persistent buffers by qualified name, sharing memory with the
        module.

        Args:
            destination: a dict to add to; by default a new one, with PyTorch's ``_metadata``.
            prefix: of all names.
            keep_vars: return the parameters themselves instead of detached tensors.
        """
        if args:
            warnings.warn(
                "state_dict takes its arguments by keyword; positional ones are deprecated",
                FutureWarning,
                stacklevel=2,
            )
            by_keyword: tuple[Any, ...] = (destination, prefix, keep_vars)
            destination, prefix, keep_vars = (*args, *by_keyword[len(args) :])
        if destination is None:
            destination = OrderedDict()  # with metadata as an attribute, as PyTorch has it
            destination._metadata = OrderedDict()
        metadata = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = metadata
        for _, hook in self._hooks_of("state_dict_pre"):
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(
                    destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars
                )
        for hook_id, hook in self._hooks_of("state_dict"):
            result = hook(self, destination, prefix, metadata)
            if result is None:
                continue
            if hook_id in self._own_hooks().must_return_none:
                raise RuntimeError(
                    f"a hook of register_state_dict_post_hook must return None, but {hook!r} "
                    "returned a value; change the state dict that the hook gets instead"
                )
            destination = result
        return destination  # type: ignore[no-any-return]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Put this module's own tensors into `destination`; for subclasses to extend."""
        for name, tensor in self._local_state().items():
            destination[prefix + name] = tensor if keep_vars else tensor.detach()
        if type(self).get_extra_state is not StateMethods.get_extra_state:
            destination[prefix + EXTRA_STATE] = self.get_extra_state()

    def _local_state(self) -> "dict[str, Tensor]":
        state: dict[str, Tensor | None] = {**self._parameters}
        for name, buffer in self._buffers.items():
            if name not in self._non_persistent_buffers_set:
                state[name] = buffer
        return {name: tensor for name, tensor in state.items() if tensor is not None}

    def get_extra_state(self) -> Any:
        """Return additional state for the state dict; for subclasses to define."""
        raise RuntimeError(f"{type(self).__name__} has no extra state; define get_extra_state")

    def set_extra_state(self, state: Any) -> None:
        """Load the state that `get_extra_state` returned; for subclasses to define."""
        raise RuntimeError(f"{type(self).__name__} takes no extra state; define set_extra_state")

    # Loading

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy the tensors of `state_dict` into parameters and buffers.

        Args:
            state_dict: values by qualified name. It is not changed.
            strict: raise an error for missing and unexpected names.
            assign: replace parameters and buffers by the tensors of `state_dict`.

        Raises:
            TypeError: if `state_dict` is no mapping.
            RuntimeError: if a value is no tensor, or shapes differ, or, with `strict`, names.
                Nothing is copied then, unless a module defines its own loading or has a hook to be
                called after loading.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(
                f"Expected state_dict to be dict-like, got {type(state_dict)}; pass what "
                "state_dict() returned"
            )
        loading = _Loading(self, getattr(state_dict, "_metadata", None), assign)
        loading.load(self, state_dict, "")
        missing, unexpected = loading.keys
        problems = loading.errors
        if strict and unexpected:
            problems.insert(0, f"Unexpected key(s) in state_dict: {_quoted(unexpected)}. ")
        if strict and missing:
            problems.insert(0, f"Missing key(s) in state_dict: {_quoted(missing)}. ")
        if problems:
            lines = "".join(f"\n\t{each}" for each in problems)
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:{lines}")
        loading.copy()
        return IncompatibleKeys(missing, unexpected)

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load this module's own tensors from `state_dict`; for subclasses to extend.

        Problems are appended to the lists.
        """
        other_args = (prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        for _, hook in self._hooks_of("load_state_dict_pre"):
            hook(state_dict, *other_args)
        local = self._local_state()
        for name, tensor in local.items():
            if prefix + name not in state_dict:
                missing_keys.extend([prefix + name] * strict)
                continue
            value = state_dict[prefix + name]
            if not isinstance(value, Tensor):
                error_msgs.append(
                    f'"{prefix}{name}": expected torch.Tensor or Tensor-like object from '
                    f"checkpoint but received {type(value)}; make it a tensor"
                )
                continue
            if not is_lazy(tensor) and tensor.shape == () and value.shape == (1,):
                value = value[0]
            if not is_lazy(tensor) and (is_lazy(value) or value.shape != tensor.shape):
                error_msgs.append(
                    f"size mismatch for {prefix}{name}: copying a param with shape "
                    f"{_size(value)} from checkpoint, the shape in current model is "
                    f"{_size(tensor)}."
                )
            elif is_lazy(value):  # and so is the tensor
                continue
            elif local_metadata.get("assign_to_params_buffers"):
                self._assign(name, tensor, value)
            elif not is_lazy(tensor) and tensor.is_meta and not value.is_meta:
                warnings.warn(
                    f"for {prefix}{name}: copying from a non-meta parameter in the checkpoint to a "
                    "meta parameter does nothing; pass assign=True to put the checkpoint's there",
                    stacklevel=2,
                )
            elif isinstance(state_dict, _ModuleState):
                state_dict.copies.append((tensor, value))
            else:
                _copy(tensor, value)
        extra = prefix + EXTRA_STATE
        if type(self).set_extra_state is not StateMethods.set_extra_state:
            if extra in state_dict:
                self.set_extra_state(state_dict[extra])
            else:
                missing_keys.extend([extra] * strict)
        elif extra in state_dict:
            unexpected_keys.extend([extra] * strict)
        for key in state_dict if strict else ():
            if not key.startswith(prefix) or key == extra:
                continue
            name, dot, _ = key[len(prefix) :].partition(".")
            if name not in (self._modules if dot else local):
                unexpected_keys.append(key)

    def _assign(self, name: str, old: Tensor, value: Any) -> None:
        if isinstance(old, Parameter):
            if not isinstance(value, Parameter):
                value = Parameter(value, requires_grad=old.requires_grad)
            value.requires_grad_(old.requires_grad)
        setattr(self, name, value)


class _Loading:
    """One call of `load_state_dict`."""

    def __init__(self, root: StateMethods, metadata: Any, assign: bool) -> None:
        self._root = root
        self._metadata = metadata
        self._assign = assign
        self._copies: list[tuple[Tensor, Any]] = []
        self.errors: list[str] = []
        self.keys = IncompatibleKeys([], [])

    def load(self, module: StateMethods, state: Mapping[str, Any], prefix: str) -> None:
        """Load a module and all below from `state`, whose keys begin with `prefix`."""
        cls = type(module)
        has_own_loading = (
            cls._load_from_state_dict is not StateMethods._load_from_state_dict
            or cls.set_extra_state is not StateMethods.set_extra_state
        )
        local: Any = OrderedDict(state) if has_own_loading else _ModuleState(state)
        if has_own_loading:
            self.copy()
        else:
            local.copies = self._copies
        if self._metadata is not None:
            local._metadata = self._metadata
        metadata = {} if self._metadata is None else self._metadata.get(prefix[:-1], {})
        if self._assign:
            metadata = {**metadata, "assign_to_params_buffers": True}
        module._load_from_state_dict(local, prefix, metadata, True, *self.keys, self.errors)
        parts: dict[str, dict[str, Any]] = {}
        for key, value in local.items():
            name, dot, _ = key[len(prefix) :].partition(".")
            if dot and key.startswith(prefix):
                parts.setdefault(name, {})[key] = value
        for name, child in module._modules.items():
            if child is not None:
                self.load(child, parts.get(name, {}), f"{prefix}{name}.")
        for _, hook in module._hooks_of("load_state_dict_post"):
            self.copy()
            if hook(module, self.keys) is not None:
                raise AssertionError(
                    f"a hook of register_load_state_dict_post_hook must return None, but {hook!r} "
                    "returned a value; change the lists that the hook gets instead"
                )

    def copy(self) -> None:
        """Make the pending copies, unless an error has been found."""
        if not self.errors:
            for tensor, value in self._copies:
                _copy(tensor, value)
            self._copies.clear()


def _quoted(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _size(tensor: Tensor) -> str:
    return "unknown" if is_lazy(tensor) else f"torch.Size({list(tensor.shape)})"


@grad_mode.no_grad()
def _copy(tensor: Tensor, value: Any) -> None:
    tensor.copy_(value)
