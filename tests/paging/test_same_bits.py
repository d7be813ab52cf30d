"""Under each placement a run has the losses, gradients and states of a run in memory."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

import offgrad
from offgrad import nn, optim
from offgrad.nn import functional as F
from offgrad.utils.checkpoint import checkpoint
from tests.paging.models import (
    PLACEMENTS,
    WIDTH,
    Tied,
    assert_same,
    batches,
    mlp,
    paging,
    result_of,
    train,
)

pytestmark = pytest.mark.usefixtures("kind_of_cache")


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_training(placement: str) -> None:
    assert_same(train(placement), train(None))


OPTIMIZERS = [
    name
    for name in optim.__all__
    if isinstance(getattr(optim, name), type)
    and name not in ("Optimizer", "LBFGS", "SparseAdam", "Muon")
]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name: str) -> None:
    make = getattr(optim, name)

    def optimizer(parameters: Any) -> Any:
        return make(parameters, lr=1e-2)

    assert_same(train("disk", optimizer=optimizer), train(None, optimizer=optimizer))


def test_muon() -> None:
    def optimizer(parameters: Any) -> Any:
        return optim.Muon([each for each in parameters if each.ndim == 2], lr=1e-2)

    assert_same(train("disk", optimizer=optimizer), train(None, optimizer=optimizer))


def test_lbfgs_with_a_closure() -> None:
    results = []
    for placement in ("disk", None):
        offgrad.manual_seed(3)
        with paging(placement):
            model = mlp(2)
        optimizer = optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
        ((x, y),) = batches(1)

        def closure(model: Any = model, optimizer: Any = optimizer, x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(2)]
        results.append(result_of(losses, model))
    assert_same(*results)


@pytest.mark.parametrize("options", [{"amsgrad": True}, {"maximize": True}])
def test_options_of_optimizers(options: dict[str, Any]) -> None:
    def optimizer(parameters: Any) -> Any:
        return optim.Adam(parameters, lr=1e-2, **options)

    assert_same(train("disk", optimizer=optimizer), train(None, optimizer=optimizer))


def clip(model: nn.Module, optimizer: Any) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def scale(model: nn.Module, optimizer: Any) -> None:
    with offgrad.no_grad():
        for each in model.parameters():
            each.mul_(0.999)
            assert each.grad is not None
            each.grad.mul_(0.5)


def assign(model: nn.Module, optimizer: Any) -> None:
    for each in model.parameters():
        each.data = each.data * 0.999


@pytest.mark.parametrize("change", [clip, scale, assign])
def test_changes_between_backward_and_step(change: Any) -> None:
    assert_same(train("disk", change=change), train(None, change=change))


def test_tied_weights_and_a_module_used_twice() -> None:
    results = []
    for placement in ("disk", None):
        offgrad.manual_seed(3)
        with paging(placement):
            model = Tied()
        optimizer = optim.AdamW(model.parameters())
        losses = []
        for step in range(4):
            tokens = (offgrad.arange(24).view(3, 8) * (step + 1)) % 128
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert model.head.weight is model.embedding.weight
        results.append(result_of(losses, model, optimizer))
    assert_same(*results)


def test_accumulation_over_batches() -> None:
    results = []
    for placement in ("disk", None):
        offgrad.manual_seed(3)
        with paging(placement):
            model = mlp()
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for index, (x, y) in enumerate(batches(6)):
            loss = F.cross_entropy(model(x), y) / 3
            loss.backward()
            losses.append(loss.item())
            if index % 3 == 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=index == 2)
        results.append(result_of(losses, model, optimizer))
    assert_same(*results)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpoints(use_reentrant: bool) -> None:
    results = []
    for placement in ("disk", None):
        offgrad.manual_seed(3)
        with paging(placement):
            model = mlp()
        losses = []
        for x, y in batches(3):
            hidden = x.requires_grad_()
            for layer in model:
                hidden = checkpoint(layer, hidden, use_reentrant=use_reentrant)
            loss = F.cross_entropy(hidden, y)
            loss.backward()
            losses.append(loss.item())
        results.append(result_of(losses, model))
    assert_same(*results)


@pytest.mark.parametrize("policy", ["disk", "recompute,then=disk", "budget:64KiB"])
def test_with_activations_under_a_policy(policy: str) -> None:
    results = []
    for placement in ("disk", None):
        offgrad.manual_seed(3)
        with paging(placement):
            model = mlp()
        losses = []
        for x, y in batches(3):
            with offgrad.offload(policy):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            losses.append(loss.item())
        results.append(result_of(losses, model))
    assert_same(*results)


def test_retained_graph_partial_and_double_backward() -> None:
    results = []
    for placement in ("disk", None):
        offgrad.manual_seed(3)
        with paging(placement):
            model = mlp(3)
        ((x, y),) = batches(1)
        loss = F.cross_entropy(model(x.requires_grad_()), y)
        loss.backward(retain_graph=True)
        first = model[0].weight
        (partial,) = offgrad.autograd.grad(loss, first, retain_graph=True)
        (by_input,) = offgrad.autograd.grad(loss, x, create_graph=True)
        by_input.square().sum().backward()
        losses = [loss.item(), partial.sum().item(), by_input.sum().item()]
        results.append(result_of(losses, model))
    assert_same(*results)


def test_training_and_evaluation_take_turns() -> None:
    results = []
    for placement in ("disk", None):
        offgrad.manual_seed(3)
        with paging(placement):
            model = mlp()
        optimizer = optim.AdamW(model.parameters())
        losses = []
        for index, (x, y) in enumerate(batches(6)):
            if index % 2:
                with offgrad.no_grad():
                    losses.append(model(x).sum().item())
                    losses.append(model[2:](x).sum().item())
                continue
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        results.append(result_of(losses, model, optimizer))
    assert_same(*results)


def test_frozen_layers_and_several_optimizers() -> None:
    results = []
    for placement in ("disk", None):
        offgrad.manual_seed(3)
        with paging(placement):
            model = mlp()
        model[0].requires_grad_(False)
        optimizers = [
            optim.AdamW(model[2].parameters()),
            optim.SGD([*model[4].parameters(), *model[6].parameters()], lr=0.1),
        ]
        losses = []
        for x, y in batches(4):
            model.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            for each in optimizers:
                each.step()
            losses.append(loss.item())
        results.append(result_of(losses, model, optimizers[0]))
    assert_same(*results)


def test_a_copy_is_paged_as_well_and_independent() -> None:
    with paging("disk") as offload:
        model = mlp()
    copy = deepcopy(model)
    before = [each.detach().clone() for each in model.parameters()]
    with offgrad.no_grad():
        for each in copy.parameters():
            each.add_(1)
    for mine, theirs, old in zip(model.parameters(), copy.parameters(), before, strict=True):
        assert offgrad.equal(mine, old)
        assert offgrad.equal(theirs, old + 1)
    assert offload.resident_nbytes <= 5 * WIDTH * WIDTH * 4


def test_functional_call() -> None:
    results = []
    for placement in ("disk", None):
        offgrad.manual_seed(3)
        with paging(placement):
            model = mlp()
        ((x, _),) = batches(1)
        values = {name: each * 2 for name, each in model.named_parameters()}
        loss = offgrad.func.functional_call(model, values, (x,)).square().mean()
        loss.backward()
        results.append(result_of([loss.item()], model))
    assert_same(*results)


def test_hooks_see_parameters_and_gradients() -> None:
    seen: list[tuple[str, float]] = []
    results = []
    for placement in ("disk", None):
        offgrad.manual_seed(3)
        with paging(placement):
            model = mlp(2)
        for name, each in model.named_parameters():
            each.register_hook(lambda grad: grad * 2)

            def note(leaf: Any, name: str = name) -> None:
                seen.append((name, leaf.grad.sum().item()))

            each.register_post_accumulate_grad_hook(note)
        model[0].register_forward_hook(
            lambda module, args, output: output + module.weight.mean().item()
        )
        ((x, y),) = batches(1)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        results.append(result_of([loss.item()], model))
    assert_same(*results)
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


def test_a_step_inside_backward_is_the_step_after_it() -> None:
    results = []
    for placement, inside in (("disk", True), ("disk", False), (None, True), (None, False)):
        offgrad.manual_seed(3)
        with paging(placement):
            model = mlp()
        optimizer = optim.AdamW(model.parameters())
        if inside:
            optim.step_in_backward(optimizer)
        losses = []
        for x, y in batches(4):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            losses.append(loss.item())
            if not inside:
                optimizer.step()
                optimizer.zero_grad()
            assert all(each.grad is None for each in model.parameters())
        results.append(result_of(losses, model, optimizer))
    for each in results[:-1]:
        assert_same(each, results[-1])


def test_saved_tensors_detect_a_change() -> None:
    with paging("disk"):
        model = mlp(3)
    ((x, _),) = batches(1)
    loss = model(x.requires_grad_()).sum()
    with offgrad.no_grad():
        model[2].weight.add_(1)
    for layer in model:  # so that the changed page has left memory
        assert all(np.isfinite(each.detach().numpy()).all() for each in layer.parameters())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
