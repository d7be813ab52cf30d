"""Ordinary programs give the same bits with paged parameters."""

import gc
import io
import pickle
from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import nn, optim
from offgrad.nn import functional as F
from offgrad.nn.utils import parametrizations, parametrize, prune
from tests.paging.models import WIDTH, batches, mlp, paging

Program = Callable[[], Any]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """Run a function with paged and with ordinary parameters; what it returns must be the same."""
    PROGRAMS[function.__name__] = function
    return function


def arrays(found: Any) -> list[Any]:
    """Return the tensors, arrays and numbers in a result, as arrays in one order."""
    if isinstance(found, nn.Module):
        return arrays([found.state_dict(), [each.grad for each in found.parameters()]])
    if isinstance(found, offgrad.Tensor):
        return [found.detach().numpy().copy()]
    if isinstance(found, dict):
        return [part for name in found for part in arrays(found[name])]
    if isinstance(found, list | tuple):
        return [part for each in found for part in arrays(each)]
    return [np.array(found)] if not isinstance(found, str) else [found]


def sweep(model: Any) -> None:
    """Read every parameter, so that those before it leave memory."""
    for each in [*model.parameters(), *model.parameters()]:
        each.detach().sum()


def train_step(model: Any, optimizer: Any = None, count: int = 1) -> list[float]:
    """Train for some steps; return the losses."""
    optimizer = optimizer or optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for x, y in batches(count):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@program
def a_view_is_changed_after_others_were_used() -> Any:
    model = mlp()
    view = model[0].weight.detach()[3:5]
    rows = model[2].weight.data.t()
    sweep(model)
    view.mul_(3)
    rows[0] = 7
    sweep(model)
    return model, view, rows


@program
def a_numpy_array_is_changed_after_others_were_used() -> Any:
    model = mlp()
    held = [each.detach().numpy() for each in model.parameters()]
    for _ in range(2):
        for each in held:
            each *= 1.5
        sweep(model)
    return model, held


@program
def a_numpy_array_outlives_its_tensor_and_is_changed() -> Any:
    model = mlp()
    held = np.asarray(model[0].weight.detach())[1:3]
    sweep(model)
    held += 1
    gc.collect()
    sweep(model)
    held += 1
    first = model[0].weight.detach().sum().item()
    del held
    sweep(model)
    return model, first


@program
def memory_views_and_dlpack_see_changes() -> Any:
    model = mlp()
    shared = np.from_dlpack(model[2].weight.detach())
    sweep(model)
    with offgrad.no_grad():
        model[2].weight.add_(1)
    sweep(model)
    return model, shared


@program
def gradients_are_held_as_arrays_and_changed() -> Any:
    model = mlp()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x, y in batches(2):
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
        grads: list[Any] = [each.grad for each in model.parameters()]
        held = [each.numpy() for each in grads]
        sweep(model)
        for each in held:
            each *= 0.5
        sweep(model)
        optimizer.step()
    return losses, model


@program
def states_are_read_and_changed() -> Any:
    model = mlp()
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    train_step(model, optimizer)
    for state in optimizer.state.values():
        state["exp_avg"].mul_(2)
        state["exp_avg_sq"].numpy()[:] += 1e-3
    train_step(model, optimizer)
    return model, optimizer.state_dict()["state"]


@program
def data_is_assigned() -> Any:
    model = mlp()
    old = model[0].weight
    for each in model.parameters():
        before = each.data
        each.data = offgrad.ones_like(each) * each.mean()
        before.zero_()
    assert model[0].weight is old
    sweep(model)
    losses = train_step(model)
    model[0].weight.data = model[2].weight.data  # from then on they share memory
    with offgrad.no_grad():
        model[2].weight.add_(1)
    sweep(model)
    return losses, model


@program
def data_of_another_shape_is_assigned() -> Any:
    model = mlp()
    train_step(model)
    model.zero_grad()
    model[8] = nn.Linear(WIDTH, 5)
    model[0].weight.data = offgrad.ones(WIDTH, 2 * WIDTH)
    sweep(model)
    return model(offgrad.ones(2, 2 * WIDTH)), model


@program
def load_state_dict_copies() -> Any:
    model, other = mlp(), mlp()
    model.load_state_dict(other.state_dict())
    saved = {name: each.clone() for name, each in model.state_dict().items()}
    losses = train_step(model)
    sweep(model)
    model.load_state_dict(saved)
    return losses, model, other


@program
def load_state_dict_assigns() -> Any:
    model, other = mlp(), mlp()
    values = {name: each * 2 for name, each in other.state_dict().items()}
    model.load_state_dict(values, assign=True)
    losses = train_step(model)
    sweep(model)
    model.load_state_dict(other.state_dict(), assign=True)
    losses += train_step(model)
    sweep(model)
    return losses, model, other


