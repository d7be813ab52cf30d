"""Weight normalisation by a hook, as older code uses it."""

import warnings
from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.nn.modules.module import Module
from offgrad.nn.parameter import Parameter, is_lazy

__all__ = ["WeightNorm", "remove_weight_norm", "weight_norm"]


class WeightNorm:
    """The hook: sets ``module.NAME`` before each `forward`, from its magnitude and direction."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name = name
        self.dim = -1 if dim is None else dim

    def compute_weight(self, module: Module) -> Tensor:
        """Return the weight."""
        g, v = getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v")
        return v * (g / ops.norm_except_dim(v, 2, self.dim))  # type: ignore[no-any-return]

    @staticmethod
    def apply(module: Module, name: str, dim: int | None) -> "WeightNorm":
        """Replace a parameter by its magnitude and direction, and register the hook."""
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm) and hook.name == name:
                raise RuntimeError(
                    f"Cannot register two weight_norm hooks on the same parameter {name!r}; call "
                    "remove_weight_norm first"
                )
        own = WeightNorm(name, dim)
        weight = getattr(module, name)
        if is_lazy(weight):
            raise ValueError(
                "the module passed to weight_norm can't have uninitialized parameters, got "
                f"{name}; call the lazy module first, with a batch of the right shape"
            )
        del module._parameters[name]
        magnitude = ops.norm_except_dim(weight.detach(), 2, own.dim)
        module.register_parameter(f"{name}_g", Parameter(magnitude))
        module.register_parameter(f"{name}_v", Parameter(weight.detach()))
        setattr(module, name, own.compute_weight(module))
        module.register_forward_pre_hook(own)
        return own

    def remove(self, module: Module) -> None:
        """Make the weight a parameter again."""
        weight = self.compute_weight(module)
        delattr(module, self.name)
        del module._parameters[f"{self.name}_g"]
        del module._parameters[f"{self.name}_v"]
        setattr(module, self.name, Parameter(weight.detach()))

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module))


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Train the magnitude ``NAME_g`` and direction ``NAME_v`` of a weight (Salimans and Kingma,
    2016); return the module.

    Args:
        module: the owner of the weight.
        name: of the weight.
        dim: there is a magnitude for each index of this dimension; None: one for all.
    """
    warnings.warn(
        "nn.utils.weight_norm is deprecated: use nn.utils.parametrizations.weight_norm",
        FutureWarning,
        stacklevel=2,
    )
    WeightNorm.apply(module, name, dim)
    return module


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Undo `weight_norm`; return the module.

    Raises:
        ValueError: if it was not applied.
    """
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, WeightNorm) and hook.name == name:
            hook.remove(module)
            del module._forward_pre_hooks[key]
            return module
    raise ValueError(f"there is no weight_norm of {name!r} to remove from {module}")
