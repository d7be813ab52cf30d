"""Saved tensors of every kind: views, dtypes, external memory."""

import numpy as np

import offgrad
from tests.session.graphs import Bits, Offload, bits, normal


def views(offload: Offload) -> Bits:
    """Saves that are transposed, permuted, expanded, sliced, flipped or split."""
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


def reused(offload: Offload) -> Bits:
    """One tensor saved by many nodes, unchanged, transposed and reshaped."""
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


def external(offload: Offload) -> Bits:
    """External memory: reversed, read-only, repeated, offset, in Fortran order."""
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
    """bfloat16, a dtype that neither NumPy nor Zarr has."""
    x = normal(1, 9, 9, dtype=offgrad.bfloat16)
    with offload():
        loss = (x.tanh() * x.t()).sum() + (x * 2)[::2].exp().sum()
    loss.backward()
    return bits(loss, x.grad)
