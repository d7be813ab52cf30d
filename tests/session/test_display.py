"""What sessions, ledgers and policies show of themselves."""

import asyncio
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest

import offgrad
from offgrad import nn
from offgrad._display import WIDTH
from offgrad.policies import First, Keep, Last, Offload, Policy, When, as_policy
from offgrad.session import Ledger, LedgerRow, OffloadSession
from tests.session.graphs import normal


class Cells(HTMLParser):
    """The texts of table cells, by row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if self.rows and data.strip():
            self.rows[-1].append(data)


def widest_row() -> LedgerRow:
    """Return a row all of whose figures are wide."""
    row = LedgerRow(op="AVeryLongNameBackward0" * 3, slot="result", store="disk:lz4, pool:zstd")
    for name in ("logical", "kept", "stored", "read", "recomputed"):
        setattr(row, f"{name}_nbytes", 1023 << 30)
    row.saves = row.hits = 1_000_000
    row.read_stall_seconds = 1000.0
    row.module = "encoder.layers.11.self_attn." * 3
    return row


def test_the_ledger_is_at_most_100_columns_wide() -> None:
    text = str(Ledger.of([widest_row(), LedgerRow(op="Op", slot="self")]))
    assert WIDTH == 100
    assert max(map(len, text.splitlines())) <= WIDTH
    joined = "".join(text.split())
    assert "1023.0GiB" in joined
    assert text.count("1023.0 GiB") == 2 * 5 + 5  # in both tables, and in the sums


@pytest.mark.parametrize(
    ("policy", "stores"),
    [
        ("keep", {""}),
        ("pool,min=0", {"pool"}),
        ("disk:lz4,min=0", {"disk:lz4"}),
        ("budget:1MiB,spill=pool", {"pool"}),
        (["disk,min=0,op=Sin", "pool,min=0"], {"disk", "pool"}),
    ],
)
def test_rows_name_their_stores(policy: Any, stores: set[str]) -> None:
    with offgrad.offload(policy) as session:
        loss = (normal(1, 8, 8).clone().sin() + normal(1, 8, 8).clone().exp()).sum()
    loss.backward()
    ledger = session.ledger
    assert {row.store for row in ledger.rows} == stores
    assert {row["store"] for row in ledger.as_dict()["rows"]} == stores


def test_a_sum_of_rows_names_the_stores_of_all() -> None:
    total = LedgerRow()
    for store in ("pool", "", "disk", "disk, pool"):
        total.add(LedgerRow(store=store))
    assert total.store == "disk, pool"


def test_sessions_and_ledgers_in_a_notebook() -> None:
    hostile = type("<script>", (nn.Sequential,), {})(nn.Tanh())
    model = nn.Sequential()
    model.add_module("<b>", hostile)
    with offgrad.offload("pool,min=0") as session:
        model(normal(1, 8, 8).clone()).sum().backward()
        normal(1, 4).exp()
    for shown in (session, session.ledger):
        cells = Cells(shown._repr_html_())
        assert not cells.tags & {"script", "b"}
        assert cells.rows[0][:4] == ["op and slot", "store", "saves", "saved"]
        assert ["TanhBackward0.result", "pool", "1"] in [row[:3] for row in cells.rows]
        assert "<b>.0" in [row[0] for row in cells.rows]
    assert "OffloadSession pool" in session._repr_html_()
    assert repr(session).startswith("<OffloadSession pool, from 0 B: 2 tensors saved, 272 B; ")


def test_pages_in_a_notebook() -> None:
    with offgrad.offload_model("pool") as offload:
        model = nn.Linear(256, 128)
    assert ["Parameter.weight", "pool", "1"] in [
        row[:3] for row in Cells(offload._repr_html_()).rows
    ]
    assert repr(offload.ledger).startswith("<PageLedger: 1 page, 128.0 KiB")
    assert model is not None


class Custom(Policy):
    """Has no fields."""

    def place(self, context: Any) -> Keep:
        return Keep()


class Bare:
    """Has nothing but what a policy must have."""

    def place(self, context: Any) -> Keep:
        return Keep()


def test_policies_in_a_notebook() -> None:
    policy = First([When("disk", op="Gelu"), When("pool", output=True), Custom()])
    rows = Cells(policy._repr_html_()).rows
    assert rows == [
        ["tensors", "go to"],
        ["op is Gelu", "disk, from 64.0 KiB"],
        ["an output", "pool, from 64.0 KiB"],
        ["all", "Custom()"],
    ]
    by_module: Any = as_policy({"": "keep", "<i>": Last(2)})
    rows = Cells(by_module._repr_html_()).rows
    assert [row[0] for row in rows] == ["tensors", "the model", "<i>", "others"]
    assert First([Bare()]).answers()[0][0] == "all"
    assert repr(Custom()) == "Custom()"
    assert repr(When("disk", op="Gelu")) == "When(Offload('disk'), op=('Gelu',))"
    assert Offload("disk") != Offload("pool")


def test_a_session_decorates_functions() -> None:
    session = offgrad.offload("pool,min=0")

    @session
    def loss(x: Any) -> Any:
        """Return a loss."""
        return x.tanh().sum()

    assert (loss.__name__, loss.__doc__) == ("loss", "Return a loss.")
    for calls in (1, 2):
        loss(normal(1, 8)).backward()
        assert session.ledger.saves == calls
    normal(1, 8).tanh()
    assert session.ledger.saves == 2


def test_a_session_decorates_methods_and_lets_errors_through() -> None:
    session = offgrad.offload("pool,min=0")

    class Net(nn.Module):
        @session
        def forward(self, x: Any) -> Any:
            if x.ndim == 0:
                raise ValueError("a scalar")
            return x.exp()

    net = Net()
    with pytest.raises(ValueError, match="a scalar"):
        net(normal(1).sum())
    net(normal(1, 4)).sum().backward()
    assert session.ledger.saves == 1


def test_a_session_decorates_nothing_but_functions() -> None:
    wrongs: list[tuple[Any, str]] = [(nn.Linear, "the class Linear"), (3, "3")]
    for wrong, name in wrongs:
        with pytest.raises(TypeError, match=f"such as forward, got {name}"):
            OffloadSession("keep")(wrong)


def test_a_session_decorates_nothing_that_pauses() -> None:
    def items() -> Iterator[int]:
        yield 1

    async def later() -> None:
        await asyncio.sleep(0)

    for function in (items, later):
        with pytest.raises(TypeError, match=f"run to their end, got {function.__name__}"):
            OffloadSession("keep")(function)
