"""Convolutions, and blocks of images, against sums over each element of the kernel."""

from itertools import product
from typing import Any

import numpy as np

from offgrad.ops._nn.convolution import Convolution, ConvolutionWeight
from offgrad.ops._nn.sliding_blocks import Col2Im, Im2Col
from tests.ops.opspec import OpSpec

BOTH = (Convolution, ConvolutionWeight)


def _places(x: Any, at: Any, places: Any, stride: Any, dilation: Any) -> Any:
    """The elements that the kernel's element `at` meets."""
    first = [k * d for k, d in zip(at, dilation, strict=True)]
    return x[_at(*(slice(f, f + n * s, s)
                     for f, n, s in zip(first, places, stride, strict=True)))]  # fmt: skip


def _at(*index: Any) -> Any:
    """The index of the last dimensions."""
    return ..., *index


def _each(value: Any, ndim: int) -> Any:
    return (value,) * ndim if isinstance(value, int) else value


def conv(
    x: Any, w: Any, b: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    ndim = w.ndim - 2
    stride, dilation = _each(stride, ndim), _each(dilation, ndim)
    reach = [(k - 1) * d for k, d in zip(w.shape[2:], dilation, strict=True)]
    if padding == "same":
        sides = [(r // 2, r - r // 2) for r in reach]
    else:
        sides = [(p, p) for p in _each(padding, ndim)]
    x = np.pad(x, [(0, 0)] * (x.ndim - ndim) + sides)
    places = [(n - r - 1) // s + 1
              for n, r, s in zip(x.shape[-ndim:], reach, stride, strict=True)]  # fmt: skip
    out = np.zeros((*x.shape[: -ndim - 1], len(w), *places), x.dtype)
    for group, at in product(range(groups), np.ndindex(*w.shape[2:])):
        of_x = slice(group * w.shape[1], (group + 1) * w.shape[1])
        of_w = slice(group * len(w) // groups, (group + 1) * len(w) // groups)
        part = _places(x, at, places, stride, dilation)
        part = np.moveaxis(part, -ndim - 1, 0)[of_x]
        product_ = np.tensordot(w[of_w][_at(*at)], part, 1)
        out[_at(of_w, *[slice(None)] * ndim)] += np.moveaxis(product_, 0, -ndim - 1)
    return out if b is None else out + b.reshape(-1, *[1] * ndim)


def transposed(
    x: Any, w: Any, b: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    """A convolution of x with zeros between its elements, with the kernel turned around."""
    ndim = w.ndim - 2
    stride, dilation = _each(stride, ndim), _each(dilation, ndim)
    space = x.shape[-ndim:]
    wide = np.zeros((*x.shape[:-ndim], *((n - 1) * s + 1 for n, s in
                                         zip(space, stride, strict=True))), x.dtype)  # fmt: skip
    wide[_at(*(slice(None, None, s) for s in stride))] = x
    pads = [((k - 1) * d - p, (k - 1) * d - p + o) for k, d, p, o in
            zip(w.shape[2:], dilation, _each(padding, ndim), _each(output_padding, ndim),
                strict=True)]  # fmt: skip
    wide = np.pad(wide, [(0, 0)] * (x.ndim - ndim) + [(max(a, 0), max(b_, 0)) for a, b_ in pads])
    cut = [slice(max(-a, 0), n - max(-b_, 0))
           for (a, b_), n in zip(pads, wide.shape[-ndim:], strict=True)]  # fmt: skip
    turned = w[_at(*[slice(None, None, -1)] * ndim)]
    turned = turned.reshape(groups, -1, *turned.shape[1:]).swapaxes(1, 2)
    return conv(wide[_at(*cut)], turned.reshape(-1, *turned.shape[2:]), b, 1, 0, dilation, groups)


def _spec(name: str, samples: Any, label: str = "", twin: Any = None, **options: Any) -> OpSpec:
    reference: Any = transposed if "transpose" in name else conv
    return OpSpec(
        label or name,
        BOTH,
        lambda m, *args: getattr(m.nn.functional, name)(*args, **options),
        samples,
        lambda *args: reference(*args, **options),
        complex=not label,
        twin=twin,
    )


def blocks(x: Any, size: Any, stride: Any = 1, padding: int = 0, dilation: Any = 1) -> Any:
    x = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(padding, padding)] * 2)
    places = [(n - d * (k - 1) - 1) // s + 1 for n, d, k, s in
              zip(x.shape[-2:], _each(dilation, 2), size, _each(stride, 2),
                  strict=True)]  # fmt: skip
    parts = [_places(x, at, places, _each(stride, 2), _each(dilation, 2))
             for at in np.ndindex(*size)]  # fmt: skip
    return np.stack(parts, -3).reshape(
        *x.shape[:-3], x.shape[-3] * len(parts), places[0] * places[1]
    )


SPECS = [
    _spec("conv1d", [((2, 3, 5), (4, 3, 2), (4,)), ((3, 4), (2, 3, 4), (2,)),
                     ((0, 3, 5), (4, 3, 2), (4,))]),
    _spec("conv2d", [((2, 2, 4, 3), (3, 2, 2, 3), (3,)), ((2, 3, 3), (1, 2, 1, 1), (1,)),
                     ((0, 2, 4, 3), (3, 2, 2, 3), (3,))]),
    _spec("conv3d", [((1, 2, 2, 3, 3), (2, 2, 2, 1, 3), (2,)), ((1, 2, 3, 2), (2, 1, 1, 2, 2))]),
    _spec("conv2d", [((1, 2, 5, 6), (2, 2, 3, 2)), ((2, 1, 3, 4), (1, 1, 2, 2))], "conv2d_steps",
          stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
    _spec("conv2d", [((1, 4, 4, 4), (6, 2, 3, 3), (6,)), ((2, 2, 3, 5), (2, 1, 3, 3), (2,))],
          "conv2d_groups", padding=1, groups=2),
    _spec("conv2d", [((1, 2, 5, 5), (2, 1, 3, 3)), ((1, 2, 4, 4), (4, 1, 3, 3))],
          "conv2d_depthwise", padding=1, stride=2, groups=2),
    _spec("conv2d", [((1, 2, 4, 5), (2, 2, 2, 3), (2,))], "conv2d_same",
          twin=lambda m, x, *rest: m.nn.functional.conv2d(  # PyTorch warns of even kernels
              m.nn.functional.pad(x, (1, 1, 0, 1)), *rest),
          padding="same"),
    _spec("conv_transpose1d", [((2, 3, 4), (3, 2, 3), (2,)), ((3, 4), (3, 2, 1), (2,)),
                               ((0, 3, 4), (3, 2, 3), (2,))]),
    _spec("conv_transpose2d", [((2, 2, 2, 3), (2, 3, 2, 3), (3,))]),
    _spec("conv_transpose3d", [((1, 2, 2, 1, 2), (2, 2, 2, 2, 1), (2,))]),
    _spec("conv_transpose2d", [((1, 4, 2, 3), (4, 1, 3, 2), (2,))], "conv_transpose2d_steps",
          stride=(2, 1), padding=(1, 2), output_padding=(1, 1), groups=2, dilation=(1, 3)),
    OpSpec("im2col", (Im2Col, Col2Im),
           lambda m, x: m.nn.functional.unfold(x, (2, 3), padding=1, stride=(2, 1)),
           [((2, 2, 4, 3),), ((2, 3, 3),), ((0, 2, 4, 3),)],
           lambda x: blocks(x, (2, 3), (2, 1), 1), complex=True),
    OpSpec("im2col_dilated", (Im2Col,),
           lambda m, x: m.nn.functional.unfold(x, 2, dilation=(1, 2)), [((1, 2, 4, 5),)],
           lambda x: blocks(x, (2, 2), dilation=(1, 2))),
    OpSpec("col2im", (Col2Im, Im2Col),
           lambda m, x: m.nn.functional.fold(x, (4, 5), (2, 3), padding=1, stride=(2, 1)),
           [((2, 12, 15),), ((6, 15),), ((0, 6, 15),)], complex=True),
]  # fmt: skip
