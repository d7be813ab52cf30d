"""Lossless means identical: under every lossless policy, the bits of a run without any."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import nn, optim
from offgrad.autograd import Function
from offgrad.autograd.graph import saved_tensors_hooks
from offgrad.cli.gpt import GPT, GPTConfig
from offgrad.nn import functional as F
from tests.policies.graphs import CURVED, Bits, Offload, bits, normal

gradient: Any = offgrad.autograd.grad
"""The gradients of tensors that do depend on each other are never None."""


def mlp(offload: Offload) -> Bits:
    """Two steps of training; activations of 128 KiB."""
    model = nn.Sequential(
        nn.Linear(32, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 128), nn.ReLU(),
        nn.Dropout(0.2), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    x = normal(1, 128, 32, grad=False)
    targets = offgrad.tensor(np.arange(128) % 10)
    found: Bits = []
    for _ in range(2):
        optimizer.zero_grad()
        with offload():
            loss = F.cross_entropy(model(x), targets)
        loss.backward()
        found += bits(loss, *(each.grad for each in model.parameters()))
        optimizer.step()
    return found + bits(*model.parameters())


def gpt(offload: Offload) -> Bits:
    """Two steps of a GPT with dropout; tied embeddings."""
    model = GPT(GPTConfig(layers=2, width=32, heads=4, context=64, dropout=0.1))
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tokens = np.random.default_rng(3).integers(0, 256, (2, 2, 65))
    found: Bits = []
    for batch in tokens:
        optimizer.zero_grad()
        with offload():
            loss = model.loss(offgrad.tensor(batch[:, :-1]), offgrad.tensor(batch[:, 1:]))
        loss.backward()
        found += bits(loss, *(each.grad for each in model.parameters()))
        optimizer.step()
    return found + bits(*model.parameters())


def views(offload: Offload) -> Bits:
    """Saves that are transposed, permuted, expanded, sliced, flipped and pieces."""
    x, row = normal(1, 6, 4, 5), normal(2, 5)
    with offload():
        y = x * 1.5
        pieces = y.split(2, dim=1)
        parts = [
            y.permute(2, 0, 1).exp(),
            y.transpose(0, 2) * y.transpose(0, 2).sin(),
            (row * 1).expand(6, 4, 5) * y,
            row.expand(6, 4, 5).exp() * y,
            y[::2, 1:, ::3].tanh() * y[1::2, 1:, ::3],
            y[:, 1].t() @ y[:, 2],
            y.flip(0).sin(),
            pieces[0] * pieces[1].exp(),
            y.unsqueeze(1).expand(6, 3, 4, 5).sigmoid(),
            y.reshape(24, 5) @ y.view(24, 5).t(),
            y[2] * y[2, 1] * y[2, 1, 3],
            y.unbind(1)[0].cos(),
        ]
        loss = sum(part.square().sum() for part in parts)
    loss.backward()
    return bits(loss, x.grad, row.grad)


def retained(offload: Offload) -> Bits:
    """Three backwards through one graph."""
    x, w = normal(1, 8, 8), normal(2, 8, 8)
    with offload():
        y = ((x @ w).tanh() @ w.t()).exp()
        loss = (y * y).mean()
    loss.backward(retain_graph=True)
    first = bits(x.grad, w.grad)
    loss.backward(retain_graph=True)
    loss.backward()
    return first + bits(x.grad, w.grad)


def partial(offload: Offload) -> Bits:
    """Parts of a graph, by inputs=, in three backwards."""
    a, b, c = normal(1, 8, 8), normal(2, 8, 8), normal(3, 8, 8)
    with offload():
        left = (a @ b).exp()
        right = (b @ c).sin()
        loss = (left * right).tanh().sum()
    loss.backward(inputs=[c], retain_graph=True)
    found = bits(a.grad, b.grad, c.grad)
    loss.backward(inputs=[a, left], retain_graph=True)
    found += bits(a.grad, b.grad, c.grad, left.grad)
    loss.backward(inputs=[b])
    return found + bits(a.grad, b.grad, c.grad)


def shared_parts(offload: Offload) -> Bits:
    """Several losses over one trunk, backwards one after another, other order than forward."""
    x, w = normal(1, 8, 8), normal(2, 8, 8)
    with offload():
        trunk = (x @ w).tanh()
        heads = [(trunk * (k + 1)).exp().sum() for k in range(3)]
    found: Bits = []
    for head in (heads[2], heads[0], heads[1]):
        head.backward(retain_graph=True)
        found += bits(head, x.grad, w.grad)
    found += bits(*gradient([heads[0], heads[2]], [trunk, x]))
    return found


def several_forwards(offload: Offload) -> Bits:
    """Three forwards, each in a session of its own, then one backward; and one left over."""
    x, w = normal(1, 40, 40), normal(2, 40, 40)
    losses = []
    for k in range(4):
        with offload():
            losses.append(((x * (k + 1)) @ w).sigmoid().square().sum())
    (losses[3] + losses[0] + losses[1]).backward()
    return bits(x.grad, w.grad, losses[2])


def dropped(offload: Offload) -> Bits:
    """A graph that nobody goes back through, before and after one that somebody does."""
    x = normal(1, 150, 150)
    with offload():
        (x * 2).exp().sin().sum()
        loss = (x * 2).exp().sin().sum()
        (x * 2).exp().sin().sum()
    loss.backward()
    return bits(loss, x.grad)


def reused(offload: Offload) -> Bits:
    """One tensor saved by many nodes, as it is, transposed and reshaped."""
    x = normal(1, 130, 130)
    with offload():
        y = x.sin()
        z = y.exp() * y + y.t() @ y + y.reshape(65, 260).cos().view(130, 130) * y.t()
        loss = (z * y).mean()
    loss.backward()
    return bits(loss, x.grad)


def dtypes(offload: Offload) -> Bits:
    """float64, float16, complex, and integer, bool, tiny and empty saves."""
    d, h = normal(1, 5, 5, dtype=np.float64), normal(2, 5, 5, dtype=np.float16)
    c = offgrad.tensor(
        np.random.default_rng(4).standard_normal((4, 4, 2)).view(np.complex128)[..., 0],
        requires_grad=True,
    )
    one, none = normal(5), normal(6, 0, 3)
    index = offgrad.tensor([3, 0, 3, 1])
    mask = offgrad.tensor(np.arange(25).reshape(5, 5) % 3 == 0)
    with offload():
        loss = (
            (d @ d.exp()).sin().sum()
            + (h.tanh() * h).sum().double()
            + (c @ c.exp() * c.conj()).abs().square().sum()
            + (one.exp() * one).double()
            + (none * none.exp()).sum().double()
            + d[index].square().sum()
            + d.masked_fill(mask, 0.5).exp().sum()
            + offgrad.where(mask, d, d * 2).cos().sum()
            + d.gather(1, index[:4].view(4, 1) * 1).sin().sum()
            + d.clamp(-0.5, 0.5).amax(0).prod()
        )
    loss.backward()
    return bits(loss, d.grad, h.grad, c.grad, one.grad, none.grad)


def embedding_and_norms(offload: Offload) -> Bits:
    """Integers saved by embedding and cross-entropy; weights, biases and a padding row."""
    table, norm = nn.Embedding(11, 8, padding_idx=0), nn.LayerNorm(8)
    tokens = offgrad.tensor([[1, 2, 0], [10, 2, 2]])
    with offload():
        x = norm(table(tokens))
        mask = offgrad.tensor(np.tri(3, dtype=np.bool_))
        x = F.scaled_dot_product_attention(x, x, x, attn_mask=mask, dropout_p=0.3)
        x = F.dropout(x, 0.3)
        loss = F.cross_entropy(x.reshape(6, 8), tokens.view(6) % 8)
    loss.backward()
    return bits(loss, table.weight.grad, norm.weight.grad, norm.bias.grad)


def foreign(offload: Offload) -> Bits:
    """Memory of the user's: reversed, read-only, repeated, offset, in Fortran order."""
    base = np.random.default_rng(5).standard_normal((40, 40)).astype(np.float32)
    frozen = base.copy()
    frozen.flags.writeable = False
    arrays = [base[::-1], frozen, np.asfortranarray(base), base[3:, ::-2], base.T[1:]]
    arrays += [np.broadcast_to(base[:1], (40, 40)), base.reshape(-1)[5:1565].reshape(-1, 40)[:39]]
    weights = [normal(k, *each.shape) for k, each in enumerate(arrays)]
    with offload():
        inputs = [offgrad.from_numpy(each) for each in arrays]
        pairs = zip(inputs, weights, strict=True)
        loss = sum((x * w + x.t().exp().t() * w).sum() for x, w in pairs)
    del inputs
    loss.backward()
    return bits(loss, *(each.grad for each in weights))


