"""Trying a trained model: it continues a prompt, which appears as it is written, or answers as its task says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase, TextStreamer

from tui_trainer.config.sections import Config
from tui_trainer.errors import FolderError
from tui_trainer.exporting.trained_model import base_of, head_of, load_model
from tui_trainer.exporting.weights import weights_of
from tui_trainer.models.writing import Sampling
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.runs.folder import RunFolder
from tui_trainer.safe_text import visible
from tui_trainer.tasks import find_task

__all__ = ["Sampling", "Writer"]


class Writer:
    """A trained model that continues texts, or answers."""

    def __init__(self, run: RunFolder) -> None:
        """Load the final model, or the newest checkpoint of a run that has none yet. Raises FolderError."""
        self.source = weights_of(run)
        self._run = run
        self._task: Any = find_task(_task_type(run))
        self._tokenizer = AutoTokenizer.from_pretrained(self.source)
        head = head_of(self._task.name)
        self._base = base_of(self.source, head)
        self._model = load_model(self.source, head, self._base)
        self.unknown_tokens = 0
        """How many tokens of the last prompt the model does not know."""

    @property
    def continues(self) -> bool:
        """Whether the model goes on with a text; else it answers."""
        return bool(self._task.continues)

    def answer(self, text: str, sampling: Sampling) -> str:
        """What the model makes of a text, made safe for a terminal. Raises FolderError for a damaged plan.json."""
        text = text.encode("utf-8", "replace").decode("utf-8")
        config = _config(self._run)
        if self._base:
            # An adapter is loaded with the settings of its base model.
            self._task.set_generation(config, self._model, self._tokenizer)
        torch.manual_seed(sampling.seed)
        return visible(self._task.answer(config, self._model, self._tokenizer, text, sampling))

    def continue_text(self, prompt: str, sampling: Sampling, show: Callable[[str], None]) -> int:
        """Write on from `prompt`, telling `show` each new piece. Returns how many prompt tokens did not fit.

        A model reads at most as many tokens as it was trained on. Of a longer prompt the end counts, and when the text
        has filled the window, writing goes on from its last half.
        """
        # An argument that was no UTF-8 has lone surrogates, which the tokenizer refuses.
        text = prompt.encode("utf-8", "replace").decode("utf-8")
        ids = self._tokenizer(text)["input_ids"] or [self._tokenizer.eos_token_id]
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
        choice: dict[str, Any] = {"do_sample": False}
        if sampling.temperature:
            choice = {"do_sample": True, "temperature": sampling.temperature}
        ids_BT = torch.tensor([context])
        output_BT = self._model.generate(
            ids_BT,
            attention_mask=torch.ones_like(ids_BT),
            max_new_tokens=new_tokens,
            pad_token_id=self._tokenizer.pad_token_id,
            streamer=_Pieces(self._tokenizer, show),
            **choice,
        )
        return list(output_BT[0, len(context) :].tolist())


def _task_type(run: RunFolder) -> str:
    """As plan.json says, whatever version wrote it."""
    try:
        found = json.loads(run.plan.read_bytes())["config"]["task"]["type"]
    except (OSError, ValueError, KeyError, TypeError):
        return "causal_lm"
    return str(found)


def _config(run: RunFolder) -> Config:
    try:
        return read_plan_file(run.plan.read_bytes()).config
    except (OSError, ValueError) as error:
        raise FolderError(f"the plan of this run cannot be read: {error}", where=run.name) from None


class _Pieces(TextStreamer):
    """Passes on what is new, made safe for a terminal."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, show: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._show = show

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self._show(visible(text))
