"""Estimates agree with what steps take, and touch nothing of the program's."""

import copy
import gc
import importlib
import json
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offgrad_storage import DiskStore

import offgrad
from offgrad import kernels, memory, nn, optim
from offgrad.cli.compare.gpt import GPT, GPTConfig
from offgrad.memory.meta import meters, shape_only
from offgrad.nn import functional as F
from offgrad.policies import Offload
from offgrad.prediction import Estimate, Machine, estimate
from offgrad.prediction.estimate_queue import free_stall
from offgrad.prediction.known_machines import measured
from offgrad.utils.checkpoint import checkpoint

FOLDER = Path(__file__).parents[2] / "examples" / "models"
_random = np.random.default_rng(0)

Case = tuple[Callable[[], nn.Module], tuple[Any, ...], Callable[[Any], Any], Callable[[Any], Any]]
"""What makes a model; its inputs; its loss; and what makes an optimizer."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads take scratch memory when they come, so its peak is not the same each time."""
    count = kernels.get_num_threads()
    kernels.set_num_threads(1)
    yield
    kernels.set_num_threads(count)


@pytest.fixture(autouse=True)
def unknown_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no estimate depend on what is remembered of this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def examples() -> Iterator[Callable[[str], Any]]:
    """Import models of the folder `examples`."""
    known = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    models = {name: importlib.import_module(name) for name in MODELS if name != "gpt"}
    yield models.__getitem__
    sys.path.remove(str(FOLDER))
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
            del sys.modules[name]


def images(*shape: int) -> Any:
    return offgrad.from_numpy(_random.standard_normal(shape).astype(np.float32))


def labels(classes: int, *shape: int) -> Any:
    return offgrad.from_numpy(_random.integers(0, classes, shape))


def cross_entropy(targets: Any) -> Callable[[Any], Any]:
    return lambda logits: F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.view(-1))


def sgd(params: Any) -> Any:
    return optim.SGD(params, lr=0.1, momentum=0.9)


def case(name: str, examples: Callable[[str], Any]) -> Case:
    x = images(32, 1, 8, 8)
    if name == "gpt":
        config = GPTConfig(layers=2, width=64, heads=2, context=64, dropout=0.1)
        targets = labels(256, 4, 64)
        return lambda: GPT(config), (labels(256, 4, 64),), cross_entropy(targets), optim.AdamW
    example = examples(name)
    if name == "char_lstm":
        loss = cross_entropy(labels(40, 8, 48))
        model = lambda: example.CharLSTM(40)
        return model, (labels(40, 8, 48),), lambda out: loss(out[0]), optim.Adam
    if name == "dcgan":
        ones = offgrad.ones(32)
        loss = lambda out: F.binary_cross_entropy_with_logits(out, ones)
        model = lambda: copy.deepcopy(nn.Sequential(example.generator, example.discriminator))
        return model, (images(32, 16, 1, 1),), loss, optim.Adam
    if name == "unet":
        masks = (images(8, 1, 16, 16) > 0).float()
        make = lambda params: optim.RMSprop(params, momentum=0.9)
        return example.UNet, (images(8, 1, 16, 16),), lambda out: example.dice(out, masks), make
    if name == "vae":

        def both(outputs: Any) -> Any:
            logits, mean, log_variance = outputs
            return F.mse_loss(logits, target) - (log_variance - mean.pow(2)).sum()

        target = images(128, 64)
        return example.VAE, (target, images(128, 2)), both, optim.Adam
    models = {
        "fine_tune": (lambda: example.network(5), sgd),
        "image_classifier": (lambda: example.ResNet(), sgd),
        "vit": (lambda: example.ViT(), optim.AdamW),
    }
    model, make = models[name]
    return model, (x,), cross_entropy(labels(5, 32)), make


