"""`no_grad` ends gradients, not tangents."""

import copy
import gc
import weakref
from typing import Any

import pytest

import offgrad as og
from offgrad.autograd import forward_ad
from offgrad.func import jvp
from tests.nn.programs import same_on_torch

SETUP = """
F = torch.func
if torch.__name__ == "torch":
    import torch.func as F
import torch.autograd.forward_ad as fw
x, t = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.5])
m = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
for p in m.parameters(): p.data.fill_(0.3)
def quiet(f):
    def run(*args):
        with torch.no_grad(): return f(*args)
    return run
def filled(x):
    with torch.no_grad():
        y = torch.zeros(2)
        y.copy_(x * 3)
        y[1:].mul_(x[1])
        y += x
    return y
def tangent(f, x=x, t=t):
    with fw.dual_level():
        return fw.unpack_dual(f(fw.make_dual(x, t))).tangent
def reverse(f):
    with fw.dual_level():
        y = x.clone().requires_grad_()
        d = fw.make_dual(y, t)
        g, = torch.autograd.grad(f(d), y)
        return fw.unpack_dual(g).tangent
def trained(f):
    m.zero_grad()
    (f(x)[0].sum() + f(x)[1].sum()).backward()
    return [p.grad for p in m.parameters()]
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return 2 * x
    @staticmethod
    def backward(ctx, grad): return 2 * grad
    @staticmethod
    def jvp(ctx, t): return 2 * t
w = torch.tensor(2.0, requires_grad=True)
c = torch.tensor(3.0)
one = torch.tensor(1.0)
def of_w(x):
    b = x * w
    return quiet(lambda: b * b)() * w
def partly(x): return quiet(lambda: x**2)() * x
def doubled(x):
    y = x * 1
    quiet(lambda: y.mul_(2))()
    return (y**2).sum()
def inner(x): return (quiet(lambda: F.grad(lambda x: (x**3).sum())(x))() * x).sum()
def changed_input(x):
    quiet(lambda: x.mul_(2))()
    return x * 1
def changed_in_steps(x):
    x *= 2
    x[0] = 2.0
    x += 1
    return x * x
def hooked(x):
    y = x * x
    if y.requires_grad: y.register_hook(lambda grad: grad * 3)
    return (y * y).sum()
def kept_history():
    v = torch.ones(2, requires_grad=True)
    with fw.dual_level():
        y = quiet(lambda: fw.make_dual(x, t) * 2)()
        y.mul_(v)
    y.sum().backward()
    return v.grad
def weight_grad(f):
    w.grad = None
    f().sum().backward()
    return w.grad
def dual_grads():
    with fw.dual_level():
        d = fw.make_dual(c, one).requires_grad_()
        g, = torch.autograd.grad((d.sin() * d).sum(), d)
        h, = torch.autograd.grad((m(fw.make_dual(x, t)) ** 2).sum(), m[0].bias)
        return fw.unpack_dual(g).tangent.detach(), fw.unpack_dual(h).tangent.detach()
def after_backward():
    with fw.dual_level():
        y = (fw.make_dual(c, one) * w).sin() * w
        y.backward()
        return fw.unpack_dual(y).tangent.detach()
def of_a_dual(f):
    with fw.dual_level():
        return fw.unpack_dual(f(fw.make_dual(c, one))).tangent.detach()
def left_behind():
    kept = []
    def f(x):
        quiet(lambda: kept.append(x.norm()))()
        return x * 2
    F.jvp(f, (x,), (t,))
    return kept[0].requires_grad
def in_inference(f):
    with torch.inference_mode(): return f(torch.tensor(3.0))
def trained_inner(p=torch.tensor([1.0, 2.0])):
    for _ in range(3):
        p = p - 0.1 * F.grad(lambda p: F.grad(lambda x: (p * x).sin().sum())(x).sum())(p)
    return p, p.requires_grad
"""
SETUP = SETUP.replace("import torch.autograd.forward_ad as fw", "fw = torch.autograd.forward_ad")

