"""Divergences of one family from another: minus the entropy, less the mean of the other's log.

The logarithm of a density here is a sum of few functions of x, such as x, log x and e^-x, so that
its mean needs the mean of each. Where the first has values that the second has not, the divergence
is infinite.
"""

import math
from collections.abc import Callable
from typing import Any

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions.bernoulli import Bernoulli
from offgrad.distributions.beta import Beta
from offgrad.distributions.binomial import Binomial
from offgrad.distributions.continuous_bernoulli import ContinuousBernoulli
from offgrad.distributions.exponential import Exponential
from offgrad.distributions.gamma import Gamma
from offgrad.distributions.gumbel import EULER, Gumbel
from offgrad.distributions.kl import register_kl
from offgrad.distributions.laplace import Laplace
from offgrad.distributions.normal import Normal
from offgrad.distributions.pareto import Pareto
from offgrad.distributions.poisson import Poisson
from offgrad.distributions.uniform import Uniform

Mean = Callable[[Any], Any]


def _of(table: dict[type, Any], distribution: Any) -> Any:
    """Return the entry of a distribution's class, or of the nearest that it inherits from."""
    return next(table[each] for each in type(distribution).__mro__ if each in table)


def _antiderivative_of_log(x: Tensor) -> Tensor:
    return ops.xlogy(x, x) - x


def _uniform_mean_log(low: Tensor, high: Tensor) -> Tensor:
    return (_antiderivative_of_log(high) - _antiderivative_of_log(low)) / (high - low)


_MEAN_LOG: dict[type, Mean] = {
    Beta: lambda p: (
        ops.digamma(p.concentration1) - ops.digamma(p.concentration0 + p.concentration1)
    ),
    Exponential: lambda p: -p.rate.log() - EULER,
    Gamma: lambda p: ops.digamma(p.concentration) - p.rate.log(),
    Pareto: lambda p: p.scale.log() + 1 / p.alpha,
    Uniform: lambda p: _uniform_mean_log(p.low, p.high),
}
"""The mean of log x."""

_MEAN_LOG_REST: dict[type, Mean] = {
    Beta: lambda p: (
        ops.digamma(p.concentration0) - ops.digamma(p.concentration0 + p.concentration1)
    ),
    Uniform: lambda p: _uniform_mean_log(1 - p.high, 1 - p.low),
}
"""The mean of log (1 - x)."""

_MEAN_POWER: dict[type, Callable[[Any, Any], Any]] = {
    Exponential: lambda p, t: 1 / (1 - t / p.rate),
    Gamma: lambda p, t: (1 - t / p.rate) ** -p.concentration,
    Normal: lambda p, t: (t * p.loc + (t * p.scale) ** 2 / 2).exp(),
    Uniform: lambda p, t: ((t * p.high).exp() - (t * p.low).exp()) / (t * (p.high - p.low)),
}
"""The mean of e^(t x)."""


def _of_beta(p: Any, q: Any) -> Any:
    a, b = q.concentration1, q.concentration0
    logs = (a - 1) * _of(_MEAN_LOG, p)(p) + (b - 1) * _of(_MEAN_LOG_REST, p)(p)
    return logs + ops.lgamma(a + b) - ops.lgamma(a) - ops.lgamma(b)


def _of_continuous_bernoulli(p: Any, q: Any) -> Any:
    return q.logits * p.mean + ops.log1p(-q.probs) + q._log_normalizer()


def _of_exponential(p: Any, q: Any) -> Any:
    return q.rate.log() - q.rate * p.mean


def _of_gamma(p: Any, q: Any) -> Any:
    a, rate = q.concentration, q.rate
    logs = (a - 1) * _of(_MEAN_LOG, p)(p)
    return a * rate.log() - ops.lgamma(a) + logs - rate * p.mean


