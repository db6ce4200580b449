"""Try a trained model: continue a text, which is shown piece by piece, or answer it as the model's task does."""

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
from tui_trainer.models.writing import Sampling, generate_ids, longest_sequence_tokens
from tui_trainer.runs.folder import RunFolder
from tui_trainer.terminal.safe_text import show_control_characters
from tui_trainer.worker.questions import Report


class Writer:
    """Loaded model of a run that continues texts or answers them."""

    def __init__(self, run: RunFolder, *, device: torch.device | None = None, base: Path | None = None) -> None:
        """Load the final model of a run, or else its newest checkpoint. With `base`, load the model in that folder and
        the tokenizer of the run. Raises FolderError."""
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
        """Number of unknown tokens in the last prompt."""

    def move_to_cpu(self) -> None:
        self._model = self._model.to("cpu")

    @property
    def continues(self) -> bool:
        """Whether the model continues texts, rather than answering them."""
        return bool(self._task.continues)

    def answer(self, text: str, sampling: Sampling) -> str:
        """Return the model's answer to a text, made safe for a terminal."""
        torch.manual_seed(sampling.seed)
        answer = self._task.answer(self._config, self._model, self._tokenizer, whole_text(text), sampling)
        return show_control_characters(answer)

    def reply(self, messages: Sequence[Message], sampling: Sampling, show: Callable[[str], None]) -> int:
        """Generate the next answer of a conversation, and call `show` with each piece.

        Returns how many of the first messages, not counting a system prompt, did not fit. Raises DataError if the chat
        template does not accept the messages. A model that continues texts gets all messages as one text."""
        if self.continues:
            self._continue(_text_of(messages), sampling, show)
            return 0
        config, system_count = self._config, int(messages[0]["role"] == "system")
        reader = self._task.input_reader(config, self._tokenizer)
        for dropped_count in range(0, len(messages) - system_count, 2):
            kept_messages = [*messages[:system_count], *messages[system_count + dropped_count :]]
            contents = [reader.of_messages(kept_messages)]
            [row] = self._task.encode_inputs(config, self._model, self._tokenizer, contents, sampling)
            if not row.is_cut:
                break
        torch.manual_seed(sampling.seed)
        room_tokens = min(sampling.max_new_tokens, longest_sequence_tokens(self._model, self._tokenizer) - len(row))
        self._write(list(row.ids), room_tokens, sampling, show)
        return dropped_count

    def continue_text(self, prompt: str, sampling: Sampling, show: Callable[[str], None]) -> int:
        """Generate text after `prompt`, and call `show` with each piece. Return how many prompt tokens did not fit.

        The model reads only the end of a prompt that is longer than its window. When the text has filled the window,
        generation continues from its second half."""
        return self._continue(prompt, sampling, lambda piece: show(show_control_characters(piece)))

    def _continue(self, prompt: str, sampling: Sampling, show: Callable[[str], None]) -> int:
        """Do the same as `continue_text`, but show pieces that are not made safe for a terminal."""
        ids = self._tokenizer(whole_text(prompt))["input_ids"] or [self._tokenizer.eos_token_id]
        self.unknown_tokens = ids.count(self._tokenizer.unk_token_id)
        window = self._tokenizer.model_max_length
        torch.manual_seed(sampling.seed)
        written_count, context_ids = 0, ids[-(window - 1) :]
        while written_count < sampling.max_new_tokens:
            room_tokens = min(window - len(context_ids), sampling.max_new_tokens - written_count)
            new_ids = self._write(context_ids, room_tokens, sampling, show)
            written_count += len(new_ids)
            if len(new_ids) < room_tokens or new_ids[-1] == self._tokenizer.eos_token_id:
                break
            context_ids = (context_ids + new_ids)[-max(1, window // 2) :]
        return max(0, len(ids) - (window - 1))

    def _write(self, context: list[int], new_tokens: int, sampling: Sampling, show: Callable[[str], None]) -> list[int]:
        settings = replace(sampling, max_new_tokens=new_tokens).settings()
        # The best of several beams is known only at the end, so transformers then accepts no streamer.
        options = {"streamer": _Pieces(self._tokenizer, show)} if sampling.num_beams == 1 else {}
        ids: list[int] = generate_ids(self._model, self._tokenizer, [context], **options, **settings)[0][0].tolist()
        if not options:
            show(str(self._tokenizer.decode(ids, skip_special_tokens=True)))
        return ids


def whole_text(text: str) -> str:
    """Return the text without lone surrogates, which tokenizers refuse. Arguments that are not UTF-8 contain them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _text_of(messages: Sequence[Message]) -> str:
    """Return a conversation as one text. Each user message except the first starts on a new line."""
    separators = ["", *("\n" if message["role"] == "user" else "" for message in messages[1:])]
    return "".join(separator + message["content"] for separator, message in zip(separators, messages, strict=True))


class _Pieces(TextStreamer):
    def __init__(self, tokenizer: PreTrainedTokenizerBase, show: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._show = show

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self._show(text)


_writers: dict[tuple[str, bool], Writer] = {}
_uses_cpu = False
"""Whether the GPU has run out of memory. All models then stay on the CPU until the process ends."""


def try_model(question: dict[str, Any], report: Report) -> dict[str, Any]:
    """Answer a worker question: load the model of a run or its base model, and generate if the question has a text.

    If the GPU runs out of memory, the models move to the CPU. A text that is already shown in part is not repeated."""
    global _uses_cpu
    piece_count = 0

    def show_piece(piece: str) -> None:
        nonlocal piece_count
        piece_count += 1
        report(piece=piece)

    if (gpu := question.get("card")) and not _uses_cpu:
        try:
            return _answer(question, _limited_gpu(**gpu), show_piece) | {"moved": False}
        except torch.OutOfMemoryError:
            _uses_cpu = True
        for writer in _writers.values():
            writer.move_to_cpu()
        torch.cuda.empty_cache()
        if piece_count:
            raise RunError("the GPU has no memory for a longer text; the next text is generated on the CPU")
    return _answer(question, None, show_piece) | {"moved": _uses_cpu}


def _limited_gpu(uuid: str, bytes: int) -> torch.device:
    """Return the GPU with this UUID, after limiting the memory that torch may use on it to `bytes`."""
    index = card_index(uuid)
    total_bytes = torch.cuda.get_device_properties(index).total_memory
    torch.cuda.set_per_process_memory_fraction(min(bytes / total_bytes, 1.0), index)
    return torch.device("cuda", index)


def _answer(question: dict[str, Any], device: torch.device | None, show: Callable[[str], None]) -> dict[str, Any]:
    key = question["run"], question["base"]
    if key not in _writers:
        run, base = RunFolder(Path(question["run"])), None
        if question["base"]:
            base, reason = TrainedModel.of(run, unfinished=True).base_model()
            if base is None:
                raise FolderError(reason or "the model was trained from scratch, so it has no base model")
        _writers[key] = Writer(run, device=device, base=base)
    writer = _writers[key]
    facts = {"source": writer.source.name, "continues": writer.continues}
    if "sampling" not in question:
        return facts
    sampling = Sampling(**question["sampling"])
    if "messages" in question:
        return facts | {"left_out": writer.reply(question["messages"], sampling, show)}
    if writer.continues:
        return facts | {"left_out": writer.continue_text(question["text"], sampling, show)}
    return facts | {"text": writer.answer(question["text"], sampling)}
