"""Sequences with structure, points in space, graphs: programs that index, sort and scatter."""

import math
from typing import Any

from tests.programs.common import data, program, seed_params, train


@program
def conditional_random_field(torch: Any) -> list[float]:
    nn, start, stop, tags = torch.nn, 3, 4, 5

    def log_sum_exp(row: Any) -> Any:
        best = row[0, row.argmax(1).item()]
        return best + torch.log(torch.sum(torch.exp(row - best.view(1, -1).expand_as(row))))

    class Tagger(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(9, 6)
            self.lstm = nn.LSTM(6, 4, bidirectional=True)
            self.emit = nn.Linear(8, tags)
            self.transitions = nn.Parameter(torch.zeros(tags, tags))

        def features(self, words: Any) -> Any:
            out, _ = self.lstm(self.words(words).view(len(words), 1, -1))
            return self.emit(out.view(len(words), -1))

        def partition(self, features: Any) -> Any:
            alphas = torch.full((1, tags), -10000.0)
            alphas[0][start] = 0.0
            for feature in features:
                rows = [
                    log_sum_exp(alphas + feature[t].view(1, -1) + self.transitions[t].view(1, -1))
                    for t in range(tags)
                ]
                alphas = torch.stack(rows).view(1, -1)
            return log_sum_exp(alphas + self.transitions[stop])

        def score(self, features: Any, path: Any) -> Any:
            path = torch.cat([torch.tensor([start], dtype=torch.long), path])
            steps = self.transitions[path[1:], path[:-1]]
            emitted = features.gather(1, path[1:, None]).squeeze(1)
            return (steps + emitted).sum() + self.transitions[stop, path[-1]]

        def viterbi(self, features: Any) -> list[int]:
            scores, back = self.transitions[:, start] + features[0], []
            for feature in features[1:]:
                scores, best = (scores[None] + self.transitions).max(1)
                scores = scores + feature
                back.append(best)
            path = [int(scores.argmax())]
            for best in reversed(back):
                path.append(best[path[-1]].item())
            return path[::-1]

    model = Tagger()
    seed_params(torch, model)
    model.transitions.data[start, :] = -10000
    model.transitions.data[:, stop] = -10000
    words, path = torch.tensor([1, 5, 2, 8, 1]), torch.tensor([0, 1, 1, 2, 0])

    def loss_of() -> Any:
        features = model.features(words)
        return model.partition(features) - model.score(features, path)

    losses = train(torch.optim.SGD(model.parameters(), lr=0.5), loss_of)
    with torch.no_grad():
        return losses + model.viterbi(model.features(words))


@program
def sinkhorn_and_soft_dynamic_time_warping(torch: Any) -> list[float]:
    x, y = data(torch, 5, 2).requires_grad_(), data(torch, 6, 2, seed=2)

    def sinkhorn(cost: Any, eps: float = 0.3) -> Any:
        mu, nu = (torch.full((size,), -math.log(size)) for size in cost.shape)
        u, v = torch.zeros_like(mu), torch.zeros_like(nu)
        for _ in range(8):
            u = eps * (mu - torch.logsumexp((v[None, :] - cost) / eps, dim=-1))
            v = eps * (nu - torch.logsumexp((u[:, None] - cost) / eps, dim=-2))
        plan = torch.exp((u[:, None] + v[None, :] - cost) / eps)
        return (plan * cost).sum()

    def soft_dtw(distances: Any, gamma: float = 0.5) -> Any:
        rows, columns = distances.shape
        far = torch.tensor(float("inf"))
        table = [[far] * (columns + 1) for _ in range(rows + 1)]
        table[0][0] = torch.tensor(0.0)
        for i in range(1, rows + 1):
            for j in range(1, columns + 1):
                last = torch.stack([table[i - 1][j], table[i][j - 1], table[i - 1][j - 1]])
                least = -gamma * torch.logsumexp(-last / gamma, 0)
                table[i][j] = distances[i - 1, j - 1] + least
        return table[-1][-1]

    cost = torch.cdist(x, y)
    losses = [sinkhorn(cost**2), soft_dtw(cost)]
    sum(losses).backward()
    return [*(each.item() for each in losses), *x.grad.flatten().tolist()]


@program
def pointnet_with_sampling_and_grouping(torch: Any) -> list[float]:
    nn = torch.nn

    def farthest(points: Any, count: int) -> Any:
        batch, size, _ = points.shape
        chosen = torch.zeros(batch, count, dtype=torch.long)
        distance = torch.ones(batch, size) * 1e10
        last, rows = torch.zeros(batch, dtype=torch.long), torch.arange(batch)
        for i in range(count):
            chosen[:, i] = last
            new = ((points - points[rows, last, :].view(batch, 1, 3)) ** 2).sum(-1)
            closer = new < distance
            distance[closer] = new[closer]
            last = torch.max(distance, -1)[1]
        return chosen

    def gathered(points: Any, index: Any) -> Any:
        rows = torch.arange(len(points)).view(-1, *[1] * (index.dim() - 1)).expand_as(index)
        return points[rows, index, :]

    def ball(points: Any, centers: Any, radius: float, count: int) -> Any:
        batch, size, _ = points.shape
        group = torch.arange(size).view(1, 1, size).repeat([batch, centers.shape[1], 1])
        group[torch.cdist(centers, points) > radius] = size
        group = group.sort(dim=-1)[0][:, :, :count]
        first = group[:, :, :1].repeat([1, 1, count])
        missing = group == size
        group[missing] = first[missing]
        return group

    mlp = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    seed_params(torch, mlp)
    points = data(torch, 3, 16, 3).requires_grad_()

    def loss_of() -> Any:
        centers = gathered(points, farthest(points.detach(), 5))
        group = ball(points.detach(), centers.detach(), 1.5, 4)
        local = gathered(points, group) - centers.unsqueeze(2)
        features = mlp(local.permute(0, 3, 2, 1)).amax(2).amax(-1)
        return nn.functional.nll_loss(features.log_softmax(1), torch.tensor([0, 3, 1]))

    losses = train(torch.optim.SGD([*mlp.parameters(), points], lr=0.1), loss_of)
    return [*losses, points.abs().sum().item()]


@program
def radiance_field(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class Field(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(27, 16), nn.Linear(16 + 27, 16)])
            self.density, self.color = nn.Linear(16, 1), nn.Linear(16, 3)

        def forward(self, x: Any) -> Any:
            waves = [f(2.0**i * math.pi * x) for i in range(4) for f in (torch.sin, torch.cos)]
            code = torch.cat([x, *waves], -1)
            h = F.relu(self.layers[0](code))
            h = F.relu(self.layers[1](torch.cat([h, code], -1)))
            return torch.sigmoid(self.color(h)), F.softplus(self.density(h))[..., 0]

    field = Field()
    seed_params(torch, field)
    i, j = torch.meshgrid(torch.linspace(-1, 1, 3), torch.linspace(-1, 1, 3), indexing="xy")
    rays = torch.stack([i, -j, -torch.ones_like(i)], -1).reshape(-1, 3)
    depth = torch.linspace(1.0, 3.0, 6).expand(len(rays), 6)

    def render(depth: Any) -> Any:
        colors, density = field(rays[:, None, :] * depth[..., None])
        gaps = torch.cat([depth[..., 1:] - depth[..., :-1], torch.full((len(rays), 1), 1e10)], -1)
        alpha = 1.0 - torch.exp(-density * gaps)
        clear = torch.cat([torch.ones(len(rays), 1), 1.0 - alpha + 1e-10], -1)
        weights = alpha * torch.cumprod(clear, -1)[..., :-1]
        return (weights[..., None] * colors).sum(-2), weights

    def resampled(weights: Any) -> Any:
        share = weights + 1e-5
        cdf = F.pad(torch.cumsum(share / share.sum(-1, keepdim=True), -1), (1, 0))[..., :-1]
        u = torch.linspace(0.05, 0.9, 4).expand(len(rays), 4).contiguous()
        above = torch.searchsorted(cdf.contiguous(), u, right=True)
        below = (above - 1).clamp(min=0)
        middle = torch.gather(depth, 1, below) + 0.1
        return torch.sort(torch.cat([depth, middle], -1), -1).values

    def loss_of() -> Any:
        coarse, weights = render(depth)
        fine, _ = render(resampled(weights.detach()))
        return F.mse_loss(coarse, rays.abs()) + F.mse_loss(fine, rays.abs())

    return train(torch.optim.Adam(field.parameters(), lr=1e-2), loss_of)


@program
def graph_attention(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class Attention(torch.nn.Module):
        def __init__(self, inputs: int, outputs: int, heads: int = 2) -> None:
            super().__init__()
            self.heads = heads
            self.linear = nn.Linear(inputs, heads * outputs, bias=False)
            self.score = nn.Parameter(torch.empty(1, heads, 2 * outputs))

        def forward(self, x: Any, edges: Any) -> Any:
            source, target = edges
            h = self.linear(x).view(len(x), self.heads, -1)
            e = torch.cat([h[source], h[target]], dim=-1)
            e = F.leaky_relu((e * self.score).sum(-1), 0.2)
            index = target[:, None].expand_as(e)
            top = torch.full((len(x), self.heads), float("-inf"))
            top = top.scatter_reduce(0, index, e, reduce="amax", include_self=False)
            e = (e - top[target]).exp()
            total = torch.zeros(len(x), self.heads).scatter_add_(0, index, e)
            share = e / (total[target] + 1e-16)
            out = torch.zeros_like(h).index_add(0, target, h[source] * share.unsqueeze(-1))
            return F.elu(out.flatten(1))

    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 3], [1, 2, 3, 4, 5, 0, 3, 3]])
    layers = nn.ModuleList([Attention(3, 4), Attention(8, 2)])
    seed_params(torch, layers)
    x, y = data(torch, 6, 3), torch.tensor([0, 1, 2, 3, 0, 1])
    known = torch.zeros(6, dtype=torch.bool)
    known[:4] = True

    def loss_of() -> Any:
        h = x
        for layer in layers:
            h = layer(h, edges)
        return F.cross_entropy(h[known], y[known])

    return train(torch.optim.Adam(layers.parameters(), lr=0.05, weight_decay=5e-4), loss_of)


