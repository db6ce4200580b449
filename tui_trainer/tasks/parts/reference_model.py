"""`task.reference` names a reference model other than the model that a run starts from.

The reference is loaded like the model to train, before it and alone, so that both are never in memory together.
"""

from collections.abc import Callable
from dataclasses import replace

from tui_trainer.config.changes import with_changes
from tui_trainer.config.sections import MODEL_KEY, Config
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.adapters import CONTINUES_KEY, starting_adapter
from tui_trainer.models.facts import ModelFacts
from tui_trainer.models.heads import CAUSAL
from tui_trainer.models.tokenizer import tokenizer_facts
from tui_trainer.tasks.parts.starts_from_model import stored_model_facts
from tui_trainer.units import format_count

REFERENCE_KEY = "task.reference"
# Embeddings of the same vocabulary may have more or fewer rows that no token uses.
_MOST_SHARE = 1.05


def with_reference_as_model(config: Config) -> Config:
    """Return a config with which the reference model is loaded, its adapter merged. Raise ConfigError as `find_model`
    does."""
    changes = {
        MODEL_KEY: config.task.reference, "model.revision": "main", "model.init": "pretrained", REFERENCE_KEY: "",
        CONTINUES_KEY: "auto", "tuning.init_lora_weights": "default",
    }  # fmt: skip
    reference = with_changes(config, changes)
    return with_changes(reference, {CONTINUES_KEY: "merge"}) if starting_adapter(reference, CAUSAL) else reference


def reference_problems(config: Config, problems_of: Callable[[Config], list[Problem]]) -> list[Problem]:
    """Return what prevents the use of `task.reference`. `problems_of` returns the problems of a model to train."""
    try:
        reference = with_reference_as_model(config)
        problems = problems_of(reference) or _differences(config, reference)
    except ConfigError as error:
        problems = list(error.problems)
    return [replace(problem, key=REFERENCE_KEY) for problem in problems]


def _differences(config: Config, reference: Config) -> list[Problem]:
    def problem(message: str, hint: str) -> list[Problem]:
        return [Problem(message=message, hint=hint)]

    same_hint = "choose a reference with the tokenizer of the model, or leave it empty to use the model itself"
    if config.is_from_scratch:
        return problem("a model from scratch has a tokenizer of its own, which no other model shares", same_hint)
    facts, other = stored_model_facts(config, CAUSAL), stored_model_facts(reference, CAUSAL)
    if other.adapter and config.tuning.in_four_bits:
        message = "the reference is an adapter, which cannot be merged into a model in 4 bits"
        return problem(message, "merge it first: `tui-trainer export RUN --to merged`")
    own_count, other_count = facts.shape.loaded_parameters, other.shape.loaded_parameters
    if other_count > _MOST_SHARE * own_count:
        message = f"the reference has {format_count(other_count)} parameters, the model only {format_count(own_count)}"
        return problem(f"{message}, for which the memory is planned", "choose a reference of the model's size")
    if facts.folder is None or other.folder is None:
        return []  # only known from the catalogue: it is checked again after the download
    if not _have_same_tokens(facts, other):
        return problem("the tokenizer of the reference has other tokens than that of the model", same_hint)
    return []


def _have_same_tokens(facts: ModelFacts, other: ModelFacts) -> bool:
    """Return whether both tokenizers give each token the same id, or have the same files."""
    if facts.tokenizer_key == other.tokenizer_key:
        return True
    tokenizers = [tokenizer_facts(folder) for folder in (facts.tokenizer_folder, other.tokenizer_folder) if folder]
    hashes = [tokenizer.tokens_hash for tokenizer in tokenizers if tokenizer]
    return len(hashes) == 2 and hashes[0] == hashes[1]
