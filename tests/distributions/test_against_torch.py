"""Densities, moments, shapes, texts, divergences and errors of distributions, beside torch's."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import offgrad

torch = pytest.importorskip("torch", reason="compares with torch, which is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:Singular sample:UserWarning")

RNG = np.random.default_rng(0)
POSITIVE = RNG.random((2, 3)) + 0.3
REAL = RNG.normal(size=(2, 3))
UNIT = RNG.random((2, 3)) * 0.8 + 0.1
ROOT = RNG.normal(size=(2, 3, 3))
COVARIANCE = ROOT @ ROOT.transpose(0, 2, 1) + np.eye(3)
CHOLESKY = np.linalg.cholesky(COVARIANCE)
CORRELATION = CHOLESKY / np.linalg.norm(CHOLESKY, axis=-1, keepdims=True)
COUNTS = np.array([[0.0, 1, 2], [3, 4, 5]])
SIMPLEX = POSITIVE / POSITIVE.sum(-1, keepdims=True)
ONE_HOT = np.eye(3)[[0, 2]]

Make = Callable[[Any, Any, Any], Any]
"""A function of the module of distributions, one that makes parameters, and the library."""

CASES: dict[str, tuple[Make, Any]] = {
    "Normal": (lambda d, p, m: d.Normal(p(REAL), p(POSITIVE)), REAL + 0.3),
    "Normal of numbers": (lambda d, p, m: d.Normal(0.5, 2), np.array(0.3)),
    "Bernoulli": (lambda d, p, m: d.Bernoulli(p(UNIT)), (REAL > 0) * 1.0),
    "Bernoulli of logits": (lambda d, p, m: d.Bernoulli(logits=p(REAL)), (REAL > 0) * 1.0),
    "Categorical": (lambda d, p, m: d.Categorical(p(POSITIVE)), np.array([0, 2])),
    "Categorical of logits": (lambda d, p, m: d.Categorical(logits=p(REAL)), np.array([0, 2])),
    "OneHotCategorical": (lambda d, p, m: d.OneHotCategorical(p(POSITIVE)), ONE_HOT),
    "straight through": (
        lambda d, p, m: d.OneHotCategoricalStraightThrough(logits=p(REAL)),
        ONE_HOT,
    ),
    "Uniform": (lambda d, p, m: d.Uniform(p(-POSITIVE), p(POSITIVE)), REAL * 0.1),
    "Beta": (lambda d, p, m: d.Beta(p(POSITIVE), p(POSITIVE * 2)), UNIT),
    "Gamma": (lambda d, p, m: d.Gamma(p(POSITIVE), p(POSITIVE * 2)), POSITIVE * 0.7),
    "Chi2": (lambda d, p, m: d.Chi2(p(POSITIVE * 3)), POSITIVE * 0.7),
    "Dirichlet": (lambda d, p, m: d.Dirichlet(p(POSITIVE * 3)), SIMPLEX),
    "Exponential": (lambda d, p, m: d.Exponential(p(POSITIVE)), POSITIVE * 2),
    "Laplace": (lambda d, p, m: d.Laplace(p(REAL), p(POSITIVE)), REAL * 2),
    "LogNormal": (lambda d, p, m: d.LogNormal(p(REAL), p(POSITIVE)), POSITIVE * 2),
    "Poisson": (lambda d, p, m: d.Poisson(p(POSITIVE * 4)), COUNTS),
    "Binomial": (lambda d, p, m: d.Binomial(5, p(UNIT)), COUNTS),
    "Binomial of logits": (lambda d, p, m: d.Binomial(5, logits=p(REAL)), COUNTS),
    "Multinomial": (
        lambda d, p, m: d.Multinomial(5, p(POSITIVE)),
        np.array([[0.0, 1, 4], [3, 0, 2]]),
    ),
    "Geometric": (lambda d, p, m: d.Geometric(p(UNIT)), COUNTS),
    "NegativeBinomial": (lambda d, p, m: d.NegativeBinomial(p(POSITIVE * 5), p(UNIT)), COUNTS),
    "HalfNormal": (lambda d, p, m: d.HalfNormal(p(POSITIVE)), POSITIVE * 2),
    "HalfCauchy": (lambda d, p, m: d.HalfCauchy(p(POSITIVE)), POSITIVE * 2),
    "Cauchy": (lambda d, p, m: d.Cauchy(p(REAL), p(POSITIVE)), REAL * 2),
    "StudentT": (lambda d, p, m: d.StudentT(p(POSITIVE * 5), p(REAL), p(POSITIVE)), REAL * 2),
    "Gumbel": (lambda d, p, m: d.Gumbel(p(REAL), p(POSITIVE)), REAL * 2),
    "Pareto": (lambda d, p, m: d.Pareto(p(POSITIVE), p(POSITIVE * 4)), POSITIVE * 2),
    "Weibull": (lambda d, p, m: d.Weibull(p(POSITIVE), p(POSITIVE * 4)), POSITIVE * 2),
    "InverseGamma": (lambda d, p, m: d.InverseGamma(p(POSITIVE * 4), p(POSITIVE)), POSITIVE * 2),
    "covariance": (lambda d, p, m: d.MultivariateNormal(p(REAL), p(COVARIANCE)), REAL * 0.5),
    "precision": (
        lambda d, p, m: d.MultivariateNormal(p(REAL), precision_matrix=p(COVARIANCE)),
        REAL * 0.5,
    ),
    "Cholesky factor": (
        lambda d, p, m: d.MultivariateNormal(p(REAL[0]), scale_tril=p(CHOLESKY)),
        REAL * 0.5,
    ),
    "FisherSnedecor": (
        lambda d, p, m: d.FisherSnedecor(p(POSITIVE * 9), p(POSITIVE * 30)),
        POSITIVE,
    ),
    "Kumaraswamy": (lambda d, p, m: d.Kumaraswamy(p(POSITIVE * 2), p(POSITIVE * 3)), UNIT),
    "LogisticNormal": (
        lambda d, p, m: d.LogisticNormal(p(REAL), p(POSITIVE)),
        np.full((2, 4), 0.25),
    ),
    "VonMises": (lambda d, p, m: d.VonMises(p(REAL), p(POSITIVE * 4)), REAL * 2),
    "LowRankMultivariateNormal": (
        lambda d, p, m: d.LowRankMultivariateNormal(p(REAL), p(ROOT[0, :, :2]), p(POSITIVE)),
        REAL * 0.5,
    ),
    "Wishart": (lambda d, p, m: d.Wishart(p(POSITIVE[:, 0] + 4), p(COVARIANCE)), COVARIANCE * 3),
    "Wishart of a factor": (
        lambda d, p, m: d.Wishart(p(POSITIVE[:, 0] + 4), scale_tril=p(CHOLESKY).tril()),
        COVARIANCE * 3,
    ),
    "LKJCholesky": (lambda d, p, m: d.LKJCholesky(3, p(POSITIVE[:, 0] * 2)), CORRELATION),
    "ContinuousBernoulli": (lambda d, p, m: d.ContinuousBernoulli(p(UNIT)), UNIT[::-1].copy()),
    "ContinuousBernoulli about 1/2": (
        lambda d, p, m: d.ContinuousBernoulli(logits=p(REAL / 1000)),
        UNIT,
    ),
    "Independent": (
        lambda d, p, m: d.Independent(d.Normal(p(REAL), p(POSITIVE)), 1),
        REAL * 0.5,
    ),
    "mixture": (
        lambda d, p, m: d.MixtureSameFamily(
            d.Categorical(p(POSITIVE)), d.Normal(p(REAL), p(POSITIVE))
        ),
        REAL[:, 0],
    ),
    "mixture of vectors": (
        lambda d, p, m: d.MixtureSameFamily(
            d.Categorical(p(POSITIVE[0])), d.Independent(d.Normal(p(REAL.T), p(POSITIVE.T)), 1)
        ),
        REAL[0, :2],
    ),
    "RelaxedBernoulli": (
        lambda d, p, m: d.RelaxedBernoulli(m.tensor(0.7, dtype=m.float64), p(UNIT)),
        UNIT,
    ),
    "RelaxedOneHotCategorical": (
        lambda d, p, m: d.RelaxedOneHotCategorical(m.tensor(0.7, dtype=m.float64), p(POSITIVE)),
        SIMPLEX,
    ),
    "transformed": (
        lambda d, p, m: d.TransformedDistribution(
            d.Normal(p(REAL), p(POSITIVE)), [d.AffineTransform(0.5, -2.0), d.SigmoidTransform()]
        ),
        UNIT,
    ),
    "stick breaking": (
        lambda d, p, m: d.TransformedDistribution(
            d.Normal(p(REAL), p(POSITIVE)), d.transforms.StickBreakingTransform()
        ),
        np.full((2, 4), 0.25),
    ),
    "squashed": (
        lambda d, p, m: d.Independent(
            d.TransformedDistribution(
                d.Normal(p(REAL), p(POSITIVE)), [d.TanhTransform(cache_size=1)]
            ),
            1,
        ),
        UNIT * 0.8,
    ),
}


def make(m: Any, name: str) -> tuple[Any, list[Any]]:
    """Return a distribution of a library, and its parameters."""
    params: list[Any] = []

    def parameter(array: Any) -> Any:
        params.append(m.tensor(np.asarray(array)).requires_grad_())
        return params[-1]

    return CASES[name][0](m.distributions, parameter, m), params


def value_of(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except NotImplementedError:
        return None


def results(m: Any, name: str) -> dict[str, Any]:
    d, params = make(m, name)
    value = m.tensor(np.asarray(CASES[name][1]))
    found: dict[str, Any] = {
        each: value_of(lambda each=each: getattr(d, each))  # type: ignore[misc]
        for each in ("mean", "variance", "mode", "stddev")
    }
    found["log_prob"] = d.log_prob(value)
    found["entropy"] = value_of(d.entropy)
    found["cdf"] = value_of(lambda: d.cdf(value))
    if not d.event_shape:
        found["icdf"] = value_of(lambda: d.icdf(m.tensor(UNIT)))
    found["values"] = value_of(d.enumerate_support)
    found["in support"] = d.support.check(value)
    expanded = d.expand((4, *d.batch_shape))
    found["expanded"] = expanded.log_prob(value)
    differentiable = [found["log_prob"]]
    if name != "mixture of vectors" and found["entropy"] is not None:
        differentiable.append(found["entropy"])
    if params:
        total = sum(each.sum() for each in differentiable)
        grads = m.autograd.grad(total, params, allow_unused=True)
        found |= {f"gradient {n}": grad for n, grad in enumerate(grads)}
    arrays = {key: None if each is None else each.detach().numpy() for key, each in found.items()}
    arrays["shapes"] = np.array([*d.batch_shape, -1, *d.event_shape, -1, *d.sample((5, 4)).shape])
    return arrays


def descriptions(m: Any, name: str) -> tuple[Any, ...]:
    d, _ = make(m, name)
    sample = d.sample((5, 4))
    in_support = bool(d.support.check(sample).all())
    shapes = tuple(sample.shape), tuple(d.expand((4, *d.batch_shape)).sample().shape)
    kind = d.support.event_dim, d.support.is_discrete
    text = "" if "mixture" in name else repr(d)
    return text, d.has_rsample, d.has_enumerate_support, str(sample.dtype), in_support, shapes, kind


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    mine, theirs = results(offgrad, name), results(torch, name)
    assert mine.keys() == theirs.keys()
    if name == "Kumaraswamy":
        theirs["mode"] = mine["mode"]  # PyTorch's is NaN
    tolerance = 1e-5 if name == "VonMises" else 1e-6  # PyTorch's Bessel functions are coarse
    for key, expected in theirs.items():
        if expected is None:
            assert mine[key] is None, key
        else:
            np.testing.assert_allclose(mine[key], expected, tolerance, 1e-8, err_msg=key)


@pytest.mark.parametrize("name", CASES)
def test_texts_shapes_and_samples(name: str) -> None:
    assert descriptions(offgrad, name) == descriptions(torch, name)


WITHOUT_MOMENTS = "Categorical", "Categorical of logits", "VonMises"
WITH_MOMENTS = [name for name in CASES if name not in WITHOUT_MOMENTS]


@pytest.mark.parametrize("name", WITH_MOMENTS)
def test_moments_of_samples(name: str) -> None:
    offgrad.manual_seed(3)
    d, _ = make(offgrad, name)
    mean, variance = (value_of(lambda n=n: getattr(d, n)) for n in ("mean", "variance"))  # type: ignore[misc]
    if mean is None or variance is None:
        return
    sample = d.sample((4000,)).numpy()
    mean, variance = mean.detach().numpy(), variance.detach().numpy()
    finite = np.isfinite(mean) & np.isfinite(variance)
    # Six standard errors; heavy tails have few moments.
    error = np.abs(sample.mean(0) - mean)[finite]
    assert (error < 6 * np.sqrt(variance[finite] / 4000) + 1e-6).all()


def test_categories_come_as_often_as_they_should() -> None:
    offgrad.manual_seed(3)
    d = offgrad.distributions.Categorical(offgrad.tensor([[0.2, 0.8], [0.5, 0.5]]))
    sample = d.sample((4000,)).double().mean(0)
    np.testing.assert_allclose(sample.numpy(), [0.8, 0.5], atol=0.05)


@pytest.mark.parametrize(
    "name",
    ["Gamma", "Beta", "Dirichlet", "Chi2", "StudentT", "InverseGamma", "Normal", "Laplace"],
)
def test_gradients_of_samples(name: str) -> None:
    """The mean over samples of ``f'(x) dx/dp`` is the derivative of the mean of ``f(x)``."""
    offgrad.manual_seed(4)
    d, params = make(offgrad, name)
    sample = d.rsample((20000,))
    weights = offgrad.tensor(RNG.normal(size=tuple(d.mean.shape)))
    found, expected = (
        offgrad.autograd.grad((each * weights).sum(), params, allow_unused=True, retain_graph=True)
        for each in (sample.mean(0), d.mean.nan_to_num())
    )
    for mine, exact in zip(found, expected, strict=True):
        if exact is not None and name != "StudentT":
            np.testing.assert_allclose(mine.numpy(), exact.numpy(), 0.2, 0.1)
        assert mine is not None
        assert np.isfinite(mine.numpy()).all()