@program
def one_stage_detector(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional
    anchors = torch.tensor([[1.0, 1.5], [2.0, 3.0]])
    head = nn.Conv2d(4, 2 * 7, 1)
    seed_params(torch, head)
    features = data(torch, 2, 4, 4, 4)

    def predicted() -> Any:
        return head(features).view(2, 2, 7, 4, 4).permute(0, 1, 3, 4, 2).contiguous()

    def iou(a: Any, b: Any) -> Any:
        low, high = torch.max(a[:, None, :2], b[:, :2]), torch.min(a[:, None, 2:], b[:, 2:])
        inter = (high - low).clamp(min=0).prod(2)
        area, other = ((box[:, 2:] - box[:, :2]).prod(1) for box in (a, b))
        return inter / (area[:, None] + other - inter)

    def loss_of() -> Any:
        p = predicted()
        image, anchor, row, column = (
            torch.tensor(each) for each in ([0, 1], [0, 1], [1, 2], [3, 0])
        )
        chosen = p[image, anchor, row, column]
        size = (chosen[:, 2:4].sigmoid() * 2) ** 2 * anchors[anchor]
        box = torch.cat([chosen[:, :2].sigmoid() - size / 2, chosen[:, :2].sigmoid() + size / 2], 1)
        wanted = torch.tensor([[-0.5, -0.5, 1.0, 1.0], [-1.0, 0.0, 1.0, 2.0]])
        overlap = iou(box, wanted).diagonal()
        is_object = torch.zeros_like(p[..., 4])
        is_object[image, anchor, row, column] = overlap.detach().clamp(0)
        classes = torch.zeros_like(chosen[:, 5:])
        classes[range(2), [1, 0]] = 1
        loss = (1 - overlap).mean()
        loss += F.binary_cross_entropy_with_logits(p[..., 4], is_object)
        return loss + F.binary_cross_entropy_with_logits(chosen[:, 5:], classes)

    losses = train(torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9), loss_of)
    with torch.no_grad():
        p = predicted()[0].sigmoid()
        ys, xs = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
        p[..., :2] += torch.stack((xs, ys), 2)
        p[..., 2:4] = (p[..., 2:4] * 2) ** 2 * anchors.view(2, 1, 1, 2)
        p = p.view(-1, 7)
        boxes, scores = torch.cat([p[:, :2] - p[:, 2:4] / 2, p[:, :2] + p[:, 2:4] / 2], 1), p[:, 4]
        order, kept = scores.argsort(descending=True), []
        while order.numel() > 0:
            kept.append(order[0].item())
            order = order[1:][iou(boxes[order[:1]], boxes[order[1:]])[0] <= 0.3]
    return losses + kept
