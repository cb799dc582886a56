"""The example's test: the contract suite, and one case worked by hand."""

from specframe.testing.drafters import DrafterContract, continuations


class TestHello(DrafterContract):
    """What every drafter must do."""

    word = "hello"


def test_it_says_what_followed_the_last_time() -> None:
    text = [1, 2, 5, 1, 2, 3, 0, 1, 2]
    assert continuations("hello", text, span=2, length=3) == [[3, 0, 1]]
