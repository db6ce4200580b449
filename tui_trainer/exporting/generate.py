"""Trying a trained model: it continues a prompt, and the text appears as it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase, TextStreamer
from transformers.utils import logging as transformers_logging

from tui_trainer.exporting.weights import weights_of
from tui_trainer.runs.folder import RunFolder
from tui_trainer.safe_text import visible


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How the next token is chosen. `temperature` 0 takes the likeliest."""

    max_new_tokens: int
    temperature: float
    seed: int


class Writer:
    """A trained model that continues texts."""

    def __init__(self, run: RunFolder) -> None:
        """Load the final model, or the newest checkpoint of a run that has none yet. Raises FolderError."""
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        self.source = weights_of(run)
        self._tokenizer = AutoTokenizer.from_pretrained(self.source)
        self._model: Any = AutoModelForCausalLM.from_pretrained(self.source)
        self._model.eval()

    def continue_text(self, prompt: str, sampling: Sampling, show: Callable[[str], None]) -> int:
        """Write on from `prompt`, telling `show` each new piece. Returns how many prompt tokens did not fit.

        A model reads at most as many tokens as it was trained on; of a longer prompt, the end counts.
        """
        ids = self._tokenizer(prompt)["input_ids"] or [self._tokenizer.eos_token_id]
        room = max(1, self._tokenizer.model_max_length - sampling.max_new_tokens)
        ids_BT = torch.tensor([ids[-room:]])
        torch.manual_seed(sampling.seed)
        choice = (
            {"do_sample": True, "temperature": sampling.temperature} if sampling.temperature else {"do_sample": False}
        )
        self._model.generate(
            ids_BT,
            attention_mask=torch.ones_like(ids_BT),
            max_new_tokens=sampling.max_new_tokens,
            pad_token_id=self._tokenizer.pad_token_id,
            streamer=_Pieces(self._tokenizer, show),
            **choice,
        )
        return max(0, len(ids) - room)


class _Pieces(TextStreamer):
    """Passes on what is new, made safe for a terminal."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, show: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._show = show

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self._show(visible(text))