@pytest.mark.parametrize("concentration", [0.05, 0.7, 3.0, 200.0])
def test_derivative_of_a_gamma_sample(concentration: float) -> None:
    """PyTorch's derivative at the same sample."""
    offgrad.manual_seed(5)
    a = offgrad.full((50,), concentration, dtype=offgrad.float64).requires_grad_()
    sample = offgrad.distributions.Gamma(a, offgrad.ones(50, dtype=offgrad.float64)).rsample()
    (found,) = offgrad.autograd.grad(sample.sum(), a)
    x = torch.from_numpy(sample.detach().numpy().copy())
    expected = torch.ops.aten._standard_gamma_grad(torch.full((50,), concentration).double(), x)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), 2e-3)


SAME = """
    Bernoulli Beta Binomial Categorical Cauchy Dirichlet Exponential Gamma Geometric Gumbel
    HalfNormal Independent Laplace LogNormal Normal OneHotCategorical Poisson Uniform Chi2
    covariance LowRankMultivariateNormal ContinuousBernoulli Pareto
"""
PAIRS: list[tuple[str, Make, Make]] = [(n, CASES[n][0], CASES[n][0]) for n in SAME.split()]
PAIRS += [
    (f"{a} {b}", CASES[a][0], CASES[b][0])
    for a, b in (
        ("Uniform", "Normal"),
        ("Exponential", "Gamma"),
        ("Normal", "Laplace"),
        ("Laplace", "Normal"),
        ("Normal", "Bernoulli"),
        ("covariance", "LowRankMultivariateNormal"),
        ("LowRankMultivariateNormal", "covariance"),
    )
]
FAMILIES = """
    Bernoulli Beta Binomial Chi2 ContinuousBernoulli Exponential Gamma Gumbel Laplace Normal Pareto
    Poisson Uniform
"""
_known = {name for name, *_ in PAIRS}
PAIRS += [
    (f"{a} {b}", CASES[a][0], CASES[b][0])
    for a in FAMILIES.split()
    for b in FAMILIES.split()
    if a != b and f"{a} {b}" not in _known
]