def real_peaks(given: Case, session: Any, steps: int = 3) -> list[int]:
    """Return the peak of each step, without what was there before."""
    make_model, inputs, loss_fn, make_optimizer = given
    gc.collect()
    before = memory.allocated()
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    peaks = []
    for _ in range(steps):
        memory.reset_peak()
        optimizer.zero_grad()
        with session:
            loss = loss_fn(model(*inputs))
        loss.backward()
        optimizer.step()
        peaks.append(memory.max_allocated() - before)
    return peaks


def estimated(given: Case, policy: Any, **options: Any) -> Estimate:
    make_model, inputs, loss_fn, make_optimizer = given
    options = {"loss_fn": loss_fn, "optimizer": make_optimizer, "policy": policy} | options
    return estimate(make_model(), *inputs, **options)


MODELS = [
    "gpt", "char_lstm", "dcgan", "fine_tune", "image_classifier", "unet", "vae", "vit",
]  # fmt: skip


def under_autocast(given: Case) -> Case:
    """Return a case that runs its model under autocast, and its loss in float32."""
    make_model, inputs, loss_fn, make_optimizer = given

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def forward(self, *inputs: Any) -> Any:
            with offgrad.autocast("cpu", dtype=offgrad.bfloat16):
                return self.model(*inputs)

    return Cast, inputs, lambda out: loss_fn(out.float()), make_optimizer


EXACT = [None, "keep", "pool", "recompute", "cast:bfloat16"]


@pytest.mark.parametrize("name", MODELS)
def test_peak_is_that_of_the_step(name: str, examples: Callable[[str], Any]) -> None:
    given = case(name, examples)
    for policy in EXACT if name == "gpt" else ("keep", "recompute"):
        expected = estimated(given, policy)
        session = nullcontext() if policy is None else offgrad.offload(policy)
        found = real_peaks(given, session)[-1]
        assert expected.peak_nbytes == pytest.approx(found, rel=2e-3), policy


PICKED: dict[str, Callable[..., Any]] = {
    "gather": lambda x, i: x.gather(0, i),
    "rows": lambda x, i: x[i[:, 0]],
    "places": lambda x, i: x[i[0], i[1]],
    "max": lambda x, i: x.max(1)[0],
    "scatter_add": lambda x, i: x.scatter_add(0, i, x * x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i, x * x, "amax"),
}


@pytest.mark.parametrize("name", PICKED)
def test_16_bit_floats_at_an_index_at_the_peak(name: str) -> None:
    """They are added in float32."""

    class Picked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(offgrad.randn(600, 500).bfloat16())

        def forward(self, index: Any) -> Any:
            return PICKED[name](self.weight, index).sum()

    gc.collect()
    before = memory.allocated()
    model, index = Picked(), offgrad.randint(0, 400, (600, 500))
    expected = offgrad.estimate(model, index)
    for _ in range(2):
        model(index).backward()
        model.zero_grad()
    memory.reset_peak()
    model(index).backward()
    assert expected.peak_nbytes == pytest.approx(memory.max_allocated() - before, rel=0.02)


@pytest.mark.parametrize("exponent", [2, 3, -1])
def test_gradients_of_powers_at_the_peak(exponent: int) -> None:
    def loss_fn(out: offgrad.Tensor) -> offgrad.Tensor:
        return out.pow(exponent).mean()

    gc.collect()
    before = memory.allocated()
    model, x = nn.Linear(128, 2000), offgrad.randn(512, 128)
    expected = offgrad.estimate(model, x, policy="keep", loss_fn=loss_fn)
    peaks = []
    for _ in range(2):
        model.zero_grad()
        memory.reset_peak()
        with offgrad.offload("keep"):
            loss = loss_fn(model(x))
        loss.backward()
        del loss
        peaks.append(memory.max_allocated() - before)
    assert expected.peak_nbytes == pytest.approx(peaks[-1], rel=5e-3)


