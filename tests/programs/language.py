"""Models of words and sentences."""

import math
from typing import Any

from tests.programs.common import data, fit, program, seed_params, train


@program
def word2vec_with_negative_sampling(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class SkipGram(torch.nn.Module):
        def __init__(self, vocabulary: int, dim: int) -> None:
            super().__init__()
            self.u_embeddings = nn.Embedding(vocabulary, dim)
            self.v_embeddings = nn.Embedding(vocabulary, dim)
            nn.init.uniform_(self.u_embeddings.weight.data, -0.5 / dim, 0.5 / dim)
            nn.init.constant_(self.v_embeddings.weight.data, 0)

        def forward(self, pos_u: Any, pos_v: Any, neg_v: Any) -> Any:
            u, v = self.u_embeddings(pos_u), self.v_embeddings(pos_v)
            score = torch.clamp(torch.sum(torch.mul(u, v), dim=1), max=10, min=-10)
            score = -F.logsigmoid(score)
            negative = torch.bmm(self.v_embeddings(neg_v), u.unsqueeze(2)).squeeze()
            negative = -torch.sum(F.logsigmoid(-torch.clamp(negative, max=10, min=-10)), dim=1)
            return torch.mean(score + negative)

    model = SkipGram(10, 4)
    seed_params(torch, model)
    pos_u, pos_v = torch.LongTensor([1, 2, 3, 1]), torch.LongTensor([2, 3, 4, 5])
    weights = torch.arange(1, 11).float() ** 0.75
    assert torch.multinomial(weights, 3, replacement=False).unique().numel() == 3
    neg_v = torch.LongTensor([[6, 7], [8, 9], [6, 8], [7, 9]])
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01, initial_accumulator_value=0.1)
    return train(optimizer, lambda: model(pos_u, pos_v, neg_v))


@program
def seq2seq_with_attention(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class BahdanauAttention(torch.nn.Module):
        def __init__(self, hidden: int) -> None:
            super().__init__()
            self.Wa = nn.Linear(hidden, hidden)
            self.Ua = nn.Linear(hidden, hidden)
            self.Va = nn.Linear(hidden, 1)

        def forward(self, query: Any, keys: Any) -> Any:
            scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys)))
            weights = F.softmax(scores.squeeze(2).unsqueeze(1), dim=-1)
            return torch.bmm(weights, keys), weights

    class Seq2Seq(torch.nn.Module):
        def __init__(self, words: int, hidden: int) -> None:
            super().__init__()
            self.embedding = nn.Embedding(words, hidden)
            self.encoder = nn.GRU(hidden, hidden, batch_first=True)
            self.attention = BahdanauAttention(hidden)
            self.decoder = nn.GRU(2 * hidden, hidden, batch_first=True)
            self.out = nn.Linear(hidden, words)

        def forward(self, source: Any, target: Any = None) -> Any:
            keys, hidden = self.encoder(self.embedding(source))
            word = torch.empty(source.size(0), 1, dtype=torch.long).fill_(0)
            outputs, attentions = [], []
            for i in range(3):
                context, weights = self.attention(hidden.permute(1, 0, 2), keys)
                step = torch.cat((self.embedding(word), context), dim=2)
                output, hidden = self.decoder(step, hidden)
                output = self.out(output)
                outputs.append(output)
                attentions.append(weights)
                if target is not None:
                    word = target[:, i].unsqueeze(1)
                else:
                    _, top = output.topk(1)
                    word = top.squeeze(-1).detach()
            return F.log_softmax(torch.cat(outputs, dim=1), dim=-1), torch.cat(attentions, dim=1)

    model = Seq2Seq(7, 6)
    seed_params(torch, model)
    source, target = (
        torch.tensor([[1, 2, 3, 4], [5, 4, 3, 6]]),
        torch.tensor([[2, 3, 1], [4, 5, 1]]),
    )
    criterion = nn.NLLLoss()
    losses = train(
        torch.optim.Adam(model.parameters(), lr=1e-3),
        lambda: criterion(model(source, target)[0].view(-1, 7), target.view(-1)),
    )
    with torch.no_grad():
        return [*losses, *model(source)[1].flatten().tolist()]