def brain_floats(offload: Offload) -> Bits:
    """bfloat16, which neither NumPy nor Zarr knows."""
    x = normal(1, 9, 9, dtype=offgrad.bfloat16)
    with offload():
        loss = (x.tanh() * x.t()).sum() + (x * 2)[::2].exp().sum()
    loss.backward()
    return bits(loss, x.grad)


class Cubic(Function):
    """x^3 + y, saving an input, an output and something in between, and None."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        square = x * x
        out = square * x + y
        ctx.save_for_backward(x, None, square, out, x.t())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        x, none, square, out, transposed = ctx.saved_tensors
        assert none is None
        assert transposed.shape == x.shape[::-1]
        return grad * square * 3 + (out - out) + (transposed.t() - x), grad


def functions(offload: Offload) -> Bits:
    """A Function of the user's own, differentiated twice."""
    x, y = normal(1, 9, 9), normal(2, 9, 9)
    with offload():
        out = Cubic.apply(x * 1, y).sin()
        (first,) = gradient(out.sum(), x, create_graph=True)
        loss = first.square().sum()
    loss.backward()
    return bits(first, x.grad, y.grad)


def twenty_steps(offload: Offload) -> Bits:
    """One session entered again in every step."""
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    session = offload()
    found: Bits = []
    for step in range(20):
        optimizer.zero_grad()
        with session:
            loss = F.mse_loss(model(normal(step, 32, 16, grad=False)), normal(99, 32, 16))
        loss.backward()
        optimizer.step()
        found += bits(loss)
    return found + bits(*model.parameters())


