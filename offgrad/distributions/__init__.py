"""Distributions: samples with and without gradients, densities, and divergences.

Internal: the modules in this folder other than `constraints` and `transforms`.
"""

from offgrad._missing import missing as _missing
from offgrad.distributions import _kl_of_families as _kl_of_families
from offgrad.distributions import constraints, transforms
from offgrad.distributions.bernoulli import Bernoulli
from offgrad.distributions.beta import Beta
from offgrad.distributions.binomial import Binomial
from offgrad.distributions.categorical import Categorical
from offgrad.distributions.cauchy import Cauchy
from offgrad.distributions.chi2 import Chi2
from offgrad.distributions.constraint_registry import biject_to, transform_to
from offgrad.distributions.continuous_bernoulli import ContinuousBernoulli
from offgrad.distributions.dirichlet import Dirichlet
from offgrad.distributions.distribution import Distribution, ExponentialFamily
from offgrad.distributions.exponential import Exponential
from offgrad.distributions.fisher_snedecor import FisherSnedecor
from offgrad.distributions.gamma import Gamma
from offgrad.distributions.generalized_pareto import GeneralizedPareto
from offgrad.distributions.geometric import Geometric
from offgrad.distributions.gumbel import Gumbel
from offgrad.distributions.half_cauchy import HalfCauchy
from offgrad.distributions.half_normal import HalfNormal
from offgrad.distributions.independent import Independent
from offgrad.distributions.inverse_gamma import InverseGamma
from offgrad.distributions.kl import kl_divergence, register_kl
from offgrad.distributions.kumaraswamy import Kumaraswamy
from offgrad.distributions.laplace import Laplace
from offgrad.distributions.lkj_cholesky import LKJCholesky
from offgrad.distributions.log_normal import LogNormal
from offgrad.distributions.logistic_normal import LogisticNormal
from offgrad.distributions.low_rank_multivariate_normal import LowRankMultivariateNormal
from offgrad.distributions.mixture_same_family import MixtureSameFamily
from offgrad.distributions.multinomial import Multinomial
from offgrad.distributions.multivariate_normal import MultivariateNormal
from offgrad.distributions.negative_binomial import NegativeBinomial
from offgrad.distributions.normal import Normal
from offgrad.distributions.one_hot_categorical import (
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
)
from offgrad.distributions.pareto import Pareto
from offgrad.distributions.poisson import Poisson
from offgrad.distributions.relaxed_bernoulli import RelaxedBernoulli
from offgrad.distributions.relaxed_categorical import RelaxedOneHotCategorical
from offgrad.distributions.student_t import StudentT
from offgrad.distributions.transformed_distribution import TransformedDistribution
from offgrad.distributions.transforms import *  # noqa: F403
from offgrad.distributions.uniform import Uniform
from offgrad.distributions.von_mises import VonMises
from offgrad.distributions.weibull import Weibull
from offgrad.distributions.wishart import Wishart

__all__ = [
    "ContinuousBernoulli",
    "FisherSnedecor",
    "GeneralizedPareto",
    "Kumaraswamy",
    "LKJCholesky",
    "LogisticNormal",
    "LowRankMultivariateNormal",
    "VonMises",
    "Wishart",
    "Bernoulli",
    "Beta",
    "Binomial",
    "Categorical",
    "Cauchy",
    "Chi2",
    "Dirichlet",
    "Distribution",
    "Exponential",
    "ExponentialFamily",
    "Gamma",
    "Geometric",
    "Gumbel",
    "HalfCauchy",
    "HalfNormal",
    "Independent",
    "InverseGamma",
    "Laplace",
    "LogNormal",
    "MixtureSameFamily",
    "Multinomial",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "Pareto",
    "Poisson",
    "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
    "StudentT",
    "TransformedDistribution",
    "Uniform",
    "Weibull",
    "biject_to",
    "constraints",
    "kl_divergence",
    "register_kl",
    "transform_to",
    "transforms",
]
__all__ += transforms.__all__

__getattr__ = _missing("offgrad.distributions")
