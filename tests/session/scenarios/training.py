"""Training steps of small models."""

import numpy as np

import offgrad
from offgrad import nn, optim
from offgrad.cli.compare.gpt import GPT, GPTConfig
from offgrad.nn import functional as F
from tests.session.graphs import Bits, Offload, bits, normal


def mlp(offload: Offload) -> Bits:
    """Two steps of training; activations of 128 KiB."""
    model = nn.Sequential(
        nn.Linear(32, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 128), nn.ReLU(),
        nn.Dropout(0.2), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    x = normal(1, 128, 32, grad=False)
    targets = offgrad.tensor(np.arange(128) % 10)
    found: Bits = []
    for _ in range(2):
        optimizer.zero_grad()
        with offload():
            loss = F.cross_entropy(model(x), targets)
        loss.backward()
        found += bits(loss, *(each.grad for each in model.parameters()))
        optimizer.step()
    return found + bits(*model.parameters())


def gpt(offload: Offload) -> Bits:
    """Two steps of a GPT with dropout; tied embeddings."""
    model = GPT(GPTConfig(layers=2, width=32, heads=4, context=64, dropout=0.1))
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    tokens = np.random.default_rng(3).integers(0, 256, (2, 2, 65))
    found: Bits = []
    for batch in tokens:
        optimizer.zero_grad()
        with offload():
            loss = model.loss(offgrad.tensor(batch[:, :-1]), offgrad.tensor(batch[:, 1:]))
        loss.backward()
        found += bits(loss, *(each.grad for each in model.parameters()))
        optimizer.step()
    return found + bits(*model.parameters())


def embedding_and_norms(offload: Offload) -> Bits:
    """Integers saved by embedding and cross-entropy; weights, biases and a padding row."""
    table, norm = nn.Embedding(11, 8, padding_idx=0), nn.LayerNorm(8)
    tokens = offgrad.tensor([[1, 2, 0], [10, 2, 2]])
    with offload():
        x = norm(table(tokens))
        mask = offgrad.tensor(np.tri(3, dtype=np.bool_))
        x = F.scaled_dot_product_attention(x, x, x, attn_mask=mask, dropout_p=0.3)
        x = F.dropout(x, 0.3)
        loss = F.cross_entropy(x.reshape(6, 8), tokens.view(6) % 8)
    loss.backward()
    return bits(loss, table.weight.grad, norm.weight.grad, norm.bias.grad)


def twenty_steps(offload: Offload) -> Bits:
    """One session, re-entered in every step."""
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    optimizer = optim.SGD(model.parameters(), lr=0.05)
    session = offload()
    found: Bits = []
    for step in range(20):
        optimizer.zero_grad()
        with session:
            loss = F.mse_loss(model(normal(step, 32, 16, grad=False)), normal(99, 32, 16))
        loss.backward()
        optimizer.step()
        found += bits(loss)
    return found + bits(*model.parameters())
