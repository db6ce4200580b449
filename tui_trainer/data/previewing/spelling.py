"""Tokens as text again, piece by piece, with a mark on each piece."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Tokens beside each other that are alike. `text` as it stands in the data, or the name of a special token.

    `tag` belongs to the first of them: what a word is marked with.
    """

    text: str
    tokens: int
    trained: bool
    special: bool = False
    tag: str = ""


class Speller:
    """Spells with a tokenizer of transformers."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._special = {*tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)}

    def pieces(self, ids: Sequence[int], trained: Sequence[bool], tags: Sequence[str] = ()) -> tuple[Piece, ...]:
        """All tokens in order: one piece for each special token, for each tagged word, and for what is alike between.

        `trained` [T] says which tokens are learnt, `tags` [T] what words are marked with: "" where none begins.
        """
        tags = tags or [""] * len(ids)
        marked = list(zip(ids, trained, tags, strict=True))
        return tuple(
            piece
            for is_special, segment in groupby(marked, key=lambda token: token[0] in self._special)
            for piece in (map(self._name, segment) if is_special else self._spell(list(segment)))
        )

    def _name(self, token: tuple[int, bool, str]) -> Piece:
        number, trained, tag = token
        name = str(self._tokenizer.convert_ids_to_tokens(int(number)))
        return Piece(text=name, tokens=1, trained=bool(trained), special=True, tag=tag)

    def _spell(self, segment: list[tuple[int, bool, str]]) -> Iterator[Piece]:
        """Texts are what each piece adds to the text before it: alone, some tokens would lose a blank."""
        before, end = "", 0
        for part in _alike(segment):
            start, end = end, end + len(part)
            whole = self._text([token[0] for token in segment[:end]])
            fits = whole.startswith(before)
            text = whole[len(before) :] if fits else self._text([token[0] for token in segment[start:end]])
            before = whole
            yield Piece(text=text, tokens=len(part), trained=bool(part[0][1]), tag=part[0][2])

    def _text(self, ids: Sequence[int]) -> str:
        numbers = [int(number) for number in ids]
        return str(self._tokenizer.decode(numbers, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _alike(segment: list[tuple[int, bool, str]]) -> Iterator[list[tuple[int, bool, str]]]:
    """Runs of tokens that are trained or not; a tag begins a new one."""
    part: list[tuple[int, bool, str]] = []
    for token in segment:
        if part and (token[2] or bool(token[1]) != bool(part[0][1])):
            yield part
            part = []
        part.append(token)
    if part:
        yield part