@pytest.mark.parametrize("name", ["gpt", "char_lstm", "image_classifier"])
def test_peak_under_a_store_that_writes_at_once(
    name: str, examples: Callable[[str], Any], tmp_path: Path
) -> None:
    given = case(name, examples)
    with DiskStore(tmp_path, threads=0, allocate=memory.empty, hold=memory.empty) as store:
        expected = estimated(given, Offload(store))
        session = offgrad.offload(Offload(store))
        assert expected.peak_nbytes == pytest.approx(real_peaks(given, session)[-1], rel=2e-3)
        figures = session.ledger
        (counted,) = expected.stores.values()
        assert counted.written_nbytes * 3 == figures.written_nbytes
        assert counted.read_nbytes * 3 == figures.read_nbytes


@pytest.mark.parametrize(
    ("name", "policy"),
    [("gpt", each) for each in ("disk", "zarr", "budget:1MiB", "recompute,then=disk", "last:2")]
    + [("image_classifier", "disk"), ("vit", "budget:1MiB")],
)
def test_peak_under_drives(
    name: str, policy: str, examples: Callable[[str], Any], tmp_path: Path
) -> None:
    given = case(name, examples)
    expected = estimated(given, policy, bandwidth="100GB/s")
    # Write-behind depends on the drive: a busy one holds more in memory in some steps.
    found = min(real_peaks(given, offgrad.offload(policy, directory=str(tmp_path)), steps=6)[1:])
    assert expected.peak_nbytes == pytest.approx(found, rel=0.05)
    assert sum(expected.categories.values()) == expected.peak_nbytes


