"""Methods of Module that list and find modules, parameters and buffers by qualified name."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from offgrad.autograd.tensor_base import TensorBase
from offgrad.nn.parameter import Parameter

if TYPE_CHECKING:
    from offgrad._tensor.tensor import Tensor
    from offgrad.nn.modules.module import Module


class TraversalMethods:
    """The methods."""

    if TYPE_CHECKING:  # not annotations at runtime, where get_type_hints() would look for Module
        _parameters: dict[str, Parameter | None]
        _buffers: dict[str, Tensor | None]
        _modules: dict[str, Module | None]

    # Lists

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
            memo.add(self)  # type: ignore[arg-type]
        yield prefix, self  # type: ignore[misc]
        for name, module in self._modules.items():
            if module is not None:
                child_prefix = f"{prefix}.{name}" if prefix else name
                yield from module.named_modules(memo, child_prefix, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> "Iterator[Module]":
        """Yield this module and all modules below, each once if `remove_duplicate`."""
        for _, module in self.named_modules(remove_duplicate=remove_duplicate):
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

    def _named_members(
        self,
        get_members_fn: "Callable[[Module], Iterable[tuple[str, Any]]]",
        prefix: str = "",
        recurse: bool = True,
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, Any]]:
        """Yield the members that a function finds in modules, with qualified names."""
        seen: set[int] = set()
        modules: Any = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else [(prefix, self)]
        )
        for module_name, module in modules:
            for name, member in get_members_fn(module):
                if member is None or id(member) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(member))
                yield f"{module_name}.{name}" if module_name else name, member

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield the parameters with qualified names.

        Args:
            prefix: this module's qualified name.
            recurse: include the parameters of modules below.
            remove_duplicate: yield each parameter once.
        """
        yield from self._named_members(
            lambda module: module._parameters.items(), prefix, recurse, remove_duplicate
        )

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, each once."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> "Iterator[tuple[str, Tensor]]":
        """Yield the buffers with qualified names; the arguments are those of `named_parameters`."""
        yield from self._named_members(
            lambda module: module._buffers.items(), prefix, recurse, remove_duplicate
        )

    def buffers(self, recurse: bool = True) -> "Iterator[Tensor]":
        """Yield the buffers, each once."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    # One by its name

    def get_submodule(self, target: str) -> "Module":
        """Return the module with a qualified name; ``""`` is this one.

        Raises:
            AttributeError: if there is none.
        """
        module: Any = self
        for name in target.split(".") if target else ():
            module = _attribute(module, name, target)
            if not isinstance(module, TraversalMethods):
                raise AttributeError(
                    f"`{name}` is not an nn.Module: {type(self).__name__} has no module "
                    f"{target!r}, it is a {type(module).__name__}"
                )
        return module  # type: ignore[no-any-return]

    def set_submodule(self, target: str, module: "Module", strict: bool = False) -> None:
        """Set the module with a qualified name.

        Args:
            target: the name; all of it but the last part must exist.
            module: the module.
            strict: replace modules only.

        Raises:
            ValueError: if `target` is empty or `module` is no module.
            AttributeError: if a part of the name is missing.
        """
        if not target:
            raise ValueError("set_submodule needs a name, such as 'layer.0', got an empty one")
        if not isinstance(module, TraversalMethods):
            raise ValueError(f"set_submodule takes an nn.Module, got {type(module)}")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict:
            self.get_submodule(target)
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """Return the parameter with a qualified name.

        Raises:
            AttributeError: if there is none.
        """
        path, _, name = target.rpartition(".")
        parameter = _attribute(self.get_submodule(path), name, target)
        if not isinstance(parameter, Parameter):
            raise AttributeError(
                f"`{name}` is not an nn.Parameter: it is a {type(parameter).__name__}"
            )
        return parameter

    def get_buffer(self, target: str) -> "Tensor":
        """Return the buffer with a qualified name.

        Raises:
            AttributeError: if there is none.
        """
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        buffer = _attribute(module, name, target)
        if name not in module._buffers or not isinstance(buffer, TensorBase):
            raise AttributeError(f"`{name}` is not a buffer: it is a {type(buffer).__name__}")
        return buffer  # type: ignore[return-value]


def _attribute(module: Any, name: str, target: str) -> Any:
    if not hasattr(module, name):
        raise AttributeError(
            f"{type(module).__name__} has no attribute `{name}`, of the name {target!r}"
        )
    return getattr(module, name)