@program
def modules_change_their_dtype() -> Any:
    model = mlp()
    before = [*model.parameters()]
    losses = train_step(model)
    model.double()
    assert all(a is b for a, b in zip(model.parameters(), before, strict=True))
    x, y = next(batches(1))
    loss = F.cross_entropy(model(x.double()), y)
    loss.backward()
    model.to(offgrad.float32)
    optim.SGD(model.parameters(), lr=0.1).step()
    sweep(model)
    return losses, loss, model, [str(each.dtype) for each in model.parameters()]


@program
def half_and_bfloat16() -> Any:
    model = mlp()
    model.half()
    sweep(model)
    model.float()
    model.bfloat16()
    sweep(model)
    model.to(dtype=offgrad.float32)
    return model, train_step(model)


@program
def deep_copies_train_apart() -> Any:
    model = mlp()
    losses = train_step(model)
    twin = deepcopy(model)
    losses += train_step(twin) + train_step(model, count=2)
    shallow = copy(model)
    assert shallow[0].weight is model[0].weight
    return losses, model, twin


@program
def pickles_and_saved_models() -> Any:
    model = mlp()
    losses = train_step(model)
    sweep(model)
    twin = pickle.loads(pickle.dumps(model))
    file = io.BytesIO()
    offgrad.save(model.state_dict(), file)
    file.seek(0)
    other = mlp()
    other.load_state_dict(offgrad.load(file))
    file = io.BytesIO()
    offgrad.save(model, file)
    file.seek(0)
    third = offgrad.load(file, weights_only=False)
    return losses, model, twin, other, third, train_step(third), train_step(twin)


@program
def shared_memory() -> Any:
    model = mlp()
    model.share_memory()
    sweep(model)
    assert all(each.is_shared() for each in model.parameters())
    return train_step(model), model


