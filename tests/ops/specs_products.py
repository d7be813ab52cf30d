"""Products of matrices and vectors, and sums of products."""

from typing import Any

import numpy as np

from offgrad.ops._linalg import affine, contraction, distances, products
from tests.ops.calls import call
from tests.ops.opspec import OpSpec, apart

EQUATIONS: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("ij,jk->ik", [((2, 3), (3, 2)), ((0, 3), (3, 2)), ((2, 0), (0, 3))]),
    ("bij,bjk->bik", [((2, 2, 3), (2, 3, 1))]),
    ("bij,jk", [((2, 2, 3), (3, 2))]),
    ("i,i", [((3,), (3,))]),
    ("i,j->ji", [((2,), (3,))]),
    ("ij,ij->i", [((2, 3), (2, 3))]),
    ("...ij,...jk->...ik", [((2, 1, 2, 3), (3, 3, 1))]),
    ("i...,...->i...", [((2, 3), (3,))]),
    ("ik,kj->", [((2, 3), (3, 2))]),
    ("ij,kj->ikj", [((2, 1), (2, 3))]),
    ("ij,jk->k", [((2, 1), (3, 2))]),
    ("aab,b->a", [((2, 2, 3), (3,))]),
]
SINGLE: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("ii", [((3, 3),)]),
    ("iij->ji", [((2, 2, 3),)]),
    ("ij->", [((2, 3),)]),
    ("ba", [((2, 3),)]),
    ("...i->i...", [((2, 3, 2),)]),
]
BATCHES = ((2, 1, 2, 3), (3, 2, 3))


def _name(equation: str) -> str:
    return "einsum_" + equation.replace(",", "_").replace("->", "_to_").replace("...", "dots")


