"""What a run starts from: a pretrained model or random weights, with its tokenizer, for any head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import Config
from tui_trainer.data.preparing.byte_bpe import FOR_TEXT, TRAINED_HERE, Specials
from tui_trainer.errors import Problem
from tui_trainer.models import unsloth
from tui_trainer.models.config_fields import bad_model
from tui_trainer.models.facts import ModelFacts, find_model, require_folder
from tui_trainer.models.files.fingerprint import fingerprint
from tui_trainer.models.four_bits import FourBits
from tui_trainer.models.heads import CAUSAL, ENCODER_DECODER, Head, Labels
from tui_trainer.models.loading import (
    load_config,
    load_pretrained,
    load_tokenizer,
    new_model,
    settle_generation,
    tokenizer_of_file,
)
from tui_trainer.models.problems import language_problems, length_problems, model_problems
from tui_trainer.models.scratch import scratch_config, scratch_problems
from tui_trainer.models.shape import ModelShape, shape_of
from tui_trainer.models.tokenizing.tokenizer import tokenizer_facts, tokens_per_character
from tui_trainer.models.writing import pad_token_id
from tui_trainer.tasks.contract import InputReader, Tell
from tui_trainer.tasks.parts.inputs import TextInputs

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
    from transformers import PreTrainedTokenizerBase as Tokenizer

    from tui_trainer.data.preparing.cache import PreparedData

# Of byte-level BPE on English text, where no tokenizer is at hand to count with.
_USUAL_TOKENS_PER_CHARACTER = 0.25
_MODEL = "model.model_name_or_path"


class StartsFromModel:
    """The part of a task that finds, plans and builds its model. `head` is what the model ends with."""

    head: Head = CAUSAL
    specials: Specials = FOR_TEXT
    """Of the tokenizer that is trained on the data, where none comes with the model."""

    def labels(self, config: Config, data: PreparedData) -> Labels | None:
        return None

    def model_problems(self, config: Config) -> list[Problem]:
        model, scratch = config.model, config.is_from_scratch
        if scratch and config.tuning.method != "full":
            hint = 'set it to "full", or model.init to "pretrained"'
            message = "random weights cannot be frozen: all of them must be trainable"
            return [Problem(message=message, key="tuning.method", hint=hint)]
        if not model.model_name_or_path:
            hint = 'give a folder or a name (--model), or set model.init = "scratch"'
            missing = Problem(message="no model is named", key=_MODEL, hint=hint)
            return scratch_problems(model.scratch, self.head) if scratch else [missing]
        facts = model_of(config, self.head)
        found = length_problems(facts.shape, config.data.max_length)
        found += [] if scratch else language_problems(facts, writes_answers=self.head == ENCODER_DECODER)
        # A model that only the catalogue knows can be planned; it is refused when it should be trained.
        return found if facts.folder is None else found + model_problems(facts, model.init, model.trust_remote_code)

    def model_shape(self, config: Config, vocabulary: int, classes: int = 0) -> ModelShape:
        """The model in numbers, without loading it. `vocabulary` counts where it is made from the data."""
        if not config.is_from_scratch:
            return model_of(config, self.head, classes).shape
        return shape_of(self.model_config(config, vocabulary, classes), head=self.head, labels=classes)

    def model_config(self, config: Config, vocabulary: int, classes: int = 0) -> Mapping[str, Any]:
        """What the model's config.json says, for families whose memory only a dry run can tell."""
        if not config.model.model_name_or_path:
            length = config.data.max_length
            return scratch_config(config.model.scratch, vocabulary, self.head, max_length=length, labels=classes or 2)
        changes = {"vocab_size": vocabulary} if config.is_from_scratch else {}
        return {**model_of(config, self.head, classes).config, **changes}

    def model_key(self, config: Config) -> str:
        """Names the model that a run starts from, so that it does not go on with another; empty: none is named."""
        if not config.model.model_name_or_path:
            return ""
        return fingerprint(model_of(config, self.head), with_weights=not config.is_from_scratch)

    def load_tokenizer(self, config: Config, data: PreparedData) -> Tokenizer:
        """The tokenizer that the final model is saved with."""
        if not config.is_from_scratch:
            return own_tokenizer(config, self.head)
        return made_tokenizer(data.tokenizer_path, config, self.specials)

    def build_model(
        self,
        config: Config,
        data: PreparedData,
        tokenizer: Tokenizer,
        dtype: torch.dtype,
        device: torch.device,
        tell: Tell,
    ) -> PreTrainedModel:
        """The model before the first step; stored weights are loaded to `device` tensor by tensor, and random ones come
        from torch's global generator, on the CPU: a seed gives the same ones on every device.

        `tell` gets a sentence about what the files do not bring, such as a new head. Raises ConfigError.
        """
        model, labels = config.model, self.labels(config, data)
        folder = require_folder(model_of(config, self.head)) if model.model_name_or_path else None
        if folder and unsloth.is_asked(config):
            made: PreTrainedModel = unsloth.load_model(folder, config, dtype, device)
        elif folder and not config.is_from_scratch:
            made = load_pretrained(
                folder,
                model,
                dtype,
                device=device,
                head=self.head,
                labels=labels,
                pad_token_id=pad_token_id(tokenizer),
                tell=tell,
                four_bits=FourBits.of(config, model_of(config, self.head).shape),
            )
        else:
            size = data.counts.vocabulary
            shape = load_config(folder, config, vocabulary=size, tokenizer=tokenizer, head=self.head, labels=labels)
            made = new_model(shape, model, dtype, head=self.head)
        self.set_generation(config, made, tokenizer)
        settle_generation(made)
        return made

    def set_generation(self, config: Config, model: Any, tokenizer: Tokenizer) -> None:
        """How a model begins and ends what it writes. An adapter is loaded with the settings of its base model."""

    def input_reader(self, config: Config, tokenizer: Tokenizer) -> InputReader:
        """A new one. `config` is that of a run."""
        return TextInputs(config.data)


