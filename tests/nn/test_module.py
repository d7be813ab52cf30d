"""Module: registration, names, state, modes, copies."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.body = nn.Sequential(nn.GELU(), nn.LayerNorm(4))
        self.blocks = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Dropout(0.5)])
        self.scale = nn.Parameter(offgrad.ones(1))
        self.register_buffer("steps", offgrad.zeros(1))
        self.register_buffer("scratch", offgrad.zeros(2), persistent=False)
        self.note = "plain"

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(self.first(x))
        for block in self.blocks:
            x = block(x)
        return x * self.scale


NAMES = ["scale", "first.weight", "first.bias", "body.1.weight", "body.1.bias", "blocks.0.weight"]


def test_names_and_order() -> None:
    net = Net()
    assert [name for name, _ in net.named_parameters()] == NAMES
    assert [name for name, _ in net.named_parameters(recurse=False)] == ["scale"]
    assert [name for name, _ in net.named_modules()] == [
        "", "first", "body", "body.0", "body.1", "blocks", "blocks.0", "blocks.1"
    ]  # fmt: skip
    assert [name for name, _ in net.named_children()] == ["first", "body", "blocks"]
    assert [name for name, _ in net.named_buffers()] == ["steps", "scratch"]
    assert len(list(net.modules())) == 8
    assert net.get_submodule("body.1") is net.body[1]
    with pytest.raises(AttributeError, match=r"body\.7"):
        net.get_submodule("body.7")


def test_shared_parameters_and_modules_count_once() -> None:
    net = nn.Module()
    net.a = nn.Linear(2, 2, bias=False)
    net.b = net.a
    net.c = nn.Linear(2, 2, bias=False)
    net.c.weight = net.a.weight
    assert [name for name, _ in net.named_parameters()] == ["a.weight"]
    assert [name for name, _ in net.named_modules()] == ["", "a", "c"]
    assert set(net.state_dict()) == {"a.weight", "b.weight", "c.weight"}


def test_setting_replacing_and_deleting() -> None:
    net = Net()
    net.scale = nn.Parameter(offgrad.zeros(2))
    assert net.scale.tolist() == [0, 0]
    net.scale = None  # type: ignore[assignment]
    assert "scale" not in dict(net.named_parameters())
    with pytest.raises(TypeError, match=r"'first'.*Module"):
        net.first = 3  # type: ignore[assignment]
    with pytest.raises(TypeError, match="Parameter"):
        Net().scale = offgrad.ones(1)  # type: ignore[assignment]
    del net.first
    assert not hasattr(net, "first")
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'first'"):
        net.first
    net.note = "changed"
    net.steps = offgrad.ones(1)
    assert dict(net.named_buffers())["steps"].item() == 1


def test_registration_errors() -> None:
    net = Net()
    with pytest.raises(KeyError, match=r'"\."'):
        net.register_parameter("a.b", None)
    with pytest.raises(KeyError, match="already"):
        net.register_buffer("note", offgrad.ones(1))
    with pytest.raises(TypeError, match="Parameter"):
        net.register_parameter("weight", offgrad.ones(1))  # type: ignore[arg-type]

    class Early(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match=r"super\(\)\.__init__\(\)"):
        Early()


def test_state_dict_round_trip() -> None:
    source, target = Net(), Net()
    state = source.state_dict()
    assert list(state) == ["scale", "steps", *NAMES[1:]]
    assert not any(each.requires_grad for each in state.values())
    assert np.may_share_memory(state["scale"]._array, source.scale._array)
    report = target.load_state_dict(state)
    assert repr(report) == "<All keys matched successfully>"
    x = offgrad.randn(5, 3)
    np.testing.assert_array_equal(
        source.eval()(x).detach().numpy(), target.eval()(x).detach().numpy()
    )
    for mine, theirs in zip(source.parameters(), target.parameters(), strict=True):
        assert not np.may_share_memory(mine._array, theirs._array)
        assert theirs.requires_grad


def test_load_state_dict_changes_nothing_when_it_fails() -> None:
    net = Net()
    state = {name: value.clone() * 0 + 7 for name, value in net.state_dict().items()}
    before = net.first.bias.detach().clone()
    wrong = dict(state)
    del wrong["scale"]
    wrong["extra"] = offgrad.ones(1)
    wrong["blocks.0.weight"] = offgrad.ones(2, 2)
    with pytest.raises(RuntimeError, match=r"(?s)Missing.*scale.*Unexpected.*extra.*blocks\.0"):
        net.load_state_dict(wrong)
    assert net.first.bias.equal(before)
    del wrong["blocks.0.weight"]
    missing, unexpected = net.load_state_dict(wrong, strict=False)
    assert (missing, unexpected) == (["scale", "blocks.0.weight"], ["extra"])
    assert net.first.bias.tolist() == [7] * 4
    arrays = {name: value.numpy() for name, value in state.items()}
    with pytest.raises(
        RuntimeError, match=r"\"scale\": expected .* but received <class 'numpy.ndarray'>"
    ):
        net.load_state_dict(arrays)


def test_loading_counts_as_a_change() -> None:
    net = nn.Linear(2, 2)
    loss = net(offgrad.ones(1, 2).requires_grad_()).sum()
    net.load_state_dict(net.state_dict())
    with pytest.raises(RuntimeError, match="in place"):
        loss.backward()


def test_modes() -> None:
    net = Net()
    assert all(module.training for module in net.modules())
    assert net.eval() is net
    assert not any(module.training for module in net.modules())
    x = offgrad.ones(4, 3)
    assert net(x).equal(net(x))
    net.train()
    assert not net(x).equal(net(x))


def test_requires_grad_and_zero_grad() -> None:
    net = Net()
    net.first.requires_grad_(False)
    net(offgrad.ones(2, 3)).sum().backward()
    assert net.first.weight.grad is None
    assert net.scale.grad is not None
    net.zero_grad(set_to_none=False)
    assert net.scale.grad.tolist() == [0]
    net.zero_grad()
    assert net.scale.grad is None


def test_conversion_keeps_the_parameters() -> None:
    net = Net()
    parameters = list(net.parameters())
    assert net.double() is net
    assert all(a is b for a, b in zip(parameters, net.parameters(), strict=True))
    assert {each.dtype for each in net.parameters()} == {offgrad.float64}
    assert net.steps.dtype == offgrad.float64
    net(offgrad.ones(1, 3, dtype=offgrad.float64)).sum().backward()
    assert net.to("cpu") is net
    assert net.float().scale.grad.dtype == offgrad.float32  # type: ignore[union-attr]


def test_apply_visits_children_first() -> None:
    seen: list[str] = []
    Net().apply(lambda module: seen.append(type(module).__name__))
    assert seen == [
        "Linear", "GELU", "LayerNorm", "Sequential", "Linear", "Dropout", "ModuleList", "Net"
    ]  # fmt: skip


def _same(a: nn.Module, b: nn.Module) -> None:
    for (name, mine), (other, theirs) in zip(
        a.named_parameters(), b.named_parameters(), strict=True
    ):
        assert name == other
        assert mine.equal(theirs)
        assert isinstance(theirs, nn.Parameter)
        assert theirs.requires_grad == mine.requires_grad
        assert not np.may_share_memory(mine._array, theirs._array)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies(duplicate: Any) -> None:
    net = Net().eval()
    net.first.weight.requires_grad_(False)
    twin = duplicate(net)
    _same(net, twin)
    x = offgrad.ones(2, 3)
    assert net(x).equal(twin(x))
    with offgrad.no_grad():
        twin.scale.add_(1)
    assert net.scale.item() == 1
    twin(x).sum().backward()
    assert net.scale.grad is None


def test_deepcopy_keeps_sharing_and_gradients() -> None:
    net = nn.Module()
    net.a = nn.Linear(2, 2)
    net.b = net.a
    net.weight = net.a.weight
    (net.a.weight * 2).sum().backward()
    twin = copy.deepcopy(net)
    assert twin.b is twin.a
    assert twin.weight is twin.a.weight
    assert twin.weight.grad.tolist() == [[2, 2], [2, 2]]
    assert twin.weight.grad is not net.a.weight.grad


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex128", "int64", "bool"])
def test_copies_of_tensors(duplicate: Any, dtype: str) -> None:
    x = offgrad.tensor([[0, 1], [2, 3]]).to(getattr(offgrad, dtype)).T
    twin = duplicate(x)
    assert twin.dtype == x.dtype
    assert twin.tolist() == x.tolist()
    assert not np.may_share_memory(twin._array, x._array)
    scalar = duplicate(offgrad.tensor(2.0, requires_grad=True))
    assert scalar.requires_grad
    assert scalar.shape == ()
    if duplicate is copy.deepcopy:
        with pytest.raises(RuntimeError, match=r"created explicitly.*detach\(\)"):
            duplicate(scalar * 2)
    else:
        assert duplicate(scalar * 2).is_leaf


def test_containers() -> None:
    layers = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert len(layers) == 3
    assert layers[-1] is layers[2]
    assert isinstance(layers[:2], nn.Sequential)
    assert [type(each).__name__ for each in layers[1:]] == ["ReLU", "Linear"]
    layers[1] = nn.Tanh()
    assert isinstance(layers[1], nn.Tanh)
    with pytest.raises(IndexError):
        layers[3]
    named = nn.Sequential({"a": nn.Identity(), "b": nn.SiLU()})
    assert [name for name, _ in named.named_children()] == ["a", "b"]
    table = nn.ModuleDict({"x": nn.Identity()})
    table["y"] = nn.Linear(1, 1)
    assert list(table) == ["x", "y"]
    assert "y" in table
    assert [name for name, _ in table.named_parameters()] == ["y.weight", "y.bias"]
    with pytest.raises(NotImplementedError, match="ModuleList"):
        nn.ModuleList([nn.Identity()])(1)
    assert len(nn.ModuleList().append(nn.Identity()).extend([nn.Identity()])) == 2


def test_repr() -> None:
    text = repr(Net())
    assert "(first): Linear(in_features=3, out_features=4, bias=True)" in text
    assert "(1): Dropout(p=0.5, inplace=False)" in text
    assert repr(nn.GELU()) == "GELU(approximate='none')"


def test_module_without_forward() -> None:
    with pytest.raises((NotImplementedError, AttributeError), match="forward"):
        nn.Module()(1)


def test_a_plain_attribute_may_become_a_module_or_a_parameter() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer: nn.Module | None = None
            self.scale: Any = 1.0
            self.layer = nn.Linear(2, 3)
            self.scale = nn.Parameter(offgrad.ones(3))

    late = Late()
    assert late.layer is late._modules["layer"]
    assert [name for name, _ in late.named_parameters()] == ["scale", "layer.weight", "layer.bias"]
    assert not {"layer", "scale"} & set(vars(late))


def test_a_class_may_register_buffers_without_an_option() -> None:
    class Old(nn.Module):
        def register_buffer(self, name: str, value: Any) -> None:  # type: ignore[override]
            super().register_buffer(name, value)

    module = Old()
    module.bar = nn.Buffer(offgrad.ones(2))
    assert [*dict(module.named_buffers())] == ["bar"]
    with pytest.raises(RuntimeError, match="no argument persistent"):
        module.baz = nn.Buffer(offgrad.ones(2), persistent=False)


def test_a_handle_has_the_hooks() -> None:
    module = nn.Linear(1, 1)
    handle = module.register_forward_hook(print)
    hooks = handle.hooks_dict_ref()
    assert hooks is not None
    assert hooks[handle.id] is print
