"""Rates, momenta, states, warnings and errors of schedulers, beside torch's."""

import copy
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import offgrad
from offgrad.optim import lr_scheduler as schedulers

try:
    import torch
except ImportError:  # the tests of offgrad alone run
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="compares with torch")
Make = Callable[[Any, Any], Any]


def make_optimizer(m: Any, kind: str = "SGD", lr: Any = 0.1, **options: Any) -> Any:
    first, second = (m.nn.Parameter(m.ones(2)) for _ in range(2))
    first.grad = m.ones(2)
    groups = [{"params": [first]}, {"params": [second], "lr": 0.5}]
    return getattr(m.optim, kind)(groups, lr=lr, **options)


def decay(epoch: int) -> float:
    return float(0.9**epoch)


BY_EPOCH: list[Make] = [
    lambda L, o: L.LambdaLR(o, [decay, lambda e: 1 / (e + 1)]),
    lambda L, o: L.StepLR(o, 3),
    lambda L, o: L.MultiStepLR(o, [3, 5, 5, 9], 0.5),
    lambda L, o: L.ConstantLR(o, 0.5, 4),
    lambda L, o: L.LinearLR(o, 0.2, 0.8, 6),
    lambda L, o: L.ExponentialLR(o, 0.9),
    lambda L, o: L.PolynomialLR(o, 7, 2.0),
    lambda L, o: L.CosineAnnealingLR(o, 5, 0.01),
    lambda L, o: L.CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
    lambda L, o: L.CosineAnnealingWarmRestarts(o, 3),
]
BY_STEP: list[Make] = [
    *BY_EPOCH,
    lambda L, o: L.MultiplicativeLR(o, decay),
    lambda L, o: L.CyclicLR(o, [0.01, 0.1], [0.2, 0.5], 4, 6),
    lambda L, o: L.CyclicLR(o, 0.1, 0.5, 4, mode="triangular2", base_momentum=[0.5, 0.6]),
    lambda L, o: L.CyclicLR(o, 0.1, 0.5, 4, mode="exp_range", gamma=0.9),
    lambda L, o: L.CyclicLR(
        o, 0.1, 0.5, 4, scale_fn=lambda x: 1 / x, scale_mode="cycle", cycle_momentum=False
    ),
    lambda L, o: L.OneCycleLR(o, [0.5, 0.1], 24),
    lambda L, o: L.OneCycleLR(o, 0.5, epochs=4, steps_per_epoch=6, anneal_strategy="linear"),
    lambda L, o: L.OneCycleLR(o, 0.5, 24, pct_start=0.4, three_phase=True),
    lambda L, o: L.SequentialLR(
        o, [L.LinearLR(o, 0.1, total_iters=4), L.CosineAnnealingLR(o, 6), L.StepLR(o, 2)], [4, 10]
    ),
    lambda L, o: L.SequentialLR(
        o, [L.CosineAnnealingWarmRestarts(o, 4), L.CosineAnnealingWarmRestarts(o, 3)], [5]
    ),
    lambda L, o: L.ChainedScheduler([L.ConstantLR(o, 0.1, 4), L.ExponentialLR(o, 0.9)]),
    lambda L, o: L.SequentialLR(
        o, [L.ChainedScheduler([L.ConstantLR(o), L.ExponentialLR(o, 0.9)]), L.StepLR(o, 2)], [6]
    ),
    lambda L, o: swa_utils(o).SWALR(o, 0.05),
    lambda L, o: swa_utils(o).SWALR(o, [0.05, 0.1], 5, "linear"),
    lambda L, o: swa_utils(o).SWALR(o, 0.05, anneal_epochs=0),
]


# A chained scheduler in a sequence steps before the optimizer, and warns, in PyTorch, too.
ignore_order = pytest.mark.filterwarnings("ignore:Detected call of")


def swa_utils(optimizer: Any) -> Any:
    is_ours = isinstance(optimizer, offgrad.optim.Optimizer)
    return (offgrad if is_ours else torch).optim.swa_utils


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return round(value, 10) if isinstance(value, float) else value


def settings(optimizer: Any) -> list[Any]:
    names = "lr", "momentum", "betas", "initial_lr"
    return [[group.get(name) for name in names] for group in optimizer.param_groups]


