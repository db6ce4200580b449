"""A causal language model on documents, from pretrained or random weights of any architecture.

Each document becomes one row with the tokenizer's special tokens and an end token. The plan decides whether documents
share rows of a batch (`planning/batch_cut.py`).
"""

from functools import partial
from typing import Any

from tui_trainer.config.sections import Config
from tui_trainer.data.columns.reader import Reader
from tui_trainer.data.preparing.byte_bpe import EOS_ID
from tui_trainer.data.preparing.cache import RowKind
from tui_trainer.data.preparing.tokenizing import TextReader
from tui_trainer.models.token_ids import TextEncoder
from tui_trainer.tasks.parts.free_answers import ANSWER_ROWS
from tui_trainer.tasks.parts.next_token import LearnsNextToken
from tui_trainer.tasks.parts.starts_from_model import load_own_tokenizer, tokenizer_identity


class CausalLm(LearnsNextToken):
    """Task of causal language modeling. `tasks/parts/task.py` documents the methods."""

    name = "causal_lm"
    title = "Causal language model"
    pipeline_tag = "text-generation"
    architectures = ("ForCausalLM", "LMHeadModel")
    usual_length = (1024, 2048)
    supports_unsloth = True
    usual_answer_rows = ANSWER_ROWS
    used_settings: tuple[str, ...] = ()
    can_pack = True
    row_kind: RowKind = "documents"

    def reader(self, config: Config) -> Reader:
        if config.is_from_scratch:
            return TextReader(None, **self.encoding_settings(config))
        encoder = TextEncoder(partial(load_own_tokenizer, config, self.head))
        strip, settings = encoder.strip_spelled_marks, self.encoding_settings(config)
        return TextReader(encoder, **settings, strip_spelled_marks=strip, load=encoder.load)

    def encoding_settings(self, config: Config) -> dict[str, Any]:
        _, eos_id, vocabulary = tokenizer_identity(config, self.head)
        return {"eos_id": EOS_ID if config.is_from_scratch else eos_id, "vocabulary": vocabulary}

    def frame_tokens(self, config: Config) -> int:
        return 0 if self.encoding_settings(config)["eos_id"] is None else 1


TASK = CausalLm()
