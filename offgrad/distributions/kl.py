"""The Kullback-Leibler divergence, by pairs of classes."""

import math
from collections.abc import Callable
from typing import Any

from offgrad import linalg, ops
from offgrad._tensor.tensor import Tensor
from offgrad.distributions.bernoulli import Bernoulli
from offgrad.distributions.beta import Beta
from offgrad.distributions.binomial import Binomial
from offgrad.distributions.categorical import Categorical
from offgrad.distributions.cauchy import Cauchy
from offgrad.distributions.continuous_bernoulli import ContinuousBernoulli
from offgrad.distributions.dirichlet import Dirichlet
from offgrad.distributions.exponential import Exponential
from offgrad.distributions.gamma import Gamma
from offgrad.distributions.geometric import Geometric
from offgrad.distributions.gumbel import EULER, Gumbel
from offgrad.distributions.half_normal import HalfNormal
from offgrad.distributions.independent import Independent
from offgrad.distributions.laplace import Laplace
from offgrad.distributions.low_rank_multivariate_normal import LowRankMultivariateNormal
from offgrad.distributions.multivariate_normal import MultivariateNormal, mahalanobis
from offgrad.distributions.normal import Normal
from offgrad.distributions.one_hot_categorical import OneHotCategorical
from offgrad.distributions.poisson import Poisson
from offgrad.distributions.transformed_distribution import TransformedDistribution
from offgrad.distributions.uniform import Uniform
from offgrad.distributions.utils import sum_rightmost

__all__ = ["kl_divergence", "register_kl"]

Formula = Callable[[Any, Any], Any]

_formulas: dict[tuple[type, type], Formula] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Formula], Formula]:
    """Decorate a function as the divergence of one class from another, and of their subclasses."""

    def register(formula: Formula) -> Formula:
        _formulas[type_p, type_q] = formula
        return formula

    return register


def _find(type_p: type, type_q: type) -> Formula | None:
    """Return the formula of the nearest classes: first by p, then by q."""
    for p in type_p.__mro__:
        for q in type_q.__mro__:
            if (p, q) in _formulas:
                return _formulas[p, q]
    return None


def kl_divergence(p: Any, q: Any) -> Tensor:
    """Return the divergence of `q` from `p`, the mean of ``log p(x) - log q(x)`` for x of `p`.

    Raises:
        NotImplementedError: for classes that have no formula.
    """
    formula = _find(type(p), type(q))
    if formula is None:
        raise NotImplementedError(
            f"kl_divergence from {type(p).__name__} to {type(q).__name__} is not known; "
            "register_kl adds it"
        )
    result: Tensor = formula(p, q)
    return result


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Any, q: Any) -> Any:
    ones = p.probs * (ops.softplus(-q.logits) - ops.softplus(-p.logits))
    zeros = (1 - p.probs) * (ops.softplus(q.logits) - ops.softplus(p.logits))
    infinite = ((q.probs == 0) & (p.probs > 0)) | ((q.probs == 1) & (p.probs < 1))
    return (ones + zeros).masked_fill(infinite, math.inf)


@register_kl(Beta, Beta)
def _beta(p: Any, q: Any) -> Any:
    return _dirichlet(p._dirichlet, q._dirichlet)


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Any, q: Any) -> Any:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    constant = ops.lgamma(total) - ops.lgamma(b.sum(-1))
    terms = (a - b) * (ops.digamma(a) - ops.digamma(total).unsqueeze(-1))
    return constant - (ops.lgamma(a) - ops.lgamma(b)).sum(-1) + terms.sum(-1)


@register_kl(Binomial, Binomial)
def _binomial(p: Any, q: Any) -> Any:
    if (p.total_count < q.total_count).any():
        raise NotImplementedError("kl_divergence of Binomials needs q.total_count <= p.total_count")
    logs = ops.log1p(-p.probs) - ops.log1p(-q.probs)
    result = p.total_count * (p.probs * (p.logits - q.logits) + logs)
    return result.masked_fill((p.total_count > q.total_count).expand(result.shape), math.inf)


@register_kl(Categorical, Categorical)
def _categorical(p: Any, q: Any) -> Any:
    terms = p.probs * (p.logits - q.logits)
    terms = terms.masked_fill((q.probs == 0).expand(terms.shape), math.inf)
    return terms.masked_fill((p.probs == 0).expand(terms.shape), 0).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hot(p: Any, q: Any) -> Any:
    return _categorical(p._categorical, q._categorical)


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Any, q: Any) -> Any:
    both = ((p.scale + q.scale) ** 2 + (p.loc - q.loc) ** 2).log()
    return both - (4 * p.scale * q.scale).log()


@register_kl(Exponential, Exponential)
def _exponential(p: Any, q: Any) -> Any:
    ratio = q.rate / p.rate
    return -ratio.log() + ratio - 1