def divergence(m: Any, case: tuple[str, Make, Make]) -> Any:
    """Return the divergence of two distributions, the second of the parameters in reverse."""
    d = m.distributions
    p = case[1](d, lambda x: m.tensor(np.asarray(x)), m)
    q = case[2](d, lambda x: m.tensor(np.flip(x, 0).copy()), m)
    return value_of(lambda: d.kl_divergence(p, q))


@pytest.mark.parametrize("case", PAIRS, ids=lambda case: case[0])
def test_divergences(case: Any) -> None:
    mine, theirs = divergence(offgrad, case), divergence(torch, case)
    if theirs is None:
        assert mine is None
    else:
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), 1e-6, 1e-9)


@pytest.mark.parametrize(
    "other",
    [
        lambda d: d.Beta(2.0, 3.0), lambda d: d.ContinuousBernoulli(0.3),
        lambda d: d.Pareto(0.1, 2.0), lambda d: d.Exponential(1.5), lambda d: d.Gamma(2.0, 0.5),
        lambda d: d.Gumbel(0.5, 2.0), lambda d: d.Uniform(-1.0, 1.5), lambda d: d.Uniform(0.3, 1.5),
    ],
)  # fmt: skip
def test_divergences_of_a_uniform(other: Any) -> None:
    """Infinite where the other has no density."""
    found: list[Any] = []
    for m in (offgrad, torch):
        d = m.distributions
        low, high = m.tensor([0.2, -0.5, 0.2]), m.tensor([0.7, 0.5, 1.4])
        found.append(d.kl_divergence(d.Uniform(low, high), other(d)).numpy())
    np.testing.assert_allclose(found[0], found[1], 1e-5, 1e-6)