CONVOLUTIONS = {
    "winograd": (lambda: nn.Conv2d(16, 16, 3, padding=1), (8, 16, 32, 32)),
    "columns": (lambda: nn.Conv2d(16, 32, 5, stride=2), (8, 16, 33, 33)),
    "direct": (lambda: nn.Conv2d(32, 32, 3, groups=32), (8, 32, 32, 32)),
    "transposed": (lambda: nn.ConvTranspose2d(16, 8, 4, 2, 1), (8, 16, 16, 16)),
    "one dimension": (lambda: nn.Conv1d(32, 32, 9), (8, 32, 512)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_scratch_memory_of_convolutions_counts(name: str) -> None:
    model, shape = CONVOLUTIONS[name]
    given: Case = (model, (images(*shape),), lambda out: (out * out).sum(), optim.SGD)
    found = real_peaks(given, nullcontext())[-1]
    assert estimated(given, None).peak_nbytes == pytest.approx(found, rel=2e-3)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_scratch_memory_of_recurrent_layers_counts(kind: Any) -> None:
    given: Case = (
        lambda: kind(32, 64, 2), (images(20, 64, 32),), lambda out: out[0].sum(), optim.SGD
    )  # fmt: skip
    found = real_peaks(given, nullcontext())[-1]
    assert estimated(given, None).peak_nbytes == pytest.approx(found, rel=2e-3)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_are_expected_to_have_one_size(mode: str) -> None:
    make = lambda: nn.EmbeddingBag(50, 640, mode=mode)
    given: Case = make, (labels(50, 400, 7),), lambda out: (out * out).sum(), optim.SGD
    found = real_peaks(given, nullcontext())[-1]
    assert estimated(given, None).peak_nbytes == pytest.approx(found, rel=2e-3)


OPTIMIZERS = [
    optim.Adadelta, optim.Adafactor, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax,
    optim.ASGD, optim.Muon, optim.NAdam, optim.RAdam, optim.RMSprop, optim.Rprop, optim.SGD,
]  # fmt: skip


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_and_scratch_of_optimizers_count(kind: Any) -> None:
    given: Case = (
        lambda: nn.Linear(256, 300, bias=False), (images(4, 256),), lambda out: out.sum(), kind
    )  # fmt: skip
    found = real_peaks(given, nullcontext())[-1]
    expected = estimated(given, None)
    assert expected.peak_nbytes == pytest.approx(found, rel=2e-3)


def test_categories_are_those_counted_by_hand() -> None:
    model = nn.Sequential(nn.Linear(256, 512, bias=False), nn.Sigmoid())
    x = offgrad.zeros(1000, 256)
    result = estimate(model, x, optimizer=optim.Adam(model.parameters()))
    weights, hidden = 4 * 256 * 512, 4 * 1000 * 512
    assert result.phase == "backward"
    assert result.categories["parameters"] == weights
    assert result.categories["optimizer state"] == 2 * weights + 4
    assert result.categories["inputs"] == x.nbytes
    assert result.categories["saved for backward"] == hidden
    assert result.saved == {"SigmoidBackward0.result": hidden}


def test_a_model_larger_than_memory_is_estimated_where_it_is() -> None:
    with offgrad.device("meta"):
        model = nn.Sequential(*[nn.Linear(50_000, 50_000) for _ in range(20)])
        x = offgrad.empty(1000, 50_000)
    before = memory.allocated()
    result = estimate(model, x, policy="disk")
    assert memory.allocated() == before
    assert result.categories["parameters"] == 20 * 4 * (50_000**2 + 50_000)
    assert result.stores["disk"].written_nbytes == 19 * 4 * 1000 * 50_000


def test_nothing_of_the_program_changes() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.ReLU())
    optimizer = optim.Adam(model.parameters())
    x = offgrad.randn(300, 64, requires_grad=True)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    state = {id(param): each["exp_avg"].clone() for param, each in optimizer.state.items()}
    x.grad = None
    before = {name: each.numpy().copy() for name, each in model.state_dict().items()}
    random, kernel = offgrad.get_rng_state(), kernels.matmul
    gc.collect()
    memory.reset_peak()
    peak = memory.max_allocated()

    def loss_fn(out: Any) -> Any:
        return out.sum() + sum(each.pow(2).sum() for each in model.parameters())

    with offgrad.offload("disk") as session:
        result = estimate(model, x, policy="pool", optimizer=optimizer, loss_fn=loss_fn)
    assert result.categories["gradients"]
    assert memory.max_allocated() == peak == memory.allocated()
    assert session.ledger.saves == 0
    for name, each in model.state_dict().items():
        np.testing.assert_array_equal(each.numpy(), before[name])
    assert all(each.grad is None for each in (x, *model.parameters()))
    for param, each in optimizer.state.items():
        assert offgrad.equal(each["exp_avg"], state[id(param)])
    assert offgrad.equal(offgrad.get_rng_state(), random)
    assert kernels.matmul is kernel
    assert not meters
    assert not shape_only
    model(x).sum().backward()
    gradient: Any = x.grad
    assert np.isfinite(gradient.numpy()).all()


def test_other_threads_compute_meanwhile() -> None:
    a = offgrad.randn(200, 200)
    expected = (a @ a).numpy()
    ended = threading.Event()
    wrong: list[int] = []

    def compute() -> None:
        while not ended.is_set():
            if not np.array_equal((a @ a).numpy(), expected):
                wrong.append(1)

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        for _ in range(3):
            estimate(nn.Linear(100, 100), offgrad.ones(100, 100), policy="disk")
    finally:
        ended.set()
        thread.join()
    assert not wrong


class Masked(nn.Module):
    def forward(self, x: Any) -> Any:
        return x[x > 0].sum()


class Item(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * x.sum().item()


class Values(nn.Module):
    def forward(self, x: Any) -> Any:
        return x * float(x.detach().numpy().max())


class Branch(nn.Module):
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (Masked(), "x[x > 0]"),
        (Item(), "item()"),
        (Branch(), "if x.sum() > 0"),
        (Values(), ".numpy()"),
    ],
)
def test_what_depends_on_values_is_refused_with_its_line(model: nn.Module, line: str) -> None:
    with pytest.raises(NotImplementedError, match="values") as caught:
        estimate(model, offgrad.ones(10, requires_grad=True))
    assert line in str(caught.value)
    assert __file__ in str(caught.value)
    assert not meters


