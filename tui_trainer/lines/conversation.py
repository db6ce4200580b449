"""Trying a model at a prompt: a text goes in, and what the model makes of it appears as it is written."""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from tui_trainer.terminal.safe_text import visible

if TYPE_CHECKING:
    from tui_trainer.exporting.chat_session import ChatSession
    from tui_trainer.exporting.generate import Writer
    from tui_trainer.models.writing import Sampling


def continue_once(writer: "Writer", prompt: str, sampling: "Sampling") -> None:
    """The prompt and its continuation, and on stderr how much of the prompt the model could not read; or the answer."""
    if not writer.continues:
        print(writer.answer(prompt, sampling))
        return
    print(visible(prompt), end="", flush=True)
    left_out = writer.continue_text(prompt, sampling, lambda piece: print(piece, end="", flush=True))
    print()
    if writer.unknown_tokens:
        print(f"({writer.unknown_tokens} characters of the prompt are not in the vocabulary)", file=sys.stderr)
    if left_out:
        print(f"(the first {left_out} tokens of the prompt did not fit and were dropped)", file=sys.stderr)


def converse(writer: "Writer", sampling: "Sampling") -> None:
    """Line by line until the end of the input; each line is a prompt of its own."""
    interactive = sys.stdin.isatty()
    if interactive:
        what = "the beginning of a text" if writer.continues else "a text"
        print(f"type {what}; an empty line or Ctrl+D quits", file=sys.stderr)
    while True:
        try:
            line = input("> " if interactive else "")
        except (EOFError, KeyboardInterrupt):
            return
        if not line and interactive:
            return
        continue_once(writer, line, sampling)


def hold(conversation: "ChatSession") -> None:
    """Line by line until the end of the input, or until somebody leaves."""
    interactive = sys.stdin.isatty()
    if interactive:
        with suppress(ImportError):
            import readline  # noqa: F401  # lines can be edited, and those before them called back
    while True:
        try:
            if not conversation.take(input("> " if interactive else "")):
                return
        except EOFError:
            if interactive:
                print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            if not interactive:
                raise
            print("\n(/quit or Ctrl+D quits)", file=sys.stderr)