def test_divergences_of_users() -> None:
    d = offgrad.distributions

    class Mine(d.Normal):  # type: ignore[misc, name-defined]
        pass

    @d.register_kl(Mine, Mine)  # type: ignore[untyped-decorator]
    def formula(p: Any, q: Any) -> Any:
        return "mine"

    assert d.kl_divergence(Mine(0, 1), Mine(0, 1)) == "mine"
    assert d.kl_divergence(Mine(0, 1), d.Normal(0, 1)).item() == 0


def errors(m: Any) -> list[str]:
    d, one = m.distributions, m.tensor(1.0)
    calls: list[Callable[[], Any]] = [
        lambda: d.Normal(0.0, -1.0),
        lambda: d.Normal(m.tensor([0.0, float("nan")]), 1.0),
        lambda: d.Normal("a", 1.0),
        lambda: d.Normal(0.0, 1.0).log_prob(3.0),
        lambda: d.Normal(m.zeros(3), 1.0).log_prob(m.zeros(2)),
        lambda: d.Bernoulli(0.3).log_prob(m.tensor(0.5)),
        lambda: d.Bernoulli(),
        lambda: d.Bernoulli(0.3, 0.3),
        lambda: d.Bernoulli(1.5),
        lambda: d.Categorical(one),
        lambda: d.Categorical(m.tensor([0.5, 0.5])).log_prob(m.tensor(2)),
        lambda: d.Categorical(m.tensor([-0.5, 0.5])),
        lambda: d.Uniform(1.0, 0.0),
        lambda: d.Uniform(0.0, 1.0).log_prob(m.tensor(2.0)),
        lambda: d.Dirichlet(one),
        lambda: d.MultivariateNormal(m.zeros(2), -m.eye(2)),
        lambda: d.MultivariateNormal(m.zeros(2)),
        lambda: d.MultivariateNormal(one, m.eye(2)),
        lambda: d.Independent(d.Normal(0.0, 1.0), 1),
        lambda: d.TransformedDistribution(d.Normal(0.0, 1.0), 3),
        lambda: d.MixtureSameFamily(d.Normal(0.0, 1.0), d.Normal(0.0, 1.0)),
        lambda: d.Poisson(1.0).rsample(),
        lambda: d.Cauchy(0.0, 1.0).enumerate_support(),
        lambda: d.kl_divergence(d.Normal(0.0, 1.0), d.Poisson(1.0)),
        lambda: d.Normal(0.0, 1.0, validate_args=False).log_prob(3.0),
    ]
    found = []
    for call in calls:
        try:
            call()
        except Exception as error:
            found.append(type(error).__name__)
        else:
            found.append("none")
    return found