def backward_inside(offload: Offload) -> Bits:
    """Forward, backward and double backward, all inside the session."""
    x = normal(1, 12, 12)
    with offload():
        y = (x.t() @ x).tanh().sum()
        (g,) = gradient(y, x, create_graph=True)
        (h,) = gradient((g * g).sum(), x, create_graph=True)
        h.sin().sum().backward()
    return bits(y, g, h, x.grad)


SCENARIOS: list[Callable[[Offload], Bits]] = [
    mlp,
    gpt,
    views,
    retained,
    partial,
    shared_parts,
    several_forwards,
    dropped,
    reused,
    dtypes,
    embedding_and_norms,
    foreign,
    brain_floats,
    functions,
    twenty_steps,
    backward_inside,
]

_expected: dict[Any, Bits] = {}


def check(key: Any, run: Callable[[Offload], Bits], offload: Offload) -> None:
    """Assert that `run` gives the same bits as without a session."""
    if key not in _expected:
        offgrad.manual_seed(11)
        _expected[key] = run(nullcontext)
    offgrad.manual_seed(11)
    found = run(offload)
    assert len(found) == len(_expected[key])
    for index, (mine, theirs) in enumerate(zip(found, _expected[key], strict=True)):
        assert mine[:2] == theirs[:2], f"shape or dtype of result {index}"
        assert mine == theirs, f"bits of result {index}"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_identical_bits(scenario: Callable[[Offload], Bits], offload: Offload) -> None:
    check(scenario, scenario, offload)


