"""Layers without parameters: activations, dropout, losses."""

from offgrad._tensor.tensor import Tensor
from offgrad.nn import functional as F
from offgrad.nn.modules.module import Module


class GELU(Module):
    """The Gaussian error linear unit, exact or by its ``"tanh"`` approximation."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation."""
        return F.gelu(input, approximate=self.approximate)

    def extra_repr(self) -> str:
        """Return the options."""
        return f"approximate={self.approximate!r}"


class ReLU(Module):
    """The positive part."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation."""
        return F.relu(input, inplace=self.inplace)

    def extra_repr(self) -> str:
        """Return the setting."""
        return "inplace=True" if self.inplace else ""


class SiLU(Module):
    """``x * sigmoid(x)``."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation."""
        return F.silu(input, inplace=self.inplace)

    def extra_repr(self) -> str:
        """Return the setting."""
        return "inplace=True" if self.inplace else ""


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation."""
        return F.tanh(input)


class Sigmoid(Module):
    """``1 / (1 + exp(-x))``."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the activation."""
        return F.sigmoid(input)


class Softmax(Module):
    """Probabilities along `dim`."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Tensor) -> Tensor:
        """Return the probabilities."""
        return F.softmax(input, self.dim)

    def extra_repr(self) -> str:
        """Return the options."""
        return f"dim={self.dim}"


class Identity(Module):
    """The input, whatever it was made with."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        """Return `input`."""
        return input


class Dropout(Module):
    """In training, each element zeroed with probability `p` and the rest scaled by ``1 / (1 -
    p)``.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"p must be a probability from 0 to 1, got {p}")
        self.p = p

    def forward(self, input: Tensor) -> Tensor:
        """Return `input`, with dropout in training mode."""
        return F.dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        """Return the options."""
        return f"p={self.p}"


class CrossEntropyLoss(Module):
    """Cross-entropy between logits and targets; see `functional.cross_entropy`."""

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index, self.reduction = ignore_index, reduction
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return F.cross_entropy(
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )


class MSELoss(Module):
    """The squared differences, their mean or their sum."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return F.mse_loss(input, target, self.reduction)
