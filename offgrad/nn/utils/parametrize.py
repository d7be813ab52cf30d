"""Parametrizations: a parameter computed by modules from the tensors that train.

`register_parametrization` turns a parameter or buffer into a property of the module, whose value
is the parametrization's result. The tensors it comes from are ``original``, or ``original0``,
``original1`` and so on, in ``module.parametrizations.NAME``. Each parametrized module has a class
of its own, derived from the one it had before, for its properties.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.autograd.tensor_base import TensorBase
from offgrad.nn.hooks.registry import HookMethods
from offgrad.nn.modules.container import ModuleDict, ModuleList
from offgrad.nn.modules.module import Module
from offgrad.nn.parameter import Parameter

__all__ = [
    "ParametrizationList",
    "cached",
    "is_parametrized",
    "register_parametrization",
    "remove_parametrizations",
    "transfer_parametrizations_and_params",
    "type_before_parametrizations",
]

_PREFIX = "Parametrized"
_depth_of_cached = 0
_cache: dict[int, tuple[Any, Tensor]] = {}


@contextmanager
def cached() -> Iterator[None]:
    """Compute each parametrized tensor once in the block, however often it is used."""
    global _depth_of_cached
    _depth_of_cached += 1
    try:
        yield
    finally:
        _depth_of_cached -= 1
        if not _depth_of_cached:
            _cache.clear()


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, called in order, and the tensors they start from.

    Args:
        modules: the parametrizations.
        original: the tensor before; a `right_inverse` of the modules gives the one to start from,
            or several.
        unsafe: leave out the checks of shape and dtype.

    Attributes:
        is_tensor: whether the first parametrization takes one tensor, `original`; otherwise they
            are `original0`, `original1` and so on.
        ntensors: how many.
    """

    original: Tensor

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        if not modules:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        shape, dtype = original._array.shape, original._array.dtype
        new: Any = original
        with grad_mode.no_grad():
            for module in reversed(list(self)):
                if hasattr(module, "right_inverse"):
                    with suppress(NotImplementedError):
                        new = module.right_inverse(new)
        self.is_tensor = isinstance(new, TensorBase)
        if not self.is_tensor and not isinstance(new, (list, tuple)):
            raise ValueError(
                "right_inverse must return a Tensor or a Sequence of tensors, got "
                f"{type(new).__name__}"
            )
        self.ntensors = 1 if self.is_tensor else len(new)
        if self.is_tensor:
            if not unsafe and new._array.dtype != dtype:
                raise ValueError(
                    "where right_inverse outputs one tensor, it may not change the dtype, got "
                    f"{new._array.dtype} for {dtype}; pass unsafe=True to allow it"
                )
            if new is not original:
                original.data = new.detach()
            _register(self, "original", original)
        else:
            for number, each in enumerate(new):
                _register(self, f"original{number}", _like(original, each, number))
        if not unsafe:
            _check(self(), shape, dtype, "parametrized", "unparametrized")

    def originals(self) -> list[Tensor]:
        """Return the tensors that the first parametrization takes."""
        if self.is_tensor:
            return [self.original]
        return [getattr(self, f"original{number}") for number in range(self.ntensors)]

    @grad_mode.no_grad()
    def right_inverse(self, value: Tensor) -> None:
        """Set the original tensors so that the parametrizations give `value`."""
        new: Any = value
        for module in reversed(list(self)):
            if not hasattr(module, "right_inverse"):
                raise RuntimeError(
                    f"parametrization {type(module).__name__} does not implement right_inverse, "
                    "which is needed to assign to the tensor"
                )
            new = module.right_inverse(new)
        values = [new] if self.is_tensor else list(new)
        if len(values) != self.ntensors:
            raise ValueError(
                f"right_inverse must return {self.ntensors} tensors, as before, got {len(values)}"
            )
        for number, (old, each) in enumerate(zip(self.originals(), values, strict=True)):
            if not isinstance(each, Tensor):
                raise ValueError(
                    f"`right_inverse` should return tensors, got {type(each).__name__} at {number}"
                )
            if each._array.dtype != old._array.dtype:
                raise ValueError(
                    f"The tensor that `right_inverse` returns has dtype {each._array.dtype}, but "
                    f"the original tensor {number} has dtype {old._array.dtype}"
                )
            old.data = each.detach()

    def forward(self) -> Tensor:
        if self.unsafe and not len(self):
            return self.original
        result = self[0](*self.originals())
        for module in list(self)[1:]:
            result = module(result)
        return result  # type: ignore[no-any-return]