@pytest.mark.parametrize("name", CURVED)
def test_double_backward(name: str, offload: Offload) -> None:
    def run(offload: Offload) -> Bits:
        x = normal(7, 12, 8)
        with offload():
            y = CURVED[name](x * 1)
            weight = normal(8, *y.shape, grad=False)
            (first,) = gradient((y * weight).sum(), x, create_graph=True)
            (second,) = gradient(first.square().sum(), x, retain_graph=True)
        # The same graphs again, now that what they read is back in memory.
        first.square().sum().backward()
        return bits(y, first, second, x.grad)

    check(name, run, offload)


def test_nested_sessions(offload: Offload, every_store: Any) -> None:
    """The innermost policy counts; what was saved outside is saved by the outer one."""

    def run(outer: Offload) -> Bits:
        inner: Any = nullcontext
        if outer is not nullcontext:
            inner = lambda: offgrad.offload(offgrad.policies.Offload(every_store["disk"], 0))
        x = normal(1, 30, 30)
        with outer():
            y = x.exp()
            with inner():
                y = y * y.sin()
                with outer():
                    y = y @ y
            loss = (y * y.t()).tanh().sum()
        loss.backward()
        return bits(loss, x.grad)

    check("nested", run, offload)


def test_the_innermost_session_counts(every_store: Any) -> None:
    outer = offgrad.offload(offgrad.policies.Offload(every_store["pool"], 0))
    inner = offgrad.offload(offgrad.policies.Offload(every_store["disk"], 0))
    x = normal(1, 4)
    with outer:
        a = x.exp()
        with inner:
            b = x.sin()
        with pytest.raises(KeyError), inner:
            raise KeyError
        c = x.tanh()
    d = x.exp()
    assert (outer.ledger.saves, inner.ledger.saves) == (2, 1)
    (a + b + c + d).sum().backward()


def test_hooks_inside_a_session_count_there(offload: Offload) -> None:
    packed: list[Any] = []

    def pack(x: Any) -> Any:
        packed.append(x.numpy().copy())
        return packed[-1]

    def run(offload: Offload) -> Bits:
        x = normal(1, 20, 20)
        with offload():
            y = x.exp()
            with saved_tensors_hooks(pack, offgrad.from_numpy):
                z = (y * 2).sin()
            loss = (z @ y).tanh().sum()
        loss.backward()
        return bits(loss, x.grad)

    check("hooks inside", run, offload)
    assert len(packed) % 2 == 0
    assert len(packed) >= 2


def test_a_session_inside_hooks_counts_there(offload: Offload) -> None:
    def fail(x: Any) -> Any:
        raise AssertionError("the hooks are not the innermost")

    def run(offload: Offload) -> Bits:
        x = normal(1, 20, 20)
        with saved_tensors_hooks(fail, fail), offload():
            loss = (x.exp() @ x).tanh().sum()
        loss.backward()
        return bits(loss, x.grad)

    with offload():
        (normal(1, 2) * 2).exp().sum().backward()
    offgrad.manual_seed(11)
    x = normal(1, 20, 20)
    loss = (x.exp() @ x).tanh().sum()
    loss.backward()
    assert run(offload) == bits(loss, x.grad)


def test_an_exception_in_forward_leaves_nothing(offload: Offload) -> None:
    session = offload()
    x = normal(1, 150, 150)

    def fail() -> None:
        with session:
            x.exp().sin()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with session:
        loss = (x.exp() * x).sum()
    loss.backward()
    expected = normal(1, 150, 150)
    (expected.exp() * expected).sum().backward()
    assert bits(x.grad) == bits(expected.grad)


def test_an_exception_in_backward_can_be_followed_by_another_backward(offload: Offload) -> None:
    def run(offload: Offload) -> Bits:
        x = normal(1, 150, 150)
        with offload():
            middle = x.exp().sin()
            loss = (middle.exp() * middle).sum()

        def hook(grad: Any) -> Any:
            raise ZeroDivisionError

        handle = middle.register_hook(hook)
        with pytest.raises(ZeroDivisionError):
            loss.backward(retain_graph=True)
        handle.remove()
        assert x.grad is None
        loss.backward()
        return bits(loss, x.grad)

    check("exception in backward", run, offload)


