"""From tokens to text while they come: no half characters, no beginning of a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_UNFINISHED = "�"  # what decoders put for the bytes of a character that is not complete


class TextStream:
    """The text of one growing token sequence.

    Decoding a token alone may lose the space before it, and a character may take several tokens. So each new
    token is decoded together with a few before it, and text is shown when its last character is complete.

    Args:
        tokenizer: one of transformers.
        prompt: tokens before the generated ones, whose end decides how the first one is spelled.
        stop: texts that end the generation.

    Attributes:
        text: what may be shown so far.
        stopped: a stop text was found; `text` ends before it.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int] | np.ndarray, stop: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._window = [int(token) for token in prompt[-_CONTEXT:]]  # the last tokens
        self._shown = len(self._decode())  # characters of the window that are told already
        self._all = ""
        self.text = ""
        self.stopped = False

    def _decode(self) -> str:
        text: str = self._tokenizer.decode(self._window, skip_special_tokens=True)
        return text

    def add(self, token: int) -> str:
        """Take one more token; returns what can be shown in addition."""
        self._window.append(token)
        decoded = self._decode()
        if decoded.endswith(_UNFINISHED):
            return ""
        return self._extend(self._advance(decoded))

    def _advance(self, decoded: str) -> str:
        """The part of the window that is new; the window moves on behind it."""
        new = decoded[self._shown :]
        del self._window[:-_CONTEXT]
        self._shown = len(self._decode())
        return new

    def finish(self) -> str:
        """No more tokens come: show what was held back."""
        if self.stopped:
            return ""
        self._all += self._decode()[self._shown :]
        held_back = self._all[len(self.text) :]
        self.text = self._all
        return held_back

    def _extend(self, new: str) -> str:
        before = len(self.text)
        self._all += new
        ends = [at for stop in self._stop if (at := self._all.find(stop, max(before - len(stop), 0))) >= 0]
        if ends:
            self.stopped = True
            self._all = self._all[: min(ends)]
        held = 0 if self.stopped else max((_overlap(self._all, stop) for stop in self._stop), default=0)
        self.text = self._all[: len(self._all) - held]
        return self.text[before:]


_CONTEXT = 6  # tokens decoded again with a new one


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, shorter than all of it."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