def _of_gumbel(p: Any, q: Any) -> Any:
    power = (q.loc / q.scale).exp() * _of(_MEAN_POWER, p)(p, -1 / q.scale)
    return -q.scale.log() - (p.mean - q.loc) / q.scale - power


def _of_normal(p: Any, q: Any) -> Any:
    square = p.variance + (p.mean - q.loc) ** 2
    return -square / (2 * q.scale**2) - q.scale.log() - math.log(2 * math.pi) / 2


def _of_pareto(p: Any, q: Any) -> Any:
    logs = (q.alpha + 1) * _of(_MEAN_LOG, p)(p)
    return q.alpha.log() + q.alpha * q.scale.log() - logs


def _of_poisson(p: Any, q: Any) -> Any:  # of 0 and 1, whose factorials are 1
    return p.mean * q.rate.log() - q.rate


def _of_uniform(p: Any, q: Any) -> Any:
    return -(q.high - q.low).log() + 0 * p.mean


_MEAN_LOG_DENSITY = {
    Beta: _of_beta,
    ContinuousBernoulli: _of_continuous_bernoulli,
    Exponential: _of_exponential,
    Gamma: _of_gamma,
    Gumbel: _of_gumbel,
    Normal: _of_normal,
    Pareto: _of_pareto,
    Poisson: _of_poisson,
    Uniform: _of_uniform,
}
"""The mean of the second's logarithm under the first."""

_FINITE = {
    Bernoulli: (Poisson,),
    Beta: (ContinuousBernoulli, Exponential, Gamma, Normal, Uniform),
    ContinuousBernoulli: (Exponential, Normal, Uniform),
    Exponential: (Gumbel, Normal),
    Gamma: (Exponential, Gumbel, Normal),
    Gumbel: (Normal,),
    Normal: (Gumbel,),
    Pareto: (Exponential, Gamma, Normal, Pareto),
    Uniform: (Beta, ContinuousBernoulli, Exponential, Gamma, Gumbel, Pareto),
}

_ON_THE_LINE = (Beta, ContinuousBernoulli, Exponential, Gamma, Pareto, Uniform)

_INFINITE = {
    Beta: (Pareto,),
    ContinuousBernoulli: (Pareto,),
    Exponential: (Beta, ContinuousBernoulli, Pareto, Uniform),
    Gamma: (Beta, ContinuousBernoulli, Pareto, Uniform),
    Gumbel: _ON_THE_LINE,
    Laplace: _ON_THE_LINE,
    Normal: _ON_THE_LINE,
    Pareto: (Beta, ContinuousBernoulli, Uniform),
    Poisson: (Bernoulli, Binomial),
}


def _reaches_outside(p: Any, q: Any) -> Any:
    """Return where p has values that q has not, for those whose bounds depend on parameters."""
    if isinstance(q, Uniform):  # p is from 0 to 1
        return (q.low > 0) | (q.high < 1)
    if isinstance(p, Pareto) and isinstance(q, Pareto):
        return p.scale < q.scale
    if isinstance(p, Uniform):
        lowest = q.scale if isinstance(q, Pareto) else 0
        highest = 1 if isinstance(q, (Beta, ContinuousBernoulli)) else math.inf
        return (p.low < lowest) | (p.high > highest)
    return None


def _divergence(p: Any, q: Any) -> Tensor:
    result: Tensor = -p.entropy() - _of(_MEAN_LOG_DENSITY, q)(p, q)
    outside = None if isinstance(q, (Gumbel, Normal)) else _reaches_outside(p, q)
    return result if outside is None else result.masked_fill(outside, math.inf)


def _infinity(p: Any, q: Any) -> Tensor:
    shape = ops.broadcast_shapes(p.batch_shape, q.batch_shape)
    return ops.full(shape, math.inf, dtype=p.mean.dtype)


for _pairs, _formula in ((_FINITE, _divergence), (_INFINITE, _infinity)):
    for _p, _others in _pairs.items():
        for _q in _others:
            register_kl(_p, _q)(_formula)