PROGRAMS = """
F.jvp(hooked, (c,), (one,)), F.jacfwd(hooked)(c), F.hessian(hooked)(c), tangent(hooked)
kept_history()
weight_grad(lambda: F.jvp(of_w, (c,), (one,))[1]), F.jacrev(F.jacfwd(partly))(c)
F.grad(lambda v: F.jvp(partly, (c,), (v,))[1])(one), F.jacfwd(F.jacrev(F.jacfwd(partly)))(c)
F.grad(doubled)(c), F.jacfwd(F.grad(doubled))(c), F.hessian(doubled)(c), F.hessian(inner)(c)
F.jvp(F.grad(inner), (c,), (one,))
F.jvp(changed_input, (torch.tensor(3.0),), (one.clone(),))
F.jacfwd(changed_input)(torch.tensor(3.0))
F.jvp(changed_in_steps, (torch.tensor([3.0, 4.0]),), (t.clone(),))
dual_grads(), after_backward(), left_behind(), trained_inner()
of_a_dual(F.grad(torch.sin)), of_a_dual(F.jacrev(torch.sin))
in_inference(F.grad(lambda x: x**2)), in_inference(F.jacrev(torch.sin))
in_inference(F.hessian(torch.sin)), in_inference(lambda x: F.vmap(F.grad(torch.sin))(x[None]))
in_inference(lambda x: F.jvp(torch.sin, (x,), (x,)))
F.jvp(quiet(torch.sin), (x,), (t,)), F.jvp(lambda x: quiet(torch.sin)(x) * x, (x,), (t,))
F.jacfwd(lambda x: quiet(torch.sin)(x) * x)(x), F.jacfwd(quiet(torch.sin))(x)
quiet(lambda: F.jvp(torch.sin, (x,), (t,)))(), quiet(lambda: F.jacfwd(torch.sin)(x))()
quiet(lambda: F.jvp(lambda y: F.jvp(torch.sin, (y,), (t,))[1], (x,), (t,)))()
F.jvp(quiet(lambda y: F.jvp(torch.sin, (y,), (t,))[1]), (x,), (t,))
F.grad(lambda x: F.jvp(quiet(torch.sin), (x,), (t,))[1].sum())(x)
F.grad(lambda x: (quiet(lambda: F.jvp(torch.sin, (x,), (t,))[1])() * x).sum())(x)
F.jvp(filled, (x,), (t,)), F.jacfwd(filled)(x), tangent(filled), tangent(quiet(torch.exp))
tangent(lambda d: quiet(lambda y: y.mul_(d))(d * 2)), tangent(quiet(Twice.apply))
tangent(lambda d: d.detach() * d), quiet(lambda: tangent(lambda d: d * d))()
reverse(lambda d: (d**3).sum()), reverse(lambda d: m(d).sum())
F.jvp(quiet(m), (x,), (t,)), trained(lambda x: F.jvp(m, (x,), (t,)))
trained(lambda x: F.jvp(lambda y: m(y) * quiet(m)(y), (x,), (t,)))
[p.requires_grad for p in m.parameters()], [p.is_leaf for p in m.parameters()]
"""


def test_programs() -> None:
    same_on_torch(SETUP, PROGRAMS)


def test_gradients_do_not_pass() -> None:
    x = og.tensor([1.0, 2.0], requires_grad=True)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, og.ones(2))
        with og.no_grad():
            held = dual * 3
        (grad,) = og.autograd.grad((held * dual).sum(), x)
        assert forward_ad.unpack_dual(grad).primal.tolist() == [3, 6]


def test_what_a_level_changed_has_no_history_afterwards() -> None:
    norm = og.nn.BatchNorm1d(2)
    total = og.zeros(2)

    def function(x: Any) -> Any:
        with og.no_grad():
            total.add_(x.sum(0))
            return norm(x)

    x = og.randn(4, 2)
    jvp(function, (x,), (x,))
    for each in (total, norm.running_mean, norm.running_var):
        assert each is not None
        assert not each.requires_grad
        assert each.grad_fn is None
    copy.deepcopy(norm)


def test_a_level_keeps_no_memory() -> None:
    def function(x: Any) -> Any:
        with og.no_grad():
            y = x.exp()
            held.append(weakref.ref(y))
            return y * 2

    held: list[Any] = []
    jvp(function, (og.ones(3),), (og.ones(3),))
    gc.collect()
    assert held[0]() is None


def test_an_error_ends_the_level() -> None:
    with pytest.raises(ZeroDivisionError):
        jvp(lambda x: x / (1 // 0), (og.ones(2),), (og.ones(2),))
    x = og.ones(2, requires_grad=True)
    with og.no_grad():
        assert not (x * 2).requires_grad
