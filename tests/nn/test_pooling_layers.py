"""Layers of pooling, padding and resampling: text, attributes and errors are those of torch."""

from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")

LAYERS = [
    *(f"{kind}{n}d(1)" for n in (1, 2, 3)
      for kind in ("ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad")),
    *(f"ConstantPad{n}d(2, 0.5)" for n in (1, 2, 3)),
    "ConstantPad2d((1, 2, 3, -1), 2)", "ZeroPad2d((1, 0, 2, 0))", "ReflectionPad2d((1, 2, 0, 1))",
    *(f"MaxPool{n}d({o})" for n in (1, 2, 3)
      for o in ("2", "3, stride=2, padding=1, ceil_mode=True", "2, 1, 0, 2")),
    "MaxPool2d((3, 2), return_indices=True)", "MaxPool2d(kernel_size=[2, 1])",
    *(f"AvgPool{n}d({o})" for n in (1, 2, 3) for o in ("2", "3, 2, 1, True, False")),
    "AvgPool2d((2, 3), divisor_override=5)", "AvgPool3d(2, (1, 2, 2))",
    *(f"LPPool{n}d(2, 2)" for n in (1, 2, 3)), "LPPool2d(2.0, (3, 2), stride=2)",
    *(f"Adaptive{kind}Pool{n}d(2)" for n in (1, 2, 3) for kind in ("Avg", "Max")),
    "AdaptiveAvgPool2d((1, None))", "AdaptiveMaxPool2d((2, 1), True)",
    "Upsample(scale_factor=2)", "Upsample(size=4, mode='nearest')",
    "UpsamplingNearest2d(scale_factor=2)", "UpsamplingBilinear2d(size=(3, 4))",
    "Upsample(scale_factor=(2, 3), mode='bilinear', align_corners=True)",
    "PixelShuffle(2)", "PixelUnshuffle(2)", "ChannelShuffle(2)", "Flatten()", "Flatten(0, 1)",
    "Unflatten(1, (2, 2))", "Unflatten(-1, [3, -1])",
    *(f"FractionalMaxPool{n}d(2, 3)" for n in (2, 3)),
    *(f"MaxUnpool{n}d(2, padding=1)" for n in (1, 2, 3)),
]  # fmt: skip


def made(m: Any, text: str) -> Any:
    return eval(f"nn.{text}", {"nn": m.nn})


@pytest.mark.parametrize("text", LAYERS)
def test_layer(text: str) -> None:
    mine, theirs = made(offgrad, text), made(torch, text)
    assert repr(mine) == repr(theirs)
    public = [
        {k: v for k, v in vars(each).items() if not k.startswith("_")} for each in (mine, theirs)
    ]
    assert public[0] == public[1]
    assert list(mine.state_dict()) == list(theirs.state_dict())
    if text.startswith(("Fractional", "MaxUnpool")):
        return
    ndim = next((int(n) for n in "123" if f"{n}d(" in text), 2)
    array = np.abs(np.random.default_rng(0).standard_normal((2, 4, 6, 6, 6)[: ndim + 2]))
    found = []
    for m, layer in ((offgrad, mine), (torch, theirs)):
        result = layer(m.tensor(array))
        found.append(result if isinstance(result, tuple) else (result,))
    for have, want in zip(*found, strict=True):
        assert tuple(have.shape) == tuple(want.shape)
        np.testing.assert_allclose(have.numpy(), want.numpy(), 1e-7, 1e-7)


