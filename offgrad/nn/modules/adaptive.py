"""The softmax over many classes by clusters of rare ones."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from offgrad import ops
from offgrad._tensor.tensor import Tensor
from offgrad.nn import functional as F
from offgrad.nn.modules.container import ModuleList, Sequential
from offgrad.nn.modules.linear import Linear
from offgrad.nn.modules.module import Module

__all__ = ["AdaptiveLogSoftmaxWithLoss"]


class _ASMoutput(NamedTuple):
    """The log-probabilities of targets [N], and minus their mean."""

    output: Tensor
    loss: Tensor


class AdaptiveLogSoftmaxWithLoss(Module):
    """A softmax whose rare classes form clusters with smaller layers (Grave et al., 2017).

    Args:
        in_features: the size of inputs.
        n_classes: the number of classes, the frequent ones first.
        cutoffs: the first class of each cluster.
        div_value: by which each cluster's layer is smaller than the one before.
        head_bias: whether the first layer has a bias.
        device: the CPU.
        dtype: of the weights.

    Raises:
        ValueError: unless `cutoffs` rise from 1 or more to less than `n_classes`.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        cutoffs = list(cutoffs)
        if not cutoffs:
            raise ValueError("cutoffs must not be empty")
        rises = cutoffs == sorted(set(cutoffs)) and all(int(each) == each for each in cutoffs)
        if not rises or cutoffs[0] < 1 or cutoffs[-1] > n_classes - 1:
            raise ValueError(
                "cutoffs should be a sequence of unique, ascending integers from 1 to n_classes - "
                f"1, got {cutoffs} for n_classes={n_classes}"
            )
        self.in_features, self.n_classes = in_features, n_classes
        self.cutoffs = [*cutoffs, n_classes]
        self.div_value, self.head_bias = div_value, head_bias
        self.shortlist_size, self.n_clusters = cutoffs[0], len(cutoffs)
        self.head_size = self.shortlist_size + self.n_clusters
        self.head = Linear(in_features, self.head_size, head_bias, device, dtype)
        self.tail = ModuleList()
        for index, (first, last) in enumerate(self._clusters()):
            hidden = int(in_features // div_value ** (index + 1))
            self.tail.append(
                Sequential(
                    Linear(in_features, hidden, False, device, dtype),
                    Linear(hidden, last - first, False, device, dtype),
                )
            )

    def _clusters(self) -> list[tuple[int, int]]:
        """Return the first class of each cluster, and the first class behind it."""
        return list(zip(self.cutoffs, self.cutoffs[1:], strict=False))

    def reset_parameters(self) -> None:
        """Draw the weights of all layers."""
        self.head.reset_parameters()
        for cluster in self.tail:
            for layer in cluster:  # type: ignore[attr-defined]
                layer.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> _ASMoutput:
        """Return the log-probabilities of targets [N] for inputs [N, in_features], and their loss.

        Both may lack the dimension of samples.
        """
        is_single = target_.dim() == 0
        self._check(input_, target_)
        x, target = (input_.unsqueeze(0), target_.unsqueeze(0)) if is_single else (input_, target_)
        classes = target.numpy()
        if classes.size and not (classes.min() >= 0 and classes.max() < self.n_classes):
            raise RuntimeError(
                f"Target values should be in [0, {self.n_classes - 1}], got values from "
                f"{classes.min()} to {classes.max()}"
            )
        head = F.log_softmax(self.head(x), 1)
        # Of a rare class, the head has the probability of its cluster.
        entries = target.clone()
        shares = head.new_zeros(len(classes))
        for index, (first, last) in enumerate(self._clusters()):
            (rows,) = ((classes >= first) & (classes < last)).nonzero()
            if not rows.size:
                continue
            at = ops.tensor(rows)
            entries[at] = self.shortlist_size + index
            within = F.log_softmax(self.tail[index](x[at]), 1)
            picked = within.gather(1, (target[at] - first).unsqueeze(1)).squeeze(1)
            shares = shares.index_add(0, at, picked)
        output = head.gather(1, entries.unsqueeze(1)).squeeze(1) + shares
        loss = (-output).mean()
        return _ASMoutput(output.squeeze(0) if is_single else output, loss)

    def _check(self, input: Tensor, target: Tensor) -> None:
        if target.dim() > 1:
            raise RuntimeError("target must have one dimension, or none without a batch")
        if target.dim() == 1 and input.shape[0] != target.shape[0]:
            raise RuntimeError(
                "Input and target should have the same size in the dimension of the batch, got "
                f"{list(input.shape)} and {list(target.shape)}"
            )
        if input.dim() != target.dim() + 1:
            raise RuntimeError(
                f"a target of {target.dim()} dimensions needs an input of {target.dim() + 1}, got "
                f"{list(input.shape)}"
            )

    def _get_full_log_prob(self, input: Tensor, head_output: Tensor) -> Tensor:
        """Return the log-probabilities of all classes [N, n_classes]."""
        head = F.log_softmax(head_output, 1)
        parts = [head[:, : self.shortlist_size]]
        for index, cluster in enumerate(self.tail):
            share = head[:, self.shortlist_size + index].unsqueeze(1)
            parts.append(F.log_softmax(cluster(input), 1) + share)
        return ops.cat(parts, 1)

    def log_prob(self, input: Tensor) -> Tensor:
        """Return the log-probabilities of all classes [N, n_classes] for [N, in_features]."""
        return self._get_full_log_prob(input, self.head(input))

    def predict(self, input: Tensor) -> Tensor:
        """Return the most probable classes [N] for [N, in_features]."""
        return self.log_prob(input).argmax(1)
