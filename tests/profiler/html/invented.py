"""An invented profile of a few training steps, with everything that a report can show."""

from typing import Any

MIB = 1 << 20
CATEGORIES = (
    "parameter",
    "optimizer state",
    "input",
    "gradient",
    "saved for backward",
    "prefetched",
    "in flight",
    "temporary",
)


class Recording:
    """Tensor memory by category over time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.held = dict.fromkeys(CATEGORIES, 0)
        self.seconds: list[float] = []
        self.nbytes: list[int] = []
        self.categories: dict[str, list[int]] = {name: [] for name in CATEGORIES}
        self.change(parameter=24, input=2)

    def change(self, seconds: float = 0.001, **mib: float) -> None:
        """Change what is held, in MiB, and let time pass."""
        for name, change in mib.items():
            self.held[name.replace("_", " ")] += int(change * MIB)
        self.seconds.append(self.now)
        self.nbytes.append(sum(self.held.values()))
        for name, held in self.held.items():
            self.categories[name].append(held)
        self.now += seconds

    def peak_since(self, index: int) -> int:
        return max(self.nbytes[index:])


def profile(steps: int = 3, layers: int = 6, stored: float = 0.0) -> dict[str, Any]:
    """Return what `Profile.to_dict` returns.

    Args:
        steps: number of them.
        layers: of the model.
        stored: the share of saved tensors that goes to a store.
    """
    recording = Recording()
    phases: list[dict[str, Any]] = []
    marks: list[dict[str, Any]] = []
    spans: list[dict[str, Any]] = []

    def phase(name: str, step: int, begin: float, index: int) -> None:
        phases.append(
            {
                "name": name,
                "step": step,
                "start": begin,
                "end": recording.now,
                "start_nbytes": recording.nbytes[index],
                "peak_nbytes": recording.peak_since(index),
                "end_nbytes": recording.nbytes[-1],
            }
        )
        spans.append(span(name, "phase", "main", begin, recording.now))

    for step in range(steps):
        began, first = recording.now, len(recording.nbytes) - 1
        for layer in range(layers):
            start = recording.now
            recording.change(0.002, temporary=4)
            recording.change(0.003, temporary=-4, saved_for_backward=16 * (1 - stored))
            if stored:
                recording.change(0.001, in_flight=16 * stored)
                spans.append(span("write", "io", "I/O 0", start + 0.004, start + 0.009, 16 * MIB))
                recording.change(0.001, in_flight=-16 * stored)
            spans.append(span(f"blocks.{layer}", "module", "main", start, recording.now))
            spans.append(
                span(f"blocks.{layer}.mlp", "module", "main", start + 0.002, recording.now)
            )
            spans.append(span("Gelu", "op", "main", start + 0.003, start + 0.004))
        phase("forward", step, began, first)
        backward, first = recording.now, len(recording.nbytes) - 1
        for layer in reversed(range(layers)):
            start = recording.now
            if stored:
                spans.append(span("read", "io", "I/O 1", start - 0.006, start - 0.001, 16 * MIB))
                recording.change(0.001, prefetched=16 * stored)
            recording.change(0.004, temporary=8)
            recording.change(
                0.005,
                temporary=-8,
                gradient=4,
                saved_for_backward=-16 * (1 - stored),
                prefetched=-16 * stored,
            )
            spans.append(span(f"blocks.{layer}", "module", "main", start, recording.now))
        phase("backward", step, backward, first)
        update, first = recording.now, len(recording.nbytes) - 1
        recording.change(0.004, optimizer_state=48 if step == 0 else 0)
        recording.change(0.001, gradient=-4 * layers)
        phase("optimizer", step, update, first)
        marks.append({"index": step, "count": 1, "start": began, "end": recording.now})
    peak = max(recording.nbytes)
    at = recording.nbytes.index(peak)
    return {
        "version": 1,
        "machine": {"cpu": "An invented CPU", "cores": 2, "memory_nbytes": 8 << 30},
        "seconds": recording.now,
        "steps": marks,
        "phases": phases,
        "timeline": {
            "seconds": recording.seconds,
            "nbytes": recording.nbytes,
            "categories": recording.categories,
        },
        "sampled": sampled(recording),
        "peak": {
            "seconds": recording.seconds[at],
            "nbytes": peak,
            "contents": contents(recording, at, layers),
        },
        "modules": modules(layers, steps, stored),
        "spans": spans,
        "ledger": ledger(layers, steps, stored),
        "pages": {},
    }


def span(
    name: str, kind: str, thread: str, start: float, end: float, nbytes: int = 0
) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "thread": thread,
        "start": max(start, 0.0),
        "end": end,
        "nbytes": nbytes,
    }


def sampled(recording: Recording) -> dict[str, Any]:
    seconds = [recording.now * part / 20 for part in range(21)]
    return {
        "seconds": seconds,
        "rss_nbytes": [150 * MIB + max(recording.nbytes) * min(n, 6) // 6 for n in range(21)],
        "page_cache_nbytes": [300 * MIB + n * MIB for n in range(21)],
        "read_nbytes": [n * 4 * MIB for n in range(21)],
        "written_nbytes": [n * 5 * MIB for n in range(21)],
    }


def contents(recording: Recording, at: int, layers: int) -> list[dict[str, Any]]:
    found = [
        {
            "category": "saved for backward",
            "op": "GeluBackward0",
            "slot": "self",
            "module": f"blocks.{layer}.mlp",
            "shape": [8, 512, 1024],
            "dtype": "float32",
            "nbytes": recording.categories["saved for backward"][at] // layers,
            "count": 1,
            "line": f"train.py:{40 + layer}  h = self.gelu(self.fc(x))",
        }
        for layer in range(layers)
    ]
    rest = {
        "category": "parameter",
        "op": "",
        "slot": "",
        "module": "",
        "shape": [],
        "dtype": "float32",
        "nbytes": recording.categories["parameter"][at],
        "count": 24,
        "line": "",
    }
    return sorted([*found, rest], key=lambda each: -each["nbytes"])


def modules(layers: int, steps: int, stored: float) -> list[dict[str, Any]]:
    def row(name: str, kind: str, share: float, saved: float) -> dict[str, Any]:
        moved = int(saved * stored * MIB)
        return {
            "name": name,
            "type": kind,
            "calls": steps,
            "forward_seconds": 0.005 * share,
            "backward_seconds": 0.009 * share,
            "forward_peak_nbytes": int(100 * MIB * share / layers),
            "backward_peak_nbytes": int(120 * MIB * share / layers),
            "saved_nbytes": int(saved * MIB),
            "packs": steps,
            "unpacks": steps,
            "read_nbytes": moved,
            "written_nbytes": moved,
            "stall_seconds": 0.001 * stored,
            "hits": steps,
        }

    rows = [row("", "GPT", layers, 0)]
    for layer in range(layers):
        rows.append(row(f"blocks.{layer}", "Block", 1, 4))
        rows.append(row(f"blocks.{layer}.attn", "Attention", 0.4, 4))
        rows.append(row(f"blocks.{layer}.mlp", "MLP", 0.6, 8))
    return rows


def ledger(layers: int, steps: int, stored: float) -> dict[str, Any]:
    nbytes = layers * steps * 16 * MIB
    figures = {
        "saves": layers * steps,
        "logical_nbytes": nbytes,
        "kept_nbytes": int(nbytes * (1 - stored)),
        "stored_nbytes": int(nbytes * stored),
        "written_nbytes": int(nbytes * stored),
        "read_nbytes": int(nbytes * stored),
        "recomputed_nbytes": 0,
        "hits": layers,
        "stall_seconds": 0.02 * stored,
    }
    names = {"op": "GeluBackward0", "slot": "self", "module": "", "store": "disk" if stored else ""}
    return {**figures, "rows": [{**names, **figures}]}