def model_of(config: Config, head: Head, classes: int = 0) -> ModelFacts:
    return find_model(config.model.model_name_or_path, config.model.revision, head=head, labels=classes)


def own_tokenizer(config: Config, head: Head) -> Tokenizer:
    """The tokenizer that comes with the model. Raises ConfigError for one that marks texts with a language that it has
    no token for: transformers would mark them as unknown words."""
    folder = require_folder(model_of(config, head))
    tokenizer = load_tokenizer(folder, config.model.trust_remote_code)
    if hasattr(tokenizer, "set_src_lang_special_tokens"):
        marks = list(tokenizer("")["input_ids"])
        marks += tokenizer(text_target="")["input_ids"] if head == ENCODER_DECODER else []
        if tokenizer.unk_token_id in marks:
            message = "the tokenizer has no token for src_lang or tgt_lang in tokenizer_config.json"
            raise bad_model(message, "write them as its special tokens name them", str(folder))
    return tokenizer


def made_tokenizer(path: Path, config: Config, special: Specials) -> Tokenizer:
    """The tokenizer that was trained on the data."""
    return tokenizer_of_file(path, config.data.max_length, dict(special.named), tells_pairs=special.tells_pairs)


def tokens_a_character(config: Config, head: Head, texts: Sequence[str]) -> float:
    """As the model's own tokenizer cuts these texts, where it is at hand."""
    folder = None if config.is_from_scratch else model_of(config, head).folder
    measured = tokens_per_character(folder, texts) if folder else None
    return measured or _USUAL_TOKENS_PER_CHARACTER


def tokenizer_of(config: Config, head: Head) -> tuple[str, int | None, int]:
    """(key, end token, number of tokens) of the tokenizer that a run uses, from its files."""
    if config.is_from_scratch:
        return TRAINED_HERE, None, config.model.scratch.vocab_size
    model = model_of(config, head)
    found = tokenizer_facts(model.folder) if model.folder else None
    eos_id = found.eos_token_id if found else None
    if eos_id is None:
        eos_id = next(iter(model.eos_token_ids), None)
    # Code that comes with the model may make another tokenizer of the same files.
    code = " with its code" if model.has_remote_code and config.model.trust_remote_code else ""
    return f"{model.tokenizer_key or ''}{code}", eos_id, found.vocabulary if found else model.shape.vocabulary
