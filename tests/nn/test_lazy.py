"""Lazy modules: results, errors and state are torch's."""

import pytest

import offgrad
from offgrad import nn
from tests.nn.programs import same_on_torch

SETUP = """
import copy, pickle
l = nn.LazyLinear(3)
lazy = nn.LazyLinear(3)
x = torch.ones(2, 5)
class Own(nn.modules.lazy.LazyModuleMixin, nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.UninitializedParameter()
        self.register_buffer("b", nn.UninitializedBuffer())
    def initialize_parameters(self, x, k=1):
        if self.has_uninitialized_params():
            self.w.materialize((x.shape[-1],))
            self.w.data.fill_(k)
            if k < 9: self.b.materialize((1,))
    def forward(self, x, k=1): return x * self.w
class None_(nn.modules.lazy.LazyModuleMixin, nn.Linear): pass
convs = [getattr(nn, f"LazyConv{t}{n}d") for t in ("", "Transpose") for n in (1, 2, 3)]
norms = [getattr(nn, f"Lazy{t}Norm{n}d") for t in ("Batch", "Instance") for n in (1, 2, 3)]
def image(c, batch=(2,)): return torch.rand(*batch, 4, *[6] * int(c.__name__[-2]))
def called(m, *args):
    out = m(*args)
    shapes = [(k, list(v.shape)) for k, v in m.state_dict().items()]
    return m, type(m).__name__, list(out.shape), shapes
"""

PROGRAMS = {
    "linear": """
l, l.state_dict(), l.has_uninitialized_params(), l.in_features, l.cls_to_become.__name__
[n for n, _ in l.named_parameters()], len(l._forward_pre_hooks), len(l._load_state_dict_pre_hooks)
copy.deepcopy(l), copy.deepcopy(l)(x).shape == (2, 3), type(copy.deepcopy(l)(x)).__name__
pickle.loads(pickle.dumps(l))(x).shape == (2, 3)
sum(p.numel() for p in l.parameters())
nn.init.ones_(l.weight)
l.share_memory()
l.double().weight.dtype == torch.float64
l(x.double()).shape == (2, 3), l, type(l).__name__, len(l._forward_pre_hooks)
hasattr(l, "_initialize_hook"), l.has_uninitialized_params if hasattr(nn.Linear, "x") else 0
lazy.load_state_dict(nn.LazyLinear(3).state_dict()), type(lazy).__name__
nn.Linear(5, 3).load_state_dict(lazy.state_dict())
lazy.load_state_dict(nn.Linear(5, 3).state_dict()), type(lazy).__name__, lazy.weight.shape == (3, 5)
lazy(x).shape == (2, 3), lazy
nn.LazyLinear(3)("x")
nn.LazyLinear(3, False, "cpu", torch.float64)(x.double()).dtype == torch.float64
""",
    "convolutions": """
[c(4, 3) for c in convs]
[called(c(4, 3, bias=False, groups=2), image(c)) for c in convs]
[called(c(4, 3, stride=2, padding=1), image(c, ())) for c in convs]
[c(4, 3, padding=2, dilation=2) for c in convs]
nn.LazyConv2d(4, 3)(torch.ones(2))
""",
    "normalisation": """
[c() for c in norms]
[c().state_dict() for c in norms]
[called(c(1e-3, None), image(c)) for c in norms[:3]]
[called(c(affine=False, track_running_stats=False), image(c))[2:] for c in norms]
[called(c(bias=False), image(c)) for c in norms]
norms[0]()(torch.ones(2))
""",
    "own modules": """
called(Own(), x), Own()(x, k=3)
Own()(x, k=9)
None_(2, 2)(x)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_lazy_modules(name: str) -> None:
    same_on_torch(SETUP, PROGRAMS[name])


def test_a_lazy_network_trains() -> None:
    net = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.LazyLinear(2))
    out = net(offgrad.rand(2, 3, 6, 6))
    out.sum().backward()
    assert [type(each).__name__ for each in net] == ["Conv2d", "BatchNorm2d", "ReLU", "Linear"]
    assert all(each.grad is not None for each in net.parameters())
    bound = 1 / 27**0.5
    assert 0 < net[0].weight.abs().max().item() <= bound


def test_an_integer_is_the_shape_of_a_vector() -> None:
    parameter = offgrad.nn.UninitializedParameter()
    parameter.materialize(10)
    assert parameter.shape == (10,)