def history(m: Any, make: Make, epochs: list[Any], **options: Any) -> tuple[list[Any], Any, Any]:
    """Return rates and momenta at each step, the optimizer and the scheduler."""
    optimizer = make_optimizer(m, **options)
    scheduler = make(m.optim.lr_scheduler, optimizer)
    rows = []
    for epoch in epochs:
        rows.append((scheduler.get_last_lr(), settings(optimizer)))
        optimizer.step()
        scheduler.step(*epoch)
    return rounded(rows), optimizer, scheduler


@needs_torch
@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"kind": "AdamW"}], ids=str)
@pytest.mark.parametrize("make", BY_STEP)
@ignore_order
def test_steps(make: Make, options: Any) -> None:
    results = [history(m, make, [()] * 22, **options) for m in (offgrad, torch)]
    assert results[0][0] == results[1][0]
    states = [rounded(scheduler.state_dict()) for _, _, scheduler in results]
    assert states[0] == states[1]


@needs_torch
@pytest.mark.parametrize("make", BY_EPOCH)
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_epochs_at_will(make: Make) -> None:
    epochs = [(step * 7 % 11,) for step in range(15)]
    results = [history(m, make, epochs)[0] for m in (offgrad, torch)]
    assert results[0] == results[1]


@pytest.mark.parametrize("make", BY_STEP)
@ignore_order
def test_state_dicts_resume(make: Make) -> None:
    expected = history(offgrad, make, [()] * 15, momentum=0.9)[0]
    _, optimizer, scheduler = history(offgrad, make, [()] * 7, momentum=0.9)
    states = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    resumed = make_optimizer(offgrad, momentum=0.9)
    other = make(schedulers, resumed)
    resumed.load_state_dict(states[0])
    other.load_state_dict(states[1])
    resumed.step()
    for step in range(7, 15):
        assert rounded((other.get_last_lr(), settings(resumed))) == list(expected[step])
        other.step()


@needs_torch
@pytest.mark.parametrize(
    "options",
    [
        {"patience": 2},
        {"mode": "max", "factor": 0.5, "patience": 0, "threshold_mode": "abs", "threshold": 0.2},
        {"patience": 1, "cooldown": 2, "min_lr": [0.05, 0.3]},
    ],
)
def test_plateau(options: Any) -> None:
    metrics = [3.0, 2.0, 2.0, 1.99, 2.5, 1.0, 1.1, 1.1, 1.05, 1.2, 1.0, 0.99995, 1.0, 1.0]
    results = []
    for m in (offgrad, torch):
        optimizer = make_optimizer(m)
        scheduler = m.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
        rows = []
        for metric in metrics:
            scheduler.step(m.tensor(metric, dtype=m.float64))
            rows.append((scheduler.get_last_lr(), scheduler.num_bad_epochs, scheduler.best))
        state = {k: v for k, v in scheduler.state_dict().items() if not k.startswith("_")}
        results.append((rounded(rows), state))
    assert results[0] == results[1]
    scheduler.load_state_dict(state)


@needs_torch
def test_tensor_rates_change_in_place() -> None:
    results = []
    for m in (offgrad, torch):
        rate = m.tensor(0.1)
        optimizer = make_optimizer(m, lr=rate)
        scheduler = m.optim.lr_scheduler.StepLR(optimizer, 1)
        optimizer.step()
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] is rate
        found = [rate, scheduler.get_last_lr()[0], scheduler.base_lrs[0]]
        results.append([round(each.item(), 6) for each in found])
    assert results[0] == results[1] == [0.01, 0.01, 0.1]