@program
def text_cnn(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class TextCNN(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding.from_pretrained(data(torch, 20, 5), freeze=False)
            self.convs = nn.ModuleList([nn.Conv2d(1, 3, (size, 5)) for size in (2, 3, 4)])
            self.dropout = nn.Dropout(0.0)
            self.fc1 = nn.Linear(9, 2)

        def forward(self, x: Any) -> Any:
            x = self.embed(x).unsqueeze(1)
            x = [F.relu(conv(x)).squeeze(3) for conv in self.convs]
            x = [F.max_pool1d(line, line.size(2)).squeeze(2) for line in x]
            return self.fc1(self.dropout(torch.cat(x, 1)))

    words = torch.arange(24).view(3, 8) % 20
    return fit(torch, TextCNN(), words, torch.tensor([0, 1, 1]), nn.CrossEntropyLoss())


@program
def min_gpt(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class CausalSelfAttention(torch.nn.Module):
        def __init__(self, n_embd: int, n_head: int, block_size: int) -> None:
            super().__init__()
            self.c_attn = nn.Linear(n_embd, 3 * n_embd)
            self.c_proj = nn.Linear(n_embd, n_embd)
            ones = torch.ones(block_size, block_size)
            self.register_buffer("bias", torch.tril(ones).view(1, 1, block_size, block_size))
            self.n_head, self.n_embd = n_head, n_embd

        def forward(self, x: Any) -> Any:
            B, T, C = x.size()
            q, k, v = (
                part.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
                for part in self.c_attn(x).split(self.n_embd, dim=2)
            )
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            y = (F.softmax(att, dim=-1) @ v).transpose(1, 2).contiguous().view(B, T, C)
            return self.c_proj(y)

    class Block(torch.nn.Module):
        def __init__(self, n_embd: int, n_head: int, block_size: int) -> None:
            super().__init__()
            self.ln_1 = nn.LayerNorm(n_embd)
            self.attn = CausalSelfAttention(n_embd, n_head, block_size)
            self.ln_2 = nn.LayerNorm(n_embd)
            layers = {
                "c_fc": nn.Linear(n_embd, 4 * n_embd),
                "act": nn.GELU(approximate="tanh"),
                "c_proj": nn.Linear(4 * n_embd, n_embd),
            }
            self.mlp = nn.ModuleDict(layers)

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.ln_1(x))
            m = self.mlp
            return x + m.c_proj(m.act(m.c_fc(self.ln_2(x))))

    class GPT(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = {
                "wte": nn.Embedding(9, 8),
                "wpe": nn.Embedding(6, 8),
                "h": nn.ModuleList([Block(8, 2, 6) for _ in range(2)]),
                "ln_f": nn.LayerNorm(8),
            }
            self.transformer = nn.ModuleDict(layers)
            self.lm_head = nn.Linear(8, 9, bias=False)
            self.apply(self._init_weights)

        def _init_weights(self, module: Any) -> None:
            if isinstance(module, (nn.Linear, nn.Embedding)):
                torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                torch.nn.init.zeros_(module.bias)

        def configure_optimizers(self) -> Any:
            decay: set[str] = set()
            no_decay: set[str] = set()
            for mn, m in self.named_modules():
                for pn, _ in m.named_parameters(recurse=False):
                    name = f"{mn}.{pn}" if mn else pn
                    whitelisted = pn.endswith("weight") and isinstance(m, nn.Linear)
                    (decay if whitelisted else no_decay).add(name)
            params = dict(self.named_parameters())
            assert params.keys() == decay | no_decay
            groups = [
                {"params": [params[name] for name in sorted(decay)], "weight_decay": 0.1},
                {"params": [params[name] for name in sorted(no_decay)], "weight_decay": 0.0},
            ]
            return torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))

        def forward(self, idx: Any, targets: Any = None) -> Any:
            pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device).unsqueeze(0)
            x = self.transformer.wte(idx) + self.transformer.wpe(pos)
            for block in self.transformer.h:
                x = block(x)
            logits = self.lm_head(self.transformer.ln_f(x))
            if targets is None:
                return logits, None
            flat = logits.view(-1, logits.size(-1))
            return logits, F.cross_entropy(flat, targets.view(-1), ignore_index=-1)

        @torch.no_grad()  # type: ignore[untyped-decorator]
        def generate(self, idx: Any, new_tokens: int, top_k: int) -> Any:
            for _ in range(new_tokens):
                logits, _ = self(idx if idx.size(1) <= 6 else idx[:, -6:])
                logits = logits[:, -1, :] / 0.8
                v, _ = torch.topk(logits, top_k)
                logits[logits < v[:, [-1]]] = -float("Inf")
                _, following = torch.topk(F.softmax(logits, dim=-1), k=1, dim=-1)
                idx = torch.cat((idx, following), dim=1)
            return idx

    model = GPT()
    seed_params(torch, model)
    x = torch.tensor([[1, 2, 3, 4, 5, 6], [3, 4, 5, 6, 7, 8]])
    y = torch.tensor([[2, 3, 4, 5, 6, -1], [4, 5, 6, 7, 8, 0]])
    losses = train(model.configure_optimizers(), lambda: model(x, y)[1])
    return [*losses, *model.eval().generate(x[:, :4], 4, top_k=3).flatten().tolist()]


@program
def masked_language_model(torch: Any) -> list[float]:
    nn = torch.nn

    class Bert(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word = nn.Embedding(12, 8, padding_idx=0)
            self.position = nn.Embedding(6, 8)
            self.segment = nn.Embedding(2, 8)
            self.norm = nn.LayerNorm(8, eps=1e-12)
            layer = nn.TransformerEncoderLayer(
                d_model=8,
                nhead=2,
                dim_feedforward=16,
                dropout=0.0,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.decoder = nn.Linear(8, 12, bias=False)
            self.decoder.weight = self.word.weight
            self.bias = nn.Parameter(torch.zeros(12))

        def forward(self, tokens: Any, segments: Any) -> Any:
            positions = torch.arange(tokens.size(1)).expand_as(tokens)
            x = self.word(tokens) + self.position(positions) + self.segment(segments)
            x = self.encoder(self.norm(x), src_key_padding_mask=tokens.eq(0))
            return self.decoder(x) + self.bias

    tokens = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 10, 11, 3, 0, 0]])
    segments = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0]])
    masked = torch.zeros_like(tokens, dtype=torch.bool)
    masked[0, 2] = masked[1, 1] = masked[1, 3] = True
    labels = tokens.clone()
    labels[~masked] = -100
    tokens = tokens.masked_fill(masked, 1)
    model = Bert()
    seed_params(torch, model)
    criterion = nn.CrossEntropyLoss()
    return train(
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        lambda: criterion(model(tokens, segments).view(-1, 12), labels.view(-1)),
    )