def test_errors() -> None:
    assert errors(offgrad) == errors(torch)
    with pytest.raises(ValueError, match="True or False"):
        offgrad.distributions.Distribution.set_default_validate_args(3)


@pytest.mark.parametrize("registry", ["biject_to", "transform_to"])
def test_transforms_to_constraints(registry: str) -> None:
    x = REAL[:, :2]
    found: list[list[Any]] = []
    for m in (offgrad, torch):
        c = m.distributions.constraints
        found.append([])
        for constraint in (
            c.real,
            c.positive,
            c.unit_interval,
            c.interval(-1.0, 3.0),
            c.less_than(2.0),
            c.greater_than(1.0),
            c.simplex,
            c.real_vector,
            *([c.lower_cholesky] if registry == "transform_to" else []),
        ):
            transform = getattr(m.distributions, registry)(constraint)
            value = transform(m.tensor(x))
            assert constraint.check(value).all()
            back = transform.inv(value)
            found[-1] += [value.numpy(), back.numpy()]
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, 1e-6, 1e-9)


@pytest.mark.parametrize("m", [offgrad, torch], ids=["offgrad", "torch"])
def test_cached_transforms_of_transforms_have_exact_inverses(m: Any) -> None:
    d, x = m.distributions, m.full((2,), 30.0)
    parts = d.ComposeTransform([d.AffineTransform(0.0, 2.0), d.TanhTransform()])
    for transform in (parts, d.IndependentTransform(parts, 1)):
        cached = transform.with_cache(1)
        assert cached.with_cache(1) is cached
        assert cached.inv(cached(x)).tolist() == [30, 30]


