"""Recurrent networks and transformers."""

import math
from typing import Any

from tests.programs.common import data, fit, program, seed_params, train


@program
def packed_lstm_classifier(torch: Any) -> list[float]:
    nn, rnn = torch.nn, torch.nn.utils.rnn

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(20, 6, padding_idx=0)
            self.lstm = nn.LSTM(
                6, 5, num_layers=2, bidirectional=True, batch_first=True, dropout=0.0
            )
            self.fc = nn.Linear(10, 3)

        def forward(self, x: Any, lengths: Any) -> Any:
            packed = rnn.pack_padded_sequence(
                self.embedding(x), lengths.cpu(), batch_first=True, enforce_sorted=False
            )
            output, (hidden, _) = self.lstm(packed)
            output, _ = rnn.pad_packed_sequence(output, batch_first=True)
            return self.fc(torch.cat((hidden[-2], hidden[-1]), dim=1) + output.mean(1))

    words = [torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6]), torch.tensor([7, 8, 9])]
    x = rnn.pad_sequence(words, batch_first=True)
    lengths = torch.tensor([len(word) for word in words])
    model = Classifier()
    seed_params(torch, model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    return train(optimizer, lambda: criterion(model(x, lengths), torch.tensor([0, 1, 2])))


@program
def ctc_of_text(torch: Any) -> list[float]:
    nn = torch.nn

    class Recognizer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(4, 8, 3, padding=1)
            self.gru = nn.GRU(8, 6, bidirectional=True)
            self.out = nn.Linear(12, 5)

        def forward(self, x: Any) -> Any:
            features, _ = self.gru(self.conv(x).permute(2, 0, 1))
            return self.out(features).log_softmax(2)

    model = Recognizer()
    seed_params(torch, model)
    criterion = nn.CTCLoss(zero_infinity=True)
    x, targets = data(torch, 2, 4, 10), torch.tensor([[1, 2, 2], [3, 4, 0]])
    input_lengths = torch.full((2,), 10, dtype=torch.long)
    target_lengths = torch.tensor([3, 2])
    optimizer = torch.optim.Adadelta(model.parameters())
    return train(optimizer, lambda: criterion(model(x), targets, input_lengths, target_lengths))


@program
def transformer_translation(torch: Any) -> list[float]:
    nn = torch.nn

    class PositionalEncoding(torch.nn.Module):
        def __init__(self, emb_size: int, maxlen: int = 50) -> None:
            super().__init__()
            den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
            pos = torch.arange(0, maxlen).reshape(maxlen, 1)
            embedding = torch.zeros((maxlen, emb_size))
            embedding[:, 0::2] = torch.sin(pos * den)
            embedding[:, 1::2] = torch.cos(pos * den)
            self.register_buffer("pos_embedding", embedding.unsqueeze(-2))

        def forward(self, x: Any) -> Any:
            return x + self.pos_embedding[: x.size(0), :]

    class Seq2SeqTransformer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.transformer = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0)
            self.generator = nn.Linear(8, 11)
            self.embedding = nn.Embedding(11, 8)
            self.positional = PositionalEncoding(8)

        def forward(
            self, src: Any, tgt: Any, src_mask: Any, tgt_mask: Any, src_pad: Any, tgt_pad: Any
        ) -> Any:
            src = self.positional(self.embedding(src) * math.sqrt(8))
            tgt = self.positional(self.embedding(tgt) * math.sqrt(8))
            out = self.transformer(src, tgt, src_mask, tgt_mask, None, src_pad, tgt_pad, src_pad)
            return self.generator(out)

    def causal_mask(size: int) -> Any:
        mask = (torch.triu(torch.ones((size, size))) == 1).transpose(0, 1)
        mask = mask.float().masked_fill(mask == 0, float("-inf"))
        return mask.masked_fill(mask == 1, 0.0)

    pad = 1
    src = torch.tensor([[2, 3], [4, 5], [1, 6], [1, 7]])
    tgt = torch.tensor([[2, 3], [4, 5], [6, 1]])
    tgt_input, tgt_out = tgt[:-1, :], tgt[1:, :]
    src_mask = torch.zeros((4, 4)).type(torch.bool)
    tgt_mask = causal_mask(tgt_input.shape[0])
    src_pad, tgt_pad = (src == pad).transpose(0, 1), (tgt_input == pad).transpose(0, 1)
    model = Seq2SeqTransformer()
    seed_params(torch, model)
    criterion = nn.CrossEntropyLoss(ignore_index=pad)

    def loss_of() -> Any:
        logits = model(src, tgt_input, src_mask, tgt_mask, src_pad, tgt_pad)
        return criterion(logits.reshape(-1, logits.shape[-1]), tgt_out.reshape(-1))

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
    return train(optimizer, loss_of)