def warnings_and_errors(m: Any) -> list[str]:
    """Return the class of what bad calls warn of or raise."""
    L = m.optim.lr_scheduler

    def new(**options: Any) -> Any:
        return make_optimizer(m, momentum=0.9, **options)

    def stepped(scheduler: Any, count: int = 1) -> Any:
        scheduler.optimizer.step()
        for _ in range(count):
            scheduler.step()
        return scheduler

    def overridden() -> None:
        scheduler = L.StepLR(new(), 2)
        scheduler.optimizer.step = lambda: None
        scheduler.step()

    calls: list[Callable[[], Any]] = [
        lambda: L.StepLR(new(), 2).step(),
        overridden,
        lambda: stepped(L.StepLR(new(), 2)).step(3),
        lambda: stepped(L.StepLR(new(), 2)).get_lr(),
        lambda: L.StepLR(3, 2),
        lambda: L.StepLR(new(), 2, last_epoch=3),
        lambda: L.LRScheduler(new()),
        lambda: L.LambdaLR(new(), [decay]),
        lambda: L.ConstantLR(new(), factor=2),
        lambda: L.LinearLR(new(), start_factor=0),
        lambda: L.LinearLR(new(), end_factor=2),
        lambda: L.SequentialLR(new(), [], [3]),
        lambda: L.SequentialLR(o := new(), [L.StepLR(o, 2)], [3]),
        lambda: L.SequentialLR(o := new(), [L.ReduceLROnPlateau(o), L.StepLR(o, 2)], [3]),
        lambda: L.SequentialLR(new(), [L.StepLR(new(), 2), L.StepLR(new(), 2)], [3]),
        lambda: L.ChainedScheduler([]),
        lambda: L.ChainedScheduler([L.StepLR(new(), 2), L.StepLR(new(), 2)]),
        lambda: L.ReduceLROnPlateau(new(), factor=1.0),
        lambda: L.ReduceLROnPlateau(3),
        lambda: L.ReduceLROnPlateau(new(), mode="any"),
        lambda: L.ReduceLROnPlateau(new(), threshold_mode="any"),
        lambda: L.ReduceLROnPlateau(new(), min_lr=[1, 2, 3]),
        lambda: L.ReduceLROnPlateau(new()).step(1.0, epoch=3),
        lambda: L.CyclicLR(new(), 0.1, 0.2, mode="any"),
        lambda: L.CyclicLR(new(), [0.1], 0.2),
        lambda: L.CyclicLR(make_optimizer(m, kind="Adagrad"), 0.1, 0.2),
        lambda: L.OneCycleLR(new(), 0.1),
        lambda: L.OneCycleLR(new(), 0.1, 1.5),
        lambda: L.OneCycleLR(new(), 0.1, epochs=0, steps_per_epoch=3),
        lambda: L.OneCycleLR(new(), 0.1, epochs=2, steps_per_epoch=-3),
        lambda: L.OneCycleLR(new(), 0.1, 10, pct_start=2),
        lambda: L.OneCycleLR(new(), 0.1, 10, anneal_strategy="any"),
        lambda: L.OneCycleLR(make_optimizer(m, kind="Adagrad"), 0.1, 10),
        lambda: stepped(L.OneCycleLR(new(), 0.1, 3), 4),
        lambda: L.CosineAnnealingWarmRestarts(new(), 0),
        lambda: L.CosineAnnealingWarmRestarts(new(), 5, T_mult=0),
        lambda: L.CosineAnnealingWarmRestarts(new(), 5).step(-1),
        lambda: m.optim.swa_utils.SWALR(new(), 0.1, anneal_strategy="any"),
        lambda: m.optim.swa_utils.SWALR(new(), 0.1, anneal_epochs=-1),
        lambda: m.optim.swa_utils.SWALR(new(), [0.1]),
    ]
    found = []
    for call in calls:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                call()
            except (Exception, Warning) as caught:
                found.append(type(caught).__name__)
            else:
                found.append("none")
    return found


@needs_torch
def test_warnings_and_errors() -> None:
    assert warnings_and_errors(offgrad) == warnings_and_errors(torch)


def test_subclasses_of_the_old_name() -> None:
    class Halving(schedulers._LRScheduler):
        def get_lr(self) -> Any:
            return [rate / 2**self.last_epoch for rate in self.base_lrs]

    optimizer = make_optimizer(offgrad)
    scheduler = Halving(optimizer)
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.25]


def test_an_optimizer_with_a_scheduler_is_freed_at_once() -> None:
    optimizer = make_optimizer(offgrad)
    scheduler = schedulers.StepLR(optimizer, 2)
    optimizer.step()
    reference = weakref.ref(optimizer)
    del optimizer, scheduler
    assert reference() is None


def test_schedulers_pickle() -> None:
    scheduler = schedulers.OneCycleLR(make_optimizer(offgrad, momentum=0.9), 0.1, 10)
    scheduler.optimizer.step()
    scheduler.step()
    copied = pickle.loads(pickle.dumps(scheduler))
    copied.optimizer.step()
    for each in (scheduler, copied):
        each.step()
    assert copied.get_last_lr() == scheduler.get_last_lr()
    assert settings(copied.optimizer) == settings(scheduler.optimizer)


def test_no_momentum_with_adagrad_unless_asked() -> None:
    optimizer = make_optimizer(offgrad, kind="Adagrad")
    schedulers.CyclicLR(optimizer, 0.1, 0.2, cycle_momentum=False)
    assert "momentum" not in optimizer.param_groups[0]
