"""vmap computes all samples at once, and says so where it cannot."""

import threading
from typing import Any

import pytest

import offgrad as og
from offgrad.func import functional_call, grad, jacfwd, jacrev, stack_module_state, vmap
from tests.nn.programs import same_on_torch

SETUP = """
F = torch.func
if torch.__name__ == "torch":
    import torch.func as F
f = torch.nn.functional
x = torch.arange(12.0).view(3, 4) / 7
k = torch.tensor([2, 0, 1])
b = x > 0.6
w = torch.arange(20.0).view(5, 4) / 9
m = torch.arange(12.0).view(3, 2, 2) / 5
J = torch.autograd.functional.jacobian
def of_pairs(d): return {'a': d['x'].sum() * d['y'], 'b': (d['x'] ** 2, d['y'].sum())}
half = torch.ones(2, dtype=torch.float16)
def shaped(function):
    def run(y):
        y = y * 1
        function(y)
        return y * 2, y.shape
    return F.vmap(lambda y: run(y)[0])(torch.arange(24.0).view(3, 4, 2))
one = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
def changed(function):
    def run(x):
        y = x.clone()
        function(y)
        return y
    return F.vmap(run)(x)
def changed_inputs():
    y = x.clone()
    F.vmap(lambda z: z.mul_(2))(y)
    return y
def put(y, index, value):
    y[index] = value
def in_backward(function):
    found = []
    y = x.clone().requires_grad_()
    z = y * 2
    z.register_hook(lambda grad: found.append(function(grad * y.detach())))
    z.sum().backward()
    return found
def checkpointed(function):
    y = x.clone().requires_grad_()
    torch.utils.checkpoint.checkpoint(function, y, use_reentrant=False).sum().backward()
    return y.grad
class Scale(torch.autograd.Function):
    generate_vmap_rule = False
    @staticmethod
    def forward(x, y): return x * y
    @staticmethod
    def setup_context(ctx, inputs, output): ctx.save_for_backward(*inputs)
    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y, grad * x
    @staticmethod
    def vmap(info, in_dims, x, y):
        x, y = [each if dim is None else each.movedim(dim, 0) for each, dim in zip((x, y), in_dims)]
        while x.dim() < y.dim(): x = x.unsqueeze(-1)
        return Scale.apply(x, y) + 100 * info.batch_size, 0
class Power(torch.autograd.Function):
    @staticmethod
    def forward(x, power=2): return x ** power
    @staticmethod
    def setup_context(ctx, inputs, output): pass
    @staticmethod
    def vmap(info, in_dims, x, power): return Power.apply(x, power) + in_dims[0], in_dims[0]
"""

