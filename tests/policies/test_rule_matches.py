"""A session warns of rules that matched no saved tensor, after its first block."""

import threading
import warnings
from typing import Any

import pytest

import offgrad
from offgrad import nn
from offgrad.policies import ByModule, Cast, First, Keep, Last, Offload, Policy, SaveContext, When
from offgrad.policies.rule_matches import rule_matches, rules_of


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.5))


def run(policy: Any, **options: Any) -> offgrad.session.OffloadSession:
    with offgrad.offload(policy, **options) as session:
        loss = model()(offgrad.randn(4, 8)).sum()
    loss.backward()
    return session


def warned(policy: Any, **options: Any) -> str:
    with pytest.warns(UserWarning, match="no tensor saved for backward") as caught:
        run(policy, **options)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert caught[0].lineno == run.__code__.co_firstlineno + 1
    return str(caught[0].message)


@pytest.mark.parametrize(
    "policy",
    [
        "disk,op=GELU",
        "disk,op=layer_norm;keep",
        "keep;disk,op=gelu",  # an earlier policy decides, but the rule is right
        "disk,op=Sin|Gelu",
        "disk,slot=self,module=1",
        "disk,made_by=addmm",
        "disk,module=2",
        "disk",
        When("disk", parameter=True),  # these conditions are facts, not names
        When("disk", min_nbytes="1GiB"),
        "disk,max=1GiB,dtype=int8",
    ],
)
def test_rules_that_match_are_quiet(policy: Any) -> None:
    run(policy)


def test_a_known_operation_is_no_near_miss() -> None:
    text = warned("disk,op=Conv2d")
    assert "did you mean" not in text
    assert "there were Addmm, Gelu" in text


def test_near_misses() -> None:
    text = warned("disk,op=Gleu")
    assert "no tensor saved for backward in this block has op='Gleu'" in text
    assert "did you mean " in text
    assert "Gelu" in text.partition("did you mean")[2].partition("?")[0]
    assert "there were Addmm, Gelu, NativeLayerNorm" in text
    assert "if op is Gleu: disk, from 64.0 KiB" in text


def test_an_operation_that_exists_but_saved_nothing_is_no_near_miss() -> None:
    text = warned("disk,op=Dropout")
    assert "has op='Dropout'" in text
    assert "did you mean Dropout" not in text
    assert "there were Addmm, Gelu, NativeLayerNorm" in text


def test_other_conditions() -> None:
    assert "has slot='query'" in warned("disk,slot=query")
    assert "there were " in warned("disk,slot=query")
    text = warned("disk,module=blocks.*")
    assert "has module='blocks.*'" in text
    assert "there were 0, 1, 2" in text
    assert "did you mean 1" in warned("disk,module=11")
    assert "has made_by='Sin'" in warned("disk,made_by=Sin")


def test_conditions_that_never_hold_together() -> None:
    text = warned("disk,op=Gelu,module=2")
    assert "has op='Gelu' and module='2' together" in text


def test_all_rules_in_one_warning() -> None:
    text = warned("disk,op=Sin;pool,op=Cos;keep,op=Gelu")
    assert "op='Sin'" in text
    assert "op='Cos'" in text
    assert "op='Gelu'" not in text


def test_rules_inside_other_policies() -> None:
    rules = [When("disk", op=each) for each in ("Sin", "Cos", "Tan", "Exp", "Log")]
    policy = First([Last(3, rules[0]), Cast("float16", rules[1]), When(rules[2], slot="self")])
    assert list(rules_of(policy)) == [rules[0], rules[1], policy.policies[2], rules[2]]
    by_module = ByModule({"head": rules[3]}, otherwise=rules[4])
    assert list(rules_of(by_module)) == rules[3:]
    net = model()
    with (
        pytest.warns(UserWarning, match="op='Exp'"),
        offgrad.offload({"0": When("disk", op="Exp")}, model=net),
    ):
        net(offgrad.randn(4, 8))


def test_only_once_and_after_a_block_that_saved_something() -> None:
    session = offgrad.offload("disk,op=Gleu")
    net, x = model(), offgrad.randn(4, 8)
    with session, offgrad.no_grad():
        net(x)
    with pytest.raises(TypeError), session:
        net(net(x), "one argument too many")
    with pytest.warns(UserWarning, match="op='Gleu'"), session, session:
        net(x)
    with session:
        net(x)


def test_blocks_of_threads_and_nested_ones_end_together() -> None:
    session = offgrad.offload("disk,op=Sin")
    x = offgrad.randn(4, requires_grad=True)
    with session:
        with session:
            x.exp()
        saved, left = threading.Event(), threading.Event()

        def use() -> None:
            with session:
                x.cos()
                saved.set()
                left.wait(60)

        thread = threading.Thread(target=use)
        thread.start()
        assert saved.wait(60)
        x.sin()
    left.set()
    thread.join()


def test_a_policy_of_the_user_has_no_rules() -> None:
    class Mine(Policy):
        def place(self, context: SaveContext) -> Keep | None:
            return None

    assert list(rules_of(Mine())) == []
    assert rule_matches(Mine()) is None


def test_the_warning_can_be_an_error_without_harm() -> None:
    x = offgrad.randn(64, 512, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = offgrad.offload([When("disk", op="Gleu"), Offload("pool")])
        with pytest.raises(UserWarning, match="Gleu"), session:
            y = x.sin().sum()
    y.backward()
    assert x.grad is not None
    with session:
        x.cos()


def test_a_block_that_ends_before_the_first_save_is_compared() -> None:
    """As Ctrl-C does, and another thread."""
    matches = rule_matches(When("disk", op="Gelu"))
    assert matches is not None

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    context: Any = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        matches.note(context)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        matches.warn()