def test_a_second_backward_without_retain_graph_is_refused(offload: Offload) -> None:
    x = normal(1, 150, 150)
    with offload():
        loss = x.exp().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="retain_graph"):
        loss.backward()


@pytest.mark.parametrize("how", ["recorded", "no_grad", "through a view", "detached"])
@pytest.mark.parametrize("size", [8, 300])
def test_changed_in_place_after_saving(how: str, size: int, offload: Offload) -> None:
    """The value as it was when saved, or an error; a wrong gradient never."""
    w = normal(2, size, size)
    for _ in range(5):
        start = normal(1, size, size)
        kept = start.detach().numpy() * np.float32(2)
        with offload():
            x = start * 2
            y = x * w
        if how == "recorded":
            x.mul_(3)
        elif how == "no_grad":
            with offgrad.no_grad():
                x.fill_(7)
        elif how == "through a view":
            with offgrad.no_grad():
                x.t()[1:].add_(5)
        else:
            x.detach().copy_(normal(5, size, size, grad=False))
        try:
            (grad,) = gradient(y.sum(), w)
        except RuntimeError as error:
            text = str(error)
            assert "MulBackward0.self" in text
            assert f"[{size}, {size}]" in text
            assert "at version 0 is at version 1" in text
        else:
            assert np.array_equal(grad.numpy(), kept)


def test_saved_again_after_a_change(offload: Offload) -> None:
    """Each save has the value of its time."""
    w = [normal(k, 300, 300) for k in range(4)]
    x = normal(9, 300, 300, grad=False)
    values, losses = [], []
    with offload():
        for each in w:
            values.append(x.numpy().copy())
            losses.append((x * each).sum())
            x.mul_(1.25)
    for each, value, loss in zip(w, values, losses, strict=True):
        try:
            loss.backward()
        except RuntimeError as error:
            text = str(error)
            assert "changed in place" in text
        else:
            assert np.array_equal(each.grad.numpy(), value)


def test_an_optimizer_step_between_forward_and_backward(offload: Offload) -> None:
    """Parameters change: their saved values must not."""
    model = nn.Linear(200, 200)
    x = normal(1, 200, 200)
    with offload():
        loss = model(x).sum()
    weight = model.weight.detach().numpy().copy()
    for each in model.parameters():
        each.grad = offgrad.ones(*each.shape)
    optim.SGD(model.parameters(), lr=0.5).step()
    try:
        loss.backward()
    except RuntimeError as error:
        text = str(error)
        assert "SGD" in text
    else:
        expected = offgrad.ones(200, 200) @ offgrad.tensor(weight)
        assert np.array_equal(x.grad.numpy(), expected.numpy())


def test_data_replaced_after_saving(offload: Offload) -> None:
    """A change like any other: the value as saved, or an error."""
    w, x = normal(1, 150, 150), normal(2, 150, 150)
    value = w.detach().numpy().copy()
    with offload():
        loss = (w * x).sum()
    w.data = normal(3, 150, 150, grad=False)
    try:
        loss.backward()
    except RuntimeError as error:
        text = str(error)
        assert "MulBackward0" in text
    else:
        assert np.array_equal(x.grad.numpy(), value)


def test_detached_in_place_after_saving(offload: Offload) -> None:
    """The second derivative goes through what was saved, or is an error."""

    def second(detach: bool) -> Any:
        x = normal(1, 130, 130)
        with offload():
            y = x.sin()
            loss = (y * y * y.sin()).sum()
        if detach:
            y.detach_()
        (first,) = gradient(loss, x, create_graph=True)
        return gradient(first.sum(), x)[0]

    expected = second(False)
    try:
        found = second(True)
    except RuntimeError as error:
        text = str(error)
        assert "detach" in text
    else:
        assert bits(found) == bits(expected)


@pytest.fixture
def constant_collections() -> Iterator[None]:
    """Have the garbage collector run at almost any moment, also in the middle of a session."""
    before = gc.get_threshold()
    gc.set_threshold(7, 1, 1)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("constant_collections")
