"""Module: layers that hold parameters and other modules, with hooks around their calls."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from offgrad import ops
from offgrad.autograd import grad_mode
from offgrad.autograd.handles import RemovableHandle, add_hook
from offgrad.autograd.tensor_base import TensorBase, describe
from offgrad.nn.backward_hook import BackwardHook
from offgrad.nn.calls import calls
from offgrad.nn.parameter import Parameter
from offgrad.tensor import Tensor

M = TypeVar("M", bound="Module")
_UNSET = object()


class IncompatibleKeys(NamedTuple):
    """What `Module.load_state_dict` did not find, and did not expect."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not any(self):
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self[0]}, unexpected_keys={self[1]})"


class Module:
    """Base of all layers and models.

    A subclass calls ``super().__init__()``, sets parameters and modules as attributes, and defines
    ``forward``. Calling the module runs its hooks and `forward`.
    """

    training: bool
    forward: Callable[..., Any]

    def __init__(self) -> None:
        put = super().__setattr__
        put("training", True)
        put("_parameters", {})
        put("_buffers", {})
        put("_persistent", set())
        put("_modules", {})
        put("_forward_pre_hooks", {})
        put("_forward_hooks", {})
        put("_backward_pre_hooks", {})
        put("_backward_hooks", {})

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _persistent: set[str]
    _modules: "dict[str, Module | None]"
    _forward_pre_hooks: dict[int, Callable[..., Any]]
    _forward_hooks: dict[int, Callable[..., Any]]
    _backward_pre_hooks: dict[int, Callable[..., Any]]
    _backward_hooks: dict[int, Callable[..., Any]]

    # Calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`, with the hooks if there are any."""
        previous = calls.stack
        calls.stack = (*previous, self)
        try:
            if (
                self._forward_pre_hooks
                or self._forward_hooks
                or self._backward_hooks
                or self._backward_pre_hooks
            ):
                return self._call_with_hooks(args, kwargs)
            return self.forward(*args, **kwargs)
        finally:
            calls.stack = previous

    def _call_with_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for hook in list(self._forward_pre_hooks.values()):
            result = hook(self, args)
            if result is not None:
                args = result if isinstance(result, tuple) else (result,)
        backward = None
        if self._backward_hooks or self._backward_pre_hooks:
            backward = BackwardHook(
                self, list(self._backward_hooks.values()), list(self._backward_pre_hooks.values())
            )
            args = backward.watch_inputs(args)
        output = self.forward(*args, **kwargs)
        for hook in list(self._forward_hooks.values()):
            result = hook(self, args, output)
            if result is not None:
                output = result
        return output if backward is None else backward.watch_outputs(output)

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args)`` before `forward`; it may return new arguments."""
        return add_hook(self._forward_pre_hooks, hook, prepend=prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, args, output)`` after `forward`; it may return a new output."""
        return add_hook(self._forward_hooks, hook, prepend=prepend)

    def register_full_backward_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, grad_output)`` when the gradients of the outputs are computed.

        It may return new ones.
        """
        return add_hook(self._backward_pre_hooks, hook, prepend=prepend)

    def register_full_backward_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Call ``hook(module, grad_input, grad_output)`` when the gradients of the inputs are
        computed.

        Both are tuples, with None for what is no tensor; only positional arguments count. The hook
        may return a new grad_input, which replaces it in what follows. While such a hook is
        registered, forward gets, and its caller gets, views of the tensors, which must not be
        changed in place.
        """
        return add_hook(self._backward_hooks, hook, prepend=prepend)

    # Attributes

    def __setattr__(self, name: str, value: Any) -> None:
        registries = self.__dict__
        if "_parameters" not in registries:
            if isinstance(value, Parameter | Module):
                raise AttributeError(
                    "parameters and modules can be set only after super().__init__(), got "
                    f"{name!r} of {type(self).__name__} before"
                )
            super().__setattr__(name, value)
            return
        for registry in ("_parameters", "_modules", "_buffers"):
            if name in registries[registry]:
                self._replace(registry, name, value)
                return
        if isinstance(value, Parameter):
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self.add_module(name, value)
        else:
            super().__setattr__(name, value)

    def _replace(self, registry: str, name: str, value: Any) -> None:
        kinds = {"_parameters": Parameter, "_modules": Module, "_buffers": TensorBase}
        if value is not None and not isinstance(value, kinds[registry]):
            if isinstance(value, Parameter | Module):
                del self.__dict__[registry][name]
                setattr(self, name, value)
                return
            raise TypeError(
                f"{name!r} of {type(self).__name__} is registered in {registry[1:]} and can be "
                "set to a "
                f"{kinds[registry].__name__} or None, got {type(value).__name__}; delete it first"
            )
        self.__dict__[registry][name] = value

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
                self._persistent.discard(name)
                return
        super().__delattr__(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._parameters, *self._buffers, *self._modules]

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter."""
        self._check_name(name, self._parameters)
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(f"register_parameter takes a Parameter, got {type(param).__name__}")
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is no parameter; it is part of the state dict if `persistent`."""
        self._check_name(name, self._buffers)
        self._buffers[name] = tensor
        (self._persistent.add if persistent else self._persistent.discard)(name)

    def add_module(self, name: str, module: "Module | None") -> None:
        """Add a module."""
        self._check_name(name, self._modules)
        self._modules[name] = module

    def _check_name(self, name: str, registry: Mapping[str, Any]) -> None:
        if "." in name or not name:
            raise KeyError(f"a name must not be empty or contain '.', got {name!r}")
        if hasattr(self, name) and name not in registry:
            raise KeyError(f"{type(self).__name__} has an attribute {name!r} already")

    # Looking through

    def named_modules(
        self, memo: "set[Module] | None" = None, prefix: str = ""
    ) -> "Iterator[tuple[str, Module]]":
        """Yield this module and all below, with qualified names, each once."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name)

    def modules(self) -> "Iterator[Module]":
        """Yield this module and all below, each once."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> "Iterator[tuple[str, Module]]":
        """Yield the modules directly below."""
        for name, module in self._modules.items():
            if module is not None:
                yield name, module

    def children(self) -> "Iterator[Module]":
        """Yield the modules directly below."""
        for _, module in self.named_children():
            yield module

    def _named(self, registry: str, recurse: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for prefix, module in self.named_modules() if recurse else [("", self)]:
            for name, tensor in module.__dict__[registry].items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{prefix}.{name}" if prefix else name, tensor

    def named_parameters(self, recurse: bool = True) -> Iterator[tuple[str, Parameter]]:
        """Yield the parameters with qualified names, each once."""
        return self._named("_parameters", recurse)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, each once."""
        for _, parameter in self.named_parameters(recurse):
            yield parameter

    def named_buffers(self, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers with qualified names, each once."""
        return self._named("_buffers", recurse)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers, each once."""
        for _, buffer in self.named_buffers(recurse):
            yield buffer

    def get_submodule(self, target: str) -> "Module":
        """Return the module of a qualified name; ``""`` is this one."""
        module: Module | None = self
        for name in target.split(".") if target else ():
            module = None if module is None else module._modules.get(name)
        if module is None:
            raise AttributeError(f"{type(self).__name__} has no module {target!r}")
        return module

    # Changing all

    def apply(self: M, fn: "Callable[[Module], None]") -> M:
        """Call `fn` with every module below and this one; return this one."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def train(self: M, mode: bool = True) -> M:
        """Set training mode, on which dropout depends, here and below."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: M) -> M:
        """Set evaluation mode."""
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Set whether gradients are computed for the parameters."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the parameters' gradients, or fill them with zeros."""
        for parameter in self.parameters():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.detach_().zero_()

    def to(self: M, *target: Any, device: Any = None, dtype: Any = None) -> M:
        """Convert floating point parameters and buffers to a dtype, in place.

        The device ``"cpu"`` is accepted: there is no other.
        """
        dtype = ops.conversion(target, device, dtype)
        if dtype is None:
            return self
        kind = np.dtype(dtype)
        for _, tensor in (*self.named_parameters(), *self.named_buffers()):
            if tensor.is_floating_point():
                converted = ops.cast(tensor.detach(), kind)
                tensor._array, tensor._storage = converted._array, converted._storage
                if isinstance(tensor, Parameter):
                    tensor._storage.role = "parameters"
                if tensor.grad is not None:
                    tensor.grad = ops.cast(tensor.grad, kind)
        return self

    def cpu(self: M) -> M:
        """Return this module: it is there already."""
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

    # State

    def state_dict(self, *, prefix: str = "", keep_vars: bool = False) -> dict[str, Tensor]:
        """Return parameters and persistent buffers by qualified name, sharing memory with the
        module.
        """
        state: dict[str, Tensor] = {}
        for name, parameter in self._parameters.items():
            if parameter is not None:
                state[prefix + name] = parameter if keep_vars else parameter.detach()
        for name, buffer in self._buffers.items():
            if buffer is not None and name in self._persistent:
                state[prefix + name] = buffer if keep_vars else buffer.detach()
        for name, module in self.named_children():
            state.update(module.state_dict(prefix=f"{prefix}{name}.", keep_vars=keep_vars))
        return state

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> IncompatibleKeys:
        """Copy the values of `state_dict`, tensors or arrays, into parameters and buffers.

        Raises:
            RuntimeError: if shapes differ, or, with `strict`, names; nothing is copied then.
        """
        own = self.state_dict(keep_vars=True)
        missing = [name for name in own if name not in state_dict]
        unexpected = [name for name in state_dict if name not in own]
        problems = []
        if strict and missing:
            problems.append(f"missing keys: {', '.join(missing)}")
        if strict and unexpected:
            problems.append(f"unexpected keys: {', '.join(unexpected)}")
        for name in own:
            if name in state_dict and tuple(state_dict[name].shape) != own[name].shape:
                problems.append(
                    f"{name} is a {describe(own[name])}, its value has shape "
                    f"{list(state_dict[name].shape)}"
                )
        if problems:
            raise RuntimeError(
                f"the state dict must fit {type(self).__name__}: {'; '.join(problems)}"
            )
        with grad_mode.no_grad():
            for name, tensor in own.items():
                if name in state_dict:
                    value = state_dict[name]
                    tensor.copy_(value if isinstance(value, TensorBase) else ops.tensor(value))
        return IncompatibleKeys(missing, unexpected)

    # Printing

    def extra_repr(self) -> str:
        """Return what `repr` says besides the modules below."""
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
