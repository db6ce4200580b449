"""Trying a trained model: it continues a prompt, which appears as it is written, or answers as its task says."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, TextStreamer

from tui_trainer.data.columns.conversations import Message
from tui_trainer.errors import InputError, system_reason
from tui_trainer.exporting.trained_model import TrainedModel, load_model, load_tokenizer
from tui_trainer.files.local_paths import at_home
from tui_trainer.models.writing import Sampling, generated, most_tokens
from tui_trainer.runs.folder import RunFolder
from tui_trainer.terminal.safe_text import one_line, visible

__all__ = ["Sampling", "Writer"]


class Writer:
    """A trained model that continues texts, or answers."""

    def __init__(self, run: RunFolder, *, device: torch.device | None = None, base: Path | None = None) -> None:
        """Load the final model, or the newest checkpoint of a run that has none yet; with `base` the model in that
        folder instead, with the tokenizer of the run. Raises FolderError."""
        trained = TrainedModel.of(run, unfinished=True)
        self.source, self._config = trained.folder, trained.config
        self._task: Any = trained.task
        self._tokenizer = load_tokenizer(trained)
        if base:
            model = load_model(trained, base, None)
            self._task.set_generation(self._config, model, self._tokenizer)
        else:
            model = trained.load()
        self._model = model.to(device) if device else model
        self.unknown_tokens = 0
        """How many tokens of the last prompt the model does not know."""

    @property
    def continues(self) -> bool:
        """Whether the model goes on with a text; else it answers."""
        return bool(self._task.continues)

    def answer(self, text: str, sampling: Sampling) -> str:
        """What the model makes of a text, made safe for a terminal."""
        torch.manual_seed(sampling.seed)
        return visible(self._task.answer(self._config, self._model, self._tokenizer, whole_text(text), sampling))

    def reply(self, messages: Sequence[Message], sampling: Sampling, show: Callable[[str], None]) -> int:
        """Go on with a conversation, telling `show` each new piece as it is. Returns how many of its first messages,
        but for the system's, did not fit. Raises DataError for one that the chat template does not take.

        A model that continues texts goes on with all that was said.
        """
        if self.continues:
            self._go_on(_text_of(messages), sampling, show)
            return 0
        config, first = self._config, int(messages[0]["role"] == "system")
        reader = self._task.input_reader(config, self._tokenizer)
        for left_out in range(0, len(messages) - first, 2):
            kept = [*messages[:first], *messages[first + left_out :]]
            asked = [reader.of_messages(kept)]
            [row] = self._task.encode_inputs(config, self._model, self._tokenizer, asked, sampling)
            if not row.is_cut:
                break
        torch.manual_seed(sampling.seed)
        room = min(sampling.max_new_tokens, most_tokens(self._model, self._tokenizer) - len(row))
        self._write(list(row.ids), room, sampling, show)
        return left_out

    def continue_text(self, prompt: str, sampling: Sampling, show: Callable[[str], None]) -> int:
        """Write on from `prompt`, telling `show` each new piece. Returns how many prompt tokens did not fit.

        A model reads at most as many tokens as it was trained on. Of a longer prompt the end counts, and when the text
        has filled the window, writing goes on from its last half.
        """
        return self._go_on(prompt, sampling, lambda piece: show(visible(piece)))

    def _go_on(self, prompt: str, sampling: Sampling, show: Callable[[str], None]) -> int:
        ids = self._tokenizer(whole_text(prompt))["input_ids"] or [self._tokenizer.eos_token_id]
        self.unknown_tokens = ids.count(self._tokenizer.unk_token_id)
        window = self._tokenizer.model_max_length
        torch.manual_seed(sampling.seed)
        written, context = 0, ids[-(window - 1) :]
        while written < sampling.max_new_tokens:
            room = min(window - len(context), sampling.max_new_tokens - written)
            new = self._write(context, room, sampling, show)
            written += len(new)
            if len(new) < room or new[-1] == self._tokenizer.eos_token_id:
                break
            context = (context + new)[-max(1, window // 2) :]
        return max(0, len(ids) - (window - 1))

    def _write(self, context: list[int], new_tokens: int, sampling: Sampling, show: Callable[[str], None]) -> list[int]:
        settings = replace(sampling, max_new_tokens=new_tokens).settings()
        # Of several beams only the end shows which is the likeliest: transformers takes no streamer for them.
        streams = {"streamer": _Pieces(self._tokenizer, show)} if sampling.num_beams == 1 else {}
        ids: list[int] = generated(self._model, self._tokenizer, [context], **streams, **settings)[0][0].tolist()
        if not streams:
            show(str(self._tokenizer.decode(ids, skip_special_tokens=True)))
        return ids


def whole_text(text: str) -> str:
    """An argument that was no UTF-8 has lone surrogates, which tokenizers refuse."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _text_of(messages: Sequence[Message]) -> str:
    """All that was said as one text: each turn of a person begins on a line of its own."""
    parts = [
        f"\n{one['content']}" if one["role"] == "user" and at else one["content"] for at, one in enumerate(messages)
    ]
    return "".join(parts)


