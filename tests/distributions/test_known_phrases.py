"""Phrases of PyTorch's errors about distributions that code and people match on."""

import pytest

from tests.known_phrases import Programs, check

PROGRAMS: Programs = {
    "Either `probs` or `logits` must be specified, but not both": lambda lib: (
        lib.distributions.Categorical()
    ),
    "Expected parameter scale (Tensor of shape": lambda lib: lib.distributions.Normal(
        lib.zeros(2), lib.tensor([1.0, -1.0])
    ),
    "to satisfy the constraint": lambda lib: lib.distributions.Bernoulli(lib.tensor([1.5])),
    "Expected value argument (Tensor of shape": lambda lib: lib.distributions.Exponential(
        lib.ones(1)
    ).log_prob(lib.tensor([-1.0])),
    "to be within the support": lambda lib: lib.distributions.Categorical(lib.ones(2)).log_prob(
        lib.tensor(5)
    ),
}


@pytest.mark.parametrize("phrase", PROGRAMS)
def test_phrases(phrase: str) -> None:
    check(PROGRAMS, phrase)
