"""Convolutions beside torch's: layers, arguments, errors, saved tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad
from tests.nn.against_torch import close

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

LAYERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "Conv1d": (lambda nn: nn.Conv1d(3, 4, 3, 2, 1), (2, 3, 8)),
    "Conv1d unbatched": (lambda nn: nn.Conv1d(3, 4, 2, padding="same"), (3, 8)),
    "Conv2d": (lambda nn: nn.Conv2d(3, 4, 3), (2, 3, 6, 7)),
    "Conv2d unbatched": (lambda nn: nn.Conv2d(3, 4, 3, bias=False), (3, 6, 7)),
    "Conv2d by position": (lambda nn: nn.Conv2d(2, 4, (3, 2), (2, 1), (1, 2), (1, 2), 2, False),
                           (2, 2, 6, 7)),
    "Conv2d same": (lambda nn: nn.Conv2d(2, 3, (3, 4), padding="same", dilation=(2, 1)),
                    (2, 2, 6, 7)),
    "Conv2d valid": (lambda nn: nn.Conv2d(2, 3, 3, padding="valid"), (1, 2, 5, 5)),
    "Conv2d depthwise": (lambda nn: nn.Conv2d(4, 8, 3, padding=1, groups=4), (2, 4, 6, 5)),
    "Conv2d pointwise": (lambda nn: nn.Conv2d(4, 8, 1), (2, 4, 6, 5)),
    "Conv2d pointwise with steps": (lambda nn: nn.Conv2d(4, 8, 1, 2), (2, 4, 6, 5)),
    "Conv2d reflect": (
        lambda nn: nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="reflect"),
        (2, 2, 5, 6),
    ),
    "Conv2d replicate": (
        lambda nn: nn.Conv2d(2, 3, 3, padding="same", dilation=2, padding_mode="replicate"),
        (2, 2, 5, 6),
    ),
    "Conv2d circular": (
        lambda nn: nn.Conv2d(2, 4, (3, 2), 2, padding=1, groups=2, padding_mode="circular"),
        (2, 2, 5, 6),
    ),
    "Conv1d circular": (
        lambda nn: nn.Conv1d(2, 3, 4, padding="same", padding_mode="circular"),
        (2, 2, 7),
    ),
    "Conv3d": (lambda nn: nn.Conv3d(2, 3, (1, 3, 2), padding=(0, 1, 1)), (1, 2, 3, 4, 5)),
    "ConvTranspose1d": (lambda nn: nn.ConvTranspose1d(3, 4, 4, 2, 1), (2, 3, 5)),
    "ConvTranspose2d": (lambda nn: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2, False, 2), (2, 4, 3, 4)),
    "ConvTranspose2d unbatched": (lambda nn: nn.ConvTranspose2d(4, 3, 2, 2), (4, 3, 4)),
    "ConvTranspose3d": (lambda nn: nn.ConvTranspose3d(2, 3, 2, stride=(1, 2, 1)), (1, 2, 2, 3, 2)),
    "Unfold": (lambda nn: nn.Unfold(2, padding=1, stride=2), (2, 3, 4, 5)),
    "Fold": (lambda nn: nn.Fold((4, 5), kernel_size=(2, 3)), (2, 12, 9)),
    "Stack": (lambda nn: nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 1, 3)),
              (2, 1, 6, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even")
def test_layer(name: str) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    mine, theirs = make(offgrad.nn), make(torch.nn)
    assert repr(mine) == repr(theirs)
    state = theirs.state_dict()
    assert {k: tuple(v.shape) for k, v in mine.state_dict().items()} == {
        k: tuple(v.shape) for k, v in state.items()
    }
    mine.load_state_dict({key: offgrad.tensor(value.numpy()) for key, value in state.items()})
    for attribute in getattr(theirs, "__constants__", ()):
        assert getattr(mine, attribute) == getattr(theirs, attribute), attribute
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for turned in (False, True):  # the last time, the channels are the last in memory
        if turned:
            array = np.moveaxis(np.moveaxis(array, 0, -1).copy(), -1, 0)
        x, y = offgrad.from_numpy(array), torch.from_numpy(array)
        x.requires_grad_()
        y.requires_grad_()
        a, b = mine(x), theirs(y)
        close(a, b)
        mine.zero_grad()
        theirs.zero_grad()
        (a * a).sum().backward()
        (b * b).sum().backward()
        close(x.grad, y.grad, 2e-5)
        for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
            close(p.grad, q.grad, 2e-5)


def test_own_convolutions_inherit_from_the_base_of_all() -> None:
    def make(m: Any) -> Any:
        class Standardized(m.nn.modules.conv._ConvNd):  # type: ignore[misc]
            def __init__(self, inputs: int, outputs: int, size: int) -> None:
                pair = m.nn.modules.utils._pair
                super().__init__(
                    *(inputs, outputs, pair(size), pair(1), pair(0), pair(1)),
                    *(False, pair(0), 1, True, "zeros"),
                )

            def forward(self, x: Any) -> Any:
                weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
                return m.nn.functional.conv2d(x, weight, self.bias, self.stride, self.padding)

        return Standardized(2, 3, 3)

    mine, theirs = make(offgrad), make(torch)
    assert repr(mine) == repr(theirs)
    mine.load_state_dict({k: offgrad.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 5)).astype(np.float32)
    close(mine(offgrad.tensor(x)), theirs(torch.tensor(x)))


@pytest.mark.parametrize("size", [(11, 12), (2, 3, 12, 11)])
def test_output_size_of_transposed_layers(size: tuple[int, ...]) -> None:
    mine = offgrad.nn.ConvTranspose2d(4, 3, 3, 2)
    theirs = torch.nn.ConvTranspose2d(4, 3, 3, 2)
    theirs.load_state_dict({k: torch.tensor(v.numpy()) for k, v in mine.state_dict().items()})
    x = np.random.default_rng(0).standard_normal((2, 4, 5, 5)).astype(np.float32)
    close(mine(offgrad.tensor(x), output_size=size), theirs(torch.tensor(x), output_size=size))


def test_initial_weights_are_distributed_as_torchs() -> None:
    bounds = []
    for m in (offgrad, torch):
        layers = m.nn.Conv2d(6, 40, 5, groups=2), m.nn.ConvTranspose2d(8, 40, 5)
        found = [p.detach().numpy() for layer in layers for p in layer.parameters()]
        bounds.append([abs(each).max() for each in found])
    np.testing.assert_allclose(bounds[0], bounds[1], rtol=0.2)


def _functions(m: Any, dtype: str) -> dict[str, Any]:
    rng = np.random.default_rng(1)

    def values(*shape: int) -> Any:
        return m.tensor(rng.integers(-3, 4, shape)).to(getattr(m, dtype))

    F = m.nn.functional
    x, w, b = values(2, 4, 5, 6), values(6, 2, 3, 2), values(6)
    how = {"stride": [2], "padding": (1, 0), "groups": 2}
    return {
        "conv": F.conv2d(x, w, b, **how),
        "in m": m.conv2d(x, w, b, (1, 2), 1, 1, 2),
        "transposed": F.conv_transpose2d(x, values(4, 3, 2, 2), None, 2, 0, 1, 2),
        "full": m.convolution(x, w, b, [1, 1], [0, 0], [2, 1], False, [0, 0], 2),
        "time first": F.conv_tbc(values(7, 2, 4), values(3, 4, 5), values(5), 1),
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int64"])
def test_functions_and_dtypes(dtype: str) -> None:
    mine, theirs = _functions(offgrad, dtype), _functions(torch, dtype)
    for name, a in mine.items():
        b = theirs[name]
        assert str(b.dtype).endswith(str(a.dtype).rpartition(".")[2]), name
        np.testing.assert_allclose(a.to(offgrad.float64).numpy(), b.to(torch.float64).numpy(), 1e-2)


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_gradients_as_functions(ndim: int) -> None:
    rng = np.random.default_rng(0)
    shapes = (2, 4, *[7] * ndim), (6, 2, *[3] * ndim), (2, 6, *[4] * ndim)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    found = []
    for m in (offgrad, torch):
        x, weight, grad = map(m.tensor, arrays)
        of_input = getattr(m.nn.grad, f"conv{ndim}d_input")
        of_weight = getattr(m.nn.grad, f"conv{ndim}d_weight")
        found.append(
            (
                of_input(x.shape, weight, grad, 2, 1, 1, 2),
                of_weight(x, weight.shape, grad, stride=2, padding=1, groups=2),
            )
        )
        with pytest.raises(RuntimeError, match=r"."):
            of_input(shapes[0], weight, grad[..., :3], 2, 1, 1, 2)
    for mine, theirs in zip(*found, strict=True):
        close(mine, theirs)


ERRORS: dict[str, Callable[[Any, Any], Any]] = {
    "dtype": lambda m, x: m.conv2d(x, m.ones(6, 4, 3, 3, dtype=m.float64)),
    "bias dtype": lambda m, x: m.conv2d(x, m.ones(6, 4, 3, 3), m.ones(6, dtype=m.float64)),
    "bias": lambda m, x: m.conv2d(x, m.ones(6, 4, 3, 3), m.ones(5)),
    "channels": lambda m, x: m.conv2d(x, m.ones(6, 3, 3, 3)),
    "groups": lambda m, x: m.conv2d(x, m.ones(5, 2, 3, 3), groups=2),
    "no groups": lambda m, x: m.conv2d(x, m.ones(6, 4, 3, 3), groups=0),
    "stride": lambda m, x: m.conv2d(x, m.ones(6, 4, 3, 3), stride=0),
    "strides": lambda m, x: m.conv2d(x, m.ones(6, 4, 3, 3), stride=(1, 1, 1)),
    "padding": lambda m, x: m.conv2d(x, m.ones(6, 4, 3, 3), padding=-1),
    "dilation": lambda m, x: m.conv2d(x, m.ones(6, 4, 3, 3), dilation=0),
    "too large": lambda m, x: m.conv2d(x, m.ones(6, 4, 3, 3), dilation=3),
    "dims": lambda m, x: m.conv2d(x[0, 0], m.ones(6, 4, 3, 3)),
    "dims of weight": lambda m, x: m.conv2d(x, m.ones(6, 4, 3)),
    "other dims": lambda m, x: m.conv1d(x, m.ones(6, 4, 3)),
    "same": lambda m, x: m.conv2d(x, m.ones(6, 4, 3, 3), padding="same", stride=2),
    "string": lambda m, x: m.conv2d(x, m.ones(6, 4, 3, 3), padding="all"),
    "bool": lambda m, x: m.conv2d(x.bool(), m.ones(6, 4, 3, 3).bool()),
    "empty space": lambda m, x: m.conv2d(x[..., :0], m.ones(6, 4, 3, 3), padding=2),
    "no outputs": lambda m, x: m.conv2d(x, m.ones(0, 4, 3, 3)),
    "output padding": lambda m, x: m.conv_transpose2d(x, m.ones(4, 3, 3, 3), output_padding=1),
    "transposed": lambda m, x: m.conv_transpose2d(x, m.ones(5, 3, 3, 3)),
    "transposed groups": lambda m, x: m.conv_transpose2d(x, m.ones(4, 3, 3, 3), groups=3),
    "transposed bias": lambda m, x: m.conv_transpose2d(x, m.ones(4, 3, 3, 3), m.ones(4)),
    "nothing left": lambda m, x: m.conv_transpose2d(x[:, :, :1, :1], m.ones(4, 3, 1, 1), padding=1),
    "layer in": lambda m, x: m.nn.Conv2d(3, 4, 3, groups=2),
    "layer out": lambda m, x: m.nn.Conv2d(4, 3, 3, groups=2),
    "layer groups": lambda m, x: m.nn.Conv2d(4, 4, 3, groups=0),
    "layer padding": lambda m, x: m.nn.Conv2d(4, 4, 3, padding="all"),
    "layer same": lambda m, x: m.nn.Conv2d(4, 4, 3, padding="same", stride=2),
    "layer mode": lambda m, x: m.nn.Conv2d(4, 4, 3, padding_mode="all"),
    "layer mode transposed": lambda m, x: m.nn.ConvTranspose2d(4, 4, 3, padding_mode="reflect"),
    "output size": lambda m, x: m.nn.ConvTranspose2d(4, 4, 3, 2)(x, output_size=(12, 13)),
    "output sizes": lambda m, x: m.nn.ConvTranspose2d(4, 4, 3, 2)(x, output_size=(4, 12, 12)),
    "unfold too large": lambda m, x: m.nn.functional.unfold(x, 7),
    "unfold integers": lambda m, x: m.nn.functional.unfold(x.long(), 3),
    "unfold stride": lambda m, x: m.nn.functional.unfold(x, 3, stride=0),
    "unfold three": lambda m, x: m.nn.functional.unfold(x, (3, 3, 3)),
    "no weight": lambda m, x: m.conv2d(x, None),
    "unfold one": lambda m, x: m.nn.functional.unfold(x, (3,)),
    "unfold padding": lambda m, x: m.nn.functional.unfold(x, 3, padding=-1),
    "fold places": lambda m, x: m.nn.functional.fold(m.ones(2, 36, 9), 6, 3),
    "fold rows": lambda m, x: m.nn.functional.fold(m.ones(2, 35, 9), 5, 3),
    "fold integers": lambda m, x: m.nn.functional.fold(m.ones(2, 36, 9).long(), 5, 3),
    "fold dims": lambda m, x: m.nn.functional.fold(x, 5, 3),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    raised = []
    for m in (torch, offgrad):
        with pytest.raises(Exception, match=r".") as caught:
            ERRORS[name](m, m.ones(2, 4, 5, 5))
        raised.append(caught.type)
    assert raised[0] is raised[1]


def test_wrong_channels_are_reported_as_people_know_it() -> None:
    with pytest.raises(RuntimeError, match="to have 3 channels, but got 4 channels instead"):
        offgrad.nn.Conv2d(3, 6, 3)(offgrad.ones(2, 4, 5, 5))


def test_input_and_weight_alone_are_saved() -> None:
    seen: list[tuple[int, ...]] = []

    def pack(tensor: Any) -> Any:
        seen.append(tensor.shape)
        return tensor

    hooks = offgrad.autograd.graph.saved_tensors_hooks
    x = offgrad.randn(2, 3, 6, 6, requires_grad=True)
    layer = offgrad.nn.Conv2d(3, 4, 3, stride=2, padding=1)
    with hooks(pack, lambda tensor: tensor):
        layer(x)
    assert sorted(seen) == [(2, 3, 6, 6), (4, 3, 3, 3)]
    node: Any = layer(x).grad_fn
    assert node.name() == "ConvolutionBackward0"
    assert node._saved_input is x
    assert node._saved_weight is layer.weight
    assert (node._saved_stride, node._saved_padding) == ((2, 2), (1, 1))
    assert (node._saved_transposed, node._saved_groups) == (False, 1)
    assert node._saved_bias_sym_sizes_opt == (4,)
    # A frozen layer keeps no input, the first layer of a network no weight.
    layer.requires_grad_(False)
    seen.clear()
    with hooks(pack, lambda tensor: tensor):
        layer(x)
        offgrad.conv2d(x.detach(), layer.weight.detach().requires_grad_())
    assert seen == [(4, 3, 3, 3), (2, 3, 6, 6)]
