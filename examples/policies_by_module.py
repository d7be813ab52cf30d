"""Saved bytes by module, and policies by module: the wide part on disk, the head in memory."""

import offgrad
from offgrad import nn
from offgrad.memory import format_nbytes
from offgrad.profiler import profile_memory


class Block(nn.Module):
    """Two layers and a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: offgrad.Tensor) -> offgrad.Tensor:
        y: offgrad.Tensor = x + self.down(nn.functional.gelu(self.up(x)))
        return y


class Net(nn.Module):
    """Blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(128) for _ in range(4)])
        self.head = nn.Linear(128, 10)

    def forward(self, x: offgrad.Tensor) -> offgrad.Tensor:
        for block in self.blocks:
            x = block(x)
        scores: offgrad.Tensor = self.head(x)
        return scores


if __name__ == "__main__":
    model = Net()
    x = offgrad.randn(512, 128)

    with profile_memory() as profile:
        model(x).square().mean().backward()
    print(profile)

    # The innermost matching pattern counts. Tensors that none matches stay in memory, or go to an
    # enclosing session.
    policies = {"blocks.*": "disk", "blocks.*.up": "keep", "head": "keep"}
    with offgrad.offload(policies, model=model) as session:
        model(x).square().mean().backward()
    print(session.ledger)
    for name, nbytes in session.ledger.by_module.most_common(3):
        print(f"{name}: {format_nbytes(nbytes)} saved")
