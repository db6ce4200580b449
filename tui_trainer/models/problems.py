"""What stands against training from a model: found in its small files, before a minute is spent on loading it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from tui_trainer.config.sections import MODEL_KEY
from tui_trainer.errors import Problem
from tui_trainer.models.config_json import read_json
from tui_trainer.models.facts import ModelFacts
from tui_trainer.models.files.hub_cache import remedies
from tui_trainer.models.files.soundness import embedding_rows, foreign_calls, misfits
from tui_trainer.models.files.weights import SINGLE_FILE
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.tokenizer import tokenizer_facts, unreadable_tokenizer
from tui_trainer.terminal.safe_text import one_line

Init = Literal["pretrained", "scratch"]
# Those that mark each text with its language, and take English where their files name none. A folder that does not name
# the class of its tokenizer gets that of its architecture. Source: the tokenization files of transformers 5.23.
_LANGUAGE_TOKENIZERS = frozenset(
    {"NllbTokenizer", "MBartTokenizer", "MBart50Tokenizer", "M2M100Tokenizer", "PLBartTokenizer"}
)
_LANGUAGE_MODELS = frozenset({"mbart", "m2m_100", "nllb-moe", "plbart"})
_SCRATCH = 'set model.init = "scratch" to start from random weights'


def model_problems(facts: ModelFacts, init: Init, trust_remote_code: bool) -> list[Problem]:
    """Everything that keeps a run from starting, all at once. With `init = "scratch"` weights and tokenizer of the
    folder do not matter."""
    if facts.folder is None:
        what = f"a run with {facts.name} can be planned but not started: the model is not on this machine"
        return [Problem(message=what, key=MODEL_KEY, hint=remedies(facts.name))]
    found: list[Problem] = []
    if facts.has_remote_code and not trust_remote_code:
        hint = "read its .py files, then set model.trust_remote_code = true; the code runs with all your permissions"
        found.append(_about(facts, "the model needs to run its own Python code (auto_map)", hint))
    if init == "pretrained":
        found += facts.damage
        found += [] if facts.damage else _weight_problems(facts, facts.folder)
        found += _tokenizer_problems(facts, facts.tokenizer_folder or facts.folder)
    return found


def language_problems(facts: ModelFacts, *, writes_answers: bool) -> list[Problem]:
    """A tokenizer that marks texts with their languages, in a folder that does not name these."""
    if facts.tokenizer_folder is None:
        return []
    settings = read_json(facts.tokenizer_folder / "tokenizer_config.json") or {}
    kind = settings.get("tokenizer_class") or facts.config.get("tokenizer_class")
    marks = str(kind).removesuffix("Fast") in _LANGUAGE_TOKENIZERS
    marks |= kind is None and facts.config.get("model_type") in _LANGUAGE_MODELS
    missing = [name for name in ("src_lang", "tgt_lang")[: 1 + writes_answers] if not settings.get(name)]
    if not marks or not missing:
        return []
    names = " and ".join(missing)
    what = f"the tokenizer marks each text with its language, but tokenizer_config.json does not set {names}"
    example = ", ".join(f'"{name}": "{code}"' for name, code in (("src_lang", "eng_Latn"), ("tgt_lang", "fra_Latn")))
    hint = (
        f"use a folder whose tokenizer_config.json sets {names} to language codes of the tokenizer, such as {example}"
    )
    return [_about(facts, what, hint)]


def unsafe_conversion_command(folder: Path, files: Iterable[str]) -> str:
    """A command that writes the tensors of .bin files as model.safetensors beside them. It runs code in them."""
    paths = [str(folder / name) for name in files]
    code = "import torch; from safetensors.torch import save_file; "
    code += f"t = {{k: v.contiguous().clone() for f in {paths!r} for k, v in "
    code += "torch.load(f, 'cpu', weights_only=False).items() if torch.is_tensor(v)}; "
    code += f"save_file(t, {str(folder / SINGLE_FILE)!r}, {{'format': 'pt'}})"
    return f'python -c "{code}"'


def length_problems(shape: ModelShape, max_length: int) -> list[Problem]:
    """Rows that are longer than a model with learned positions has positions for."""
    limit = shape.max_position_embeddings
    if limit is None or not shape.learned_positions or max_length <= limit:
        return []
    what = f"{max_length} is above {limit}, the number of positions that this {shape.model_type} model has learned"
    hint = f"set data.max_length = {limit} or less; only rotary positions can be extended (model.rope_scaling)"
    return [Problem(message=what, key="data.max_length", hint=hint, suggested=limit)]


def length_warning(shape: ModelShape, max_length: int) -> str:
    """A sentence about rows beyond the context that a model was trained with; empty when they fit."""
    limit = shape.max_position_embeddings
    if limit is None or shape.learned_positions or max_length <= limit:
        return ""
    return (
        f"data.max_length = {max_length} exceeds the {limit} tokens that the model was made for; "
        f"set model.rope_scaling with a factor of {-(-max_length // limit)} to extend its context"
    )


def _weight_problems(facts: ModelFacts, folder: Path) -> Iterator[Problem]:
    if facts.weights == "not here":
        yield _about(facts, "the weights of the model are not on this machine", remedies(facts.name))
    elif facts.weights == "none":
        others = sorted(path.name for path in folder.glob("*.safetensors"))[:3]
        seen = f" (only {one_line(', '.join(others))})" if others else ""
        hint = f"copy model.safetensors, or the shards with their index, into the folder, or {_SCRATCH}"
        yield _about(facts, f"the folder has a config.json but no weights{seen}", hint)
    elif facts.weights == "bin":
        yield from _pickle_problems(facts, folder)
    elif "quantization_config" in facts.config:
        told = facts.config["quantization_config"]
        method = one_line(str(told.get("quant_method", "")), 40) if isinstance(told, dict) else ""
        what = f"the weights are stored quantised ({method or 'of unknown kind'}), which cannot be trained"
        yield _about(facts, what, "use the 16-bit version of the model")
    elif not facts.headers:
        yield _about(facts, "the weight files contain no tensors", "copy or download the model again")
    else:
        for what in misfits(facts.stored_shape, facts.headers):
            yield _about(facts, what, "use config.json and weights of the same model")


def _pickle_problems(facts: ModelFacts, folder: Path) -> Iterator[Problem]:
    for name in facts.weight_files:
        if not (folder / name).is_file():
            yield _about(facts, f"the weight file {one_line(name, 80)} is missing", "copy the model again")
            continue
        try:
            calls = foreign_calls(folder / name)
        except ValueError as error:
            yield _about(facts, f"{name} is damaged: {error}", "copy the model again")
            continue
        if calls:
            what = f"{name} contains more than tensors ({one_line(', '.join(calls[:3]), 120)}) and is not loaded"
            command = unsafe_conversion_command(folder, facts.weight_files)
            hint = "use the version of the model with .safetensors files; or, if you trust the author of this file, "
            hint += "convert it, which runs the code in the file with all your permissions"
            yield _about(facts, what, f"{hint}: {command}")


def _tokenizer_problems(facts: ModelFacts, folder: Path) -> Iterator[Problem]:
    if found := unreadable_tokenizer(folder):
        yield _about(facts, *found)
        return
    if not facts.tokenizer_files:
        if facts.weights != "not here":
            hint = "copy tokenizer.json and tokenizer_config.json of the same model into the folder"
            yield _about(facts, "the folder has no tokenizer", hint)
        return
    told = tokenizer_facts(folder)
    own = facts.adapter.config.get("vocab_size") if facts.adapter else None
    rows = own if isinstance(own, int) else embedding_rows(facts.stored_shape, facts.headers)
    if told and rows and told.rows > rows:
        what = (
            f"the tokenizer has {told.rows} tokens, but the embedding has {rows} rows: the last tokens have no vector"
        )
        yield _about(facts, what, "use the tokenizer of the same model, or save the model with a resized embedding")


def _about(facts: ModelFacts, message: str, hint: str) -> Problem:
    where = one_line(str(facts.folder)) if facts.folder else ""
    return Problem(message=message, where=where, key=MODEL_KEY, hint=hint)
