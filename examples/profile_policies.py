"""Profile a small GPT under three policies, and write one HTML report with all of them.

The report is a file without links to others: open it in a browser, or send it to somebody. The
picture `docs/report.png` is its top, made by

    python examples/profile_policies.py
    chromium --headless --window-size=1200,960 --screenshot=docs/report.png report.html

and `docs/report-dark.png` with --blink-settings=preferredColorScheme=0 as well.
"""

import offgrad
from offgrad import Tensor, nn
from offgrad.memory import format_nbytes
from offgrad.profiler import Profile, profile, report

WIDTH, HEADS, LAYERS, TOKENS, BATCH, VOCABULARY = 192, 4, 4, 128, 16, 256
STEPS = 3


class Block(nn.Module):
    """Attention and an MLP, each on normalised inputs and added to them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Predicts a token from each token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(tokens)))


def train(policy: str) -> Profile:
    """Train for a few steps under a policy; return the profile of all but the first."""
    offgrad.manual_seed(0)
    model = GPT()
    optimizer = offgrad.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = offgrad.randint(0, VOCABULARY, (BATCH, TOKENS + 1))

    @offgrad.offload(policy, prefetch_nbytes="8MiB")
    def loss() -> Tensor:
        logits = model(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()  # it makes the optimizer's state
    with profile() as prof:
        for _ in range(STEPS):
            step()
            prof.step()
    return prof


profiles = {policy: train(policy) for policy in ("keep", "recompute,then=disk", "disk")}
for policy, prof in profiles.items():
    print(f"{policy:20} peak {format_nbytes(prof.peak_nbytes)}")
report("report.html", profiles, title="A small GPT under three policies")
print("report.html shows where the bytes were")
