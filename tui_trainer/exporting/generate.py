"""Trying a trained model: it continues a prompt, which appears as it is written, or answers as its task says."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, TextStreamer

from tui_trainer.data.columns.conversations import Message
from tui_trainer.errors import FolderError, RunError
from tui_trainer.exporting.trained_model import TrainedModel, load_model, load_tokenizer
from tui_trainer.hardware.visible_gpus import card_index
from tui_trainer.models.writing import Sampling, generate_ids, most_tokens
from tui_trainer.runs.folder import RunFolder
from tui_trainer.terminal.safe_text import visible
from tui_trainer.worker.questions import Report


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

    def move_to_cpu(self) -> None:
        self._model = self._model.to("cpu")

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
        ids: list[int] = generate_ids(self._model, self._tokenizer, [context], **streams, **settings)[0][0].tolist()
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


_loaded: dict[tuple[str, bool], Writer] = {}
_moved = False
"""The card's memory ran out: everything is on the CPU from then on."""


def try_model(asked: dict[str, Any], report: Report) -> dict[str, Any]:
    """In a worker: loads the model of a run, or its base model, once, and does what is asked with it, if anything.

    It goes on on the CPU where the card has not the memory, but not in the middle of a text.
    """
    global _moved
    pieces = 0

    def show(piece: str) -> None:
        nonlocal pieces
        pieces += 1
        report(piece=piece)

    if (card := asked.get("card")) and not _moved:
        try:
            return _tried(asked, _share_of_card(**card), show) | {"moved": False}
        except torch.OutOfMemoryError:
            _moved = True
        for writer in _loaded.values():
            writer.move_to_cpu()
        torch.cuda.empty_cache()
        if pieces:
            raise RunError("the GPU has no memory for a longer text; the next text is generated on the CPU")
    return _tried(asked, None, show) | {"moved": _moved}


def _share_of_card(uuid: str, bytes: int) -> torch.device:
    """The card, of which torch takes no more than that."""
    index = card_index(uuid)
    total = torch.cuda.get_device_properties(index).total_memory
    torch.cuda.set_per_process_memory_fraction(min(bytes / total, 1.0), index)
    return torch.device("cuda", index)


def _tried(asked: dict[str, Any], device: torch.device | None, show: Callable[[str], None]) -> dict[str, Any]:
    key = asked["run"], asked["base"]
    if key not in _loaded:
        run, base = RunFolder(Path(asked["run"])), None
        if asked["base"]:
            base, reason = TrainedModel.of(run, unfinished=True).base_model()
            if base is None:
                raise FolderError(reason or "the model was trained from scratch, so it has no base model")
        _loaded[key] = Writer(run, device=device, base=base)
    writer = _loaded[key]
    about = {"source": writer.source.name, "continues": writer.continues}
    if "sampling" not in asked:
        return about
    sampling = Sampling(**asked["sampling"])
    if "messages" in asked:
        return about | {"left_out": writer.reply(asked["messages"], sampling, show)}
    if writer.continues:
        return about | {"left_out": writer.continue_text(asked["text"], sampling, show)}
    return about | {"text": writer.answer(asked["text"], sampling)}
