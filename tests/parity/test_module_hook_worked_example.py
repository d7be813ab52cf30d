"""The specification's worked example of backward hooks of modules, every number as printed.

x1 = 0.3 x + 0.1        f0, a linear layer
y = (0.4 x1 + 0.2)^2    f1, a module of its own, which has the hook
loss = (y - 1)^2        at x = 0.3
"""

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tests.parity.conftest import raises

Hook = Callable[[Any, Any, Any], Any]

PRINTED = """\
y:  tensor([0.0762], grad_fn=<BackwardHookFunctionBackward>)
loss: tensor([0.8535], grad_fn=<PowBackward0>)
SLinear(
  (f): Linear(in_features=1, out_features=1, bias=True)
)
grad_input:  (tensor([-0.4080]),)
grad_output:  (tensor([-1.8476]),)
x.grad:  tensor([-0.1224])
f1 weight:  tensor([0.4000]) bias:  tensor(0.2000) \
f1 weight grad:  tensor([[-0.1938]]) f1 bias grad:  tensor([-1.0199])
f0 weight:  tensor([0.3000]) bias:  tensor(0.1000) \
f1 weight grad:  tensor([[-0.1224]]) f1 bias grad:  tensor([-0.4080])
"""

PRINTED_WITH_DOUBLED_GRADIENTS = """\
y:  tensor([0.0762], grad_fn=<BackwardHookFunctionBackward>)
loss: tensor([0.8535], grad_fn=<PowBackward0>)
SLinear(
  (f): Linear(in_features=1, out_features=1, bias=True)
)
grad_input:  (tensor([-0.4080]),)
grad_output:  (tensor([-1.8476]),)
x.grad:  tensor([-0.2448])
f1 weight:  tensor([0.4000]) bias:  tensor(0.2000) \
f1 weight grad:  tensor([[-0.1938]]) f1 bias grad:  tensor([-1.0199])
f0 weight:  tensor([0.3000]) bias:  tensor(0.1000) \
f1 weight grad:  tensor([[-0.2448]]) f1 bias grad:  tensor([-0.8159])
"""

PRINTED_WITH_THE_OLD_HOOK = """\
y:  tensor([0.0762], grad_fn=<PowBackward0>)
loss: tensor([0.8535], grad_fn=<PowBackward0>)
SLinear(
  (f): Linear(in_features=1, out_features=1, bias=True)
)
grad_input:  (tensor([-1.0199]),)
grad_output:  (tensor([-1.8476]),)
x.grad:  tensor([-0.1224])
f1 weight:  tensor([0.4000]) bias:  tensor(0.2000) \
f1 weight grad:  tensor([[-0.1938]]) f1 bias grad:  tensor([-1.0199])
f0 weight:  tensor([0.3000]) bias:  tensor(0.1000) \
f1 weight grad:  tensor([[-0.1224]]) f1 bias grad:  tensor([-0.4080])
"""


def printing(layer: Any, grad_input: Any, grad_out: Any) -> None:
    print(layer)
    print("grad_input: ", grad_input)
    print("grad_output: ", grad_out)


def doubling(layer: Any, grad_input: Any, grad_out: Any) -> Any:
    printing(layer, grad_input, grad_out)
    return (grad_input[0] * 2,)


