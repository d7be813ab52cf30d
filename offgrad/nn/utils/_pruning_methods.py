"""Methods of pruning: hooks that multiply a weight by a mask before `forward`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from numbers import Integral, Real
from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.nn.modules.module import Module


class BasePruningMethod(ABC):
    """Base of pruning methods: a subclass sets `PRUNING_TYPE` and defines `compute_mask`.

    Attributes:
        PRUNING_TYPE: what a second pruning of the same tensor applies to: ``"unstructured"``, the
            elements left; ``"structured"``, the channels left along ``dim``; ``"global"``, all.
    """

    PRUNING_TYPE: str
    _tensor_name: str

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self._tensor_name, self.apply_mask(module))

    @abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Return the mask for the importances `t`, with the zeros of `default_mask`."""

    def apply_mask(self, module: Module) -> Tensor:
        """Return the original tensor times the mask."""
        if not getattr(self, "_tensor_name", None):
            raise AssertionError(f"Module {module} has to be pruned first")
        name = self._tensor_name
        original = getattr(module, f"{name}_orig")
        return getattr(module, f"{name}_mask").to(original._array.dtype) * original  # type: ignore[no-any-return]

    @classmethod
    def apply(
        cls, module: Module, name: str, *args: Any, importance_scores: Any = None, **kwargs: Any
    ) -> "BasePruningMethod":
        """Prune a tensor of a module; return the hook.

        Args:
            module: the owner of the tensor.
            name: of the tensor.
            args: of the method's constructor.
            importance_scores: what decides, of the tensor's shape; by default the tensor.
            kwargs: of the method's constructor.
        """
        method: BasePruningMethod = cls(*args, **kwargs)
        method._tensor_name = name
        before = _hooks(module, name)
        if before:
            method = _container(module, name, before[0], method)
        original = getattr(module, name)
        scores = original if importance_scores is None else importance_scores
        if scores.shape != original.shape:
            raise AssertionError(
                f"importance_scores of shape {list(scores.shape)} do not fit parameter {name} of "
                f"{module}, of shape {list(original.shape)}"
            )
        if before:
            mask = getattr(module, f"{name}_mask").detach().clone()
        else:
            mask = ops.ones_like(original)
        mask = method.compute_mask(scores.detach(), default_mask=mask)
        if not before:
            module.register_parameter(f"{name}_orig", original)
            del module._parameters[name]
        module.register_buffer(f"{name}_mask", mask)
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def prune(
        self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Any = None
    ) -> Tensor:
        """Return a tensor times its mask.

        Args:
            t: the tensor.
            default_mask: a mask to start from, by default ones.
            importance_scores: what decides, of the tensor's shape; by default the tensor.
        """
        scores = t if importance_scores is None else importance_scores
        if scores.shape != t.shape:
            raise AssertionError(
                f"importance_scores of shape {list(scores.shape)} do not fit t, of shape "
                f"{list(t.shape)}"
            )
        mask = ops.ones_like(t) if default_mask is None else default_mask
        return t * self.compute_mask(scores, default_mask=mask)

    def remove(self, module: Module) -> None:
        """Make the pruned tensor a parameter again, for good."""
        weight = self.apply_mask(module)
        name = self._tensor_name
        if hasattr(module, name):
            delattr(module, name)
        original: Any = module._parameters.pop(f"{name}_orig")
        original.data = weight.detach()
        del module._buffers[f"{name}_mask"]
        setattr(module, name, original)


def _hooks(module: Module, name: str) -> list[Any]:
    return [
        hook
        for hook in module._forward_pre_hooks.values()
        if isinstance(hook, BasePruningMethod) and hook._tensor_name == name
    ]


def _container(
    module: Module, name: str, before: BasePruningMethod, method: BasePruningMethod
) -> "PruningContainer":
    """Return a container of the methods before and of `method`; it replaces their hook."""
    if isinstance(before, PruningContainer):
        container = before
    else:
        container = PruningContainer()
        container._tensor_name = name
        container.add_pruning_method(before)
    container.add_pruning_method(method)
    for key, hook in list(module._forward_pre_hooks.items()):
        if hook is before:
            del module._forward_pre_hooks[key]
    return container


