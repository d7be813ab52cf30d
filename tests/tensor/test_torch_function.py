"""``__torch_function__`` of subclasses, other classes and modes, against torch.

The programs run in processes of their own: the first subclass changes what all functions do.
"""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import offgrad

PROGRAM = """
import copy, importlib, pickle, sys
torch = importlib.import_module(sys.argv[1])
F = torch.nn.functional

def show(name, run):
    try:
        result = run()
    except Exception as error:
        result = type(error).__name__
    if isinstance(result, torch.Tensor):
        node = result.grad_fn and result.grad_fn.name()
        result = type(result).__name__, node, tuple(result.shape), result.tolist()
    print(name, repr(result))

# A class that is no tensor, before any subclass

class Diagonal:
    def __init__(self, n, value):
        self.n, self.value = n, value
    def __repr__(self):
        return f"Diagonal(n={self.n}, value={self.value})"
    def tensor(self):
        return self.value * torch.eye(self.n)
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in HANDLED or not all(issubclass(t, (torch.Tensor, Diagonal)) for t in types):
            return NotImplemented
        return HANDLED[func](*args, **(kwargs or {}))

HANDLED = {}
def implements(*functions):
    def register(f):
        HANDLED.update(dict.fromkeys(functions, f))
        return f
    return register

def ensure(x):
    return x.tensor() if isinstance(x, Diagonal) else x

@implements(torch.mean)
def mean(x, *args, **kwargs):
    return float(x.value) / x.n
@implements(torch.add, torch.Tensor.add)
def add(a, b, *args, **kwargs):
    if isinstance(a, Diagonal) and isinstance(b, Diagonal):
        return Diagonal(a.n, a.value + b.value)
    return torch.add(ensure(a), ensure(b))
@implements(F.relu, torch.relu)
def relu(x, *args, **kwargs):
    return Diagonal(x.n, max(x.value, 0))

d = Diagonal(2, -3)
show("duck mean", lambda: torch.mean(d))
show("duck add", lambda: (torch.add(d, d), torch.add(d, torch.ones(2, 2)).tolist()))
show("tensor + duck", lambda: torch.ones(2, 2) + d)
show("duck unknown", lambda: torch.mul(d, 2))
show("duck relu", lambda: F.relu(d))
show("duck in a list", lambda: torch.cat([torch.ones(2, 2), d]))
show("signature", lambda: "dim" in str(__import__("inspect").signature(F.softmax)))

# Subclasses

class Plain(torch.Tensor):
    pass

class Logging(torch.Tensor):
    calls = []
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Logging.calls.append(getattr(func, "__name__", "?"))
        return super().__torch_function__(func, types, args, kwargs)

class Units(torch.Tensor):
    @staticmethod
    def __new__(cls, x, unit=None, *args, **kwargs):
        return super().__new__(cls, x, *args, **kwargs)
    def __init__(self, x, unit=None):
        self.unit = unit
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, Units):
            result.unit = next((a.unit for a in args if hasattr(a, "unit")), None)
        return result

class Silent(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

plain = torch.arange(6.0).reshape(2, 3)
for kind in (Plain, Silent):
    x = plain.as_subclass(kind)
    show(f"{kind.__name__} arithmetic", lambda: [type(y).__name__ for y in (
        x + 1, 1 + x, plain * x, -x, x @ x.t(), x.sum(), torch.exp(x), F.relu(x), x[0], x.T, x.data,
        x > 1, torch.stack([plain, x]), x.to(torch.float64), x.detach(), x.clone(), x.view(-1),
        torch.zeros_like(x), x.new_zeros(2), F.linear(x, plain), torch.linalg.norm(x), x.add_(0),
        torch.where(x > 0, x, plain), torch.einsum("ij->ji", x), x.max(1).values, *x.split(1), *x,
        torch.nn.Linear(3, 2)(x), x.float(), x.requires_grad_(), x * 2,
    )])
    x = plain.clone().as_subclass(kind).requires_grad_()
    show(f"{kind.__name__} gradient", lambda: [(x * 3).sum().backward(), type(x.grad).__name__][1])
    show(f"{kind.__name__} node", lambda: x * 2)
    show(f"{kind.__name__} values", lambda: (x.shape, x.dtype, len(x), x.tolist(), x.dim()))
    show(f"{kind.__name__} parameter", lambda: [type(y).__name__ for y in (
        torch.nn.Parameter(x.detach()), torch.nn.Parameter(plain) * 2,
        torch.nn.Parameter(plain) * x,
    )])
    show(f"{kind.__name__} tensor()", lambda: type(torch.as_tensor(x)).__name__)

x = plain.as_subclass(Logging)
for name, run in {
    "add": lambda: x + 1, "function": lambda: torch.add(x, 1), "method": lambda: x.mean(dim=1),
    "functional": lambda: F.softmax(x, -1), "in place": lambda: x.mul_(1), "size": lambda: x.size(),
    "several": lambda: torch.cat([plain, x]),
    "nested": lambda: F.cross_entropy(x, torch.tensor([0, 1])),
    "property": lambda: x.T, "radd": lambda: 2 + x, "matmul": lambda: x @ x.t(), "neg": lambda: -x,
    "layer": lambda: torch.nn.Linear(3, 2)(x), "keyword": lambda: torch.sum(input=x),
}.items():
    Logging.calls.clear()
    kind = type(run()).__name__
    print("Logging", name, kind, Logging.calls[:1], len(Logging.calls))

u = Units(torch.ones(2), "m")
show("unit", lambda: ((u * 2).unit, (torch.ones(2) + u).unit, u.sum().unit, type(u[0]).__name__))

class A(Plain):
    pass
show("subclass of both", lambda: [type(y).__name__ for y in (
    plain.as_subclass(A) + plain.as_subclass(Plain),
    plain.as_subclass(Plain) + plain.as_subclass(A),
)])
show("unrelated", lambda: plain.as_subclass(A) + plain.as_subclass(Units))
def disabled():
    with torch._C.DisableTorchFunctionSubclass():
        return type(plain.as_subclass(Plain) + 1).__name__
show("disabled", disabled)
show("make_subclass", lambda: torch.Tensor._make_subclass(Plain, plain, True).requires_grad)
show("as_subclass keeps history", lambda: (plain.clone().requires_grad_() * 2).as_subclass(Plain))
show("isinstance", lambda: (isinstance(x, torch.Tensor), issubclass(Plain, torch.Tensor)))
show("as a tensor again", lambda: type(plain.as_subclass(Plain).as_subclass(torch.Tensor)).__name__)
class Outside(Plain):
    pass
show("bad class", lambda: plain.as_subclass(int))

# Modes and the functions of torch.overrides

from importlib import import_module
overrides = import_module(sys.argv[1] + ".overrides")

class Count(overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = []
    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append(func.__name__)
        return func(*args, **(kwargs or {}))

with Count() as mode:
    y = torch.ones(2, 2)
    y = F.relu(y @ y) + 1
    y.sum()
show("mode", lambda: mode.calls)
show("after", lambda: (type(torch.ones(2) + 1).__name__, len(mode.calls)))

class Replace(overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.sin:
            func = torch.cos
        return func(*args, **(kwargs or {}))
with Replace():
    show("replaced", lambda: torch.sin(torch.zeros(1)))
with Count() as outer, Count() as inner:
    torch.zeros(1).exp()
show("nested modes", lambda: (outer.calls, inner.calls))

show("has", lambda: [overrides.has_torch_function((y,)) for y in (d, plain, x, 1)])
show("like", lambda: [overrides.is_tensor_like(y) for y in (
    d, plain, x, 1, "a", torch.nn.Parameter(plain),
)])
def mine(a, b=2):
    if overrides.has_torch_function((a,)):
        return overrides.handle_torch_function(mine, (a,), a, b=b)
    return b
HANDLED[mine] = lambda a, b: ("handled", b)
show("handle", lambda: (mine(1), mine(d, 3)))
def names_of_indexing():
    Logging.calls.clear()
    logged = torch.ones(2, 2).as_subclass(Logging)
    logged[0, 0] = logged[1][1]
    return [*Logging.calls]
show("names of indexing", names_of_indexing)
show("resolve", lambda: overrides.resolve_name(torch.Tensor.relu_).endswith(".relu_"))
show("overridable", lambda: torch.add in overrides.get_overridable_functions()[torch])
show("testing", lambda: overrides.get_testing_overrides()[torch.add](1, 2))
show("ignored", lambda: torch.tensor in overrides.get_ignored_functions())
show("method", lambda: overrides.is_tensor_method_or_property(torch.Tensor.add))
show("getter", lambda: overrides.is_tensor_method_or_property(torch.Tensor.T.__get__))
show("pickled", lambda: pickle.loads(pickle.dumps(torch.tanh)) is torch.tanh)
"""


@pytest.mark.slow
def test_programs_give_the_same_as_with_torch() -> None:
    pytest.importorskip("torch")
    outputs = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, module],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for module in ("offgrad", "torch")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) > 50


def test_functions_of_pytorch_are_named() -> None:
    torch = pytest.importorskip("torch")
    x, y = offgrad.ones(2), torch.ones(2)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: torch.nn.functional.relu(x),
        lambda: torch.exp(x),
        lambda: torch.stack([x]),
    )
    for call in calls:
        with pytest.raises(TypeError, match="function of PyTorch"):
            call()
    calls = (
        lambda: offgrad.exp(y),
        lambda: offgrad.cat([y]),
        lambda: offgrad.nn.functional.conv2d(y, y),
    )
    for call in calls:
        with pytest.raises(TypeError, match="PyTorch's Tensor"):
            call()
