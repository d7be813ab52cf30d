"""A byte-level GPT, written as for PyTorch: it also runs with ``import torch`` instead.

The architecture is GPT-2's (Radford et al., 2019): token and position embeddings, pre-norm blocks
of causal attention and a GELU MLP four times as wide, a final LayerNorm, the token embedding again
as the head.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import offgrad as torch
from offgrad import nn
from offgrad.nn import functional as F

VOCABULARY = 256


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT.

    Attributes:
        layers: blocks.
        width: features per token; a multiple of `heads`.
        heads: attention heads per block.
        context: maximum sequence length.
        dropout: probability, after embeddings, attention and MLP, and inside attention.
    """

    layers: int
    width: int
    heads: int
    context: int
    dropout: float = 0.0


class Attention(nn.Module):
    """Causal self-attention: [B, T, width] to [B, T, width]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.projection = nn.Linear(config.width, config.width)

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        attended = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        return self.projection(attended.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """Attention and MLP, each added to its input: [B, T, width] to [B, T, width]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.width)
        self.expand = nn.Linear(config.width, 4 * config.width)
        self.gelu = nn.GELU()
        self.contract = nn.Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Any) -> Any:
        x = x + self.dropout(self.attention(self.norm_1(x)))
        return x + self.dropout(self.contract(self.gelu(self.expand(self.norm_2(x)))))


class GPT(nn.Module):
    """The model: bytes [B, T] to logits of each next byte, [B, T, 256]."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.width)
        self._initialise(config.layers)

    def _initialise(self, layers: int) -> None:
        """Draw weights with standard deviation 0.02, smaller before additions to the residuals."""
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                continue
            is_residual = name.endswith(("projection.weight", "contract.weight"))
            nn.init.normal_(parameter, std=0.02 / sqrt(2 * layers) if is_residual else 0.02)
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)

    def loss(self, tokens: Any, targets: Any) -> Any:
        """Return the mean cross-entropy of the logits with `targets`, the next bytes [B, T]."""
        return F.cross_entropy(self(tokens).view(-1, VOCABULARY), targets.reshape(-1))


def build(sizes: dict[str, Any]) -> GPT:
    """Return the model of these sizes."""
    names = "layers", "width", "heads", "context", "dropout"
    return GPT(GPTConfig(*(sizes[name] for name in names)))
