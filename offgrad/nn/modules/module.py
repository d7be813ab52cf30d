"""Module, the base of layers and models, with hooks around calls."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd.gradients import clear_grad
from offgrad.autograd.tensor_base import TensorBase, is_differentiable
from offgrad.nn.hooks.call import call_with_hooks
from offgrad.nn.hooks.call_stack import module_registrations
from offgrad.nn.hooks.registry import (
    call_registration_hooks,
    register_module_backward_hook,
    register_module_buffer_registration_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from offgrad.nn.parameter import Parameter
from offgrad.nn.state_dict import StateMethods

__all__ = [
    "Module",
    "register_module_backward_hook",
    "register_module_buffer_registration_hook",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
    "register_module_module_registration_hook",
    "register_module_parameter_registration_hook",
]

M = TypeVar("M", bound="Module")


def _no_forward(self: "Module", *_: Any, **__: Any) -> Any:
    raise NotImplementedError(f"{type(self).__name__} cannot be called: it defines no forward")


class Module(StateMethods):
    """Base of all layers and models.

    A subclass calls ``super().__init__()``, sets parameters and modules as attributes, and defines
    ``forward``. Calling the module calls its hooks and `forward`.
    """

    training: bool
    forward: Callable[..., Any] = _no_forward

    def __init__(self) -> None:
        set_attribute = super().__setattr__
        set_attribute("training", True)
        set_attribute("_parameters", {})
        set_attribute("_buffers", {})
        set_attribute("_non_persistent_buffers_set", set())
        set_attribute("_modules", {})

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: "dict[str, Module | None]"

    # Calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._call_hooks is None:
            return self.forward(*args, **kwargs)
        return call_with_hooks(self, args, kwargs)

    # Attributes

    def __setattr__(self, name: str, value: Any) -> None:
        registries = self.__dict__
        if "_parameters" not in registries:
            if isinstance(value, Parameter | Module):
                raise AttributeError(
                    "parameters and modules can be set only after super().__init__(), but "
                    f"{type(self).__name__} set {name!r} before"
                )
            super().__setattr__(name, value)
            return
        for registry in ("_parameters", "_modules", "_buffers"):
            if name in registries[registry]:
                self._replace(registry, name, value)
                return
        if isinstance(value, Parameter | Module):
            registries.pop(name, None)  # it may have been a plain attribute, such as None
        if isinstance(value, Parameter):
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self.add_module(name, value)
        else:
            super().__setattr__(name, value)

    def _replace(self, registry: str, name: str, value: Any) -> None:
        if isinstance(value, Parameter | Module) and not isinstance(value, _VALUE_TYPES[registry]):
            del self.__dict__[registry][name]
            setattr(self, name, value)
            return
        self._set_entry(registry, name, value)

    def _set_entry(self, registry: str, name: str, value: Any) -> None:
        kind = registry[1:].removesuffix("s")
        if value is not None and not isinstance(value, _VALUE_TYPES[registry]):
            raise TypeError(
                f"the {kind} {name!r} of {type(self).__name__} must be a "
                f"{_VALUE_TYPES[registry].__name__.removesuffix('Base')} or None, got "
                f"{type(value).__name__}; to set another kind of attribute, delete it first"
            )
        if value is not None or registry != "_parameters":
            value = call_registration_hooks(kind, self, name, value)
        if registry == "_buffers" and isinstance(value, TensorBase):
            value._storage.role = "buffers"
        self.__dict__[registry][name] = value
        module_registrations.count += registry == "_modules"

    def __getattr__(self, name: str) -> Any:
        for registry in ("_parameters", "_buffers", "_modules"):
            entries = self.__dict__.get(registry)
            if entries is not None and name in entries:
                return entries[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for registry in (self._parameters, self._buffers, self._modules):
            if name in registry:
                del registry[name]
                self._non_persistent_buffers_set.discard(name)
                return
        super().__delattr__(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._parameters, *self._buffers, *self._modules]

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter, or None for a name that may get one later."""
        self._check_name(name, self._parameters)
        self._set_entry("_parameters", name, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is no parameter; `persistent` ones are part of the state dict."""
        self._check_name(name, self._buffers)
        self._set_entry("_buffers", name, tensor)
        names = self._non_persistent_buffers_set
        (names.discard if persistent else names.add)(name)

    def add_module(self, name: str, module: "Module | None") -> None:
        self._check_name(name, self._modules)
        self._set_entry("_modules", name, module)

    register_module = add_module

    def _check_name(self, name: str, registry: Mapping[str, Any]) -> None:
        if "." in name or not name:
            raise KeyError(f"a name must not be empty or contain '.', got {name!r}")
        if hasattr(self, name) and name not in registry:
            raise KeyError(f"{type(self).__name__} already has an attribute {name!r}")

    # Traversal

    def named_modules(
        self,
        memo: "set[Module] | None" = None,
        prefix: str = "",
        remove_duplicate: bool = True,
    ) -> "Iterator[tuple[str, Module]]":
        """Yield this module and all modules below, with qualified names.

        Args:
            memo: modules to skip; yielded modules are added to it.
            prefix: this module's qualified name.
            remove_duplicate: yield each module once.
        """
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                child_prefix = f"{prefix}.{name}" if prefix else name
                yield from module.named_modules(memo, child_prefix, remove_duplicate)

    def modules(self) -> "Iterator[Module]":
        """Yield this module and all modules below, each once."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> "Iterator[tuple[str, Module]]":
        """Yield the modules directly below, each once, with their names."""
        seen: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> "Iterator[Module]":
        """Yield the modules directly below, each once."""
        for _, module in self.named_children():
            yield module

    def _named_tensors(
        self, registry: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else [(prefix, self)]
        )
        for module_name, module in modules:
            for name, tensor in module.__dict__[registry].items():
                if tensor is None or id(tensor) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(tensor))
                yield f"{module_name}.{name}" if module_name else name, tensor

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield the parameters with qualified names.

        Args:
            prefix: this module's qualified name.
            recurse: include the parameters of modules below.
            remove_duplicate: yield each parameter once.
        """
        return self._named_tensors("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, each once."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers with qualified names; the arguments are those of `named_parameters`."""
        return self._named_tensors("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers, each once."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target: str) -> "Module":
        """Return the module with a qualified name; ``""`` is this one.

        Raises:
            AttributeError: if there is none.
        """
        module: Module | None = self
        for name in target.split(".") if target else ():
            module = None if module is None else module._modules.get(name)
        if module is None:
            raise AttributeError(f"{type(self).__name__} has no module {target!r}")
        return module

    # Changes of all modules and tensors below

    def apply(self: M, fn: "Callable[[Module], None]") -> M:
        """Call `fn` with every module below and with this one; return this one."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def train(self: M, mode: bool = True) -> M:
        """Set training mode, which turns dropout on, here and below.

        Raises:
            ValueError: if `mode` is no bool.
        """
        if not isinstance(mode, bool):
            raise ValueError(f"the training mode must be True or False, got {mode!r}")
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: M) -> M:
        """Set evaluation mode, here and below."""
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Set whether gradients are computed for the parameters.

        Raises:
            TypeError: if `requires_grad` is no bool.
        """
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the parameters' gradients, or fill them with zeros."""
        for parameter in self.parameters():
            clear_grad(parameter, set_to_none)

    def to(self: M, *target: Any, device: Any = None, dtype: Any = None) -> M:
        """Convert floating point parameters and buffers to a dtype, in place.

        Parameters and buffers of other dtypes, such as int64, stay. The only device is ``"cpu"``.

        Raises:
            TypeError: for a dtype that is neither floating point nor complex.
        """
        dtype = ops.conversion(target, device, dtype)
        if dtype is None:
            return self
        dtype = np.dtype(dtype)
        if not is_differentiable(dtype):
            raise TypeError(
                "Module.to takes a floating point or complex dtype, because parameters of other "
                f"dtypes have no gradients, got {dtype.name}; convert single tensors by their .to()"
            )
        for _, tensor in (*self.named_parameters(), *self.named_buffers()):
            if tensor.is_floating_point():
                converted = ops.cast(tensor.detach(), dtype)
                converted._storage.role = tensor._storage.role
                tensor._array, tensor._storage = converted._array, converted._storage
                if tensor.grad is not None:
                    role = tensor.grad._storage.role
                    tensor.grad = ops.cast(tensor.grad, dtype)
                    tensor.grad._storage.role = role
        return self

    def cpu(self: M) -> M:
        """Return this module: all tensors are on the CPU."""
        return self

    def half(self: M) -> M:
        """Convert to float16."""
        return self.to(np.float16)

    def bfloat16(self: M) -> M:
        """Convert to bfloat16."""
        return self.to("bfloat16")

    def float(self: M) -> M:
        """Convert to float32."""
        return self.to(np.float32)

    def double(self: M) -> M:
        """Convert to float64."""
        return self.to(np.float64)

    # Printing

    def extra_repr(self) -> str:
        """Return the options for `repr`; for subclasses to override."""
        return ""

    def __repr__(self) -> str:
        lines = []
        for name, module in self._modules.items():
            text = repr(module).replace("\n", "\n  ")
            lines.append(f"  ({name}): {text}")
        head, extra = type(self).__name__, self.extra_repr()
        if not lines:
            return f"{head}({extra})"
        if extra:
            lines.insert(0, f"  {extra}")
        return "\n".join([f"{head}(", *lines, ")"])


_VALUE_TYPES: dict[str, type] = {
    "_parameters": Parameter,
    "_modules": Module,
    "_buffers": TensorBase,
}
