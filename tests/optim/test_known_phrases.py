"""Phrases of PyTorch's errors about optimizers that code and people match on."""

import copy
from typing import Any

import pytest

from tests.known_phrases import Programs, check


def leaf(lib: Any, *shape: int) -> Any:
    return lib.ones(*shape or (2,), requires_grad=True)


def sgd(lib: Any, params: Any = None) -> Any:
    return lib.optim.SGD([leaf(lib)] if params is None else params, lr=0.1)


def more_groups(lib: Any) -> None:
    state = copy.deepcopy(sgd(lib).state_dict())
    state["param_groups"] *= 2
    sgd(lib).load_state_dict(state)


def duplicates(lib: Any) -> None:
    x = leaf(lib)
    sgd(lib, [x, x])


def in_two_groups(lib: Any) -> None:
    x = leaf(lib)
    sgd(lib, [{"params": [x]}, {"params": [x]}])


def replaced_step(lib: Any) -> None:
    optimizer = sgd(lib)
    scheduler = lib.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    optimizer.step = lambda: None
    scheduler.step()


def early_step(lib: Any) -> None:
    lib.optim.lr_scheduler.ExponentialLR(sgd(lib), 0.9).step()


PROGRAMS: Programs = {
    "params argument given to the optimizer should be an iterable of Tensors or dicts": (
        lambda lib: sgd(lib, leaf(lib))
    ),
    "a parameter group with duplicate parameters": duplicates,
    "some parameters appear in more than one parameter group": in_two_groups,
    "all optimizer params should be with/without names. Some param names are missing": (
        lambda lib: sgd(lib, [("a", leaf(lib)), leaf(lib)])
    ),
    "all optimizer param groups should be with/without names": lambda lib: sgd(
        lib, [{"params": [("a", leaf(lib))]}, {"params": [leaf(lib)]}]
    ),
    "cannot add param group with names to the optimizer": lambda lib: sgd(lib).add_param_group(
        {"params": [("a", leaf(lib))]}
    ),
    "lr as a Tensor is not supported for capturable=False and foreach=True": lambda lib: (
        lib.optim.Adam([leaf(lib)], lr=lib.tensor(0.1), foreach=True)
    ),
    "betas must be either both floats or both Tensors": lambda lib: lib.optim.Adam(
        [leaf(lib)], betas=(0.9, lib.tensor(0.9))
    ),
    "Muon only supports 2D parameters": lambda lib: lib.optim.Muon([leaf(lib)]),
    "Adjust learning rate function": lambda lib: lib.optim.Muon(
        [leaf(lib, 2, 2)], adjust_lr_fn="other"
    ),
    "SparseAdam requires dense parameter tensors": lambda lib: lib.optim.SparseAdam(
        [lib.ones(2, 2).to_sparse().requires_grad_()]
    ),
    "loaded state dict has a different number of parameter groups": more_groups,
    "how-to-adjust-learning-rate": early_step,
    "`optimizer.step()` has been overridden": replaced_step,
    "swa_lr must": lambda lib: lib.optim.swa_utils.SWALR(sgd(lib), swa_lr=[0.1, 0.2]),
    "optimizer got an empty parameter list": lambda lib: lib.optim.SGD([]),
    "Invalid learning rate": lambda lib: lib.optim.SGD([lib.ones(1)], lr=-1),
    "Nesterov momentum requires a momentum and zero dampening": lambda lib: lib.optim.SGD(
        [lib.ones(1)], lr=1, nesterov=True
    ),
    "doesn't match the size of optimizer's group": lambda lib: lib.optim.SGD(
        [lib.ones(1)], lr=1.0
    ).load_state_dict(lib.optim.SGD([lib.ones(1), lib.ones(1)], lr=1.0).state_dict()),
    "optimizer can only optimize Tensors": lambda lib: lib.optim.SGD([1.0], lr=1.0),
    "can't optimize a non-leaf Tensor": lambda lib: lib.optim.SGD(
        [lib.ones(1, requires_grad=True) * 2], lr=1.0
    ),
    "is not an Optimizer": lambda lib: lib.optim.lr_scheduler.StepLR(3, 1),
    "You must define either total_steps OR (epochs AND steps_per_epoch)": lambda lib: (
        lib.optim.lr_scheduler.OneCycleLR(lib.optim.SGD([lib.ones(1)], lr=1.0), 1.0)
    ),
    "Factor should be < 1.0": lambda lib: lib.optim.lr_scheduler.ReduceLROnPlateau(
        lib.optim.SGD([lib.ones(1)], lr=1.0), factor=2.0
    ),
}


@pytest.mark.parametrize("phrase", PROGRAMS)
def test_phrases(phrase: str) -> None:
    check(PROGRAMS, phrase)