@register_kl(Gamma, Gamma)
def _gamma(p: Any, q: Any) -> Any:
    a, b = p.concentration, q.concentration
    return (
        b * (p.rate / q.rate).log()
        + ops.lgamma(b)
        - ops.lgamma(a)
        + (a - b) * ops.digamma(a)
        + (q.rate - p.rate) * (a / p.rate)
    )


@register_kl(Geometric, Geometric)
def _geometric(p: Any, q: Any) -> Any:
    return -p.entropy() - ops.log1p(-q.probs) / p.probs - q.logits


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Any, q: Any) -> Any:
    ratio, shift, own = p.scale / q.scale, q.loc / q.scale, p.loc / q.scale
    power = (shift + ops.lgamma(1 + ratio) - own).exp()
    return -ratio.log() - shift + own + ratio * EULER + power - (1 + EULER)


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: Any, q: Any) -> Any:
    return _normal(p.base_dist, q.base_dist)


@register_kl(Laplace, Laplace)
def _laplace(p: Any, q: Any) -> Any:
    ratio = p.scale / q.scale
    distance = (p.loc - q.loc).abs()
    return -ratio.log() + distance / q.scale + ratio * (-distance / p.scale).exp() - 1


@register_kl(Normal, Normal)
def _normal(p: Any, q: Any) -> Any:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - ratio.log())


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate_normal(p: Any, q: Any) -> Any:
    if p.event_shape != q.event_shape:
        raise ValueError("kl_divergence of MultivariateNormals needs equal event shapes")
    own, other = ops.broadcast_tensors(p.scale_tril, q.scale_tril)
    ratio = linalg.solve_triangular(other, own, upper=False)
    trace = (ratio**2).sum((-2, -1))
    distance = mahalanobis(q._factor, q.loc - p.loc)
    determinants = q._half_log_determinant() - p._half_log_determinant()
    return determinants + 0.5 * (trace + distance - p.event_shape[0])


@register_kl(LowRankMultivariateNormal, LowRankMultivariateNormal)
@register_kl(LowRankMultivariateNormal, MultivariateNormal)
@register_kl(MultivariateNormal, LowRankMultivariateNormal)
def _low_rank(p: Any, q: Any) -> Any:
    full = (MultivariateNormal(each.loc, scale_tril=each.scale_tril) for each in (p, q))
    return _multivariate_normal(*full)


@register_kl(ContinuousBernoulli, ContinuousBernoulli)
def _continuous_bernoulli(p: Any, q: Any) -> Any:
    normalizers = p._log_normalizer() - q._log_normalizer()
    zeros = ops.log1p(-p.probs) - ops.log1p(-q.probs)
    return p.mean * (p.logits - q.logits) + normalizers + zeros


@register_kl(Poisson, Poisson)
def _poisson(p: Any, q: Any) -> Any:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(Uniform, Uniform)
def _uniform(p: Any, q: Any) -> Any:
    result = ((q.high - q.low) / (p.high - p.low)).log()
    return result.masked_fill((q.low > p.low) | (q.high < p.high), math.inf)


@register_kl(Uniform, Normal)
def _uniform_normal(p: Any, q: Any) -> Any:
    width = p.high - p.low
    square = (width**2 / 12 + ((p.high + p.low - 2 * q.loc) / 2) ** 2) / (2 * q.scale**2)
    return (math.sqrt(2 * math.pi) * q.scale / width).log() + square


@register_kl(Exponential, Gamma)
def _exponential_gamma(p: Any, q: Any) -> Any:
    ratio, b = q.rate / p.rate, q.concentration
    return -b * ratio.log() + ratio + ops.lgamma(b) + b * EULER - (1 + EULER)


@register_kl(Normal, Laplace)
def _normal_laplace(p: Any, q: Any) -> Any:
    x = (p.loc - q.loc) / p.scale
    ratio = p.scale / q.scale
    bell = math.sqrt(2 / math.pi) * (-0.5 * x**2).exp()
    mean = ratio * (bell + x * ops.erf(math.sqrt(0.5) * x))
    return -ratio.log() + mean - (0.5 * math.log(0.5 * math.pi) + 0.5)


@register_kl(Laplace, Normal)
def _laplace_normal(p: Any, q: Any) -> Any:
    ratio = (p.scale / q.scale) ** 2
    shift = 0.5 * ((p.loc - q.loc) / q.scale) ** 2
    return -0.5 * (2 * ratio / math.pi).log() + ratio + shift - 1


@register_kl(Independent, Independent)
def _independent(p: Any, q: Any) -> Any:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError
    return sum_rightmost(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: Any, q: Any) -> Any:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError("the distributions have different transforms")
    return kl_divergence(p.base_dist, q.base_dist)
