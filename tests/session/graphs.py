"""Graphs that save tensors in many ways, for the tests of policies, and their bits."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np

import offgrad
from offgrad import nn
from offgrad.nn import functional as F

Offload: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Opens a session, or a null context for the reference run."""

Bits: TypeAlias = list[tuple[Any, ...]]


def bits(*tensors: Any) -> Bits:
    """Return shape, dtype and bytes of each tensor; None for None."""
    found: Bits = []
    for each in tensors:
        if each is None:
            found.append((None,))
        else:
            array = each.detach().numpy()
            found.append((array.shape, str(array.dtype), array.tobytes()))
    return found


def normal(seed: int, *shape: int, dtype: Any = np.float32, grad: bool = True) -> Any:
    """Return a leaf of normal numbers."""
    array = np.random.default_rng(seed).standard_normal(shape)
    return offgrad.tensor(np.asarray(array).astype(dtype), requires_grad=grad)


def data(seed: int, *shape: int) -> Any:
    """Return a tensor that requires no grad."""
    return normal(seed, *shape, grad=False)


class Normalise(nn.Module):
    """Subtracts and divides by buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", data(5, 64))
        self.register_buffer("scale", data(6, 64).exp())

    def forward(self, x: Any) -> Any:
        """Return `x` normalised."""
        return (x - self.shift) * self.scale


def layer_norm_case(x: Any) -> Any:
    """A LayerNorm without weights."""
    return F.layer_norm(x, (x.shape[-1],))


def attention_case(x: Any) -> Any:
    """Causal self-attention, twelve by four, in two heads."""
    heads = x.view(2, 6, 2, 4).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads * 0.5, heads.exp(), is_causal=True)


def cross_entropy_case(x: Any) -> Any:
    """Cross-entropy with an ignored target."""
    targets = offgrad.tensor([0, 3, 1, -100, 2, 5, 7, 7, 0, 1, 2, 3])
    return F.cross_entropy(x, targets)


CURVED: dict[str, Callable[[Any], Any]] = {
    "attention": attention_case,
    "layer_norm": layer_norm_case,
    "gelu": lambda x: F.gelu(x),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "cross_entropy": cross_entropy_case,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(0),
    "matmul": lambda x: x @ x.t().exp(),
    "pow": lambda x: x.abs() ** 1.5,
    "mul": lambda x: x * x.sin() * x.t().reshape(12, 8),
    "std": lambda x: x.std(-1),
    "silu": lambda x: F.silu(x),
    "linear": lambda x: F.linear(x, x * 2, x[:, 0]),
}
"""Functions of a [12, 8] tensor with a second derivative."""

gradient: Any = offgrad.autograd.grad
"""`autograd.grad`, typed `Any`: gradients of tensors that depend on each other are never None."""

_expected: dict[Any, Bits] = {}


def check(key: Any, run: Callable[[Offload], Bits], offload: Offload) -> None:
    """Assert that `run` gives the same bits as without a session."""
    if key not in _expected:
        offgrad.manual_seed(11)
        _expected[key] = run(nullcontext)
    offgrad.manual_seed(11)
    found = run(offload)
    assert len(found) == len(_expected[key])
    for index, (mine, theirs) in enumerate(zip(found, _expected[key], strict=True)):
        assert mine[:2] == theirs[:2], f"shape or dtype of result {index}"
        assert mine == theirs, f"bits of result {index}"