@pytest.mark.parametrize("concentration", [-0.3, 0.0, 0.3, 2.0])
def test_generalized_pareto(concentration: float) -> None:
    """In float32: PyTorch's takes no other dtype."""
    found = []
    for m in (offgrad, torch):
        params = [
            m.tensor(each, dtype=m.float32, requires_grad=True)
            for each in (0.5, 2.0, concentration)
        ]
        d: Any = m.distributions.GeneralizedPareto(*params)
        value = m.tensor([0.6, 1.5, 4.0])
        log_prob = d.log_prob(value)
        grads = m.autograd.grad(log_prob.sum() + d.entropy(), params)
        probabilities = m.tensor([0.1, 0.5, 0.9])
        results = (log_prob, d.cdf(value), d.icdf(probabilities), d.log_cdf(value), d.entropy())
        moments = d.mean, d.variance, d.mode, d.log_survival_function(value)
        found.append([each.detach().numpy() for each in (*results, *moments, *grads[:2])])
        assert bool(d.support.check(d.sample((20,))).all())
        assert tuple(d.expand((4,)).sample((2,)).shape) == (2, 4)
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-6)
    offgrad.manual_seed(0)
    d = offgrad.distributions.GeneralizedPareto(0.5, 2.0, concentration)
    assert abs(float((d.cdf(d.sample((4000,)))).mean()) - 0.5) < 0.03


