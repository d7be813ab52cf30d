"""Reductions, running reductions and orders."""

from typing import Any

import numpy as np

from offgrad.ops._reduction import cumulative, extrema, norms, statistics, sums
from tests.ops.opspec import OpSpec, apart, nonzero, positive

MATRIX = [((2, 3),)]
ANY = [((2, 3),), ((),), ((0, 3),)]
CUBE = [((2, 3, 2),), ((2, 0, 3),)]
ZEROS = [
    (np.array([[1.5, 0.0, 2.0], [0.5, -1.0, 3.0]]),),
    (np.array([[0.0, 0.0, 2.0], [0.0, -1.0, 3.0]]),),
]
NANS = [(np.array([[1.5, np.nan, 2.0], [np.nan, -1.0, 3.0]]),), ((2, 0),)]
NAN = [(np.array([[1.5, np.nan, 2.0], [np.nan, -1.0, 3.0]]),)]
INF = float("inf")


def _norm(x: Any, p: float) -> Any:
    return np.linalg.norm(np.asarray(x).ravel(), p)


def _log_add_exp_accumulate(x: Any, axis: int) -> Any:
    return np.log(np.exp(x).cumsum(axis)) if x.ndim else x


def _sorted(x: Any, axis: int) -> tuple[Any, Any]:
    return np.sort(x, axis), np.argsort(x, axis)


def _running_max(x: Any, axis: int) -> tuple[Any, Any]:
    running = np.maximum.accumulate(x, axis)
    return running, np.maximum.accumulate(
        np.where(x == running, np.indices(x.shape)[axis], 0), axis
    )