def example(lib: Any, register: str | None, hook: Hook = printing) -> Any:
    """Return the example's net, f1 of which has the hook."""

    class SLinear(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.f = lib.nn.Linear(1, 1, bias=True)
            with lib.no_grad():
                self.f.weight[0, 0] = 0.4
                self.f.bias[0] = 0.2

        def forward(self, x: Any) -> Any:
            s = self.f(x)
            return s**2

    class Net(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.f0 = lib.nn.Linear(1, 1, bias=True)
            with lib.no_grad():
                self.f0.weight[0, 0] = 0.3
                self.f0.bias[0] = 0.1
            self.f1 = SLinear()
            if register is not None:
                getattr(self.f1, register)(hook)

        def forward(self, x: Any) -> Any:
            return self.f1(self.f0(x))

    return Net()


def run(lib: Any, net: Any, dtype: Any = None) -> tuple[Any, Any, Any]:
    """Return x, y and the loss after backward."""
    x = lib.tensor([0.3], requires_grad=True, dtype=dtype)
    y = net(x)
    loss = (y - 1) ** 2
    print("y: ", y)
    print("loss:", loss)
    loss.backward()
    return x, y, loss


def report(net: Any, x: Any) -> None:
    f1, f0 = net.f1.f, net.f0
    print("x.grad: ", x.grad)
    for name, layer in (("f1", f1), ("f0", f0)):
        print(
            f"{name} weight: ",
            layer.weight[0].detach(),
            "bias: ",
            layer.bias[0].detach(),
            "f1 weight grad: ",
            layer.weight.grad,
            "f1 bias grad: ",
            layer.bias.grad,
        )


def rounded(*tensors: Any) -> list[float]:
    """Return the values of tensors of one element, with the four decimals that are printed."""
    return [round(each.item(), 4) for each in tensors]


def gradients(net: Any, x: Any) -> list[float]:
    """Return the gradients of x, of f1's weight and bias, of f0's weight and bias."""
    f1, f0 = net.f1.f, net.f0
    return rounded(x.grad, f1.weight.grad, f1.bias.grad, f0.weight.grad, f0.bias.grad)


# Its output.


def test_the_output_of_the_full_hook(lib: Any, capsys: pytest.CaptureFixture[str]) -> None:
    net = example(lib, "register_full_backward_hook")
    x, _, _ = run(lib, net)
    report(net, x)
    assert capsys.readouterr().out == PRINTED


def test_the_output_of_doubled_gradients(lib: Any, capsys: pytest.CaptureFixture[str]) -> None:
    net = example(lib, "register_full_backward_hook", doubling)
    x, _, _ = run(lib, net)
    report(net, x)
    assert capsys.readouterr().out == PRINTED_WITH_DOUBLED_GRADIENTS


def test_the_output_of_the_legacy_hook(lib: Any, capsys: pytest.CaptureFixture[str]) -> None:
    net = example(lib, "register_backward_hook")
    with pytest.warns(FutureWarning, match="register_full_backward_hook") as warned:
        x, _, _ = run(lib, net)
    report(net, x)
    assert capsys.readouterr().out == PRINTED_WITH_THE_OLD_HOOK
    assert len(warned) == 1


# The numbers.


def test_forward(lib: Any) -> None:
    x, y, loss = run(lib, example(lib, None))
    assert rounded(y, loss) == [0.0762, 0.8535]
    assert y.shape == loss.shape == x.shape == (1,)
    assert y.dtype == lib.float32


def test_the_derivation_to_all_its_decimals(lib: Any) -> None:
    net = example(lib, "register_full_backward_hook").double()
    with lib.no_grad():
        for layer, weight, bias in ((net.f0, 0.3, 0.1), (net.f1.f, 0.4, 0.2)):
            layer.weight.fill_(weight)
            layer.bias.fill_(bias)
    found: Any = []
    net.f1.register_full_backward_hook(lambda _, i, o: found.extend([i[0].item(), o[0].item()]))
    x, y, loss = run(lib, net, lib.float64)
    assert y.item() == pytest.approx(0.076176, abs=1e-12)
    assert loss.item() == pytest.approx(0.85345, abs=5e-6)
    assert found[0] == pytest.approx(-0.40796, abs=1e-6)
    assert found[1] == pytest.approx(-1.847648, abs=1e-12)
    assert x.grad.item() == pytest.approx(-0.12238, abs=1e-5)
    assert net.f0.weight.grad.item() == pytest.approx(-0.12238, abs=1e-5)
    assert net.f0.bias.grad.item() == pytest.approx(-0.40796, abs=1e-6)


def test_without_a_hook(lib: Any) -> None:
    net = example(lib, None)
    x, y, _ = run(lib, net)
    assert gradients(net, x) == [-0.1224, -0.1938, -1.0199, -0.1224, -0.4080]
    assert y.grad_fn.name() == "PowBackward0"


def test_the_full_hook(lib: Any) -> None:
    found: Any = []
    net = example(lib, "register_full_backward_hook", lambda *args: found.extend(args))
    x, y, _ = run(lib, net)
    layer, grad_input, grad_output = found
    assert layer is net.f1
    assert len(grad_input) == len(grad_output) == 1
    assert rounded(*grad_input, *grad_output) == [-0.4080, -1.8476]
    assert gradients(net, x) == [-0.1224, -0.1938, -1.0199, -0.1224, -0.4080]
    assert y.grad_fn.name() == "BackwardHookFunctionBackward"


def test_doubled_gradients(lib: Any) -> None:
    """Gradients before f1 double, gradients in it stay."""
    found: Any = []

    def hook(_: Any, grad_input: Any, grad_output: Any) -> Any:
        found.extend(grad_input + grad_output)
        return (grad_input[0] * 2,)

    net = example(lib, "register_full_backward_hook", hook)
    x, _, _ = run(lib, net)
    assert rounded(*found) == [-0.4080, -1.8476]
    assert gradients(net, x) == [-0.2448, -0.1938, -1.0199, -0.2448, -0.8159]


def test_the_old_hook(lib: Any) -> None:
    """Its grad_input is the gradient of s, the input of the square, not that of x1."""
    found: Any = []
    net = example(lib, "register_backward_hook", lambda *args: found.extend(args))
    with pytest.warns(FutureWarning, match="register_full_backward_hook"):
        x, y, _ = run(lib, net)
    layer, grad_input, grad_output = found
    assert layer is net.f1
    assert rounded(*grad_input, *grad_output) == [-1.0199, -1.8476]
    assert gradients(net, x) == [-0.1224, -0.1938, -1.0199, -0.1224, -0.4080]
    assert y.grad_fn.name() == "PowBackward0"


def test_doubled_gradients_of_the_old_hook(lib: Any) -> None:
    """Gradients in f1 double as well."""
    net = example(lib, "register_backward_hook", doubling)
    with pytest.warns(FutureWarning, match="register_full_backward_hook"):
        x, _, _ = run(lib, net)
    assert gradients(net, x) == [-0.2448, -0.3876, -2.0398, -0.2448, -0.8159]


def test_the_old_hook_warns_in_forward(lib: Any) -> None:
    net = example(lib, "register_backward_hook")
    x = lib.tensor([0.3], requires_grad=True)
    with pytest.warns(FutureWarning, match="register_full_backward_hook"):
        y = net(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ((y - 1) ** 2).backward()


def test_full_and_old_hooks_do_not_mix(lib: Any) -> None:
    full = example(lib, "register_full_backward_hook")
    old = example(lib, "register_backward_hook")
    with raises(RuntimeError):
        full.f1.register_backward_hook(printing)
    with raises(RuntimeError):
        old.f1.register_full_backward_hook(printing)


def test_where_x_needs_no_grad(lib: Any) -> None:
    """f0 has weights: the input of f1 needs grad all the same, and nothing changes."""
    found: Any = []
    net = example(lib, "register_full_backward_hook", lambda _, i, o: found.extend(i + o))
    y = net(lib.tensor([0.3]))
    ((y - 1) ** 2).backward()
    assert rounded(*found) == [-0.4080, -1.8476]
    assert rounded(net.f0.weight.grad, net.f0.bias.grad) == [-0.1224, -0.4080]


def test_a_pre_hook_of_the_example(lib: Any) -> None:
    found: Any = []

    def hook(_: Any, grad_output: Any) -> Any:
        found.extend(grad_output)
        return (grad_output[0] * 2,)

    net = example(lib, None)
    net.f1.register_full_backward_pre_hook(hook)
    x, _, _ = run(lib, net)
    assert rounded(*found) == [-1.8476]
    assert gradients(net, x) == [-0.2448, -0.3876, -2.0398, -0.2448, -0.8159]