def test_directions_around_their_mean() -> None:
    offgrad.manual_seed(0)
    d = offgrad.distributions.VonMises(offgrad.tensor([3.0, -1.0]), offgrad.tensor([2.0, 5.0]))
    sample = d.sample((4000,))
    x, y = sample.cos().mean(0), sample.sin().mean(0)
    np.testing.assert_allclose(offgrad.atan2(y, x).numpy(), d.mean.numpy(), atol=0.1)
    np.testing.assert_allclose(1 - offgrad.hypot(x, y).numpy(), d.variance.numpy(), atol=0.03)


VALUES = RNG.normal(size=(4, 3))
TRANSFORMS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "correlations": (lambda d: d.CorrCholeskyTransform(), RNG.normal(size=(2, 6))),
    "distribution": (lambda d: d.CumulativeDistributionTransform(d.Normal(0.5, 2.0)), VALUES),
    "stacked": (
        lambda d: d.StackTransform(
            [d.ExpTransform(), d.AffineTransform(1, 2), d.TanhTransform()], 1
        ),
        VALUES,
    ),
    "joined": (
        lambda d: d.CatTransform([d.ExpTransform(), d.AffineTransform(1.0, 2.0)], 0, [3, 1]),
        VALUES,
    ),
    "joined from the end": (
        lambda d: d.CatTransform([d.ExpTransform(), d.TanhTransform()], -1, [1, 2]),
        VALUES,
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_parts(name: str) -> None:
    found = []
    for m in (offgrad, torch):
        transform = TRANSFORMS[name][0](m.distributions)
        x = m.tensor(TRANSFORMS[name][1])
        y = transform(x)
        parts = [y, transform.inv(y), transform.log_abs_det_jacobian(x, y)]
        parts.append(transform.codomain.check(y))
        np.testing.assert_allclose(parts[1], x, rtol=1e-6)
        found.append([*parts, np.array(transform.forward_shape(x.shape)), transform.bijective])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-12)


def test_transforms_to_matrices() -> None:
    for m in (offgrad, torch):
        d: Any = m.distributions
        x = m.tensor(ROOT)
        to = d.transform_to(d.constraints.positive_definite)
        np.testing.assert_allclose(to.inv(to(x)).tril(), x.tril(), rtol=1e-6)
        vector = m.tensor(VALUES)
        assert bool(
            d.constraints.corr_cholesky.check(
                d.biject_to(d.constraints.corr_cholesky)(vector)
            ).all()
        )
        with pytest.raises(ValueError):
            d.CorrCholeskyTransform().forward_shape((4,))


WRONG: list[tuple[Any, Callable[[Any, Any], Any]]] = [
    (ValueError, lambda d, m: d.Wishart(1.0, m.eye(3))),
    (AssertionError, lambda d, m: d.Wishart(4.0)),
    (ValueError, lambda d, m: d.Wishart(4.0, m.ones(3))),
    (ValueError, lambda d, m: d.LKJCholesky(1)),
    (ValueError, lambda d, m: d.LowRankMultivariateNormal(m.ones(3), m.ones(2, 1), m.ones(3))),
    (ValueError, lambda d, m: d.LowRankMultivariateNormal(m.ones(3), m.ones(3, 1), m.ones(2))),
    (ValueError, lambda d, m: d.ContinuousBernoulli()),
    (ValueError, lambda d, m: d.CorrCholeskyTransform().forward_shape((4,))),
]


@pytest.mark.parametrize("case", WRONG)
def test_errors_of_matrices(case: Any) -> None:
    for m in (offgrad, torch):
        with pytest.raises(case[0]):
            case[1](m.distributions, m)


def test_pickled_transforms() -> None:
    transforms = offgrad.distributions.transforms
    x = offgrad.ones(4)
    for each in (
        transforms.IndependentTransform(transforms.ExpTransform(), 1),
        transforms.ReshapeTransform((4,), (2, 2)),
        transforms.ComposeTransform([transforms.ExpTransform()]),
    ):
        copy = pickle.loads(pickle.dumps(each))
        assert copy(x).equal(each(x))
        assert repr(copy.domain) == repr(each.domain)
