"""Module, the base of layers and models, with hooks around calls."""

from collections.abc import Callable
from inspect import signature
from typing import Any, TypeVar

from offgrad._tensor.tensor import Tensor
from offgrad.autograd.tensor_base import TensorBase
from offgrad.nn.conversions import ConversionMethods
from offgrad.nn.hooks.call import call_with_hooks
from offgrad.nn.hooks.call_stack import module_registrations
from offgrad.nn.hooks.of_all_modules import (
    register_module_backward_hook,
    register_module_buffer_registration_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from offgrad.nn.hooks.registry import call_registration_hooks, global_hooks
from offgrad.nn.parameter import Buffer, Parameter
from offgrad.nn.state_dict import StateMethods

# The registries under PyTorch's names, which code reads.
_global_forward_hooks = global_hooks.forward
_global_forward_hooks_always_called = global_hooks.always_called
_global_forward_hooks_with_kwargs = global_hooks.forward_with_kwargs
_global_forward_pre_hooks = global_hooks.forward_pre
_global_backward_hooks = global_hooks.backward
_global_backward_pre_hooks = global_hooks.backward_pre
_global_buffer_registration_hooks = global_hooks.buffer_registration
_global_module_registration_hooks = global_hooks.module_registration
_global_parameter_registration_hooks = global_hooks.parameter_registration

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

T_destination = TypeVar("T_destination", bound=dict[str, Any])


def _no_forward(self: "Module", *input: Any, **_: Any) -> Any:
    raise NotImplementedError(
        f'{type(self).__name__} is missing the required "forward" function; define it'
    )


_no_forward.__name__ = _no_forward.__qualname__ = "forward"


class Module(StateMethods, ConversionMethods):
    """Base of all layers and models.

    A subclass calls ``super().__init__()``, sets parameters and modules as attributes, and defines
    ``forward``. Calling the module calls its hooks and `forward`.

    Attributes:
        training: whether the module is in training mode.
        call_super_init: whether ``__init__`` passes its arguments on to the next base class.
        dump_patches: kept for old code; it has no effect.
    """

    T_destination = T_destination
    dump_patches: bool = False
    call_super_init: bool = False
    _compiled_call_impl: Any = None

    training: bool
    forward: Callable[..., Any] = _no_forward
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: "dict[str, Module | None]"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not self.call_super_init and (args or kwargs):
            given = f"an argument {min(kwargs)!r}" if kwargs else f"{len(args)} arguments"
            raise TypeError(
                f"{type(self).__name__}.__init__() takes no arguments besides those it defines, "
                f"got {given}"
            )
        set_attribute = super().__setattr__
        set_attribute("training", True)
        set_attribute("_parameters", {})
        set_attribute("_buffers", {})
        set_attribute("_non_persistent_buffers_set", set())
        set_attribute("_modules", {})
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    # Calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._call_hooks is None:
            return self.forward(*args, **kwargs)
        return call_with_hooks(self, args, kwargs)

    _call_impl = _wrapped_call_impl = __call__

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: modules run as they are. The arguments of ``compile`` are accepted."""

    # Attributes

    def __setattr__(self, name: str, value: Any) -> None:
        registries = self.__dict__
        if "_parameters" not in registries:
            if isinstance(value, (Parameter, Module, Buffer)):
                kind = "module" if isinstance(value, Module) else "parameters"
                kind = kind if isinstance(value, (Parameter, Module)) else "buffer"
                raise AttributeError(
                    f"cannot assign {kind} before Module.__init__() call: {type(self).__name__} "
                    f"set {name!r}; call super().__init__() first"
                )
            super().__setattr__(name, value)
            return
        if isinstance(value, Parameter):
            self._forget(name, "_parameters")
            self.register_parameter(name, value)
        elif name in registries["_parameters"]:
            self._set_entry("_parameters", name, value)
        elif isinstance(value, Module):
            self._forget(name, "_modules")
            self.add_module(name, value)
        elif name in registries["_modules"]:
            self._set_entry("_modules", name, value)
        elif isinstance(value, TensorBase) and isinstance(value, Buffer):
            self._assign_buffer(name, value)
        elif name in registries["_buffers"]:
            self._set_entry("_buffers", name, value)
        else:
            super().__setattr__(name, value)

    def _assign_buffer(self, name: str, value: Any) -> None:
        """Call `register_buffer`, which may be a subclass's that has no argument `persistent`."""
        register: Any = self.register_buffer
        if type(self).register_buffer is Module.register_buffer or (
            "persistent" in signature(register).parameters
        ):
            register(name, value, value.persistent)
        elif value.persistent:
            register(name, value)
        else:
            raise RuntimeError(
                f"{type(self).__name__} cannot register {name!r} as a non-persistent buffer: its "
                "register_buffer() has no argument persistent; add one"
            )

    def _forget(self, name: str, kept: str) -> None:
        """Drop what `name` was before, unless it is in the registry `kept`."""
        registries = self.__dict__
        registries.pop(name, None)  # it may have been a plain attribute, such as None
        for registry in ("_parameters", "_modules", "_buffers"):
            if registry != kept and registries[registry].pop(name, None) is not None:
                self._non_persistent_buffers_set.discard(name)

    def _set_entry(self, registry: str, name: str, value: Any) -> None:
        kind, expected = _ENTRIES[registry]
        if value is not None and not isinstance(value, expected):
            given: Any = value
            title = given.type() if isinstance(value, TensorBase) else type(value).__name__
            verb = "as" if name in self.__dict__[registry] else "object to"
            raise TypeError(
                f"cannot assign {title!r} {verb} {kind} {name!r} of {type(self).__name__} (torch "
                f"{expected.__name__.removesuffix('Base')} or None required); to set another kind "
                "of attribute, delete it first"
            )
        if value is not None or registry != "_parameters":
            value = call_registration_hooks(registry[1:-1], self, name, value)
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
        names = {*super().__dir__(), *self._parameters, *self._buffers, *self._modules}
        return sorted(name for name in names if not name[0].isdigit())

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter, or None for a name that may get one later.

        Raises:
            KeyError: if the name is taken, empty or has a dot.
            TypeError: for a value that is no parameter, or a name that is no string.
            ValueError: for a parameter that an operation has computed.
        """
        self._check_name(name, "_parameters")
        if isinstance(param, Parameter) and param.grad_fn is not None:
            raise ValueError(
                f"parameter {name!r} must be a leaf, but it was computed by "
                f"{param.grad_fn.name()}; make a Parameter of its detach()"
            )
        self._set_entry("_parameters", name, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is no parameter; `persistent` ones are part of the state dict.

        Raises:
            KeyError: if the name is taken, empty or has a dot.
            TypeError: for a value that is no tensor, or a name that is no string.
        """
        self._check_name(name, "_buffers")
        self._set_entry("_buffers", name, tensor)
        names = self._non_persistent_buffers_set
        (names.discard if persistent else names.add)(name)

    def add_module(self, name: str, module: "Module | None") -> None:
        """Add a module, or None for a name that may get one later.

        Raises:
            KeyError: if the name is taken, empty or has a dot.
            TypeError: for a value that is no module, or a name that is no string.
        """
        if module is not None and not isinstance(module, Module):
            raise TypeError(
                f"{type(module).__name__} is not a Module subclass, so it cannot be {name!r} of "
                f"{type(self).__name__}"
            )
        self._check_name(name, "_modules")
        self._set_entry("_modules", name, module)

    def register_module(self, name: str, module: "Module | None") -> None:
        """Call `add_module`."""
        self.add_module(name, module)

    def _check_name(self, name: Any, registry: str) -> None:
        kind = registry[1:-1]
        entries = self.__dict__.get(registry)
        if entries is None:
            raise AttributeError(
                f"cannot assign {kind} before Module.__init__() call: {type(self).__name__} "
                f"registered {name!r}; call super().__init__() first"
            )
        if not isinstance(name, str):
            raise TypeError(f"{kind} name should be a string. Got {type(name).__name__}")
        if name not in entries and hasattr(self, name):
            raise KeyError(f"attribute {name!r} already exists in {type(self).__name__}")
        if "." in name:
            raise KeyError(f'{kind} name can\'t contain ".", got: {name}')
        if not name:
            raise KeyError(f'{kind} name can\'t be empty string ""')

    # Printing

    def _get_name(self) -> str:
        return type(self).__name__

    def extra_repr(self) -> str:
        """Return the options for `repr`; for subclasses to override."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): {_indented(repr(module))}" for name, module in self._modules.items()]
        return representation(self._get_name(), self.extra_repr(), lines)


def representation(name: str, extra: str, lines: list[str]) -> str:
    """Return the text of a module: its options `extra`, and a line for each module in it."""
    options = extra.split("\n") if extra else []
    if not lines and len(options) < 2:
        return f"{name}({extra})"
    return "\n  ".join([f"{name}(", *options, *lines]) + "\n)"


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")


_ENTRIES: dict[str, tuple[str, type]] = {
    "_parameters": ("parameter", Parameter),
    "_modules": ("child module", Module),
    "_buffers": ("buffer", TensorBase),
}
