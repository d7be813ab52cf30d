"""Programs with state besides gradients: queues, sparse tables, complex parameters."""

import copy
import math
from typing import Any

from tests.programs.common import data, program, seed_params, train


@program
def momentum_contrast(torch: Any) -> list[float]:
    """A queue of keys as a buffer, and an encoder that follows another."""
    nn = torch.nn
    F = torch.nn.functional

    class MoCo(torch.nn.Module):
        def __init__(self, size: int = 16) -> None:
            super().__init__()
            self.query = nn.Sequential(
                nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8)
            )
            seed_params(torch, self.query)
            self.key = copy.deepcopy(self.query)
            for parameter in self.key.parameters():
                parameter.requires_grad = False
            self.size = size
            self.register_buffer("queue", F.normalize(data(torch, 8, size, seed=3), dim=0))
            self.register_buffer("at", torch.zeros(1, dtype=torch.long))

        def follow(self) -> None:
            for one, other in zip(self.query.parameters(), self.key.parameters(), strict=True):
                other.data = other.data * 0.9 + one.data * (1.0 - 0.9)

        def enqueue(self, keys: Any) -> None:
            at = int(self.at)
            self.queue[:, at : at + keys.shape[0]] = keys.T
            self.at[0] = (at + keys.shape[0]) % self.size

        def forward(self, a: Any, b: Any) -> tuple[Any, Any]:
            q = F.normalize(self.query(a), dim=1)
            with torch.no_grad():
                self.follow()
                order = torch.arange(b.shape[0] - 1, -1, -1)
                k = F.normalize(self.key(b[order]), dim=1)[torch.argsort(order)]
            positive = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
            negative = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
            logits = torch.cat([positive, negative], dim=1) / 0.2
            with torch.no_grad():
                self.enqueue(k)
            return logits, torch.zeros(logits.shape[0], dtype=torch.long)

    model = MoCo()
    optimizer = torch.optim.SGD(
        filter(lambda p: p.requires_grad, model.parameters()), 0.1, momentum=0.9, weight_decay=1e-4
    )
    x = data(torch, 4, 6)
    result = train(optimizer, lambda: F.cross_entropy(*model(x, x + 0.1)), steps=5)
    return [*result, model.at.item(), model.queue.sum().item()]


@program
def recommendation_with_sparse_table(torch: Any) -> list[float]:
    """Bags of embeddings with sparse gradients, crossed with dense features; two optimizers."""
    nn = torch.nn
    F = torch.nn.functional

    class DLRM(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            kinds = (("sum", True), ("mean", False), ("max", False))
            self.tables = nn.ModuleList(
                [nn.EmbeddingBag(10, 4, mode=mode, sparse=sparse) for mode, sparse in kinds]
            )
            self.bottom = nn.Sequential(nn.Linear(5, 4), nn.ReLU())
            self.top = nn.Linear(4 + 6, 1)

        def forward(self, dense: Any, indices: Any, offsets: Any, weights: Any) -> Any:
            x = self.bottom(dense)
            rows = [self.tables[0](indices, offsets, per_sample_weights=weights)]
            rows += [table(indices, offsets) for table in self.tables[1:]]
            stacked = torch.stack([x, *rows], dim=1)
            crossed = torch.bmm(stacked, stacked.transpose(1, 2))
            i, j = torch.tril_indices(4, 4, offset=-1)
            return self.top(torch.cat([x, crossed[:, i, j]], dim=1)).squeeze(1)

    model = DLRM()
    seed_params(torch, model)
    table = model.tables[0].weight
    sparse = torch.optim.SparseAdam([table], lr=1e-2)
    dense = torch.optim.Adagrad([p for p in model.parameters() if p is not table], lr=1e-2)
    indices = torch.tensor([4, 5, 7, 9, 0, 1, 8, 9, 2])
    batch = data(torch, 4, 5), indices, torch.tensor([0, 2, 5, 5]), data(torch, 9, seed=4)
    target = torch.tensor([1.0, 0, 1, 0])
    losses = []
    for _ in range(3):
        logits = model(*batch)
        loss = F.binary_cross_entropy_with_logits(logits, target, pos_weight=torch.tensor(2.0))
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        assert table.grad.is_sparse
        sparse.step()
        dense.step()
        losses.append(loss.item())
    return [*losses, *table.sum(1).tolist()]


@program
def convolution_with_complex_parameters(torch: Any) -> list[float]:
    """A diagonal state space, whose long kernel is a sum of complex exponentials (S4D)."""
    nn = torch.nn
    F = torch.nn.functional

    class S4D(torch.nn.Module):
        def __init__(self, width: int = 4, states: int = 4) -> None:
            super().__init__()
            self.out_of_state = nn.Parameter(torch.full((width, states), 0.1 - 0.2j))
            self.as_pairs = nn.Parameter(data(torch, width, states, 2, seed=2) * 0.2)
            self.log_step = nn.Parameter(torch.zeros(width))
            self.frequency = nn.Parameter(math.pi * torch.arange(states).repeat(width, 1).float())
            self.skip = nn.Parameter(torch.ones(width))
            self.output = nn.Sequential(nn.Conv1d(width, 2 * width, 1), nn.GLU(dim=-2))

        def forward(self, u: Any) -> Any:
            length = u.size(-1)
            step = self.log_step.exp() * 0.1
            poles = -0.5 + 1j * self.frequency
            scaled = poles * step.unsqueeze(-1)
            c = torch.view_as_complex(self.as_pairs) + self.out_of_state
            c = c * (torch.exp(scaled) - 1.0) / poles
            powers = torch.exp(scaled.unsqueeze(-1) * torch.arange(length))
            kernel = 2 * torch.einsum("hn,hnl->hl", c, powers).real
            spectrum = torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
            y = torch.fft.irfft(spectrum, n=2 * length)[..., :length]
            return self.output(F.gelu(y + u * self.skip.unsqueeze(-1)))

    model = S4D()
    seed_params(torch, model.output)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = data(torch, 2, 4, 12)
    losses = train(optimizer, lambda: (model(x).roll(1, -1) - x).abs().pow(2).mean(), steps=4)
    return [*losses, *model.out_of_state.detach().abs().sum(1).tolist()]