def test_an_interrupt_leaves_nothing_behind() -> None:
    def interrupt(out: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        estimate(nn.Linear(4, 4), offgrad.ones(2, 4), loss_fn=interrupt)
    assert not meters
    assert not shape_only
    assert offgrad.get_default_device() == offgrad.device("cpu")
    assert offgrad.ones(2).sum().item() == 2


def test_wrong_arguments_are_refused() -> None:
    x = offgrad.ones(2, 2)
    with pytest.raises(TypeError, match="takes a module"):
        estimate(lambda x: x, x)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Linear.forward.*missing a required argument: 'input'"):
        estimate(nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'mask'.*estimate\(model, x"):
        estimate(nn.Linear(2, 2), x, kwargs={"mask": x})
    with pytest.raises(ValueError, match="bandwidth"):
        estimate(nn.Linear(2, 2), x, bandwidth=0)
    with pytest.raises(ValueError, match="a policy that has decided"):
        estimate(nn.Linear(2, 2), x, policy="auto")
    with pytest.raises(TypeError, match="a session is no policy"):
        estimate(nn.Linear(2, 2), x, policy=offgrad.offload("disk"))
    with pytest.raises(ValueError, match="policy"):
        estimate(nn.Linear(2, 2), x, policy="dsik")
    with pytest.raises(TypeError, match="must return a tensor"):
        estimate(nn.Linear(2, 2), x, loss_fn=lambda out: 1.0)


def test_policies_by_module_and_frozen_models() -> None:
    model = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128))
    result = estimate(model, offgrad.ones(200, 128), policy={"1": "disk"})
    assert result.stores["disk"].written_nbytes == 200 * 128 * 4
    model.requires_grad_(False)
    result = estimate(model, offgrad.ones(200, 128))
    assert list(result.phases) == ["forward"]


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 256)

    def forward(self, x: Any) -> Any:
        with offgrad.offload("pool"):
            return checkpoint(self.linear, x, use_reentrant=False).sigmoid()


def test_sessions_and_checkpoints_of_the_model_count() -> None:
    given: Case = (Inner, (images(300, 256),), lambda out: out.sum(), optim.SGD)
    found = real_peaks(given, nullcontext())[-1]
    expected = estimated(given, None)
    assert expected.peak_nbytes == pytest.approx(found, rel=2e-3)
    assert expected.stores["pool"].written_nbytes == 2 * 300 * 256 * 4  # x, and the result


def test_paged_parameters_are_not_read(tmp_path: Path) -> None:
    model = nn.Linear(300, 300)
    optimizer = optim.Adam(model.parameters())
    with offgrad.offload_model(model, "disk", directory=str(tmp_path)) as pages:
        before = pages.ledger.reads
        result = estimate(model, images(4, 300), optimizer=optimizer)
        assert result.categories["parameters"] == 4 * 300 * 301
        assert pages.ledger.reads == before
    assert "as much as their window holds" in str(result)


@pytest.mark.parametrize("window", ["3MiB", "64MiB"])
def test_pages_count_as_much_as_their_window_holds(window: str, tmp_path: Path) -> None:
    def make() -> Any:
        return nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)])

    x = images(32, 512)
    before = memory.allocated()
    model = make()
    optimizer = optim.Adam(model.parameters())
    with offgrad.offload_model(model, "disk", directory=str(tmp_path), window=window):
        for step in range(3):
            memory.reset_peak()
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            if not step:
                result = estimate(model, x, optimizer=optimizer)
        found = memory.max_allocated() - before
        assert result.peak_nbytes == pytest.approx(found, rel=0.05)
        assert sum(result.categories.values()) == result.peak_nbytes


