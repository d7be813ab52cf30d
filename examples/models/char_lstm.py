"""Predict the next character of the Zen of Python with an LSTM, and let it write.

python examples/models/char_lstm.py --offload disk
"""

import codecs
import contextlib
import io
from typing import Any

import numpy as np
from common import F, arguments, batches, initialise, nn, offload, report, torch

LENGTH = 48


def zen() -> str:
    """Return the text that ``import this`` prints."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return codecs.decode(this.s, "rot13")


class CharLSTM(nn.Module):
    """Characters [B, T] to logits [B, T, V] and the LSTM's state."""

    def __init__(self, symbols: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, symbols)

    def forward(self, x: Any, state: Any = None) -> Any:
        out, state = self.lstm(self.embedding(x), state)
        return self.head(out), state


def write(model: Any, start: int, length: int) -> list[int]:
    """Return the `length` most probable characters after `start`."""
    model.eval()
    result, state = [start], None
    with torch.no_grad():
        for _ in range(length):
            logits, state = model(torch.tensor([[result[-1]]]), state)
            result.append(logits[0, -1].argmax().item())
    return result


def main() -> None:
    """Train, then write a line."""
    args = arguments(__doc__, steps=200, batch=16)
    text = zen()
    symbols = sorted(set(text))
    codes = np.array([symbols.index(each) for each in text])
    windows = np.lib.stride_tricks.sliding_window_view(codes, LENGTH + 1)
    model = initialise(CharLSTM(len(symbols)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step, (window,) in enumerate(batches(windows, steps=args.steps, batch=args.batch)):
        with offload(args.offload):
            logits, _ = model(window[:, :-1])
            loss = F.cross_entropy(logits.reshape(-1, len(symbols)), window[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        report(step, loss=loss)
    print(repr("".join(symbols[each] for each in write(model, codes[0], 40))))


if __name__ == "__main__":
    main()
