"""Prompts to a model in a terminal. The answer is printed while the model generates it."""

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING

from tui_trainer.terminal.safe_text import show_control_characters

if TYPE_CHECKING:
    from tui_trainer.exporting.chat_session import ChatSession
    from tui_trainer.exporting.generate import Writer
    from tui_trainer.models.writing import Sampling


def print_answer(writer: "Writer", prompt: str, sampling: "Sampling") -> None:
    """Print the prompt and its continuation, or the model's answer. Print notes about ignored parts to stderr."""
    if not writer.continues:
        print(writer.answer(prompt, sampling))
        return
    print(show_control_characters(prompt), end="", flush=True)
    dropped_tokens = writer.continue_text(prompt, sampling, lambda piece: print(piece, end="", flush=True))
    print()
    _print_notes(writer, dropped_tokens)


def print_answers(writers: Mapping[str, "Writer"], prompt: str, sampling: "Sampling", *, as_json: bool) -> None:
    """Print the answers of several models to a prompt in columns, or as a line of JSON."""
    texts, dropped_tokens = {}, 0
    for name, writer in writers.items():
        if writer.continues:
            pieces: list[str] = []
            dropped_tokens = writer.continue_text(prompt, sampling, pieces.append)
            texts[name] = "".join(pieces)
        else:
            texts[name] = writer.answer(prompt, sampling)
    if as_json:
        print(json.dumps({"prompt": prompt, "answers": texts}, ensure_ascii=False), flush=True)
    else:
        print(show_control_characters(prompt), *_columns(texts, shutil.get_terminal_size().columns), sep="\n")
    _print_notes(next(iter(writers.values())), dropped_tokens)


def _columns(texts: Mapping[str, str], width: int) -> list[str]:
    """Return the lines of texts that are shown side by side below their titles, in `width` characters."""
    column_width = max(20, (width + 2) // len(texts) - 2)
    columns = [
        [title, *(row for line in text.splitlines() for row in textwrap.wrap(line, column_width) or [""])]
        for title, text in texts.items()
    ]
    rows = zip_longest(*columns, fillvalue="")
    return ["  ".join(cell.ljust(column_width) for cell in row).rstrip() for row in rows]


def _print_notes(writer: "Writer", dropped_tokens: int) -> None:
    """Print notes about parts of the last prompt that the model did not get to stderr."""
    if writer.unknown_tokens:
        print(f"({writer.unknown_tokens} characters of the prompt are not in the vocabulary)", file=sys.stderr)
    if dropped_tokens:
        print(f"(the first {dropped_tokens} tokens of the prompt did not fit and were dropped)", file=sys.stderr)


def answer_lines(answer: Callable[[str], None], *, continues: bool) -> None:
    """Answer each line of standard input as a separate prompt. In a terminal, an empty line quits.

    `continues` says whether the model continues texts."""
    is_interactive = sys.stdin.isatty()
    if is_interactive:
        noun = "the beginning of a text" if continues else "a text"
        print(f"type {noun}; an empty line or Ctrl+D quits", file=sys.stderr)
    while True:
        try:
            line = input("> " if is_interactive else "")
        except (EOFError, KeyboardInterrupt):
            return
        if not line and is_interactive:
            return
        answer(line)


def hold_conversation(conversation: "ChatSession") -> None:
    """Hold a conversation, one turn for each line of standard input, until its end or /quit."""
    is_interactive = sys.stdin.isatty()
    if is_interactive:
        with suppress(ImportError):
            import readline  # noqa: F401  # gives `input` line editing and a history
    while True:
        try:
            if not conversation.take(input("> " if is_interactive else "")):
                return
        except EOFError:
            if is_interactive:
                print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            if not is_interactive:
                raise
            print("\n(/quit or Ctrl+D quits)", file=sys.stderr)