@program
def registered_parametrizations() -> Any:
    class Symmetric(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.triu() + x.triu(1).mT

    model = mlp()
    parametrize.register_parametrization(model[0], "weight", Symmetric())
    parametrizations.weight_norm(model[2])
    parametrizations.spectral_norm(model[4])
    parametrizations.orthogonal(model[6])
    losses = train_step(model, count=2)
    parametrize.remove_parametrizations(model[0], "weight")
    parametrize.remove_parametrizations(model[2], "weight")
    losses += train_step(model)
    return losses, model


@program
def norms_of_older_kind() -> Any:
    model = mlp()
    with pytest.warns(FutureWarning):
        nn.utils.weight_norm(model[0])
    nn.utils.spectral_norm(model[2])
    losses = train_step(model, count=2)
    nn.utils.remove_weight_norm(model[0])
    losses += train_step(model)
    return losses, model


@program
def pruning() -> Any:
    model = mlp()
    prune.l1_unstructured(model[0], "weight", amount=0.4)
    prune.ln_structured(model[2], "weight", amount=0.3, n=2, dim=0)
    losses = train_step(model, count=2)
    prune.remove(model[0], "weight")
    sweep(model)
    return losses, train_step(model), model


@program
def averaged_models() -> Any:
    model = mlp()
    ema = optim.swa_utils.AveragedModel(
        model, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    swa = optim.swa_utils.AveragedModel(model)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        losses += train_step(model, optimizer)
        ema.update_parameters(model)
        swa.update_parameters(model)
    return losses, model, ema, swa


@program
def autocast_and_scaled_gradients() -> Any:
    model = mlp()
    scaler = offgrad.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for x, y in batches(3):
        optimizer.zero_grad()
        with offgrad.autocast("cpu", dtype=offgrad.bfloat16):
            loss = F.cross_entropy(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, model, scaler.get_scale()


@program
def an_overflow_skips_the_step() -> Any:
    model = mlp()
    scaler = offgrad.amp.GradScaler("cpu", init_scale=3e38)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in batches(3):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y) * 1e10).backward()
        scaler.step(optimizer)
        scaler.update()
    return model, scaler.get_scale()


@program
def functional_transforms() -> Any:
    model = mlp()
    parameters = dict(model.named_parameters())
    x, y = next(batches(1))

    def loss(values: Any, x: Any, y: Any) -> Any:
        found = offgrad.func.functional_call(model, values, (x[None],))
        return F.cross_entropy(found, y[None])

    one = offgrad.func.grad(loss)(parameters, x[0], y[0])
    each = offgrad.func.vmap(offgrad.func.grad(loss), in_dims=(None, 0, 0))(
        {name: value.detach() for name, value in parameters.items()}, x, y
    )
    _, tangent = offgrad.func.jvp(
        lambda values: loss(values, x[0], y[0]), (parameters,), (parameters,)
    )
    sweep(model)
    return one, each, tangent, model


@program
def ensembles_by_stacked_parameters() -> Any:
    models = [mlp(2) for _ in range(2)]
    values, buffers = offgrad.func.stack_module_state(models)
    x, _ = next(batches(1))
    base = models[0]
    found = offgrad.func.vmap(
        lambda v, b, x: offgrad.func.functional_call(base, (v, b), (x,)), in_dims=(0, 0, None)
    )(values, buffers, x)
    return found, models[0], models[1]


@program
def lazy_modules() -> Any:
    model = nn.Sequential(nn.LazyLinear(WIDTH), nn.ReLU(), nn.LazyLinear(WIDTH), nn.LazyLinear(5))
    x, _ = next(batches(1))
    model(x)
    return train_step(model, count=2), model


@program
def freezing_and_unfreezing() -> Any:
    model = mlp()
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    losses = train_step(model, optimizer)
    model[0].requires_grad_(False)
    model[4].weight.requires_grad_(False)
    losses += train_step(model, optimizer)
    model.requires_grad_(True)
    losses += train_step(model, optimizer)
    return losses, model


@program
def branches_and_unused_parameters() -> Any:
    model = mlp(6)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step, (x, y) in enumerate(batches(9)):
        optimizer.zero_grad()
        used = [layer for i, layer in enumerate(model) if i % 2 or i == 12 or (i + step) % 3]
        for layer in reversed(used[:-1]) if step % 4 == 3 else used[:-1]:
            x = layer(x)
        loss = F.cross_entropy(used[-1](x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


@program
def parameters_are_tied_replaced_and_removed() -> Any:
    model = mlp()
    model[2].weight = model[0].weight
    losses = train_step(model)
    model[4].weight = nn.Parameter(model[4].weight * 2)
    losses += train_step(model)
    del model[6].bias
    model[6].bias = None
    losses += train_step(model)
    model[2] = nn.Identity()
    losses += train_step(model)
    return losses, model


@program
def vectors_of_parameters() -> Any:
    model = mlp()
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 0.5, model.parameters())
    norms = [each.norm().item() for each in model.parameters()]
    sweep(model)
    return vector, norms, model, train_step(model)


@program
def initialisation_in_place() -> Any:
    model = mlp()

    def start(module: Any) -> None:
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight)
            nn.init.constant_(module.bias, 0.25)

    model.apply(start)
    with offgrad.no_grad():
        model[2].weight[3].fill_(9)
        model[2].weight.t_()
        sweep(model)
        assert model[2].weight.is_contiguous() is False
        model[2].weight.t_()
        model[4].weight.set_(model[4].weight.flip(0))
        multiply: Any = offgrad.mul
        multiply(model[0].weight, 2, out=model[0].weight)
        model[6].weight.copy_(model[0].weight)
    sweep(model)
    return model, train_step(model)


@program
def memory_is_set_and_resized() -> Any:
    model = mlp()
    with offgrad.no_grad():
        model[0].weight.set_(offgrad.ones(WIDTH, WIDTH))
        detached = model[2].weight.detach()
        detached.resize_(64, 64)
        sweep(model)
        detached.resize_(256, 256)[WIDTH:] = 1
        squeezed = model[4].weight.detach().unsqueeze_(0)
        model[6].weight.share_memory_()
    sweep(model)
    return model, detached.sum(), squeezed, model[0].weight.untyped_storage().nbytes()


@program
def parameter_lists_and_dicts() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.many = nn.ParameterList([offgrad.randn(WIDTH, WIDTH) for _ in range(3)])
            self.named = nn.ParameterDict({"a": offgrad.randn(WIDTH, WIDTH)})
            self.register_buffer("table", offgrad.randn(WIDTH, WIDTH))

        def forward(self, x: Any) -> Any:
            for each in self.many:
                x = F.gelu(x @ each * 0.1)
            return (x @ self.named["a"] + x @ self.table)[:, :5]

    model = Net()
    losses = train_step(model, count=2)
    model.many.append(nn.Parameter(offgrad.randn(WIDTH, WIDTH)))
    return losses, train_step(model), model


@program
def recurrent_and_attention_layers() -> Any:
    rnn = nn.LSTM(WIDTH, WIDTH, num_layers=2)
    block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True)
    optimizer = optim.AdamW([*rnn.parameters(), *block.parameters()], lr=1e-2)
    losses = []
    for step in range(2):
        optimizer.zero_grad()
        x = offgrad.ones(3, 2, WIDTH) * step
        loss = block(rnn(x)[0]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, rnn, block


@program
def norms_and_printing() -> Any:
    model = mlp()
    x, y = next(batches(1))
    F.cross_entropy(model(x), y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    nn.utils.clip_grad_value_(model.parameters(), 1e-4)
    text = repr(model) + repr(model[0].weight) + repr(model[2].weight.grad)
    facts = [
        (each.shape, each.stride(), each.is_leaf, each.requires_grad, each.numel(), each.nbytes)
        for each in model.parameters()
    ]
    return norm, text, repr(facts), model


@program
def hooks_change_parameters() -> Any:
    model = mlp()

    def decay(module: Any, args: Any) -> None:
        with offgrad.no_grad():
            module.weight.mul_(0.99)

    def shrink(leaf: Any) -> None:
        leaf.data.mul_(0.999)

    model[0].register_forward_pre_hook(decay)
    model[4].register_forward_pre_hook(decay)
    for each in model.parameters():
        each.register_post_accumulate_grad_hook(shrink)
    model[6].weight.register_hook(lambda grad: grad + model[6].weight.detach() * 0.1)
    model[2].register_full_backward_hook(lambda module, *_: sweep(model))
    return train_step(model, count=3), model


@program
def a_hook_steps_and_drops_the_gradient() -> Any:
    model = mlp()
    optimizers = {each: optim.AdamW([each], lr=1e-2) for each in model.parameters()}

    def step(leaf: Any) -> None:
        optimizers[leaf].step()
        optimizers[leaf].zero_grad()

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(step)
    losses = []
    for x, y in batches(3):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
    return losses, model


@program
def gradients_are_assigned_and_swapped() -> Any:
    model = mlp()
    x, y = next(batches(1))
    F.cross_entropy(model(x), y).backward()
    model[0].weight.grad, model[2].weight.grad = model[2].weight.grad, model[0].weight.grad
    model[4].weight.grad = offgrad.ones(WIDTH, WIDTH)
    model[6].weight.grad = None
    kept = model[0].bias.grad
    sweep(model)
    F.cross_entropy(model(x), y).backward()
    optim.SGD(model.parameters(), lr=0.1).step()
    return model, kept


@program
def optimizer_state_is_saved_and_loaded() -> Any:
    model = mlp()
    optimizer = optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)
    losses = train_step(model, optimizer, 2)
    saved = deepcopy(optimizer.state_dict())
    file = io.BytesIO()
    offgrad.save(optimizer.state_dict(), file)
    losses += train_step(model, optimizer, 2)
    file.seek(0)
    optimizer.load_state_dict(offgrad.load(file))
    losses += train_step(model, optimizer)
    other = optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)
    other.load_state_dict(saved)
    losses += train_step(model, other)
    return losses, model, optimizer.state_dict()["state"], other.state_dict()["state"]


