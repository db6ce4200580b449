"""Find in a model's small files what prevents training from it, before time is spent on loading."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from tui_trainer.config.sections import MODEL_KEY
from tui_trainer.errors import Problem
from tui_trainer.models.config_json import read_json
from tui_trainer.models.facts import ModelFacts
from tui_trainer.models.files.hub_cache import missing_model_hint
from tui_trainer.models.files.soundness import embedding_rows, foreign_calls, misfits
from tui_trainer.models.files.weights import SINGLE_FILE
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.tokenizer import tokenizer_facts, unreadable_tokenizer
from tui_trainer.terminal.safe_text import one_line

Init = Literal["pretrained", "scratch"]
# Tokenizers that mark each text with its language, and assume English if their files name none. transformers chooses
# the class by the architecture if a folder does not name it. Source: the tokenization files of transformers 5.23.
_LANGUAGE_TOKENIZERS = frozenset(
    {"NllbTokenizer", "MBartTokenizer", "MBart50Tokenizer", "M2M100Tokenizer", "PLBartTokenizer"}
)
_LANGUAGE_MODELS = frozenset({"mbart", "m2m_100", "nllb-moe", "plbart"})
_SCRATCH = 'set model.init = "scratch" to start from random weights'


def model_problems(facts: ModelFacts, init: Init, trust_remote_code: bool) -> list[Problem]:
    """Return all problems that prevent a start. With `init = "scratch"`, weights and tokenizer are not used."""
    if facts.folder is None:
        message = f"a run with {facts.name} can be planned but not started, because the model is not on this machine"
        return [Problem(message=message, key=MODEL_KEY, hint=missing_model_hint(facts.name))]
    problems: list[Problem] = []
    if facts.has_remote_code and not trust_remote_code:
        hint = "read its .py files, then set model.trust_remote_code = true; the code runs with all your permissions"
        problems.append(_about(facts, "the model needs to run its own Python code (auto_map)", hint))
    if init == "pretrained":
        problems += facts.damage
        problems += [] if facts.damage else _weight_problems(facts, facts.folder)
        problems += _tokenizer_problems(facts, facts.tokenizer_folder or facts.folder)
    return problems


def language_problems(facts: ModelFacts, *, writes_answers: bool) -> list[Problem]:
    """Return a problem if a tokenizer marks texts with their languages and its folder does not name the languages."""
    if facts.tokenizer_folder is None:
        return []
    settings = read_json(facts.tokenizer_folder / "tokenizer_config.json") or {}
    tokenizer_class = settings.get("tokenizer_class") or facts.config.get("tokenizer_class")
    marks_languages = str(tokenizer_class).removesuffix("Fast") in _LANGUAGE_TOKENIZERS
    marks_languages |= tokenizer_class is None and facts.config.get("model_type") in _LANGUAGE_MODELS
    missing_settings = [name for name in ("src_lang", "tgt_lang")[: 1 + writes_answers] if not settings.get(name)]
    if not marks_languages or not missing_settings:
        return []
    names = " and ".join(missing_settings)
    message = f"the tokenizer marks each text with its language, but tokenizer_config.json does not set {names}"
    example = ", ".join(f'"{name}": "{code}"' for name, code in (("src_lang", "eng_Latn"), ("tgt_lang", "fra_Latn")))
    hint = f"use a folder whose tokenizer_config.json sets {names} to language codes of the tokenizer, "
    hint += f"such as {example}"
    return [_about(facts, message, hint)]


def unsafe_conversion_command(folder: Path, files: Iterable[str]) -> str:
    """Return a shell command that converts .bin files to model.safetensors. It runs the code in them."""
    paths = [str(folder / name) for name in files]
    code = "import torch; from safetensors.torch import save_file; "
    code += f"t = {{k: v.contiguous().clone() for f in {paths!r} for k, v in "
    code += "torch.load(f, 'cpu', weights_only=False).items() if torch.is_tensor(v)}; "
    code += f"save_file(t, {str(folder / SINGLE_FILE)!r}, {{'format': 'pt'}})"
    return f'python -c "{code}"'


def length_problems(shape: ModelShape, max_length: int) -> list[Problem]:
    """Return a problem if rows are longer than the number of learned positions of the model."""
    limit = shape.max_position_embeddings
    if limit is None or not shape.learned_positions or max_length <= limit:
        return []
    message = f"{max_length} is above {limit}, the number of positions that this {shape.model_type} model has learned"
    hint = f"set data.max_length = {limit} or less; only rotary positions can be extended (model.rope_scaling)"
    key = "data.max_length"
    return [Problem(message=message, key=key, hint=hint, suggested=((key, limit),))]


def length_warning(shape: ModelShape, max_length: int) -> str:
    """Return a sentence about rows beyond the context that the model was trained with, else ""."""
    max_positions = shape.max_position_embeddings
    if max_positions is None or shape.learned_positions or max_length <= max_positions:
        return ""
    return (
        f"data.max_length = {max_length} exceeds the {max_positions} tokens that the model was made for; "
        f"set model.rope_scaling with a factor of {-(-max_length // max_positions)} to extend its context"
    )


def _weight_problems(facts: ModelFacts, folder: Path) -> Iterator[Problem]:
    if facts.weights == "not here":
        yield _about(facts, "the weights of the model are not on this machine", missing_model_hint(facts.name))
    elif facts.weights == "none":
        other_names = sorted(path.name for path in folder.glob("*.safetensors"))[:3]
        other_text = f" (only {one_line(', '.join(other_names))})" if other_names else ""
        hint = f"copy model.safetensors, or the shards with their index, into the folder, or {_SCRATCH}"
        yield _about(facts, f"the folder has a config.json but no weights{other_text}", hint)
    elif facts.weights == "bin":
        yield from _pickle_problems(facts, folder)
    elif "quantization_config" in facts.config:
        settings = facts.config["quantization_config"]
        method = one_line(str(settings.get("quant_method", "")), 40) if isinstance(settings, dict) else ""
        message = f"the weights are stored quantised ({method or 'of unknown kind'}), so they cannot be trained"
        yield _about(facts, message, "use the 16-bit version of the model")
    elif not facts.headers:
        yield _about(facts, "the weight files contain no tensors", "copy or download the model again")
    else:
        for message in misfits(facts.stored_shape, facts.headers):
            yield _about(facts, message, "use config.json and weights of the same model")


def _pickle_problems(facts: ModelFacts, folder: Path) -> Iterator[Problem]:
    for name in facts.weight_files:
        if not (folder / name).is_file():
            yield _about(facts, f"the weight file {one_line(name, 80)} is missing", "copy the model again")
            continue
        try:
            names = foreign_calls(folder / name)
        except ValueError as error:
            yield _about(facts, f"{name} is damaged: {error}", "copy the model again")
            continue
        if names:
            message = f"{name} contains objects other than tensors ({one_line(', '.join(names[:3]), 120)})"
            command = unsafe_conversion_command(folder, facts.weight_files)
            hint = "use the version of the model with .safetensors files; or, if you trust the author of this file, "
            hint += "convert it, which runs the code in the file with all your permissions"
            yield _about(facts, message, f"{hint}: {command}")


def _tokenizer_problems(facts: ModelFacts, folder: Path) -> Iterator[Problem]:
    if message_and_hint := unreadable_tokenizer(folder):
        yield _about(facts, *message_and_hint)
        return
    if not facts.tokenizer_files:
        if facts.weights != "not here":
            hint = "copy tokenizer.json and tokenizer_config.json of the same model into the folder"
            yield _about(facts, "the folder has no tokenizer", hint)
        return
    tokenizer = tokenizer_facts(folder)
    adapter_rows = facts.adapter.config.get("vocab_size") if facts.adapter else None
    rows = adapter_rows if isinstance(adapter_rows, int) else embedding_rows(facts.stored_shape, facts.headers)
    if tokenizer and rows and tokenizer.embedding_rows > rows:
        message = f"the tokenizer has {tokenizer.embedding_rows} tokens, but the embedding has only {rows} rows"
        yield _about(facts, message, "use the tokenizer of the same model, or save the model with a resized embedding")


def _about(facts: ModelFacts, message: str, hint: str) -> Problem:
    where = one_line(str(facts.folder)) if facts.folder else ""
    return Problem(message=message, where=where, key=MODEL_KEY, hint=hint)