SPECS = [
    OpSpec("sum", (sums.Sum,), lambda m, x: x.sum(), ANY, np.sum, complex=True),
    OpSpec("sum_dim", (sums.Sum,), lambda m, x: m.sum(x, 1), CUBE, lambda x: x.sum(1)),
    OpSpec(
        "sum_dims", (sums.Sum,), lambda m, x: x.sum((0, -1), keepdim=True), CUBE,
        lambda x: x.sum((0, -1), keepdims=True), complex=True,
    ),
    OpSpec("sum_to_size", (sums.Sum,), lambda m, x: x.sum_to_size(2, 1),
           [((2, 3),), ((4, 2, 3),)],
           lambda x: x.reshape(-1, 2, 3).sum(0).sum(1, keepdims=True)),
    OpSpec("nansum", (sums.Nansum,), lambda m, x: m.nansum(x), NANS, np.nansum),
    OpSpec("nansum_dim", (sums.Nansum,), lambda m, x: m.nansum(x, 1, keepdim=True), NANS,
           lambda x: np.nansum(x, 1, keepdims=True)),
    OpSpec("nanmean", (sums.Nansum,), lambda m, x: m.nanmean(x, 1), NAN,
           lambda x: np.nanmean(x, 1)),
    OpSpec("mean", (sums.Mean,), lambda m, x: x.mean(), [((2, 3),), ((),)], np.mean,
           complex=True),
    OpSpec(
        "mean_dim", (sums.Mean,), lambda m, x: x.mean(-1, keepdim=True), [((2, 3),), ((0, 3),)],
        lambda x: x.mean(-1, keepdims=True),
    ),
    OpSpec("prod", (sums.Prod,), lambda m, x: x.prod(), ANY, np.prod, domain=nonzero,
           complex=True),
    OpSpec("prod_dim", (sums.Prod,), lambda m, x: x.prod(1), [*MATRIX, ((2, 0),), ((0, 2),)],
           lambda x: x.prod(1), domain=nonzero),
    OpSpec("prod_zeros", (sums.Prod,), lambda m, x: x.prod(), ZEROS, np.prod, complex=True),
    OpSpec("prod_zeros_dim", (sums.Prod,), lambda m, x: x.prod(0, keepdim=True), ZEROS,
           lambda x: x.prod(0, keepdims=True)),
    # Extremes and orders
    OpSpec("amax", (extrema.Amax,), lambda m, x: x.amax((0, 2)), [((2, 3, 2),)],
           lambda x: x.max((0, 2)), domain=apart),
    OpSpec("amin", (extrema.Amax,), lambda m, x: m.amin(x, 1, keepdim=True), MATRIX,
           lambda x: x.min(1, keepdims=True), domain=apart),
    OpSpec("aminmax", (extrema.Amax,), lambda m, x: tuple(m.aminmax(x, dim=1)), MATRIX,
           lambda x: (x.min(1), x.max(1)), domain=apart),
    OpSpec("max", (extrema.Amax,), lambda m, x: m.max(x), [((2, 3),), ((),)], np.max, domain=apart),
    OpSpec("max_dim", (extrema.Selection,), lambda m, x: x.max(0), [((3, 2),), ((),), ((2, 0),)],
           lambda x: (x.max(0), x.argmax(0)) if x.ndim else (x, np.int64(0)), domain=apart),
    OpSpec("min_dim", (extrema.Selection,), lambda m, x: tuple(x.min(-1, keepdim=True)), MATRIX,
           lambda x: (x.min(-1, keepdims=True), x.argmin(-1, keepdims=True)), domain=apart),
    OpSpec("median", (extrema.Amax,), lambda m, x: m.median(x), [((3, 3),), ((),)], np.median,
           domain=apart),
    OpSpec("median_dim", (extrema.Selection,), lambda m, x: tuple(m.median(x, 1)), MATRIX,
           lambda x: (np.median(x, 1), np.argsort(x, 1)[:, 1]), domain=apart),
    OpSpec("kthvalue", (extrema.Selection,), lambda m, x: tuple(m.kthvalue(x, 2, 0, True)),
           [((3, 2),), ((2, 2),)],
           lambda x: (np.sort(x, 0)[1:2], np.argsort(x, 0)[1:2]), domain=apart),
    OpSpec("sort", (extrema.Selection,), lambda m, x: tuple(m.sort(x, 0)),
           [((3, 2),), ((0, 2),)], lambda x: _sorted(x, 0), domain=apart),
    OpSpec("sort_descending", (extrema.Selection,),
           lambda m, x: tuple(m.sort(x, descending=True, stable=True)), [((2, 3),), ((2, 0),)],
           lambda x: (np.sort(x)[:, ::-1], np.argsort(x)[:, ::-1]), domain=apart),
    OpSpec("topk", (extrema.Selection,), lambda m, x: tuple(m.topk(x, 2)), MATRIX,
           lambda x: (np.sort(x)[:, :0:-1], np.argsort(x)[:, :0:-1]), domain=apart),
    OpSpec("topk_smallest", (extrema.Selection,),
           lambda m, x: tuple(m.topk(x, 2, 0, largest=False)), [((3, 2),)],
           lambda x: (np.sort(x, 0)[:2], np.argsort(x, 0)[:2]), domain=apart),
    OpSpec("msort", (extrema.Selection,), lambda m, x: m.msort(x), [((3, 2),)],
           lambda x: np.sort(x, 0), domain=apart),
    # Running reductions
    OpSpec("cumsum", (cumulative.Cumsum,), lambda m, x: x.cumsum(-1), [((2, 3),), ((0, 3),)],
           lambda x: x.cumsum(-1), complex=True),
    OpSpec("cumsum_0d", (), lambda m, x: x.cumsum(-1), [((),)], lambda x: x),
    OpSpec("cumprod", (cumulative.Cumprod,), lambda m, x: m.cumprod(x, -1), [((2, 3),), ((0, 3),)],
           lambda x: x.cumprod(-1), complex=True, domain=nonzero),
    OpSpec("cumprod_zeros", (cumulative.Cumprod, cumulative.Recurrence),
           lambda m, x: m.cumprod(x, 1), ZEROS,
           lambda x: x.cumprod(1), complex=True, third=True),
    OpSpec("cummax", (extrema.Selection,), lambda m, x: tuple(m.cummax(x, 1)),
           [((2, 3),), ((2, 0),)], lambda x: _running_max(x, 1), domain=apart),
    OpSpec("cummin", (extrema.Selection,), lambda m, x: tuple(m.cummin(x, 0)), MATRIX,
           lambda x: (-_running_max(-x, 0)[0], _running_max(-x, 0)[1]), domain=apart),
    OpSpec("logcumsumexp", (cumulative.Logcumsumexp, cumulative.Recurrence),
           lambda m, x: m.logcumsumexp(x, 1), [((2, 3),), ((2, 1),)],
           lambda x: _log_add_exp_accumulate(x, 1), complex=True),
    OpSpec("logcumsumexp_first", (cumulative.Logcumsumexp,), lambda m, x: m.logcumsumexp(x, 0),
           [((3,),)], lambda x: _log_add_exp_accumulate(x, 0)),
    OpSpec("diff", (), lambda m, x: m.diff(x, 2), [((2, 4),), ((2, 1),)],
           lambda x: np.diff(x, 2), complex=True),
    OpSpec("diff_with_ends", (), lambda m, x, a, b: m.diff(x, dim=0, prepend=a, append=b),
           [((2, 2), (1, 2), (2, 2))], lambda x, a, b: np.diff(x, axis=0, prepend=a, append=b)),
    # Statistics
    OpSpec("var", (statistics.Var,), lambda m, x: x.var(1), MATRIX, lambda x: x.var(1, ddof=1),
           complex=True),
    OpSpec("var_all", (statistics.Var,), lambda m, x: x.var(correction=2), MATRIX,
           lambda x: x.var(ddof=2), third=True),
    OpSpec("std", (statistics.Std,), lambda m, x: m.std(x, (0, 1), correction=0), MATRIX, np.std,
           complex=True),
    OpSpec("std_dim", (statistics.Std,), lambda m, x: m.std(x, 0, keepdim=True), [((3, 2),)],
           lambda x: x.std(0, ddof=1, keepdims=True)),
    OpSpec("var_mean", (statistics.Var, sums.Mean), lambda m, x: m.var_mean(x, 1), MATRIX,
           lambda x: (x.var(1, ddof=1), x.mean(1)), complex=True),
    OpSpec("std_mean", (statistics.Std, sums.Mean),
           lambda m, x: m.std_mean(x, 1, keepdim=True, correction=0), MATRIX,
           lambda x: (x.std(1, keepdims=True), x.mean(1, keepdims=True))),
    OpSpec("logsumexp", (statistics.Logsumexp, statistics.LogsumexpBackward),
           lambda m, x: x.logsumexp(-1), [*MATRIX, ((),), ((0, 3),)],
           lambda x: np.log(np.exp(x).sum(-1) if x.ndim else np.exp(x)), complex=True),
    OpSpec("logsumexp_dims", (statistics.Logsumexp,),
           lambda m, x: x.logsumexp((0, 2), keepdim=True), [((2, 3, 2),)],
           lambda x: np.log(np.exp(x).sum((0, 2), keepdims=True))),
    *(
        OpSpec(f"norm_{p}", (norms.VectorNorm,), lambda m, x, p=p: x.norm(p, dim=1), MATRIX,
               lambda x, p=p: np.linalg.norm(x, p, axis=1), domain=apart, complex=True)
        for p in (2, 1, 3, 0.5, 1.5, -1, INF, -INF)
    ),
    OpSpec("norm", (norms.VectorNorm,), lambda m, x: x.norm(), ANY,
           lambda x: np.sqrt((np.abs(x) ** 2).sum()), domain=positive, complex=True),
    OpSpec("norm_4", (norms.VectorNorm,), lambda m, x: x.norm(4, keepdim=True), MATRIX,
           lambda x: np.reshape(_norm(x, 4), (1, 1)), domain=positive, complex=True),
    OpSpec("dist", (norms.VectorNorm,), lambda m, a, b: m.dist(a, b, 3), [((2, 3), (2, 3))],
           lambda a, b: _norm(a - b, 3), domain=apart),
]  # fmt: skip