class PruningContainer(BasePruningMethod):
    """Several prunings of one tensor, one after the other."""

    def __init__(self, *args: Any) -> None:
        self._pruning_methods: tuple[BasePruningMethod, ...] = ()
        methods: Any = args[0] if len(args) == 1 and isinstance(args[0], Iterable) else args
        for method in methods:
            if not hasattr(self, "_tensor_name"):
                self._tensor_name = method._tensor_name
            self.add_pruning_method(method)

    def add_pruning_method(self, method: Any) -> None:
        """Add a method for the same tensor."""
        if not isinstance(method, BasePruningMethod):
            raise TypeError(f"{type(method)} is not a BasePruningMethod subclass")
        if self._tensor_name != method._tensor_name:
            raise ValueError(
                f"{self} holds methods that prune {self._tensor_name!r}, got one that "
                f"prunes {method._tensor_name!r}"
            )
        self._pruning_methods = (*self._pruning_methods, method)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, idx: int) -> BasePruningMethod:
        return self._pruning_methods[idx]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """Return the mask after the last method, which the earlier ones' zeros do not concern."""
        method: Any = self._pruning_methods[-1]
        mask = default_mask.clone().to(t._array.dtype)
        kind = method.PRUNING_TYPE
        part: Any
        if kind == "unstructured":
            part = mask == 1
        elif kind == "structured":
            dim = method.dim % t.dim()
            others = [each for each in range(t.dim()) if each != dim]
            part = tuple([slice(None)] * dim) + (mask.sum(dim=others) != 0,)
        elif kind == "global":
            part = (slice(None),) * t.dim()
        else:
            raise ValueError(f"Unrecognized PRUNING_TYPE {kind}")
        mask[part] = method.compute_mask(t[part], default_mask=mask[part]).to(mask._array.dtype)
        return mask


class Identity(BasePruningMethod):
    """Prunes nothing."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask


class _OfAmount(BasePruningMethod):
    """Base of the methods that prune an amount: a fraction, or a number of elements."""

    def __init__(self, amount: Any) -> None:
        _check_amount(amount)
        self.amount = amount

    def _count(self, size: int) -> int:
        """Return how many of `size` to prune."""
        if isinstance(self.amount, Integral):
            if int(self.amount) > size:
                raise ValueError(f"amount={self.amount} is more than there is to prune: {size}")
            return int(self.amount)
        return round(float(self.amount) * size)


def _check_amount(amount: Any) -> None:
    if not isinstance(amount, Real):
        raise TypeError(f"amount must be an int or a float, got {amount!r}")
    if isinstance(amount, Integral):
        if int(amount) < 0:
            raise ValueError(f"a count to prune must not be negative, got amount={amount}")
    elif not 0.0 <= float(amount) <= 1.0:
        raise ValueError(f"a fraction to prune must be in [0, 1], got amount={amount}")


class _Unstructured(_OfAmount):
    """Base of the methods that prune the elements of the lowest scores."""

    PRUNING_TYPE = "unstructured"

    def _scores(self, t: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        count = self._count(t.numel())
        mask = default_mask.clone()
        if count:
            lowest = ops.topk(self._scores(t).reshape(-1), count, largest=False).indices
            mask.view(-1)[lowest] = 0
        return mask


class RandomUnstructured(_Unstructured):
    """Prunes random elements."""

    def _scores(self, t: Tensor) -> Tensor:
        return ops.rand_like(t)


class L1Unstructured(_Unstructured):
    """Prunes the elements of the smallest magnitudes."""

    def _scores(self, t: Tensor) -> Tensor:
        return t.abs()


class _Structured(_OfAmount):
    """Base of the methods that prune whole channels along a dimension."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: Any, dim: int = -1) -> None:
        super().__init__(amount)
        self.dim = dim

    def _norms(self, t: Tensor, dim: int) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if t.dim() <= 1:
            raise ValueError(
                f"structured pruning needs 2 dimensions or more, got the shape {tuple(t.shape)}"
            )
        if not -t.dim() <= self.dim < t.dim():
            raise IndexError(f"Invalid index {self.dim} for tensor of size {tuple(t.shape)}")
        dim = self.dim % t.dim()
        size = t.shape[dim]
        count = self._count(size)
        if not count:
            return default_mask
        kept = ops.topk(self._norms(t, dim), size - count, largest=True).indices
        mask = ops.zeros_like(t)
        mask[tuple([slice(None)] * dim) + (kept,)] = 1
        return mask * default_mask.to(mask._array.dtype)


class RandomStructured(_Structured):
    """Prunes random channels along `dim`."""

    def _norms(self, t: Tensor, dim: int) -> Tensor:
        return ops.rand(t.shape[dim])


class LnStructured(_Structured):
    """Prunes the channels along `dim` of the smallest n-norms."""

    def __init__(self, amount: Any, n: Any, dim: int = -1) -> None:
        super().__init__(amount, dim)
        self.n = n

    def _norms(self, t: Tensor, dim: int) -> Tensor:
        return ops.norm(t, self.n, [each for each in range(t.dim()) if each != dim])


class CustomFromMask(BasePruningMethod):
    """Prunes where a mask is 0."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask * self.mask.to(default_mask._array.dtype)