@program
def llama(torch: Any) -> list[float]:
    nn, F = torch.nn, torch.nn.functional

    class RMSNorm(torch.nn.Module):
        def __init__(self, dim: int, eps: float = 1e-6) -> None:
            super().__init__()
            self.eps = eps
            self.weight = nn.Parameter(torch.ones(dim))

        def forward(self, x: Any) -> Any:
            wide = x.float()
            scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
            return (wide * scale).type_as(x) * self.weight

    def precompute_rotations(dim: int, end: int, theta: float = 10000.0) -> Any:
        freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].float() / dim))
        t = torch.arange(end, device=freqs.device, dtype=torch.float32)
        freqs = torch.outer(t, freqs)
        return torch.polar(torch.ones_like(freqs), freqs)

    def rotate(x: Any, rotations: Any) -> Any:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        rotations = rotations.view(1, pairs.shape[1], 1, pairs.shape[-1])
        return torch.view_as_real(pairs * rotations).flatten(3).type_as(x)

    class Block(torch.nn.Module):
        def __init__(self, dim: int = 8) -> None:
            super().__init__()
            self.wq = nn.Linear(dim, dim, bias=False)
            self.wk = nn.Linear(dim, dim // 2, bias=False)
            self.wv = nn.Linear(dim, dim // 2, bias=False)
            self.wo = nn.Linear(dim, dim, bias=False)
            self.w1 = nn.Linear(dim, 16, bias=False)
            self.w2 = nn.Linear(16, dim, bias=False)
            self.w3 = nn.Linear(dim, 16, bias=False)
            self.attention_norm = RMSNorm(dim)
            self.ffn_norm = nn.RMSNorm(dim)

        def attention(self, x: Any, rotations: Any, mask: Any) -> Any:
            b, t, _ = x.shape
            q = rotate(self.wq(x).view(b, t, 2, 4), rotations)
            k = rotate(self.wk(x).view(b, t, 1, 4), rotations)
            k = k[:, :, :, None, :].expand(b, t, 1, 2, 4).reshape(b, t, 2, 4)
            v = torch.repeat_interleave(self.wv(x).view(b, t, 1, 4), 2, dim=2)
            q, k, v = (z.transpose(1, 2) for z in (q, k, v))
            scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(4) + mask
            weights = F.softmax(scores.float(), dim=-1).type_as(q)
            out = torch.matmul(weights, v).transpose(1, 2).contiguous().view(b, t, -1)
            return self.wo(out)

        def forward(self, x: Any, rotations: Any, mask: Any) -> Any:
            h = x + self.attention(self.attention_norm(x), rotations, mask)
            normed = self.ffn_norm(h)
            return h + self.w2(F.silu(self.w1(normed)) * self.w3(normed))

    class Llama(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings = nn.Embedding(12, 8)
            self.layers = nn.ModuleList(Block() for _ in range(2))
            self.output = nn.Linear(8, 12, bias=False)
            self.output.weight = self.embeddings.weight
            self.register_buffer("rotations", precompute_rotations(4, 8), persistent=False)

        def forward(self, tokens: Any) -> Any:
            t = tokens.shape[1]
            mask = torch.triu(torch.full((t, t), float("-inf")), diagonal=1)
            h = self.embeddings(tokens)
            for layer in self.layers:
                h = layer(h, self.rotations[:t], mask)
            return self.output(h)

    model = Llama()
    tokens = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=False)
    return fit(
        torch,
        model,
        tokens[:, :-1],
        tokens[:, 1:],
        lambda logits, y: F.cross_entropy(logits.view(-1, 12), y.reshape(-1)),
        optimizer,
    )
