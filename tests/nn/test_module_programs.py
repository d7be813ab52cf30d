"""Module: results, error classes and texts are torch's."""

import copy
import pickle
from typing import Any

import pytest

import offgrad
from offgrad import nn
from tests.nn.programs import same_on_torch

SETUP = """
import copy
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.ones(2))
        self.buffer = nn.Buffer(torch.zeros(1), persistent=False)
        self.layers = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.layers.again = self.layers[0]
    def extra_repr(self):
        return "a=1\\nb=2"
class Bare(nn.Module): pass
class Frozen(nn.Linear):
    def train(self, mode=True): return super().train(False)
class Early(nn.Module):
    def __init__(self, kind):
        setattr(self, "a", nn.Identity() if kind else nn.Parameter())
net = Net()
m = nn.Linear(2, 2)
s = nn.Sequential(m, nn.Tanh())
"""

PROGRAMS = {
    "constructors and calls": """
Bare(3)
Bare(a=3)
Bare()(1)
Early(0)
Early(1)
net
m._get_name(), m.extra_repr()
m.call_super_init, m.dump_patches, m._version, m.training
m.compile()
m._call_impl(torch.zeros(2)).shape == m.bias.shape
""",
    "registration": """
m.register_parameter("a.b", None)
m.register_parameter("", None)
m.register_parameter(3, None)
m.register_parameter("forward", None)
m.register_parameter("x", torch.ones(1))
m.register_parameter("x", nn.Parameter(torch.ones(1)) * 2)
m.register_buffer("x", 3)
m.register_buffer("a.b", None)
m.register_buffer(3, None)
m.register_buffer("weight", None)
m.add_module("x", 3)
m.add_module("a.b", None)
m.add_module(3, None)
m.add_module("weight", None)
m.register_module("", None)
setattr(m, "weight", 3)
setattr(m, "weight", torch.ones(2))
setattr(s, "0", 3)
setattr(net, "mean", 3)
setattr(net, "mean", None), list(net.state_dict())
setattr(net, "mean", nn.Parameter(torch.ones(1))), list(net._parameters), list(net._buffers)
setattr(net, "weight", nn.Identity()), list(net._parameters), list(net._modules)
setattr(net, "mean", nn.Identity()), list(net._buffers)
delattr(net, "weight"), setattr(net, "weight", nn.Buffer(torch.ones(1))), list(net._buffers)
list(net._modules)
setattr(net, "mean", nn.Buffer(torch.ones(1), persistent=False)), list(net.state_dict())
sorted(net._non_persistent_buffers_set)
delattr(net, "mean"), list(net._buffers), sorted(net._non_persistent_buffers_set)
delattr(net, "mean")
m.foo
"0" in dir(s), "weight" in dir(m), dir(m) == sorted(dir(m))
""",
    "names": """
[n for n, _ in net.named_parameters()]
[n for n, _ in net.named_parameters("p", recurse=False)]
[n for n, _ in net.named_parameters(remove_duplicate=False)]
[n for n, _ in net.named_buffers("p")]
[n for n, _ in net.named_modules(prefix="p", remove_duplicate=False)]
[n for n, _ in net.named_children()]
len(list(net.modules())), len(list(net.modules(remove_duplicate=False)))
[n for n, _ in net._named_members(lambda m: m._modules.items())]
net.get_parameter("foo")
net.get_parameter("layers.0.foo")
net.get_parameter("layers.9.foo")
net.get_parameter("layers")
net.get_parameter("layers.0.bias") is net.layers[0].bias
net.get_buffer("weight")
net.get_buffer("foo")
net.get_buffer("mean")
net.get_submodule("layers.0.weight")
net.get_submodule("layers.7")
net.get_submodule("") is net
s.set_submodule("", m)
s.set_submodule("0", 3)
s.set_submodule("9", m, strict=True)
s.set_submodule("8.9", m)
s.set_submodule("8", m), s
net.set_submodule("layers.1", nn.Tanh(), strict=True), net
""",
    "modes and conversions": """
m.train(3)
m.requires_grad_(3)
nn.Sequential(Frozen(1, 1), nn.ReLU()).train()[0].training
m.eval().training, m.train().training
m.to(torch.int64)
m.to("cpu", torch.float64, True).weight.dtype == torch.float64
m.to(device="cpu", dtype=torch.float32, non_blocking=True).weight.dtype == torch.float32
m.to(torch.ones(1, dtype=torch.float64)).weight.dtype == torch.float64
m.to(tensor=torch.ones(1)).weight.dtype == torch.float32
m.to(foo=3)
m.to() is m, m.cpu() is m
m.half().bias.dtype == torch.float16, m.bfloat16().bias.dtype == torch.bfloat16
m.float().weight.requires_grad, type(m.double().weight).__name__
m.to_empty(device="cpu").weight.shape == (2, 2)
m.to_empty(device="cpu", recurse=False).weight.requires_grad
m._apply(lambda t: t[:1]).weight.shape == (1, 2)
m.get_extra_state()
m.set_extra_state(1)
""",
    "state": """
m.load_state_dict(3)
m.load_state_dict({}, strict=False)
m.load_state_dict({"weight": torch.ones(2, 2), "bias": torch.ones(2)})
m.load_state_dict({"weight": 3, "bias": torch.ones(2)})
m.state_dict(prefix="a.")["a.bias"].requires_grad, m.state_dict(keep_vars=True)["bias"] is m.bias
dict(net.state_dict()._metadata)
""",
    "parameters": """
nn.Parameter()
nn.Parameter(torch.ones(2, dtype=torch.int64))
nn.Parameter(torch.ones(2, dtype=torch.int64), False)
copy.deepcopy(nn.Parameter(torch.ones(2), requires_grad=False))
nn.Buffer()
type(nn.Buffer()) is torch.Tensor, isinstance(nn.Buffer(), nn.Buffer), nn.Buffer().persistent
isinstance(torch.ones(1), nn.Buffer), isinstance(nn.Buffer(), nn.Parameter)
isinstance(torch.ones(1), nn.Parameter), isinstance(nn.Parameter(), torch.Tensor)
type(nn.Parameter().detach()) is torch.Tensor
nn.UninitializedParameter(), nn.UninitializedBuffer(), copy.deepcopy(nn.UninitializedParameter())
nn.UninitializedParameter().shape
nn.UninitializedParameter() + 1
len(nn.UninitializedBuffer())
nn.UninitializedParameter(dtype=torch.float64).dtype == torch.float64
nn.UninitializedParameter(requires_grad=False).requires_grad
nn.UninitializedParameter().share_memory_()
nn.parameter.is_lazy(nn.UninitializedBuffer()), nn.parameter.is_lazy(nn.Parameter())
isinstance(nn.UninitializedBuffer(), nn.Buffer)
isinstance(nn.UninitializedParameter(), nn.Parameter)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_module(name: str) -> None:
    same_on_torch(SETUP, PROGRAMS[name])


def test_load_state_dict_names_the_same_keys_as_torch() -> None:
    torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
    texts = []
    for lib in (offgrad, torch):
        net = lib.nn.Sequential(lib.nn.Linear(2, 2), lib.nn.Linear(2, 3))
        wrong = {"0.weight": lib.ones(3, 2), "x": lib.ones(1), "1.bias": lib.ones(3)}
        with pytest.raises(RuntimeError) as error:
            net.load_state_dict(wrong)
        texts.append([line.partition(": ")[0] for line in str(error.value).splitlines()])
    assert texts[0] == texts[1]


class Scaled(nn.Parameter):
    scale: int

    def __new__(cls, data: Any, scale: int = 3) -> "Scaled":
        self = super().__new__(cls, data)
        self.scale = scale  # type: ignore[attr-defined]
        return self  # type: ignore[return-value]


class Special(offgrad.Tensor):
    pass


def test_parameters_of_other_classes() -> None:
    assert Scaled(offgrad.ones(1), 5).scale == 5
    assert type(nn.Parameter(Scaled(offgrad.ones(1)))) is Scaled
    assert not isinstance(nn.Parameter(offgrad.ones(1)), Scaled)
    special = nn.Parameter(Special(offgrad.ones(2)))
    assert isinstance(special, Special)
    assert isinstance(special, nn.Parameter)
    module = nn.Module()
    module.special = special
    assert list(module.parameters()) == [special]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_uninitialized_tensors(duplicate: Any) -> None:
    lazy = duplicate(nn.UninitializedParameter(requires_grad=False))
    lazy.to(offgrad.float64).materialize((2, 3))
    assert type(lazy) is nn.Parameter
    assert (lazy.shape, lazy.dtype, lazy.requires_grad) == ((2, 3), offgrad.float64, False)
    buffer = duplicate(nn.UninitializedBuffer(persistent=False))
    buffer.materialize([2], dtype=offgrad.float64)
    assert type(buffer) is offgrad.Tensor
    assert isinstance(buffer, nn.Buffer)
    assert not buffer.persistent


def test_conversion_while_a_graph_is_alive() -> None:
    net = nn.Linear(2, 2)
    loss = net(offgrad.ones(1, 2)).sum()
    net.double()
    net(offgrad.ones(1, 2, dtype=offgrad.float64)).sum().backward()
    assert net.weight.grad is not None
    assert net.weight.grad.dtype == offgrad.float64
    assert loss.requires_grad


def test_conversions_that_make_new_parameters() -> None:
    future = offgrad.__future__
    net = nn.Linear(2, 2)
    net(offgrad.ones(1, 2)).sum().backward()
    weight = net.weight
    assert not future.get_overwrite_module_params_on_conversion()
    assert not future.get_swap_module_params_on_conversion()
    future.set_overwrite_module_params_on_conversion(True)
    try:
        net.double()
    finally:
        future.set_overwrite_module_params_on_conversion(False)
    assert net.weight is not weight
    assert weight.dtype == offgrad.float32
    assert net.weight.dtype == net.weight.grad.dtype == offgrad.float64  # type: ignore[union-attr]
    assert net.weight.is_leaf
