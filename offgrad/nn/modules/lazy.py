"""Modules whose parameters get their shapes when the first input comes."""

from typing import Any

from offgrad.autograd import grad_mode
from offgrad.nn.modules.module import Module
from offgrad.nn.parameter import is_lazy

__all__ = ["LazyModuleMixin"]


class LazyModuleMixin(Module):
    """Base, before a module's class, of modules with uninitialized parameters or buffers.

    A subclass defines `initialize_parameters`, which is called with the arguments of the first
    call and materialises them. Then the module becomes a `cls_to_become`, if that is set.

    Raises:
        RuntimeError: in the first call, if a parameter or buffer stays uninitialized.
    """

    cls_to_become: type[Any] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._load_hook = self._register_load_state_dict_pre_hook(self._lazy_load_hook)
        self._initialize_hook = self.register_forward_pre_hook(
            self._infer_parameters, with_kwargs=True
        )

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Materialise parameters and buffers; for subclasses to define.

        Args:
            args: the positional arguments of the call.
            kwargs: its keyword arguments.
        """
        raise NotImplementedError(
            f"initialize_parameters is not implemented for {type(self).__name__}"
        )

    def has_uninitialized_params(self) -> bool:
        """Return whether a parameter or buffer of this module has no shape yet."""
        return any(map(is_lazy, (*self._parameters.values(), *self._buffers.values())))

    @grad_mode.no_grad()
    def _lazy_load_hook(self, state_dict: Any, prefix: str, *_: Any) -> None:
        """Materialise what `state_dict` has values for."""
        for name, tensor in (*self._parameters.items(), *self._buffers.items()):
            value = state_dict.get(prefix + name)
            if is_lazy(tensor) and value is not None and not is_lazy(value):
                tensor.materialize(value.shape)  # type: ignore[union-attr]

    def _infer_parameters(self, module: Any, args: Any, kwargs: Any = None) -> None:
        """Initialise the module before its first call."""
        module.initialize_parameters(*args, **(kwargs or {}))
        if module.has_uninitialized_params():
            raise RuntimeError(
                f"module {module._get_name()} has not been fully initialized: its "
                "initialize_parameters must materialize all parameters and buffers"
            )
        module._initialize_hook.remove()
        module._load_hook.remove()
        del module._initialize_hook, module._load_hook
        if module.cls_to_become is not None:
            module.__class__ = module.cls_to_become