@program
def groups_are_added_and_changed() -> Any:
    model = mlp()
    optimizer = optim.AdamW(model[0].parameters(), lr=1e-2)
    losses = train_step(model, optimizer)
    optimizer.add_param_group({"params": [*model[2].parameters()], "lr": 1e-3})
    schedule = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(2):
        losses += train_step(model, optimizer)
        schedule.step()
    return losses, model


@program
def graphs_live_over_changes() -> Any:
    model = mlp()
    x, y = next(batches(1))
    first = F.cross_entropy(model(x), y)
    second = model(x).sum()
    (a,) = offgrad.autograd.grad(first, model[0].weight, retain_graph=True)
    sweep(model)
    second.backward()
    first.backward()
    return a, model


@program
def gradients_of_gradients() -> Any:
    model = mlp(3)
    x, y = next(batches(1))
    loss = F.cross_entropy(model(x), y)
    grads = offgrad.autograd.grad(loss, [*model.parameters()], create_graph=True)
    penalty = sum(each.square().sum() for each in grads)
    penalty.backward()
    return [each.detach() for each in grads], model


@program
def detached_slices_in_modules() -> Any:
    model = mlp()
    x, _ = next(batches(1))
    top = model[0].weight[: WIDTH // 2]
    low = model[0].weight[WIDTH // 2 :]
    sweep(model)
    out = offgrad.cat([F.linear(x, top), F.linear(x, low)], 1)
    sweep(model)
    out.square().sum().backward()
    chunks = model[2].weight.chunk(3)
    sweep(model)
    offgrad.stack([each.sum() for each in chunks]).sum().backward()
    return out, model


def run(function: Program, placement: str | None, **options: Any) -> list[Any]:
    """Return what a program returns, as arrays."""
    offgrad.manual_seed(3)
    with paging(placement, **options):
        return arrays(function())


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("window", [1, 3 * WIDTH * WIDTH * 4])
def test_same_bits(name: str, window: int) -> None:
    found = run(PROGRAMS[name], "disk", window=window)
    expected = run(PROGRAMS[name], None)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
