"""offgrad.func: results and errors are torch's."""

import pytest

import offgrad
from offgrad import func
from tests.nn.programs import same_on_torch

SETUP = """
F = torch.func
if torch.__name__ == "torch":
    import torch.func as F
from collections import namedtuple
Pair = namedtuple("Pair", "a b")
x = torch.tensor([1.0, 2.0])
xr = torch.tensor([1.0, 2.0], requires_grad=True)
w = torch.ones(2, requires_grad=True)
m = torch.arange(6.0).view(3, 2)
def f(x): return (x**3).sum()
def vf(func, *primals): return F.vjp(func, *primals)[1]
def quiet(call):
    with torch.no_grad():
        return call()
models = [nn.Linear(2, 1) for _ in range(3)]
for number, model in enumerate(models):
    model.weight.data.fill_(number)
"""

PROGRAMS = {
    "grad": """
F.grad(f)(x)
F.grad(lambda x: x * 2)(x)
F.grad(lambda x: 3)(x)
F.grad(f, argnums=1)(x)
F.grad(f, argnums="a")(x)
F.grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(x, x * 3)
F.grad(lambda a, *, b: (a * b).sum())(x, b=x * 3)
F.grad(lambda d: (d["a"] * d["b"][0]).sum())({"a": x, "b": [x]})
F.grad(lambda p: (p.a * p.b).sum())(Pair(x, x * 2))
F.grad(lambda x: (f(x), {"y": x * 2}), has_aux=True)(x)
F.grad(lambda x: f(x), has_aux=True)(x)
F.grad_and_value(f)(x)
F.grad_and_value(lambda x: (f(x), x * 2), has_aux=True)(x)
F.grad(F.grad(lambda x: x**3))(torch.tensor(2.0))
F.grad(lambda y: (F.grad(f)(y) * y).sum())(x)
F.grad(f)(xr).requires_grad, torch.autograd.grad(F.grad(f)(xr).sum(), xr)
F.grad(lambda x: (x**2 * w).sum())(x).requires_grad
F.grad(lambda x: torch.ones(()))(x)
F.grad(f)(3)
F.grad(f)(torch.tensor([1, 2]))
quiet(lambda: F.grad(f)(xr))
xr.grad, w.grad
""",
    "products": """
F.vjp(lambda x: x**2, x)[0]
vf(lambda x, y: x**2 * y, x, x)(torch.ones(2))
vf(lambda x: x**2, x)(torch.ones(2)), vf(lambda x: x**2, x)(torch.ones(3))
vf(lambda x: {"a": x**2, "b": x}, x)({"a": x, "b": x})
vf(lambda x: {"a": x**2, "b": x}, x)(x)
F.vjp(lambda x: (x * 2, x), x, has_aux=True)[2]
F.jvp(lambda x: x**2, (x,), (x,))
F.jvp(lambda x, y: (x * y, x), (x, x), (x, torch.zeros(2)))
F.jvp(lambda x: x, x, x)
F.jvp(lambda x: x, (x,), (x, x))
F.jvp(lambda x: (x * 2, x), (x,), (x,), has_aux=True)
F.jvp(lambda x: x**2, (x,), (torch.ones(3),))
F.grad(lambda x: F.jvp(torch.exp, (x,), (x,))[1].sum())(x)
F.linearize(lambda x: x**2, x)[0], F.linearize(lambda x: x**2, x)[1](x)
""",
    "jacobians": """
F.jacrev(lambda x: x**2)(x), F.jacfwd(lambda x: x**2)(x)
F.hessian(f)(x), F.jacrev(F.jacrev(f))(x)
F.jacrev(lambda x, y: (x * y, {"s": x.sum()}), argnums=(0, 1))(x, x)
F.jacrev(lambda x: (x**2, x * 3), has_aux=True)(x)
F.jacfwd(lambda x: (x**2, x * 3), has_aux=True)(x)
F.jacrev(lambda x: x**2, chunk_size=1)(x), F.jacfwd(lambda x: x**2, randomness="same")(x)
F.hessian(lambda x, y: (x * y).sum(), argnums=(0, 1))(x, x)
F.vmap(F.jacrev(lambda x: x**2))(m)
""",
    "vmap": """
torch.vmap(lambda x: x * 2)(x)
F.vmap(torch.dot)(m, m), F.vmap(torch.dot, in_dims=(0, None))(m, torch.ones(2))
F.vmap(lambda x: x.sum(), in_dims=1)(m), F.vmap(lambda x: x.sum(), in_dims=-1)(m)
F.vmap(lambda x: (x, x.sum()), out_dims=(1, 0))(m)
F.vmap(lambda d: d["a"])({"a": x}), F.vmap(lambda d: d["a"], in_dims=({"a": 0},))({"a": x})
F.vmap(lambda x, *, k: x * k)(m, k=torch.arange(2.0))
F.vmap(torch.add)(torch.ones(3), torch.ones(2))
F.vmap(lambda x: 3)(x)
F.vmap(lambda x: x)(torch.ones(()))
F.vmap(lambda x: x, in_dims=None)(x)
F.vmap(lambda x: x)()
F.vmap(lambda x: x, in_dims=(0, 0))(x)
F.vmap(lambda x: x, in_dims=3)(x)
F.vmap(lambda x, y: x)(x, 3)
F.vmap(lambda x, y: x * y, in_dims=(0, None))(x, 3)
F.vmap(lambda x: x, out_dims=5)(x)
F.vmap(lambda x: x, out_dims=(0, 0))(x)
F.vmap(lambda x: x + torch.rand(()))(x)
F.vmap(lambda x: x * 0 + torch.rand(()), randomness="same")(torch.ones(4)).unique().shape == (1,)
F.vmap(lambda x: torch.rand(()), randomness="different")(torch.ones(4)).unique().shape == (4,)
F.vmap(lambda x: x, randomness="q")(x)
F.vmap(lambda x: x * 2, chunk_size=1)(x)
F.vmap(F.grad(f))(m), F.grad(lambda x: F.vmap(f)(x).sum())(m)
F.vmap(F.vmap(lambda x: x * 2))(m)
""",
    "modules": """
[(k, tuple(v.shape), v.is_leaf) for k, v in F.stack_module_state(models)[0].items()]
F.stack_module_state(models)[0]["weight"], F.stack_module_state(models)[1]
{k: tuple(v.shape) for k, v in F.stack_module_state([nn.BatchNorm1d(2)] * 2)[1].items()}
F.stack_module_state([])
F.stack_module_state([nn.Linear(2, 1), nn.ReLU()])
F.stack_module_state([nn.Linear(2, 1), nn.Linear(2, 1).eval()])
F.functional_call(models[2], ({"weight": x.view(1, 2)}, {"bias": x[:1]}), x)
F.functional_call(models[2], ({"weight": x.view(1, 2)}, {"weight": x[:1]}), x)
F.functional_call(models[2], {"weight": x.view(1, 2), "bias": x[:1]}, (x,), strict=True)
F.replace_all_batch_norm_modules_(nn.Sequential(nn.BatchNorm1d(2)))
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_func(name: str) -> None:
    same_on_torch(SETUP, PROGRAMS[name])


def test_gradients_of_each_sample() -> None:
    layer = offgrad.nn.Linear(3, 2)
    state = {name: each.detach() for name, each in layer.named_parameters()}
    x, target = offgrad.randn(4, 3), offgrad.tensor([0, 1, 1, 0])

    def loss(state: object, x: offgrad.Tensor, target: offgrad.Tensor) -> offgrad.Tensor:
        out = func.functional_call(layer, state, x.unsqueeze(0))
        return offgrad.nn.functional.cross_entropy(out, target.unsqueeze(0))

    found = func.vmap(func.grad(loss), in_dims=(None, 0, 0))(state, x, target)
    assert found["weight"].shape == (4, 2, 3)
    for number in range(4):
        layer.zero_grad()
        out = layer(x[number : number + 1])
        offgrad.nn.functional.cross_entropy(out, target[number : number + 1]).backward()
        assert layer.weight.grad is not None
        assert found["weight"][number].allclose(layer.weight.grad, atol=1e-6)