def test_collections_at_any_moment(offload: Offload) -> None:
    """Graphs that are garbage in cycles die in the middle of the next step."""

    def steps() -> Bits:
        found: Bits = []
        for seed in range(4):
            x = normal(seed, 130, 130)
            with offload():
                loss = (x.sin() * x).exp().t().tanh().sum()
                cycle: list[Any] = [loss, x.cos().exp()]
            cycle.append(cycle)
            if seed % 2:
                loss.backward(retain_graph=True)
            found += bits(loss, x.grad)
        return found

    found = steps()
    assert found == steps()


def in_threads(*functions: Callable[[], None]) -> None:
    """Run all at once; raise the first error."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(functions))

    def run(function: Callable[[], None]) -> None:
        try:
            start.wait()
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in functions]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if errors:
        raise errors[0]


def _chain(offload: Offload, seed: int) -> Bits:
    found: Bits = []
    for step in range(4):
        # No matrix products: the threads of BLAS would only wait for each other.
        x, w = normal(seed + step, 140, 140), normal(seed, 140, 140)
        with offload():
            loss = ((x * w).tanh() * w.t()).sin().square().mean()
        loss.backward()
        found += bits(loss, x.grad, w.grad)
    return found


def test_threads_with_a_session_each(offload: Offload) -> None:
    results: dict[int, Bits] = {}

    def work(seed: int) -> None:
        results[seed] = _chain(offload, seed)

    in_threads(lambda: work(1), lambda: work(100))
    for seed in (1, 100):
        assert results[seed] == _chain(nullcontext, seed)


def test_threads_that_share_a_session(offload: Offload) -> None:
    results: dict[int, Bits] = {}
    session = offload()

    def work(seed: int) -> None:
        results[seed] = _chain(lambda: session, seed)

    in_threads(lambda: work(1), lambda: work(100))
    for seed in (1, 100):
        assert results[seed] == _chain(nullcontext, seed)


def test_a_session_is_of_its_thread(offload: Offload) -> None:
    results: dict[str, Bits] = {}
    session: Any = offload()
    entered, done = threading.Event(), threading.Event()

    def with_session() -> None:
        with session:
            entered.set()
            done.wait(60)
            results["with"] = _chain(nullcontext, 5)

    def without() -> None:
        entered.wait(60)
        results["without"] = _chain(nullcontext, 5)
        assert session.ledger.saves == 0
        done.set()

    in_threads(with_session, without)
    assert results["with"] == results["without"]
    assert session.ledger.saves > 0


def test_backward_in_another_thread(offload: Offload) -> None:
    x, w = normal(1, 140, 140), normal(2, 140, 140)
    with offload():
        loss = ((x @ w).tanh() @ w.t()).sin().sum()
    in_threads(loss.backward)
    y, v = normal(1, 140, 140), normal(2, 140, 140)
    ((y @ v).tanh() @ v.t()).sin().sum().backward()
    assert bits(x.grad, w.grad) == bits(y.grad, v.grad)


def test_two_threads_go_back_through_one_retained_graph(offload: Offload) -> None:
    x = normal(1, 140, 140)
    with offload():
        loss = (x * 2).exp().sin().tanh().square().sum()
    found: list[Bits] = []

    def work() -> None:
        for _ in range(5):
            found.append(bits(*gradient(loss, x, retain_graph=True)))

    in_threads(work, work)
    assert len(found) == 10
    assert all(each == found[0] for each in found)


def test_saved_attributes_can_be_read(offload: Offload) -> None:
    x = normal(1, 150, 150)
    with offload():
        y = (x * 2).exp()
        z = y.t().sin()
    value = y.detach().numpy().copy()
    del y
    saved: Any = z.grad_fn
    assert np.array_equal(saved._saved_self.detach().numpy(), value.T)
    assert not saved._saved_self.is_contiguous()
    first = bits(saved._saved_self)
    z.sum().backward()
    assert first == bits(offgrad.tensor(value.T.copy()))
    with pytest.raises(RuntimeError, match="freed"):
        saved._saved_self