PROGRAMS = {
    "indices": """
F.vmap(lambda y: y[1])(x), F.vmap(lambda y: y[..., None])(x), F.vmap(lambda y: y[1:3])(x)
F.vmap(lambda y: y[[0, 2]])(x), F.vmap(lambda y: y[k])(x), F.vmap(lambda y: y[None, k])(x)
F.vmap(lambda y, i: y[i])(x, k), F.vmap(lambda i: x[i])(k), F.vmap(lambda i: x[:, i])(k)
F.vmap(lambda i: x[i, 1:])(k), F.vmap(lambda y, i: y.view(2, 2)[:, i % 2])(x, k)
F.vmap(lambda y, i: y.view(2, 2)[i % 2, i % 2])(x, k)
F.vmap(lambda y: y[b[0]])(x).shape
F.vmap(lambda y, i: y.gather(0, i[None]))(x, k), F.vmap(lambda y: y.index_select(0, k))(x)
F.vmap(lambda i: f.embedding(i, w))(k), F.vmap(lambda i: f.one_hot(i, 3))(k)
""",
    "changes": """
changed(lambda y: y.add_(1)), changed(lambda y: y.add_(y[0] * 1)), changed(lambda y: y[0].zero_())
changed(lambda y: put(y, 1, 5.0)), changed(lambda y: put(y, slice(1, 3), y[:2] * 10))
changed(lambda y: put(y, k, y[1:] * 2)), changed(lambda y: y.view(2, 2).t().mul_(y[0] * 1))
changed(lambda y: y.masked_fill_(y > 0.5, -1)), changed(lambda y: y.clamp_(0.2, 0.5))
changed(lambda y: y.copy_(torch.ones(4))), changed(lambda y: y.cumsum_(0))
changed(lambda y: y.scatter_(0, k, y[:3] * 2)), changed(lambda y: y.index_add_(0, k, y[:3] * 1))
changed_inputs()
F.vmap(lambda y: torch.zeros(4).add_(y))(x)
F.vmap(lambda y: y.new_zeros(4).add_(y))(x), F.vmap(lambda y: torch.zeros_like(y).add_(y))(x)
""",
    "dtypes": """
F.vmap(lambda a, y: a * y)(one, x).dtype, F.vmap(lambda a: a * x)(one).dtype
F.vmap(lambda a: a + k)(one).dtype, F.vmap(lambda i: i * 2.5)(k).dtype
F.vmap(lambda i: i + x)(k).dtype
F.vmap(lambda a: a > k)(one).dtype, F.vmap(lambda y: y.sum(dtype=torch.float64))(x).dtype
F.vmap(lambda y: (y.shape, y.ndim, y.dtype, y.numel(), len(y), y.is_floating_point()) and y)(x)
""",
    "samples without dimensions": """
F.vmap(lambda a, b: a + b, (0, None))(half, torch.tensor(1e-4))
F.vmap(lambda a, b: (a * b).sum(), (0, None))(one + 0j, x[0]).dtype
F.vmap(lambda a, b: a - b, (0, None))(k.to(torch.uint8), torch.tensor(1, dtype=torch.int8)).dtype
F.vmap(lambda a, b: torch.fmin(a, b), (0, None))(k.int(), torch.tensor(1)).dtype
F.vmap(lambda y: y.sum() * torch.tensor(2.0, dtype=torch.float64))(x).dtype
F.vmap(lambda a: a.view(1, 1) * 2)(one), F.vmap(lambda a: a.softmax(0) + a.sum(0))(one)
""",
    "shapes": """
shaped(lambda y: y.t_()), shaped(lambda y: y.unsqueeze_(-1)), shaped(lambda y: y.transpose_(0, 1))
shaped(lambda y: y.unsqueeze_(0).squeeze_()), shaped(lambda y: y.swapaxes_(0, 1))
F.vmap(lambda y: y[[[0, 1], [1, 1]]])(m), F.vmap(lambda y: y[[[0, 1]]])(m)
F.vmap(lambda y: y[[torch.tensor(0), torch.tensor(1)]])(m)
F.vmap(lambda y: y.sum(dim=[], keepdim=True))(x), F.vmap(lambda y: y.sum(dim=[]))(x)
F.vmap(lambda y: y.sum())(x[:0]), F.vmap(F.grad(lambda y: (y * y).sum()))(x[:0]).shape
""",
    "compositions": """
F.vmap(torch.inner)(x, x)
F.vmap(torch.inner)(m, m)
F.vmap(lambda a, b: torch.tensordot(a, b, 1))(m, m)
F.vmap(lambda a: torch.vstack([a, a]))(x), F.vmap(lambda a: torch.hsplit(a, 2)[1])(m)
F.vmap(torch.kron)(m, m), F.vmap(lambda a: torch.meshgrid(a, a, indexing="ij")[1])(x)
F.vmap(f.pairwise_distance)(x, x + 1), F.vmap(lambda a: f.cosine_similarity(a, w[0], dim=0))(x)
F.vmap(lambda a: f.prelu(a - 0.5, torch.tensor([0.2])))(x), F.vmap(torch.cdist)(m, m + 1)
F.vmap(lambda a: f.instance_norm(a.view(1, 1, 4)))(x)
F.vmap(lambda a: f.embedding(k, a.view(4, 1)))(x)
F.vmap(lambda a: torch.einsum("...j,...j", a, a))(m)
F.vmap(lambda a: torch.diagonal_scatter(a, a[0]))(m)
F.vmap(lambda a: f.kl_div(a, a, reduction="batchmean"))(m)
F.vmap(lambda a, v: f.l1_loss(a, a * 0, weight=v))(x, x + 1)
F.vmap(lambda a: f.mse_loss(a, w[0]))(x)
F.vmap(lambda a, b: f.margin_ranking_loss(a, b, torch.ones(4)), (0, None))(x, w[0])
F.vmap(lambda a, t: f.cross_entropy(a, t, weight=w[:4, 0]))(x, k)
F.vmap(lambda a, t: f.cross_entropy(a, t, label_smoothing=0.1, ignore_index=1))(x, k)
F.vmap(lambda a: f.cross_entropy(a, a.softmax(0)))(x)
F.vmap(lambda a: f.grid_sample(a.view(1, 1, 2, 2), 0 * m[:1, None, :1], align_corners=False))(x)
F.jacrev(lambda a: a.scatter_reduce(0, k, a * 2, "amax"))(x[0, :3])
F.jacrev(of_pairs)({"x": x[0], "y": w[:2]}), F.jacfwd(of_pairs)({"x": x[0], "y": w[:2]})
F.jacrev(of_pairs, chunk_size=3)({"x": x[0], "y": w[:2]})
F.jacfwd(lambda a, b: (a * 2, b), (0, 1))(x[0], x[0, :0]), F.jacrev(lambda a: a[:0])(x[0]).shape
J(lambda a: f.conv1d(a.view(1, 1, 4), w[:1, None, :2]).tanh(), x[0], vectorize=True)
""",
    "arguments by name": """
F.vmap(lambda y: torch.permute(input=y, dims=(1, 0)))(m), F.vmap(lambda y: y.flip(dims=(0,)))(m)
F.vmap(lambda y: torch.tril(input=y))(m), F.vmap(lambda y: torch.trace(input=y))(m)
F.vmap(lambda y: torch.is_floating_point(input=y) and y)(x), F.vmap(lambda y: y.to(k))(m).dtype
F.vmap(lambda y: torch.vstack(tensors=(y, y)))(x), F.vmap(lambda y: torch.inner(y, other=y))(x)
F.vmap(lambda y: torch.sum(input=y, dim=0))(m)
F.vmap(lambda y: y.masked_fill(mask=y > 1, value=y[0]))(x)
F.vmap(lambda y: f.avg_pool1d(input=y[None], kernel_size=2))(x)
F.vmap(lambda y: y.clone().fill_(y[1]))(x)
""",
    "special cases": """
F.vmap(lambda a, b: torch.zeros_like(a).copy_(b))(one.float(), one)
F.vmap(lambda a: a.clone().add_(torch.tensor(2.0, dtype=torch.float64)))(one.float())
F.vmap(lambda a, b: a * b)(x + 0j, one).dtype
F.vmap(lambda a, b: a * b, (0, None))(one.float(), torch.tensor(1j, dtype=torch.complex128)).dtype
F.vmap(f.embedding)(torch.tensor([[0, 1], [1, 0]]), m[:2])
F.vmap(lambda i: f.embedding(i, -m[0]))(k[:, None] % 2)
F.vmap(F.grad(torch.median))(torch.ones(2, 3)), F.vmap(F.grad(torch.median))(x)
F.vmap(lambda y: y.t())(x.view(1, 3, 2, 2)), F.vmap(lambda y: y.mT)(x), F.vmap(torch.adjoint)(m)
F.vmap(torch.fft.fft)(one), F.vmap(torch.dot)(m, m), F.vmap(torch.addmm)(x, x, x)
F.vmap(lambda a, t: f.cross_entropy(a, t, weight=w[:4, 0], ignore_index=255))(x, k)
in_backward(F.jacrev(torch.sin))
in_backward(F.vmap(torch.sin))
in_backward(F.vmap(F.jacrev(torch.sin)))
checkpointed(F.vmap(lambda a: a.sin().cos())), checkpointed(F.vmap(F.vmap(torch.sin)))
""",
    "dimensions": """
F.vmap(lambda y: y.sum())(x), F.vmap(lambda y: y.sum(0))(x), F.vmap(lambda y: y.sum(-1, True))(x)
F.vmap(lambda y: y.amax(keepdim=True))(x), F.vmap(lambda y: y.max(0))(x), F.vmap(torch.argmax)(x)
F.vmap(lambda y: y.sum(1))(x)
F.vmap(lambda y: y.sum(0))(one), F.vmap(lambda a: a.softmax(0))(one), F.vmap(torch.sort)(x)
F.vmap(lambda y: y.view(2, -1).t().flatten())(x), F.vmap(lambda y: y.expand(2, 4))(x)
F.vmap(lambda y: y.unsqueeze(-1).squeeze())(x), F.vmap(lambda y: y.repeat(2, 1))(x).shape
F.vmap(lambda y: torch.cat([y, w[0]]))(x), F.vmap(lambda y: torch.stack([y, w[0]], -1))(x)
F.vmap(lambda y: y.split(2))(x), F.vmap(lambda y: y.unbind())(x), F.vmap(lambda y: list(y)[1])(x)
F.vmap(lambda y: w @ y)(x), F.vmap(lambda y: y @ y)(x), F.vmap(lambda y: y @ w.t())(x)
F.vmap(lambda y: torch.outer(y, w[0]))(x).shape, F.vmap(lambda y: f.linear(y, w, w[:, 0]))(x)
F.vmap(lambda y: torch.einsum("ij,j->i", w, y))(x), F.vmap(lambda y: y.T.mT)(x.view(3, 2, 2))
F.vmap(lambda y: y * w[0, :3], in_dims=1, out_dims=1)(x), F.vmap(lambda y: w[0])(x)
F.vmap(lambda y: y * 2, chunk_size=2)(x)
F.vmap(lambda y: (y, y.sum()), (1,), (1, 0), chunk_size=3)(x)
""",
    "functions": """
F.vmap(Scale.apply)(x, x), F.vmap(Scale.apply, (0, None))(one, torch.ones(2))
F.vmap(Power.apply)(x), F.vmap(lambda y: Power.apply(y, power=3))(x)
F.vmap(F.grad(lambda y: (y**3).sum()))(x), F.vmap(lambda y: F.vmap(F.grad(torch.sin))(y))(x)
F.vmap(lambda y: F.vjp(torch.sin, y)[1](y)[0])(x)
F.vmap(lambda y: F.jvp(torch.sin, (y,), (y,))[1])(x), F.vmap(F.jacrev(torch.sin))(x)
F.vmap(F.jacfwd(lambda y: y * y.sum()))(x), F.vmap(F.hessian(lambda y: (y**3).sum()))(x)
F.vmap(F.vjp(torch.sin, x[0])[1])(x), F.grad(lambda y: F.vmap(torch.dot)(y, y).sum())(x)
F.jacrev(lambda y: F.vmap(torch.sin)(y))(x[:2, :2]), F.jacrev(torch.sin, chunk_size=3)(x[0])
torch.autograd.functional.jacobian(lambda y: y * y.sum(), x[0], vectorize=True)
torch.autograd.functional.hessian(lambda y: (y**3).sum(), x[0], vectorize=True)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    same_on_torch(SETUP, PROGRAMS[name])


def test_a_function_is_called_once() -> None:
    calls = []

    def function(x: Any) -> Any:
        calls.append(x.shape)
        return (x.exp() @ x).tanh()

    vmap(function)(og.ones(5, 3))
    assert calls == [og.Size([3])]


def test_values_of_samples_are_asked_for_one_by_one() -> None:
    calls = []

    def function(x: Any) -> Any:
        calls.append(x)
        return x * 2 if x.sum() > 0 else x * 3

    x = og.tensor([[1.0], [-1.0]])
    assert vmap(function)(x).tolist() == [[2], [-3]]
    assert len(calls) == 3
    assert vmap(lambda x: og.tensor(x.item() + 1))(og.tensor([1.0, 2.0])).tolist() == [2, 3]


def test_a_function_that_changed_its_input_is_not_called_again() -> None:
    def function(x: Any) -> Any:
        x.add_(1)
        return x * 2 if x.sum() > 0 else x * 3

    x = og.zeros(2, 1)
    with pytest.raises(RuntimeError, match="cannot run again for each sample"):
        vmap(function)(x)
    assert x.tolist() == [[1], [1]]


def test_an_error_leaves_nothing_behind() -> None:
    with pytest.raises(ZeroDivisionError):
        vmap(lambda x: 1 / 0)(og.ones(2))
    with pytest.raises(RuntimeError, match="shape"):
        vmap(lambda x: x.view(5))(og.ones(2, 3))
    x = og.ones(2, requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2]
    assert vmap(lambda x: x * 2)(og.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x + og.rand(()),
        lambda x: x + og.rand_like(x),
        lambda x: x + og.nn.functional.dropout(og.ones(()) * x, 0.5),
        lambda x: x + og.zeros_like(x).uniform_(),
        lambda x: x + og.bernoulli(x * 0 + 0.5) + og.randint(9, ()),
    ],
)
def test_random_numbers(draw: Any) -> None:
    x = og.ones(50)
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(draw)(x)
    assert vmap(draw, randomness="different")(x).unique().numel() > 1
    assert vmap(draw, randomness="same")(x).unique().numel() == 1


@pytest.mark.parametrize(
    "draw",
    [
        lambda c: og.nn.functional.dropout(c, 0.5),
        lambda c: og.nn.functional.alpha_dropout(c, 0.5, True),
        og.rand_like,
        lambda c: og.distributions.Normal(0.0, 1.0).sample((40,)),
        lambda c: og.distributions.Gamma(c, c).rsample(),
        lambda c: og.nn.functional.gumbel_softmax(c),
        lambda c: vmap(lambda x: og.dropout(x, 0.5, True), randomness="different")(c),
    ],
)
def test_random_numbers_for_no_sample(draw: Any) -> None:
    captured = og.ones(40)
    found = vmap(lambda x: draw(captured) + x, randomness="different")(og.zeros(3))
    assert len({tuple(each.tolist()) for each in found}) == 3
    found = vmap(lambda x: draw(captured) + x, randomness="same", chunk_size=2)(og.zeros(3))
    assert len({tuple(each.tolist()) for each in found}) == 1


def test_other_numbers_for_each_sample_do_not_fit_in_one_tensor() -> None:
    with pytest.raises(RuntimeError, match="different inplace randomness"):
        vmap(lambda x: x + og.empty(4).normal_(), randomness="different")(og.zeros(3))


def test_a_sample_that_escapes_is_refused() -> None:
    held = []

    def function(x: Any) -> Any:
        held.append(x * 1)
        return x

    vmap(function)(og.ones(3, 2))
    for use in (lambda: held[0] + 1, lambda: float(held[0][0]), held[0].tolist, held[0].backward):
        with pytest.raises(RuntimeError, match="escaped"):
            use()


def test_what_was_changed_before_a_sample_is_asked_for() -> None:
    captured = og.zeros(1)

    def counted(x: Any) -> Any:
        captured.add_(1)
        return x if x.sum() > 0 else -x

    with pytest.raises(RuntimeError, match="cannot run again"):
        vmap(counted)(og.ones(3, 2))
    assert captured.item() == 1

    class Doubled(og.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(2)

    x = og.ones(3)
    with pytest.raises(RuntimeError, match="cannot run again"):
        vmap(Doubled.apply)(x)


def test_models_of_an_ensemble() -> None:
    models = [
        og.nn.Sequential(
            og.nn.Conv2d(2, 4, 3), og.nn.GroupNorm(2, 4), og.nn.ReLU(), og.nn.Flatten()
        )
        for _ in range(3)
    ]
    x = og.randn(2, 2, 5, 5)
    state = stack_module_state(models)
    found = vmap(lambda *state: functional_call(models[0], state, (x,)))(*state)
    for model, each in zip(models, found, strict=True):
        assert each.allclose(model(x), atol=1e-6)
    found.sum().backward()
    (weights,) = (each for name, each in state[0].items() if name == "0.weight")
    for number, model in enumerate(models):
        model(x).sum().backward()
        assert weights.grad[number].allclose(model[0].weight.grad, atol=1e-5)


def test_statistics_that_are_not_batched_are_refused() -> None:
    norm = og.nn.BatchNorm1d(2)
    with pytest.raises(RuntimeError, match="running_mean"):
        vmap(norm)(og.ones(3, 4, 2))
    assert norm.running_mean is not None
    assert norm.running_mean.tolist() == [0, 0]
    own = og.nn.BatchNorm1d(2, track_running_stats=False)
    x = og.randn(3, 4, 2)
    assert vmap(own)(x).allclose(og.stack([own(each) for each in x]), atol=1e-6)
    own.eval()
    assert vmap(norm.eval())(x).allclose(og.stack([norm(each) for each in x]), atol=1e-6)


def test_layers_that_know_nothing_of_samples() -> None:
    x = og.randn(3, 4, 2)
    for layer in (og.nn.LSTM(2, 3), og.nn.GRU(2, 3)):
        found = vmap(lambda x, layer=layer: layer(x)[0])(x)
        assert found.allclose(og.stack([layer(each)[0] for each in x]), atol=1e-6)
    attention = og.nn.MultiheadAttention(2, 1)
    found = vmap(lambda x: attention(x, x, x)[0])(x)
    assert found.allclose(og.stack([attention(each, each, each)[0] for each in x]), atol=1e-6)


def test_printing_a_sample() -> None:
    texts = []

    def function(x: Any) -> Any:
        texts.append(repr(x))
        return x

    vmap(function)(og.ones(2))
    assert texts[0].startswith("BatchedTensor(lvl=1, bdim=0, value=")


def test_threads_have_levels_of_their_own() -> None:
    errors = []

    def work(number: int) -> None:
        try:
            x = og.arange(6.0).view(3, 2) + number
            for _ in range(30):
                assert vmap(lambda x: x.sum())(x).tolist() == x.sum(1).tolist()
                assert vmap(grad(lambda x: (x * x).sum()))(x).tolist() == (2 * x).tolist()
                leaf = og.ones(2, requires_grad=True)
                (leaf * 3).sum().backward()
                assert leaf.grad is not None
                assert leaf.grad.tolist() == [3, 3]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not errors


def test_jacobians_in_one_pass() -> None:
    passes = []

    def function(x: Any) -> Any:
        y = x.tanh()
        y.register_hook(lambda grad: passes.append(1))
        return y * y.sum()

    x = og.randn(4, dtype=og.float64)
    rows = jacrev(function)(x)
    assert len(passes) == 1
    assert rows.allclose(jacfwd(function)(x))


def test_a_batch_of_gradients_frees_the_graph() -> None:
    x = og.ones(2, requires_grad=True)
    y = x.exp()
    (found,) = og.autograd.grad(y, x, og.eye(2), is_grads_batched=True)
    assert not found.requires_grad
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
