"""Parametrizations: results and errors are torch's."""

import copy

import pytest

import offgrad
from offgrad import nn
from offgrad.nn.utils import parametrize
from tests.nn.programs import same_on_torch

SETUP = """
import copy, pickle
P = nn.utils.parametrize
class Sym(nn.Module):
    def forward(self, X): return X.triu() + X.triu(1).mT
class Skew(nn.Module):
    def forward(self, X): return X - X.mT
    def right_inverse(self, A): return A.triu(1)
class Two(nn.Module):
    def forward(self, a, b): return a + b
    def right_inverse(self, X): return X * 0.5, X * 0.5
class Bad(nn.Module):
    def forward(self, X): return 3
class Shape(nn.Module):
    def forward(self, X): return X[:1]
class Dtype(nn.Module):
    def forward(self, X): return X.double()
class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.arange(4.0).view(2, 2))
def linear():
    m = nn.Linear(2, 2)
    m.weight.data.copy_(torch.arange(4.0).view(2, 2))
    m.bias.data.fill_(1)
    return m
def reg(m, name, p, **k): return P.register_parametrization(m, name, p, **k)
m, b = linear(), Buffered()
"""

PROGRAMS = {
    "registering": """
reg(m, "weight", Sym())
m.parametrizations, type(m).__name__, list(m.state_dict()), [n for n, _ in m.named_parameters()]
m.weight
reg(m, "weight", Skew()), m.weight
reg(m, "nothing", Skew())
reg(m, "weight", Bad())
reg(m, "weight", Shape())
reg(m, "weight", Dtype())
reg(m, "bias", Bad())
reg(m, "bias", Shape())
reg(m, "bias", Dtype())
reg(m, "bias", 3)
reg(linear(), "weight", Shape(), unsafe=True).weight
setattr(m, "weight", torch.ones(2, 2))
setattr(m, "weight", nn.Parameter(torch.ones(2, 2)))
reg(m, "bias", Two()), m.parametrizations.bias.is_tensor, m.parametrizations.bias.ntensors
m.parametrizations.bias.original
m.parametrizations.bias.original0, m.bias
setattr(m, "bias", torch.ones(2) * 4), m.bias, m.parametrizations.bias.original1
setattr(reg(n := linear(), "weight", Skew()), "weight", torch.ones(2, 2)), n.weight
P.is_parametrized(m), P.is_parametrized(m, "weight"), P.is_parametrized(m, "x")
P.type_before_parametrizations(m).__name__, P.type_before_parametrizations(b).__name__
""",
    "removing": """
[reg(m, "weight", Sym()), reg(m, "weight", Skew()), reg(m, "bias", Two())][0]
P.remove_parametrizations(m, "bias", leave_parametrized=False)
P.remove_parametrizations(m, "bias"), m.bias
P.remove_parametrizations(m, "weight"), m.weight, type(m).__name__
P.remove_parametrizations(m, "weight")
P.remove_parametrizations(reg(linear(), "weight", Sym()), "weight", leave_parametrized=False).weight
reg(b, "b", Sym()), b.b, list(b.state_dict())
P.remove_parametrizations(b, "b").b, list(b._buffers)
""",
    "copies": """
pickle.dumps(reg(m, "weight", Sym()))
copy.deepcopy(m), copy.deepcopy(m).weight
P.transfer_parametrizations_and_params(m, n := linear()), n.weight
P.transfer_parametrizations_and_params(m, n := Buffered()), n.weight
P.transfer_parametrizations_and_params(m, n := linear(), "weight"), list(n.state_dict())
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_parametrizations(name: str) -> None:
    same_on_torch(SETUP, PROGRAMS[name])


class Counted(nn.Module):
    calls = 0

    def forward(self, x: offgrad.Tensor) -> offgrad.Tensor:
        Counted.calls += 1
        return x * 2


def test_cached_values_are_computed_once() -> None:
    layer = parametrize.register_parametrization(nn.Linear(2, 2), "weight", Counted())
    Counted.calls = 0
    with parametrize.cached():
        first = layer.weight
        assert layer.weight is first
        with parametrize.cached():
            assert layer.weight is first
    assert Counted.calls == 1
    assert layer.weight is not first


def test_cached_values_end_with_their_module_only() -> None:
    with parametrize.cached():
        for size in range(1, 5):  # a new module may get the id of the last one
            layer = parametrize.register_parametrization(nn.Linear(size, 1), "weight", Counted())
            assert layer.weight.shape == (1, size)
            del layer


def test_a_copy_does_not_share_the_class() -> None:
    layer = parametrize.register_parametrization(nn.Linear(2, 2), "weight", Counted())
    twin = copy.deepcopy(layer)
    parametrize.remove_parametrizations(twin, "weight")
    assert type(twin) is nn.Linear
    assert layer.weight.equal(twin.weight)
    layer(offgrad.ones(1, 2)).sum().backward()
    assert layer.parametrizations.weight.original.grad is not None