SPECS = [
    OpSpec("mv", (products.Mv,), lambda m, a, b: m.mv(a, b), [((2, 3), (3,)), ((2, 0), (0,))],
           np.matmul, complex=True),
    OpSpec("vdot", (products.Vdot,), lambda m, a, b: m.vdot(a, b), [((3,), (3,))], np.vdot,
           complex=True),
    OpSpec("ger", (), lambda m, a, b: m.ger(a, b), [((2,), (3,))], np.outer, complex=True),
    OpSpec("addmm", (affine.Addmm,), lambda m, x, a, b: m.addmm(x, a, b, beta=2, alpha=-3),
           [((2, 2), (2, 3), (3, 2)), ((2,), (2, 3), (3, 2)), ((), (2, 1), (1, 2))],
           lambda x, a, b: 2 * x - 3 * (a @ b), complex=True),
    OpSpec("addmm_plain", (affine.Addmm,), lambda m, x, a, b: m.addmm(x, a, b, beta=0),
           [((2, 2), (2, 3), (3, 2))], lambda x, a, b: a @ b),
    OpSpec("addmv", (affine.Addmv,), lambda m, x, a, b: m.addmv(x, a, b, beta=0.5, alpha=2),
           [((2,), (2, 3), (3,)), ((), (2, 3), (3,))], lambda x, a, b: 0.5 * x + 2 * (a @ b),
           complex=True),
    OpSpec("addr", (affine.Addr,), lambda m, x, a, b: m.addr(x, a, b, beta=3, alpha=0.5),
           [((2, 3), (2,), (3,)), ((3,), (2,), (3,))],
           lambda x, a, b: 3 * x + 0.5 * np.outer(a, b), complex=True),
    OpSpec("baddbmm", (affine.Baddbmm,), lambda m, x, a, b: m.baddbmm(x, a, b, alpha=2),
           [((2, 2, 2), (2, 2, 3), (2, 3, 2)), ((2, 1), (2, 2, 3), (2, 3, 2))],
           lambda x, a, b: x + 2 * (a @ b), complex=True),
    OpSpec("addbmm", (affine.Addbmm,), lambda m, x, a, b: m.addbmm(x, a, b, beta=2),
           [((2, 2), (2, 2, 3), (2, 3, 2))], lambda x, a, b: 2 * x + (a @ b).sum(0),
           complex=True),
    OpSpec("cross", (contraction.LinalgCross,), lambda m, a, b: m.cross(a, b, 1),
           [((2, 3), (2, 3))], lambda a, b: np.cross(a, b, axis=1), complex=True),
    OpSpec("linalg_cross", (contraction.LinalgCross,),
           lambda m, a, b: call(m, "linalg.cross", a, b), [((1, 3), (2, 3)), ((3,), (3,))],
           np.cross),
    OpSpec("tensordot", (products.Mm,), lambda m, a, b: m.tensordot(a, b, ([2, 0], [1, 2])),
           [((2, 1, 3), (2, 3, 2))], lambda a, b: np.tensordot(a, b, ([2, 0], [1, 2])),
           complex=True),
    OpSpec("tensordot_number", (products.Mm,), lambda m, a, b: m.tensordot(a, b, 1),
           [((2, 3), (3, 2))], lambda a, b: np.tensordot(a, b, 1)),
    OpSpec("tensordot_all", (products.Dot,), lambda m, a, b: m.tensordot(a, b, 2),
           [((2, 3), (2, 3))], np.tensordot),
    OpSpec("inner", (), lambda m, a, b: m.inner(a, b),
           [((2, 3), (2, 3)), ((3,), (3,)), ((), (2,))], np.inner, complex=True),
    OpSpec("kron", (), lambda m, a, b: m.kron(a, b),
           [((2, 1), (2, 2)), ((2,), (1, 3)), ((), (2,))], np.kron, complex=True),
    OpSpec("multi_dot", (products.Mm,),
           lambda m, a, b, c: call(m, "linalg.multi_dot", (a, b, c)),
           [((1, 3), (3, 2), (2, 4)), ((4, 2), (2, 3), (3, 1))], lambda a, b, c: a @ b @ c),
    OpSpec("multi_dot_vectors", (products.Mm,),
           lambda m, a, b, c: call(m, "linalg.multi_dot", (a, b, c)), [((2,), (2, 3), (3,))],
           lambda a, b, c: np.asarray(a @ b @ c)),
    OpSpec("chain_matmul", (products.Mm,),
           lambda m, a, b: call(m, "linalg.multi_dot", (a, b)), [((2, 3), (3, 2))], np.matmul),
    *(
        OpSpec(f"cdist_{p}", (distances.Cdist, distances.CdistBackward),
               lambda m, a, b, p=p: m.cdist(a, b, p),
               [((2, 3), (4, 3)), ((0, 3), (2, 3)), *([BATCHES] if p > 1 else [])],
               lambda a, b, p=p: np.linalg.norm(a[..., :, None, :] - b[..., None, :, :], p, -1),
               domain=apart,
               twin=lambda m, a, b, p=p: (a.unsqueeze(-2) - b.unsqueeze(-3)).norm(p, -1))
        for p in (2.0, 1.0, 3.0)
    ),
    OpSpec("cdist_by_product", (distances.EuclideanDist,),
           lambda m, a, b: m.cdist(a, b, compute_mode="use_mm_for_euclid_dist"),
           [((2, 3), (4, 3)), ((0, 3), (2, 3)), BATCHES],
           lambda a, b: np.linalg.norm(a[..., :, None, :] - b[..., None, :, :], 2, -1),
           domain=apart, twin=lambda m, a, b: (a.unsqueeze(-2) - b.unsqueeze(-3)).norm(2, -1)),
    *(
        OpSpec(_name(equation), (), lambda m, a, b, e=equation: m.einsum(e, a, b), samples,
               lambda a, b, e=equation: np.einsum(e, a, b), complex=nr < 3)
        for nr, (equation, samples) in enumerate(EQUATIONS)
    ),
    *(
        OpSpec(_name(equation), (), lambda m, x, e=equation: m.einsum(e, x).clone(), samples,
               lambda x, e=equation: np.einsum(e, x))
        for equation, samples in SINGLE
    ),
    OpSpec("einsum_three", (products.Bmm,),
           lambda m, a, b, c: m.einsum("ij,jk,ik->k", [a, b, c]), [((2, 3), (3, 2), (2, 2))],
           lambda a, b, c: np.einsum("ij,jk,ik->k", a, b, c)),
    OpSpec("einsum_lists", (products.Mm,),
           lambda m, a, b: m.einsum(a, [0, 1], b, [1, 2], [2, 0]), [((2, 3), (3, 2))],
           lambda a, b: np.einsum("ij,jk->ki", a, b)),
]  # fmt: skip
