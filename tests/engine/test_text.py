"""Text while it comes: characters whole, stop texts cut, nothing shown that must be taken back."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import ByT5Tokenizer

from prefixcache.engine.text import TextStream

TOKENIZER = ByT5Tokenizer()


class Words:
    """A tokenizer whose tokens are words, each with the space before it, which the first of a text loses."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return "".join(self.words[token] for token in tokens).lstrip(" ")


def encode(text: str) -> list[int]:
    return [byte + 3 for byte in text.encode()]


def feed(stream: TextStream, tokens: list[int]) -> list[str]:
    """What is shown after each token, until a stop text."""
    shown = []
    for token in tokens:
        shown.append(stream.add(token))
        if stream.stopped:
            break
    return shown


def test_a_character_of_several_tokens_is_shown_when_it_is_complete() -> None:
    stream = TextStream(TOKENIZER, [], ())
    assert feed(stream, encode("aé€x")) == ["a", "", "é", "", "", "€", "x"]
    assert stream.finish() == ""


def test_a_character_that_stays_incomplete_does_not_get_lost_silently() -> None:
    class Replacing(Words):
        def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
            return bytes(tokens).decode(errors="replace")

    stream = TextStream(Replacing([]), [], ())
    assert feed(stream, [97, 0xE2, 0x82]) == ["a", "", ""]
    assert stream.finish() == "�"
    assert stream.text == "a�"


def test_the_space_before_a_word_is_kept() -> None:
    tokenizer = Words([" the", " quick", " brown", " fox"])
    stream = TextStream(tokenizer, [0], ())
    assert feed(stream, [1, 2, 3]) == [" quick", " brown", " fox"]


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("abcSTOPdef", ("STOP",), "abc"),
        ("abcSTdef", ("STOP",), "abcSTdef"),
        ("SSTOP", ("STOP",), "S"),
        ("aXbYc", ("Y", "X"), "a"),
        ("no end", ("zzz",), "no end"),
        ("ababac", ("abac",), "ab"),
    ],
)
def test_stop_texts(text: str, stop: tuple[str, ...], shown: str) -> None:
    stream = TextStream(TOKENIZER, [], stop)
    pieces = feed(stream, encode(text))
    pieces.append(stream.finish())
    assert "".join(pieces) == stream.text == shown
    assert stream.stopped == any(end in text for end in stop)


def test_a_possible_beginning_of_a_stop_text_is_held_back() -> None:
    stream = TextStream(TOKENIZER, [], ("STOP",))
    assert feed(stream, encode("aSTx")) == ["a", "", "", "STx"]


def test_pieces_add_up_to_the_text(seed: int) -> None:
    random = np.random.default_rng(seed)
    alphabet = list("abcé€😀 \n")
    for _ in range(200):
        text = "".join(random.choice(alphabet, size=int(random.integers(0, 40))))
        prompt = "".join(random.choice(alphabet, size=5))
        stream = TextStream(TOKENIZER, encode(prompt), ())
        assert "".join([*feed(stream, encode(text)), stream.finish()]) == text
