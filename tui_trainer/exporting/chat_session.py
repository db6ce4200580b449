"""A conversation with a trained model: its history and its commands. The model may be in another process, so this
module imports no torch."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tui_trainer.data.columns.conversations import Message
from tui_trainer.errors import InputError, system_reason
from tui_trainer.files.local_paths import expand_home
from tui_trainer.models.writing import Sampling
from tui_trainer.terminal.safe_text import one_line, show_control_characters


class Replies(Protocol):
    def reply(self, messages: Sequence[Message], sampling: Sampling, show: Callable[[str], None]) -> int:
        """Generate the next answer, and `show` each piece. Return how many of the first messages did not fit."""


COMMANDS = {
    "/system TEXT": "set the system prompt and start over; without TEXT, remove it",
    "/temperature 0.7": "sampling temperature; 0 is greedy decoding",
    "/max 200": "maximum number of tokens per answer",
    "/reset": "start over",
    "/undo": "remove the last question and its answer",
    "/save FILE": "append the conversation to a JSONL file, as a training row",
    "/help": "list these commands",
    "/quit": "quit",
}


class ChatSession:
    """A conversation with one model, or with two models that get the same questions, each with its own history.

    `show` is called with each piece of generated text, and `notify` with lines about the conversation."""

    def __init__(
        self,
        writers: Mapping[str, Replies],
        sampling: Sampling,
        system: str = "",
        *,
        show: Callable[[str], None],
        notify: Callable[[str], None],
    ) -> None:
        self._writers, self._sampling, self._system = writers, sampling, system
        self._show, self._notify = show, notify
        self._turns = 0
        self._messages: dict[str, list[dict[str, Any]]] = {}
        self._begin()

    def take(self, line: str) -> bool:
        """Ask the question in `line`, or execute the command in it. Return False if the conversation is over."""
        if not line.strip():
            return True
        if line.startswith("/") and not line.startswith("//"):
            command, _, argument = line.strip().partition(" ")
            try:
                return self._command(command, argument.strip())
            except (ValueError, OSError) as error:
                self._notify(system_reason(error))
                return True
        self._ask(line.removeprefix("/") if line.startswith("//") else line)
        return True

    def _begin(self) -> None:
        system_messages = [{"role": "system", "content": self._system}] if self._system else []
        self._messages = {name: list(system_messages) for name in self._writers}

    def _command(self, name: str, value: str) -> bool:
        """Execute a command and return whether the conversation continues. Raises ValueError for an invalid value."""
        match name:
            case "/quit" | "/exit":
                return False
            case "/help":
                self._notify("\n".join(f"{usage:<18} {description}" for usage, description in COMMANDS.items()))
            case "/system":
                self._system = value
                self._begin()
                self._notify(f"system prompt: {one_line(value, 60)!r}" if value else "no system prompt")
            case "/temperature":
                self._sampling = replace(self._sampling, temperature=_number(value, 0, 10))
                self._notify(f"temperature: {self._sampling.temperature:g}")
            case "/max":
                self._sampling = replace(self._sampling, max_new_tokens=int(_number(value, 1, 100_000)))
                self._notify(f"at most {self._sampling.max_new_tokens:,} tokens per answer")
            case "/reset":
                self._begin()
                self._notify("started over")
            case "/undo":
                self._undo()
            case "/save":
                self._save(value)
            case _:
                hint = "/help lists the commands; to send a text that starts with /, type // instead of /"
                self._notify(f"unknown command {one_line(name, 40)}; {hint}")
        return True

    def _undo(self) -> None:
        first_index = int(bool(self._system))
        if all(len(messages) == first_index for messages in self._messages.values()):
            self._notify("nothing to undo")
            return
        for messages in self._messages.values():
            del messages[max(first_index, len(messages) - 2) :]
        self._notify("removed the last question and its answer")

    def _save(self, value: str) -> None:
        """Append the conversation to the file `value`. Of two conversations, save that with the trained model."""
        messages = list(self._messages.values())[-1]
        if not value or len(messages) == int(bool(self._system)):
            raise ValueError("/save needs a file name" if not value else "nothing to save yet")
        path = expand_home(value)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
        self._notify(f"appended to {one_line(str(path))}")

    def _ask(self, question: str) -> None:
        """Ask each model. Ctrl+C ends an answer. A question that a model cannot read, such as one that is
        too long, is not added to its history."""
        self._turns += 1
        sampling = replace(self._sampling, seed=self._sampling.seed + self._turns)
        for name, writer in self._writers.items():
            messages = [*self._messages[name], {"role": "user", "content": question}]
            pieces: list[str] = []

            def show_piece(piece: str, pieces: list[str] = pieces) -> None:
                pieces.append(piece)
                self._show(show_control_characters(piece))

            if len(self._writers) > 1:
                self._show(f"[{name}] ")
            try:
                if dropped_count := writer.reply(messages, sampling, show_piece):
                    dropped_text = f"the first {dropped_count} messages"
                    self._notify(f"({dropped_text} no longer fit into the context and were left out)")
            except KeyboardInterrupt:
                self._show(" [ended]")
            except InputError as error:
                self._notify(one_line(str(error), 300))
                continue
            self._show("\n")
            self._messages[name] = [*messages, {"role": "assistant", "content": "".join(pieces)}]


def _number(value: str, low: float, high: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise ValueError(f"enter a number from {low:,g} to {high:,g}, not {one_line(value, 40)!r}")
    return number