def _like(original: Any, value: Any, number: int) -> Any:
    """Return `value` as a parameter if `original` is one."""
    if not isinstance(value, Tensor):
        raise ValueError(
            "right_inverse must return a Tensor or a Sequence of tensors, got element "
            f"{number} of the sequence with type {type(value).__name__}"
        )
    if isinstance(original, Parameter):
        return Parameter(value, original.requires_grad)
    return value.requires_grad_(original.requires_grad)


def _register(module: Module, name: str, tensor: Any) -> None:
    if isinstance(tensor, Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def _check(result: Any, shape: Any, dtype: Any, after: str, before: str) -> None:
    """Raise unless a parametrization's result fits the tensor before."""
    if not isinstance(result, TensorBase):
        raise ValueError(
            f"A parametrization must return a tensor, got one that returns {type(result).__name__}"
        )
    for what, old, new in (
        ("dtype", dtype, result._array.dtype),
        ("shape", shape, result._array.shape),
    ):
        if old != new:
            problem = f"Registering a parametrization may not change the {what} of the tensor"
            if after == "right_inverse":
                problem = f"what right_inverse returns must have the same {what} as the tensor"
            raise ValueError(
                f"{problem}, unless unsafe=True: {before} {what}: {old}, {after} {what}: {new}"
            )


# The class of a parametrized module


def _own_class(cls: type[Any]) -> type[Any]:
    """Return a class derived from `cls`, for the properties of one module."""

    def __getstate__(self: Any) -> Any:
        raise RuntimeError(
            "a parametrized module cannot be pickled: save its state_dict(), or first remove the "
            "parametrizations by remove_parametrizations()"
        )

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:
        replica = memo[id(self)] = object.__new__(_own_class(cls))
        replica.__setstate__(copy.deepcopy(HookMethods.__getstate__(self), memo))
        for name in replica.parametrizations:
            _add_property(replica, name)
        return replica

    members: dict[str, Any] = {"__getstate__": __getstate__, "__module__": __name__}
    if not hasattr(cls, "__deepcopy__"):
        members["__deepcopy__"] = __deepcopy__
    return type(f"{_PREFIX}{cls.__name__}", (cls,), members)


def _add_property(module: Module, name: str) -> None:
    def get(self: Any) -> Tensor:
        parametrizations: Any = self.parametrizations[name]
        if not _depth_of_cached:
            return parametrizations()  # type: ignore[no-any-return]
        key = id(parametrizations)
        if key not in _cache:
            # The entry keeps the parametrizations: no others get their id within the block.
            _cache[key] = parametrizations, parametrizations()
        return _cache[key][1]

    def set_(self: Any, value: Tensor) -> None:
        self.parametrizations[name].right_inverse(value)

    setattr(type(module), name, property(get, set_))


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Make a parameter or buffer the result of a parametrization; return the module.

    Of several, each takes the result of the one before.

    Args:
        module: the owner of the tensor.
        tensor_name: of the parameter, the buffer, or a tensor parametrized before.
        parametrization: called with the tensor, returns one of its shape and dtype. A method
            ``right_inverse(value)`` returns the tensor, or the tensors, to start from; with it, the
            tensor can be assigned to.
        unsafe: leave out the checks of shape and dtype.

    Raises:
        ValueError: if there is no such tensor, or a check fails.
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        existing: Any = module.parametrizations[tensor_name]
        if not unsafe:
            _check_next(getattr(module, tensor_name), parametrization)
        existing.append(parametrization)
        existing.unsafe |= unsafe
    elif tensor_name in module._parameters or tensor_name in module._buffers:
        original = getattr(module, tensor_name)
        parametrizations = ParametrizationList([parametrization], original, unsafe)
        delattr(module, tensor_name)
        if not is_parametrized(module):
            module.__class__ = _own_class(type(module))
            module.parametrizations = ModuleDict()
        _add_property(module, tensor_name)
        module.parametrizations[tensor_name] = parametrizations
    else:
        raise ValueError(
            f"{module} has neither a parameter nor a buffer named {tensor_name!r}, "
            "parametrized or not"
        )
    return module


@grad_mode.no_grad()
def _check_next(value: Tensor, parametrization: Module) -> None:
    """Raise unless a further parametrization keeps the shape and dtype of `value`."""
    shape, dtype = value._array.shape, value._array.dtype
    result = parametrization(value)
    _check(result, shape, dtype, "parametrization(module.weight)", "module.weight")
    if hasattr(parametrization, "right_inverse"):
        inverse = parametrization.right_inverse(result)
        if not isinstance(inverse, TensorBase):
            raise ValueError(
                f"right_inverse must return a tensor here, got {type(inverse).__name__}"
            )
        _check(inverse, shape, dtype, "right_inverse", "module.weight")


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Return whether a module, or one of its tensors, has a parametrization."""
    parametrizations = module._modules.get("parametrizations")
    if not isinstance(parametrizations, ModuleDict):
        return False
    return len(parametrizations) > 0 if tensor_name is None else tensor_name in parametrizations


def remove_parametrizations(
    module: Module, tensor_name: str, leave_parametrized: bool = True
) -> Module:
    """Make a parametrized tensor a parameter or buffer again; return the module.

    Args:
        module: the owner of the tensor.
        tensor_name: of the tensor.
        leave_parametrized: leave it at its present value; False: at that of the original tensor.

    Raises:
        ValueError: if the tensor has no parametrization; or, without `leave_parametrized`, if it
            comes from several tensors.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"{module} has no parametrization of {tensor_name!r}")
    parametrizations: Any = module.parametrizations[tensor_name]
    if parametrizations.is_tensor:
        tensor = parametrizations.original
        if leave_parametrized:
            with grad_mode.no_grad():
                value = getattr(module, tensor_name)
            if value is not tensor:
                tensor.data = value.detach()
    elif leave_parametrized:
        with grad_mode.no_grad():
            value = getattr(module, tensor_name)
        tensor = _like(parametrizations.original0, value, 0)
    else:
        raise ValueError(
            "leave_parametrized=False needs one original to go back to, but this tensor is made of "
            f"{parametrizations.ntensors}; pass leave_parametrized=True"
        )
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    if not is_parametrized(module):
        del module.parametrizations
        module.__class__ = type_before_parametrizations(module)
    _register(module, tensor_name, tensor)
    return module


def type_before_parametrizations(module: Module) -> type[Any]:
    """Return the class of a module without that of its parametrizations."""
    cls = type(module)
    is_own = cls.__module__ == __name__ and cls.__name__.startswith(_PREFIX)
    return cls.__bases__[0] if is_own else cls


def transfer_parametrizations_and_params(
    from_module: Module, to_module: Module, tensor_name: str | None = None
) -> Module:
    """Give a module the parametrizations of another, and their original tensors; return it.

    Args:
        from_module: the module with parametrizations.
        to_module: the module that gets them; a missing tensor is added.
        tensor_name: of the tensor; by default all parametrized ones.
    """
    if not is_parametrized(from_module):
        return to_module
    for name in from_module.parametrizations if tensor_name is None else [tensor_name]:
        source: Any = from_module.parametrizations[name]
        if not hasattr(to_module, name):
            _register(to_module, name, copy.deepcopy(source.originals()[0]))
        for parametrization in source:
            register_parametrization(to_module, name, parametrization)
        target: Any = to_module.parametrizations[name]
        for number, original in enumerate(source.originals()):
            setattr(target, "original" if source.is_tensor else f"original{number}", original)
    return to_module
