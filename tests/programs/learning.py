"""Meta-learning, contrastive learning, graphs, and mixtures of experts."""

import math
from collections import OrderedDict
from typing import Any

from tests.programs.common import data, program, seed_params, train


@program
def maml(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    seed_params(torch, net)
    x, y = data(torch, 6, 1), data(torch, 6, 1, seed=2)

    def loss_of() -> Any:
        params = OrderedDict(net.named_parameters())
        inner = F.mse_loss(torch.func.functional_call(net, params, (x[:3],)), y[:3])
        grads = torch.autograd.grad(inner, params.values(), create_graph=True)
        fast = {k: v - 0.1 * g for (k, v), g in zip(params.items(), grads, strict=True)}
        return F.mse_loss(torch.func.functional_call(net, fast, x[3:]), y[3:])

    return train(torch.optim.Adam(net.parameters(), lr=1e-2), loss_of)


@program
def simclr(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional
    encoder = nn.Sequential(
        nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 4)
    )
    seed_params(torch, encoder)
    first, second = data(torch, 5, 6), data(torch, 5, 6, seed=2)
    similarities = []

    def loss_of() -> Any:
        z = F.normalize(torch.cat([encoder(first), encoder(second)]), dim=1)
        similarity = z @ z.T / 0.5
        n = similarity.shape[0]
        similarity = similarity.masked_fill(torch.eye(n, dtype=torch.bool), -1e9)
        pairs = F.cosine_similarity(z[:5], z[5:].detach(), dim=-1)
        similarities.append(pairs.mean().item())
        return F.cross_entropy(similarity, torch.arange(n).roll(n // 2))

    return train(torch.optim.SGD(encoder.parameters(), 0.05), loss_of) + similarities


@program
def graph_convolution(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class GraphConvolution(torch.nn.Module):
        def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.FloatTensor(in_features, out_features))
            if bias:
                self.bias = nn.Parameter(torch.FloatTensor(out_features))
            else:
                self.register_parameter("bias", None)
            self.reset_parameters()

        def reset_parameters(self) -> None:
            stdv = 1.0 / math.sqrt(self.weight.size(1))
            self.weight.data.uniform_(-stdv, stdv)
            if self.bias is not None:
                self.bias.data.uniform_(-stdv, stdv)

        def forward(self, input: Any, adj: Any) -> Any:
            output = torch.spmm(adj, torch.mm(input, self.weight))
            return output + self.bias if self.bias is not None else output

    class GCN(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gc1 = GraphConvolution(4, 8)
            self.gc2 = GraphConvolution(8, 3, bias=False)

        def forward(self, x: Any, adj: Any) -> Any:
            return F.log_softmax(self.gc2(F.relu(self.gc1(x, adj)), adj), dim=1)

    edges = torch.LongTensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 0]])
    adjacency = torch.sparse_coo_tensor(edges, torch.ones(6) * 0.5, (5, 5))
    model = GCN()
    seed_params(torch, model)
    x, y = data(torch, 5, 4), torch.LongTensor([0, 1, 2, 0, 1])
    known = torch.LongTensor(range(3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    return train(optimizer, lambda: F.nll_loss(model(x, adjacency)[known], y[known]))


@program
def neural_ode(torch: Any) -> list[float]:
    nn = torch.nn

    class Flow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Linear(8, 2))

        def forward(self, t: float, y: Any) -> Any:
            return self.net(torch.cat([y, torch.ones_like(y[:, :1]) * t], 1))

    flow = Flow()
    seed_params(torch, flow)
    start = data(torch, 4, 2)

    def loss_of() -> Any:
        y = start
        for i in range(3):
            t = i * 0.1
            half = y + 0.05 * flow(t, y)
            y = y + 0.1 * flow(t + 0.05, half)
        return (y - 1).abs().mean()

    return train(torch.optim.NAdam(flow.parameters(), lr=1e-2), loss_of)


@program
def mixture_of_experts(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional
    gate = nn.Linear(2, 3)
    experts = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
    model = nn.ModuleList([gate, experts])
    seed_params(torch, model)
    x = data(torch, 4, 2)

    def loss_of() -> Any:
        weights, chosen = torch.topk(F.softmax(gate(x), -1), 2, dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(experts):
            rows, slot = torch.where(chosen == i)
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, slot].unsqueeze(-1))
        return (out - 1).pow(2).mean()

    return train(torch.optim.RAdam(model.parameters(), lr=1e-2), loss_of)
