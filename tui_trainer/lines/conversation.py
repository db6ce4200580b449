"""Prompts to a model in a terminal. The answer is printed while the model generates it."""

import sys
from contextlib import suppress
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
    if writer.unknown_tokens:
        print(f"({writer.unknown_tokens} characters of the prompt are not in the vocabulary)", file=sys.stderr)
    if dropped_tokens:
        print(f"(the first {dropped_tokens} tokens of the prompt did not fit and were dropped)", file=sys.stderr)


def answer_lines(writer: "Writer", sampling: "Sampling") -> None:
    """Answer each line of standard input as a separate prompt. In a terminal, an empty line quits."""
    is_interactive = sys.stdin.isatty()
    if is_interactive:
        noun = "the beginning of a text" if writer.continues else "a text"
        print(f"type {noun}; an empty line or Ctrl+D quits", file=sys.stderr)
    while True:
        try:
            line = input("> " if is_interactive else "")
        except (EOFError, KeyboardInterrupt):
            return
        if not line and is_interactive:
            return
        print_answer(writer, line, sampling)


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