ERRORS = [
    "f.max_pool2d(x[0, 0], 2)", "f.max_pool2d(x, 2, padding=2)", "f.max_pool2d(x, 0)",
    "f.max_pool2d(x, (2, 2, 2))", "f.max_pool2d(x, 9)", "f.max_pool2d(x, 2, dilation=0)",
    "f.max_pool2d(x, 2, stride=0)", "f.max_pool2d(x, 2, padding=-1)", "f.max_pool2d([1], 2)",
    "f.max_pool2d(x[:, :0], 2)", "f.max_pool2d(x[:, :, :0], 2)", "f.avg_pool2d(x, 2, padding=2)",
    "f.avg_pool2d(x, 2, divisor_override=0)", "f.avg_pool2d(x, 9)", "f.avg_pool2d(x, 2.0)",
    "f.adaptive_avg_pool2d(x, (2, 2, 2))", "f.adaptive_avg_pool2d(x[0, 0], 2)",
    "f.adaptive_avg_pool2d(x, -1)", "f.adaptive_avg_pool2d(x[:, :, :0], 2)",
    "f.pad(x, (1,))", "f.pad(x, (8,) * 4, mode='reflect')", "f.pad(x, (9,) * 4, mode='circular')",
    "f.pad(x, (1, 1), mode='reflect')", "f.pad(x, (1, 1), mode='foo')", "f.pad(x, (-5, -5))",
    "f.pad(x, (1, 1, 1, 1), mode='reflect', value=1.0)", "f.pad(x, (1,) * 10)",
    "f.interpolate(x)", "f.interpolate(x, size=4, scale_factor=2)",
    "f.interpolate(x, size=4, mode='linear')", "f.interpolate(x, size=4, mode='foo')",
    "f.interpolate(x, size=(4,))", "f.interpolate(x, size=4, align_corners=True)",
    "f.interpolate(x, size=0)", "f.interpolate(x, scale_factor=(2,))",
    "f.interpolate(x, size=4, antialias=True)", "f.interpolate(x[0, 0], size=4)",
    "f.interpolate(x, size=4, recompute_scale_factor=True)",
    "f.grid_sample(x, x[:1, :2].mT[..., :2], align_corners=False)",
    "f.grid_sample(x, x[..., :3], align_corners=False)", "f.grid_sample(x, x, mode='foo')",
    "f.grid_sample(x, x, padding_mode='foo')", "f.affine_grid(x[0, :2, :2], [3, 3, 4, 4], False)",
    "f.affine_grid(x[0, :2, :3].expand(2, 2, 3), [2, 3, 0, 4], False)",
    "f.pixel_shuffle(x, 2)", "f.pixel_shuffle(x, 0)", "f.pixel_unshuffle(x, 3)",
    "f.channel_shuffle(x, 2)", "f.fractional_max_pool2d(x, 2)", "nn.FractionalMaxPool2d(2)",
    "nn.FractionalMaxPool2d(2, output_ratio=1.5)", "nn.FractionalMaxPool2d(2, 2, 0.5)",
    "f.fractional_max_pool2d(x, 2, output_size=8)", "nn.Unflatten(1, 2)", "nn.Unflatten(1, ('a',))",
    "f.max_unpool2d(x, x.long() * 0 + 300, 2)", "f.max_unpool2d(x, x, 2)",
    "f.max_unpool2d(x, x.long() * 0, 2, output_size=(30, 30))", "f.lp_pool2d(x, 0, 2)",
]  # fmt: skip


@pytest.mark.parametrize("text", ERRORS)
@pytest.mark.filterwarnings("ignore")
def test_error(text: str) -> None:
    raised = []
    for m in (offgrad, torch):
        with pytest.raises(Exception) as info:
            eval(text, {"f": m.nn.functional, "nn": m.nn, "x": m.zeros(2, 3, 8, 8)})
        raised.append(info.type)
    assert raised[0] is raised[1]


def test_circular_padding_needs_elements_to_copy() -> None:
    with pytest.raises(RuntimeError, match="nothing to copy"):
        offgrad.nn.functional.pad(offgrad.ones(1, 1, 1), (-1, 1), "circular")


@pytest.mark.parametrize("samples", [(2, 3), (1, 2, 3)])
def test_random_places_of_an_input_without_a_batch(samples: tuple[int, ...]) -> None:
    x = offgrad.arange(2 * 8**3).reshape(2, 8, 8, 8).float()
    places = offgrad.rand(*samples)
    pool = offgrad.nn.FractionalMaxPool3d(2, output_size=3, _random_samples=places)
    batched = offgrad.nn.FractionalMaxPool3d(
        2, output_size=3, _random_samples=places.reshape(1, 2, 3)
    )
    assert pool(x).equal(batched(x[None])[0])