def test_two_threads_estimate_at_once() -> None:
    model, x = nn.LSTM(32, 32), images(20, 16, 32)
    options: Any = {"loss_fn": lambda out: out[0].sum(), "policy": "disk"}
    expected = estimate(model, x, **options).peak_nbytes
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(estimate(model, x, **options).peak_nbytes))
        for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [expected] * 4


def test_a_slow_drive_delays_the_step() -> None:
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(30)])
    x = offgrad.ones(1024, 512)
    slow, fast = (estimate(model, x, policy="disk", bandwidth=each) for each in ("1MB/s", 1e12))
    assert slow.stall_seconds > 10 > 1 > fast.stall_seconds
    assert slow.categories["in flight"] <= 32 << 20
    assert slow.free_bandwidth is not None
    assert slow.free_bandwidth > 1e6
    assert estimate(model, x, policy="keep").free_bandwidth is None


@pytest.mark.parametrize("layers", [2, 8])
def test_a_drive_that_delays_nothing_is_fast_enough(layers: int) -> None:
    blocks = [each for _ in range(layers) for each in (nn.Linear(512, 512), nn.GELU())]
    model = nn.Sequential(*blocks)
    x = offgrad.ones(1024, 512)
    delayed = 0
    for bandwidth in (1e8, 3e8, 1e9, 3e9, 1e10, 1e12):
        found = estimate(model, x, policy="disk", bandwidth=bandwidth)
        assert found.free_bandwidth is not None
        delays = found.stall_seconds > free_stall(found.compute_seconds)
        assert delays or found.free_bandwidth <= bandwidth
        delayed += delays
    assert delayed < 6


def test_it_can_be_read() -> None:
    model = nn.Sequential(nn.Linear(300, 300), nn.GELU(), nn.Linear(300, 300))
    result = offgrad.estimate(model, offgrad.ones(1000, 300), policy="disk:lz4")
    text = str(result)
    assert max(map(len, text.splitlines())) <= 100
    for part in ("parameters", "temporary", "disk:lz4", "MB/s", "depend on values"):
        assert part in text or part.replace("MB", "GB") in text, part
    assert len(repr(result)) < 200
    assert "<table>" in result._repr_html_()
    figures = json.loads(json.dumps(result.to_dict()))
    assert figures["peak_nbytes"] == result.peak_nbytes
    assert figures["stores"]["disk:lz4"]["written_nbytes"] > 0


def test_the_rate_of_the_drive_is_the_remembered_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Linear(512, 512), nn.Tanh()), offgrad.ones(1024, 512)
    unknown = estimate(model, x, policy="disk")
    assert (unknown.bandwidth, unknown.bandwidth_source) == (1e9, "supposed")
    assert "at 1 GB/s (supposed" in str(unknown)
    monkeypatch.setattr(
        "offgrad.prediction.known_machines.measure",
        lambda _: Machine(write_rate=3e8, read_rate=2e8),
    )
    measured()
    known = estimate(model, x, policy="disk")
    assert (known.bandwidth, known.bandwidth_source) == (2e8, "measured")
    assert "at 200 MB/s (as this drive was measured)" in str(known)
    given = estimate(model, x, policy="disk", bandwidth="1GB/s")
    assert (given.bandwidth, given.bandwidth_source) == (1e9, "given")


def test_it_lets_go_of_the_model_and_its_inputs() -> None:
    gc.disable()
    try:
        model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), offgrad.ones(2, 8)
        died = [weakref.ref(model[0].weight._storage), weakref.ref(x._storage)]
        estimate(model, x, policy="disk")
        del model, x
        assert [each() for each in died] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("policy", ["keep", "pool"])
@pytest.mark.parametrize("name", ["gpt", "vit", "image_classifier"])
def test_peaks_under_autocast(name: str, policy: str, examples: Callable[[str], Any]) -> None:
    given = under_autocast(case(name, examples))
    result = estimated(given, policy)
    peaks = real_peaks(given, offgrad.offload(policy))
    assert result.peak_nbytes == pytest.approx(max(peaks[1:]), rel=0.05)
