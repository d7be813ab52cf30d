"""Spectral normalisation by a hook, as older code uses it, and the power method."""

from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.autograd import grad_mode
from offgrad.nn.modules.module import Module
from offgrad.nn.parameter import Parameter, is_lazy

__all__ = ["SpectralNorm", "remove_spectral_norm", "spectral_norm"]

_VERSION = 1


def as_matrix(weight: Tensor, dim: int) -> Tensor:
    """Return a weight as a matrix, whose rows belong to the indices of a dimension."""
    if dim != 0:
        order = [dim, *[each for each in range(weight.dim()) if each != dim]]
        weight = weight.permute(*order)
    return weight.reshape(weight.size(0), -1)


def default_dim(module: Module) -> int:
    """Return the dimension of a layer's outputs: 1 for transposed convolutions, otherwise 0."""
    return 1 if getattr(module, "transposed", False) else 0


@grad_mode.no_grad()
def power_method(matrix: Tensor, u: Tensor, v: Tensor, iterations: int, eps: float) -> None:
    """Bring u and v, in place, closer to the first left and right singular vector."""
    for _ in range(iterations):
        u.copy_(ops.normalize(ops.mv(matrix, v), dim=0, eps=eps))
        v.copy_(ops.normalize(ops.mv(matrix.t(), u), dim=0, eps=eps))


def random_direction(like: Tensor, size: int, eps: float) -> Tensor:
    """Return a random vector of length 1."""
    return ops.normalize(like.new_empty(size).normal_(0, 1), dim=0, eps=eps)


class SpectralNorm:
    """The hook: sets ``module.NAME`` before each `forward` to the weight over its largest singular
    value, which a step of the power method estimates in training mode.
    """

    def __init__(
        self, name: str = "weight", n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12
    ) -> None:
        if n_power_iterations <= 0:
            raise ValueError(
                f"Expected n_power_iterations to be positive, got {n_power_iterations}"
            )
        self.name = name
        self.dim = dim
        self.n_power_iterations = n_power_iterations
        self.eps = eps

    def reshape_weight_to_matrix(self, weight: Tensor) -> Tensor:
        """Return the weight as a matrix with a row for each output."""
        return as_matrix(weight, self.dim)

    def compute_weight(self, module: Module, do_power_iteration: bool) -> Tensor:
        """Return the normalised weight; with `do_power_iteration`, update u and v before."""
        weight = getattr(module, f"{self.name}_orig")
        u, v = getattr(module, f"{self.name}_u"), getattr(module, f"{self.name}_v")
        matrix = as_matrix(weight, self.dim)
        if do_power_iteration:
            with grad_mode.no_grad():
                for _ in range(self.n_power_iterations):
                    v.copy_(ops.normalize(ops.mv(matrix.t(), u), dim=0, eps=self.eps))
                    u.copy_(ops.normalize(ops.mv(matrix, v), dim=0, eps=self.eps))
            # Later calls change u and v, which backward needs as they are now.
            u, v = u.clone(), v.clone()
        return weight / ops.dot(u, ops.mv(matrix, v))  # type: ignore[no-any-return]

    def remove(self, module: Module) -> None:
        """Make the weight a parameter again."""
        with grad_mode.no_grad():
            weight = self.compute_weight(module, do_power_iteration=False)
        delattr(module, self.name)
        for suffix in ("u", "v", "orig"):
            delattr(module, f"{self.name}_{suffix}")
        module.register_parameter(self.name, Parameter(weight.detach()))

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module, module.training))

    @staticmethod
    def apply(
        module: Module, name: str, n_power_iterations: int, dim: int, eps: float
    ) -> "SpectralNorm":
        """Replace a parameter by ``NAME_orig`` and the vectors, and register the hook."""
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm) and hook.name == name:
                raise RuntimeError(
                    f"Cannot register two spectral_norm hooks on the same parameter {name!r}; call "
                    "remove_spectral_norm first"
                )
        own = SpectralNorm(name, n_power_iterations, dim, eps)
        weight = module._parameters[name]
        if weight is None:
            raise ValueError(f"spectral_norm needs a parameter, but {name!r} is None")
        if is_lazy(weight):
            raise ValueError(
                "the module passed to spectral_norm can't have uninitialized parameters, got "
                f"{name}; call the lazy module first, with a batch of the right shape"
            )
        with grad_mode.no_grad():
            height, width = as_matrix(weight, dim).size()
            u, v = random_direction(weight, height, eps), random_direction(weight, width, eps)
        delattr(module, name)
        module.register_parameter(f"{name}_orig", weight)
        setattr(module, name, weight.detach())
        module.register_buffer(f"{name}_u", u)
        module.register_buffer(f"{name}_v", v)
        module.register_forward_pre_hook(own)
        module._register_state_dict_hook(_StateDictHook(name))
        return own


class _StateDictHook:
    """Notes the format of the state dict, as PyTorch does."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(
        self, module: Module, state_dict: Any, prefix: str, local_metadata: dict[str, Any]
    ) -> None:
        versions = local_metadata.setdefault("spectral_norm", {})
        versions[f"{self.name}.version"] = _VERSION


def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """Divide a weight by its largest singular value (Miyato et al., 2018); return the module.

    Args:
        module: the owner of the weight.
        name: of the weight.
        n_power_iterations: steps of the power method in each call in training mode.
        eps: keeps norms from being 0.
        dim: of the outputs; 1 for transposed convolutions, otherwise 0.
    """
    dim = default_dim(module) if dim is None else dim
    SpectralNorm.apply(module, name, n_power_iterations, dim, eps)
    return module


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Undo `spectral_norm`; return the module.

    Raises:
        ValueError: if it was not applied.
    """
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, SpectralNorm) and hook.name == name:
            hook.remove(module)
            del module._forward_pre_hooks[key]
            break
    else:
        raise ValueError(f"there is no spectral_norm of {name!r} to remove from {module}")
    for state_key, state_hook in module._state_dict_hooks.items():
        if isinstance(state_hook, _StateDictHook) and state_hook.name == name:
            del module._state_dict_hooks[state_key]
            break
    return module
