"""Assertions that model code writes as ``torch._check`` and ``torch._assert``."""

from typing import Any

import pytest

import offgrad as og


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("_check", RuntimeError),
        ("_check_index", IndexError),
        ("_check_value", ValueError),
        ("_check_type", TypeError),
        ("_check_not_implemented", NotImplementedError),
    ],
)
def test_a_check_raises_its_error_with_the_text_of_its_message(
    name: str, error: type[Exception]
) -> None:
    check = getattr(og, name)
    check(True, lambda: pytest.fail("the text is made only if it is needed"))
    with pytest.raises(error, match=r"^7 rows$"):
        check(False, lambda: f"{7} rows")
    with pytest.raises(error, match="Expected cond to be True"):
        check(False)


@pytest.mark.parametrize("cond", [1, None, og.tensor(True)])
def test_a_condition_that_is_no_bool_is_refused(cond: Any) -> None:
    with pytest.raises(TypeError, match="cond must be a bool"):
        og._check(cond)


def test_a_message_that_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="message must be a callable"):
        og._check(False, "text")


def test_sizes_and_tensors_of_bools() -> None:
    og._check_is_size(0)
    og._check_is_size(3, max=3)
    for size, bound in ((-1, None), (4, 3)):
        with pytest.raises(RuntimeError, match="size"):
            og._check_is_size(size, lambda: "size", max=bound)
    og._check_tensor_all(og.tensor([True, True]))
    with pytest.raises(RuntimeError, match="some"):
        og._check_tensor_all(og.tensor([True, False]), lambda: "some")
    with pytest.raises(TypeError, match="must be a tensor"):
        og._check_tensor_all(True)
    with pytest.raises(TypeError, match=r"must have dtype torch\.bool"):
        og._check_tensor_all(og.tensor([1]))


def test_assert_takes_bools_and_tensors() -> None:
    og._assert(True, "unused")
    og._assert(og.tensor([2.0]), "unused")
    for condition in (False, og.tensor(False)):
        with pytest.raises(AssertionError, match=r"^wrong size$"):
            og._assert(condition, "wrong size")
