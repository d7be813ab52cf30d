"""Architectures that shift, window, search and remember."""

import math
from typing import Any

from tests.programs.common import data, fit, program, seed_params, train


@program
def shifted_windows(torch: Any) -> list[float]:
    nn = torch.nn

    def windows(x: Any, size: int) -> Any:
        b, h, w, c = x.shape
        x = x.view(b, h // size, size, w // size, size, c)
        return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, size * size, c)

    def merged(x: Any, size: int, side: int) -> Any:
        x = x.view(-1, side // size, side // size, size, size, x.shape[-1])
        return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, side, side, x.shape[-1])

    class Block(torch.nn.Module):
        def __init__(self, dim: int, side: int, shift: int, size: int = 2, heads: int = 2) -> None:
            super().__init__()
            self.side, self.shift, self.size, self.heads = side, shift, size, heads
            self.norm, self.qkv = nn.LayerNorm(dim), nn.Linear(dim, dim * 3)
            self.project = nn.Linear(dim, dim)
            self.bias_table = nn.Parameter(torch.zeros((2 * size - 1) ** 2, heads))
            axes = torch.meshgrid([torch.arange(size), torch.arange(size)], indexing="ij")
            at = torch.flatten(torch.stack(axes), 1)
            relative = (at[:, :, None] - at[:, None, :]).permute(1, 2, 0).contiguous()
            relative[:, :, 0] += size - 1
            relative[:, :, 1] += size - 1
            relative[:, :, 0] *= 2 * size - 1
            self.register_buffer("index", relative.sum(-1))
            self.register_buffer("mask", self.masked() if shift else None, persistent=False)

        def masked(self) -> Any:
            regions = torch.zeros(1, self.side, self.side, 1)
            cuts = (slice(0, -self.size), slice(-self.size, -self.shift), slice(-self.shift, None))
            for number, (rows, columns) in enumerate((r, c) for r in cuts for c in cuts):
                regions[:, rows, columns, :] = number
            rows = windows(regions, self.size).squeeze(-1)
            apart = rows.unsqueeze(1) - rows.unsqueeze(2)
            return apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)

        def attention(self, x: Any) -> Any:
            rows, count, dim = x.shape
            qkv = self.qkv(x).reshape(rows, count, 3, self.heads, dim // self.heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            scores = (q * (dim // self.heads) ** -0.5) @ k.transpose(-2, -1)
            bias = self.bias_table[self.index.view(-1)].view(count, count, -1)
            scores = scores + bias.permute(2, 0, 1).contiguous().unsqueeze(0)
            if self.mask is not None:
                scores = scores.view(-1, len(self.mask), self.heads, count, count)
                scores = (scores + self.mask.unsqueeze(1).unsqueeze(0)).flatten(0, 1)
            mixed = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(rows, count, dim)
            return self.project(mixed)

        def forward(self, x: Any) -> Any:
            h = torch.roll(self.norm(x), shifts=(-self.shift, -self.shift), dims=(1, 2))
            h = merged(self.attention(windows(h, self.size)), self.size, self.side)
            return x + torch.roll(h, shifts=(self.shift, self.shift), dims=(1, 2))

    class Merge(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            starts = [(row, column) for column in (0, 1) for row in (0, 1)]
            return torch.cat([x[:, row::2, column::2, :] for row, column in starts], -1)

    head = nn.Sequential(nn.Flatten(1, 2), nn.Linear(16, 3, bias=False))
    model = nn.Sequential(Block(4, 4, 0), Block(4, 4, 1), Merge(), head)
    y = torch.tensor([[0, 1, 2, 0], [2, 1, 0, 0]])
    return fit(
        torch, model, data(torch, 2, 4, 4, 4), y, lambda a, b: nn.CrossEntropyLoss()(a.mT, b)
    )


@program
def transformer_xl(torch: Any) -> list[float]:
    nn, heads, width = torch.nn, 2, 4

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(8, 3 * 8, bias=False)
            self.relative = nn.Linear(8, 8, bias=False)
            self.u, self.v = (nn.Parameter(torch.zeros(heads, width)) for _ in range(2))
            self.register_buffer("frequency", 1 / (10000 ** (torch.arange(0.0, 8, 2.0) / 8)))

        def shifted(self, x: Any) -> Any:
            zeros = torch.zeros((x.size(0), 1, *x.size()[2:]), dtype=x.dtype)
            padded = torch.cat([zeros, x], dim=1)
            return padded.view(x.size(1) + 1, x.size(0), *x.size()[2:])[1:].view_as(x)

        def forward(self, x: Any, memory: Any) -> Any:
            both = torch.cat([memory, x], 0)
            queries, keys, batch = x.size(0), both.size(0), x.size(1)
            angles = torch.outer(torch.arange(keys - 1, -1, -1.0), self.frequency)
            position = torch.cat([angles.sin(), angles.cos()], dim=-1)
            q, k, v = torch.chunk(self.qkv(both), 3, dim=-1)
            q, k, v = (each.reshape(-1, batch, heads, width) for each in (q[-queries:], k, v))
            r = self.relative(position).view(keys, heads, width)
            content = torch.einsum("ibnd,jbnd->ijbn", q + self.u, k)
            place = self.shifted(torch.einsum("ibnd,jnd->ijbn", q + self.v, r))
            scores = (content + place).mul_(1 / math.sqrt(width))
            future = torch.ones(queries, keys).triu(1 + keys - queries).bool()
            scores = scores.masked_fill(future[:, :, None, None], float("-inf"))
            out = torch.einsum("ijbn,jbnd->ibnd", scores.softmax(dim=1), v)
            return x + out.contiguous().view(queries, batch, -1)

    model = nn.ModuleDict({"embed": nn.Embedding(10, 8), "attend": Attention()})
    seed_params(torch, model)
    head, text = model["embed"].weight, (torch.arange(26) * 7 % 10).view(13, 2)
    memory, losses = torch.zeros(3, 2, 8), []
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    for start in range(0, 12, 4):
        h = model["embed"](text[start : start + 4])
        out = model["attend"](h, memory) @ head.t()
        memory = torch.cat([memory, h], 0)[-3:].detach()
        target = text[start + 1 : start + 5].reshape(-1)
        loss = nn.functional.cross_entropy(out.flatten(0, 1), target)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@program
def neural_turing_machine(torch: Any) -> list[float]:
    nn, F, places, size = torch.nn, torch.nn.functional, 5, 4

    class Machine(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.control = nn.LSTMCell(3 + size, 8)
            self.head = nn.Linear(8, size + 6 + 2 * size)
            self.out = nn.Linear(8 + size, 3)
            self.register_buffer(
                "start", torch.linspace(-0.3, 0.3, places * size).view(places, size)
            )

        def address(self, memory: Any, head: Any, previous: Any) -> Any:
            key, sharp, gate, shift, power = torch.split(head, [size, 1, 1, 3, 1], dim=1)
            close = F.cosine_similarity(memory, torch.tanh(key).unsqueeze(1), dim=-1)
            w = F.softmax(F.softplus(sharp) * close, dim=1)
            gate = torch.sigmoid(gate)
            w, moved = gate * w + (1 - gate) * previous, torch.zeros(w.size())
            for i, kernel in enumerate(F.softmax(shift, dim=1)):
                ring = torch.cat([w[i][-1:], w[i], w[i][:1]])
                moved[i] = F.conv1d(ring.view(1, 1, -1), kernel.view(1, 1, -1)).view(-1)
            w = (moved + 1e-6) ** (1 + F.softplus(power))
            return torch.div(w, w.sum(dim=1).view(-1, 1) + 1e-16)

        def forward(self, steps: Any) -> Any:
            batch = steps.size(1)
            memory = self.start.clone().repeat(batch, 1, 1)
            h = c = torch.zeros(batch, 8)
            w = F.one_hot(torch.zeros(batch, dtype=torch.long), places).float()
            read, outputs = torch.zeros(batch, size), []
            for step in steps:
                h, c = self.control(torch.cat([step, read], 1), (h, c))
                head, erase, add = torch.split(self.head(h), [size + 6, size, size], 1)
                w = self.address(memory, head, w)
                erased = torch.matmul(w.unsqueeze(-1), torch.sigmoid(erase).unsqueeze(1))
                memory = memory * (1 - erased) + torch.matmul(w.unsqueeze(-1), add.unsqueeze(1))
                read = torch.matmul(w.unsqueeze(1), memory).squeeze(1)
                outputs.append(torch.sigmoid(self.out(torch.cat([h, read], 1))))
            return torch.stack(outputs)

    model = Machine()
    seed_params(torch, model)
    x = (data(torch, 5, 2, 3) > 0).float()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2, momentum=0.9, alpha=0.95)

    def loss_of() -> Any:
        loss = F.binary_cross_entropy(model(x), x)
        for parameter in model.parameters():
            parameter.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        return loss

    return train(optimizer, loss_of)


@program
def differentiable_architecture_search(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class Nothing(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mul(0.0)

    def operations() -> Any:
        dilated = nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4, bias=False)
        conv = nn.Sequential(nn.ReLU(inplace=False), dilated, nn.BatchNorm2d(4, affine=False))
        pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
        return nn.ModuleList([Nothing(), nn.Identity(), conv, pool])

    class Search(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.edges = nn.ModuleList(operations() for _ in range(3))
            self.head = nn.Linear(8, 2)
            self.alphas = torch.zeros(3, 4, requires_grad=True)

        def edge(self, number: int, x: Any) -> Any:
            weights = F.softmax(self.alphas, dim=-1)[number]
            return sum(w * op(x) for w, op in zip(weights, self.edges[number], strict=True))

        def forward(self, x: Any) -> Any:
            first = self.edge(0, x)
            second = self.edge(1, x) + self.edge(2, first)
            return self.head(torch.cat([first, second], 1).mean((-1, -2)))

    model = Search()
    seed_params(torch, model)
    images, y = data(torch, 4, 4, 5, 5), torch.tensor([0, 1, 1, 0])
    outer = torch.optim.Adam([model.alphas], lr=0.1, betas=(0.5, 0.999))
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        outer.zero_grad()
        loss = F.cross_entropy(model(images), y)
        grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        (
            F.cross_entropy(model(images.flip(-1)), y) + 0.1 * sum(g.pow(2).sum() for g in grads)
        ).backward()
        outer.step()
        inner.zero_grad()
        F.cross_entropy(model(images), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5)
        inner.step()
        losses.append(loss.item())
    return [*losses, *model.alphas.flatten().tolist()]