class _Pieces(TextStreamer):
    def __init__(self, tokenizer: PreTrainedTokenizerBase, show: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._show = show

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self._show(text)


# A conversation with a trained model: its history, and the commands that change how it goes on.

COMMANDS = {
    "/system TEXT": "what the conversation begins with; without TEXT nothing; begins anew",
    "/temperature 0.7": "how freely tokens are drawn; 0 takes the likeliest",
    "/max 200": "tokens of an answer, at the most",
    "/reset": "begin anew",
    "/undo": "take the last question and its answer back",
    "/save FILE": "append the conversation to a JSONL file, as a row that can be trained on",
    "/help": "these lines",
    "/quit": "leave",
}


class ChatSession:
    """With one model, or the same questions to two: each goes on with its own answers.

    `show` gets what is written, piece by piece, and `tell` lines about it.
    """

    def __init__(
        self,
        writers: "Mapping[str, Writer]",
        sampling: "Sampling",
        system: str = "",
        *,
        show: Callable[[str], None],
        tell: Callable[[str], None],
    ) -> None:
        self._writers, self._sampling, self._system = writers, sampling, system
        self._show, self._tell = show, tell
        self._turns = 0
        self._messages: dict[str, list[dict[str, Any]]] = {}
        self._begin()

    def take(self, line: str) -> bool:
        """Ask, or carry out a command. Returns whether the conversation goes on."""
        if not line.strip():
            return True
        if line.startswith("/") and not line.startswith("//"):
            name, _, value = line.strip().partition(" ")
            try:
                return self._command(name, value.strip())
            except (ValueError, OSError) as error:
                self._tell(system_reason(error))
                return True
        self._ask(line.removeprefix("/") if line.startswith("//") else line)
        return True

    def _begin(self) -> None:
        first = [{"role": "system", "content": self._system}] if self._system else []
        self._messages = {name: list(first) for name in self._writers}

    def _command(self, name: str, value: str) -> bool:
        """Raises ValueError for a value that does not fit."""
        match name:
            case "/quit" | "/exit":
                return False
            case "/help":
                self._tell("\n".join(f"{form:<18} {words}" for form, words in COMMANDS.items()))
            case "/system":
                self._system = value
                self._begin()
                self._tell(f"the system prompt is {one_line(value, 60)!r}" if value else "there is no system prompt")
            case "/temperature":
                self._sampling = replace(self._sampling, temperature=_number(value, 0, 10))
                self._tell(f"the temperature is {self._sampling.temperature:g}")
            case "/max":
                self._sampling = replace(self._sampling, max_new_tokens=int(_number(value, 1, 100_000)))
                self._tell(f"tokens of an answer: {self._sampling.max_new_tokens:,} at the most")
            case "/reset":
                self._begin()
                self._tell("begun anew")
            case "/undo":
                self._undo()
            case "/save":
                self._save(value)
            case _:
                self._tell(f"there is no command {one_line(name, 40)}; /help lists them, and // begins a text with /")
        return True

    def _undo(self) -> None:
        first = int(bool(self._system))
        if all(len(messages) == first for messages in self._messages.values()):
            self._tell("there is nothing to take back")
            return
        for messages in self._messages.values():
            del messages[max(first, len(messages) - 2) :]
        self._tell("the last question and its answer are taken back")

    def _save(self, value: str) -> None:
        """With two models that of the last one, which was trained."""
        messages = list(self._messages.values())[-1]
        if not value or len(messages) == int(bool(self._system)):
            raise ValueError("/save wants the name of a file" if not value else "nothing was said yet")
        path = at_home(value)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
        self._tell(f"appended to {one_line(str(path))}")

    def _ask(self, question: str) -> None:
        """Ctrl+C ends the answer of one model. A question that cannot be asked is no part of the conversation."""
        self._turns += 1
        sampling = replace(self._sampling, seed=self._sampling.seed + self._turns)
        for name, writer in self._writers.items():
            asked = [*self._messages[name], {"role": "user", "content": question}]
            pieces: list[str] = []

            def show(piece: str, pieces: list[str] = pieces) -> None:
                pieces.append(piece)
                self._show(visible(piece))

            if len(self._writers) > 1:
                self._show(f"[{name}] ")
            try:
                if left_out := writer.reply(asked, sampling, show):
                    self._tell(f"({left_out} messages at the beginning do not fit any more and were left out)")
            except KeyboardInterrupt:
                self._show(" [ended]")
            except InputError as error:
                self._tell(one_line(str(error), 300))
                continue
            self._show("\n")
            self._messages[name] = [*asked, {"role": "assistant", "content": "".join(pieces)}]


def _number(value: str, low: float, high: float) -> float:
    try:
        number = float(value)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise ValueError(f"a number from {low:,g} to {high:,g} is wanted, not {one_line(value, 40)!r}")
    return number
