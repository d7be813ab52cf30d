"""Lines that PyTorch scripts are full of."""

import pickle
from typing import Any

import pytest

import offgrad as torch
from offgrad import nn
from offgrad.autograd import Function


def test_devices() -> None:
    x = torch.ones(2, device="cpu").to("cpu", torch.float64).to(device="cpu", dtype=torch.float32)
    assert x.device == torch.device("cpu")
    assert str(x.device) == "cpu"
    assert x.dtype == torch.float32
    assert nn.Linear(2, 2).to("cpu").cpu().to(dtype=torch.float64).weight.dtype == torch.float64
    with pytest.raises(AssertionError, match="Torch not compiled with CUDA enabled"):
        x.to("cuda")
    with pytest.raises(AssertionError, match="Torch not compiled with CUDA enabled"):
        torch.zeros(1, device="cuda")
    with pytest.raises(RuntimeError, match="support for mps devices"):
        x.to("mps")


def test_no_grad_without_parentheses() -> None:
    def double(x: Any) -> Any:
        return x * 2

    decorated: Any = torch.no_grad(double)
    assert not decorated(torch.ones(2, requires_grad=True)).requires_grad
    assert torch.is_grad_enabled()


def test_tensor_constructor() -> None:
    assert torch.Tensor([1, 2]).dtype == torch.float32
    assert torch.Tensor(2, 3).shape == (2, 3)


def test_assignment_drops_sizes_of_one_in_front() -> None:
    x = torch.zeros(2, 3)
    x[0] = torch.ones(1, 1, 3)
    assert x.tolist() == [[1, 1, 1], [0, 0, 0]]


def test_clamp_between_tensors() -> None:
    x = torch.tensor([-2.0, 0.5, 2.0], requires_grad=True)
    low = torch.tensor([-1.0, 0.0, 0.0], requires_grad=True)
    x.clamp(low, torch.ones(3)).sum().backward()
    assert x.grad is not None
    assert low.grad is not None
    assert x.grad.tolist() == [0, 1, 0]
    assert low.grad.tolist() == [1, 0, 0]


def test_any_name_may_be_set_on_ctx() -> None:
    class Scale(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.name, ctx.run, ctx.function, ctx.release = "name", 3, None, None
            return x * ctx.run, x * ctx.run

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return (grads[0] + grads[1]) * ctx.run

    x = torch.ones(2, requires_grad=True)
    y, z = Scale.apply(x)
    (y + z).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6, 6]


def test_a_function_may_return_one_tensor_twice() -> None:
    class Twice(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = x * 2
            return y, y

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return (grads[0] + grads[1]) * 2

    x = torch.ones(2, requires_grad=True)
    first, second = Twice.apply(x)
    (first * 3 + second).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [8, 8]


def test_a_reregistered_buffer_is_as_persistent_as_requested() -> None:
    module = nn.Module()
    module.register_buffer("scale", torch.ones(1))
    module.register_buffer("scale", torch.ones(1), persistent=False)
    assert module.state_dict() == {}


def test_state_dicts_pickle() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.GELU())
    state = pickle.loads(pickle.dumps(model.state_dict()))
    other = nn.Sequential(nn.Linear(2, 3), nn.GELU())
    other.load_state_dict(state)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


@pytest.mark.parametrize("where", [torch, nn, nn.functional, torch.optim, torch.ones(1)], ids=str)
def test_missing_names_say_so(where: Any) -> None:
    with pytest.raises(AttributeError, match=r"PyTorch .* has no .*cuda_graph_of_sorts"):
        where.cuda_graph_of_sorts
