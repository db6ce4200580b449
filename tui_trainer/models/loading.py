"""Models and tokenizers into memory, by transformers. torch and transformers are loaded inside the functions.

What cannot be loaded becomes one sentence: the file, what is wrong, what to do.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import Config, ModelSection, is_known_attention
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.config_json import bad_model, read_json
from tui_trainer.models.four_bits import FourBits, bitsandbytes_config, refuse_poisoned_files
from tui_trainer.models.heads import CAUSAL, CLASSIFYING, ENCODER_DECODER, Head, Labels, auto_class, own_labels
from tui_trainer.models.modules import soft_cap_of
from tui_trainer.models.rope import changed_positions
from tui_trainer.models.shape import scratch_config
from tui_trainer.models.text_only import load_text_model
from tui_trainer.models.towers import has_towers
from tui_trainer.terminal.safe_text import one_line

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


# What transformers keeps of the arguments that a tokenizer was loaded with.
_ABOUT_LOADING = ("local_files_only", "is_local", "trust_remote_code", "token")


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The model's own tokenizer. Raises ConfigError."""
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # transformers and tokenizers raise whatever their parts raise
        raise bad_model(_sentence("the tokenizer cannot be loaded", error), "copy it again", str(folder)) from None
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer without what says how it was loaded here. Raises OSError."""
    for name in _ABOUT_LOADING:
        tokenizer.init_kwargs.pop(name, None)
    try:
        tokenizer.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # the tokenizers library raises nothing narrower when a disk is full
        raise OSError(f"the tokenizer cannot be written: {error}") from error


def cut_as_trained(tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    """Give a tokenizer the length and the side at which training cuts what a model reads, so that `truncation=True`
    cuts there wherever it is loaded."""
    tokenizer.model_max_length = max_length
    tokenizer.truncation_side = tokenizer.init_kwargs["truncation_side"] = "right"
    # What the model is given beside the tokens, where the class of the tokenizer is not at hand to tell.
    tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names


def tokenizer_of_file(
    path: Path, max_length: int, special: Mapping[str, str], *, tells_pairs: bool = False
) -> PreTrainedTokenizerBase:
    """A tokenizer that was made from the data, as transformers saves and loads it. `special` by transformers' names.

    `tells_pairs`: it also gives the numbers that tell the second text of a pair from the first, which BERT reads.
    """
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_file=str(path),
        **special,
        model_input_names=["input_ids", *["token_type_ids"] * tells_pairs, "attention_mask"],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # text that spells <eos> is text, as in the training data
    )


def load_pretrained(
    folder: Path,
    model: ModelSection,
    dtype: torch.dtype,
    *,
    device: torch.device | None = None,
    head: Head = CAUSAL,
    labels: Labels | None = None,
    pad_token_id: int | None = None,
    four_bits: FourBits | None = None,
    positions: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda words: None,
) -> PreTrainedModel:
    """The model with its own weights. Raises ConfigError when weights and config do not fit together.

    To a GPU each tensor goes as soon as it is read: the whole model is never in the machine's memory. None: the CPU.
    With `four_bits` it is packed while it is loaded, and `dtype` is that of the rest.

    A classifier's head that the files lack, or have for another number of labels, is made anew from torch's global
    generator, and `tell` gets a sentence about it. Without `labels` a classifier keeps those of its config.
    `pad_token_id` is for configs that have none, of models with another head than that of a language model: a decoder
    that classifies looks for the last token before the padding. `positions`: a config.json with other rotary ones.
    """
    try:
        with _quiet():
            shape = _config_of(folder, model, labels)
            if positions:
                changed_positions(shape, positions)
            kind: Any = auto_class(head, shape.model_type)
            more = _attention(model)
            if device is not None and device.type != "cpu":
                more["device_map"] = {"": device}
            if four_bits is not None:
                refuse_poisoned_files(folder)
                more["quantization_config"] = bitsandbytes_config(four_bits, shape, model, dtype, kind)
            if model.text_only and has_towers(shape.model_type):
                loaded, report = load_text_model(folder, shape, dtype, **more)
            else:
                loaded, report = kind.from_pretrained(
                    folder,
                    config=shape,
                    dtype=dtype,
                    local_files_only=True,
                    trust_remote_code=model.trust_remote_code,
                    output_loading_info=True,
                    # `_new_parts` refuses what does not fit and names it; transformers would only name its own log.
                    ignore_mismatched_sizes=True,
                    weights_only=True,
                    **more,
                )
    except Exception as error:  # whatever its parts raise
        raise error if isinstance(error, ConfigError) else _cannot_load(error, folder, model) from None
    made: PreTrainedModel = loaded
    keep_soft_cap(made)
    settle_padding(made, head, pad_token_id)
    if has_towers(made.config.model_type) and not _is_tied(made):
        # Where config.json is silent transformers takes them for tied, and finds out by the files.
        made.config.tie_word_embeddings = False
    for words in (_new_parts(made, report, folder, head), _new_head(made, folder, head, labels)):
        if words:
            tell(words)
    return made


def _is_tied(model: Any) -> bool:
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' table of names that were missing or left over: the report is read and told in words."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def settle_padding(model: Any, head: Head, pad_token_id: int | None) -> None:
    """After the model is built: transformers keeps the row of the config's pad token out of training, and that token
    may end texts.

    In a language model padding has no label and nobody attends to it, so its row has no gradient of its own to be kept
    from; a token that is padding and ends documents learns like any other. The other heads tell padding by its number.
    """
    text_config = model.config.get_text_config()
    own = getattr(text_config, "pad_token_id", None)
    has_none = own is None or own < 0  # -1 in early Llamas
    if head == CAUSAL or has_none:
        model.get_input_embeddings().padding_idx = None
    if head != CAUSAL and has_none:
        text_config.pad_token_id = pad_token_id


def _config_of(folder: Path, model: ModelSection, labels: Labels | None) -> PretrainedConfig:
    from transformers import AutoConfig

    found: PretrainedConfig = AutoConfig.from_pretrained(
        folder, local_files_only=True, trust_remote_code=model.trust_remote_code
    )
    for name, value in (labels.config_fields() if labels else {}).items():
        setattr(found, name, value)
    return found


def _new_parts(model: Any, report: Mapping[str, Any], folder: Path, head: Head) -> str:
    """A sentence about what start from scratch; empty when nothing does. Raises ConfigError for a body that
    the files do not fill."""
    missing = sorted(map(str, report.get("missing_keys") or ()))
    # Name to its shape in the files and in the model.
    entries = report.get("mismatched_keys") or ()
    others = {str(name): (tuple(stored), tuple(wanted)) for name, stored, wanted in entries}
    body = f"{model.base_model_prefix}."
    # What pools the results is no part of models that were trained to fill gaps.
    may_be_new = [
        name
        for name in (*missing, *others)
        if head in CLASSIFYING and (not name.startswith(body) or ".pooler." in name)
    ]
    for names in (missing, sorted(others)):
        if wrong := [name for name in names if name not in may_be_new]:
            what = "is missing from the files"
            if wrong[0] in others:
                stored, wanted = others[wrong[0]]
                what = f"has the shape {list(stored)} in the files, but {list(wanted)} in config.json"
            hint = "copy the model again, config.json and weights together"
            raise bad_model(
                f"the weights do not fit config.json: {_first_of(wrong, ', and')} {what}", hint, str(folder)
            )
    if not may_be_new:
        return ""
    may_be_new.sort(key=lambda name: (name.startswith(body), name.endswith(".bias"), name))
    words = f"{_first_of(may_be_new)} {'are' if len(may_be_new) > 1 else 'is'} newly initialised"
    had = {
        stored[0] for name, (stored, wanted) in others.items() if stored[1:] == wanted[1:] and stored[0] != wanted[0]
    }
    if had:
        words += f": the model in {one_line(str(folder))} has {had.pop()} labels, but this task has {model.num_labels}"
    return words


def load_adapter(adapted: Any, folder: Path, *, without: Sequence[str] = ()) -> None:
    """The weights of the adapter in `folder` into a model of peft that was made with the settings of that adapter,
    `without` those of some of its saved modules. Raises ConfigError where names or shapes differ."""
    from peft.utils import get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    hint = "copy the adapter again, adapter_config.json and weights together"
    try:
        weights = load_peft_weights(str(folder), device="cpu")
        own = get_peft_model_state_dict(adapted, save_embedding_layers=False)
        # peft wants every saved module in it.
        kept = (name for name in own if any(f".{module}." in f".{name}" for module in without))
        weights |= {name: own[name] for name in kept}
        odd = sorted(weights.keys() ^ own.keys())
        if not odd:
            set_peft_model_state_dict(adapted, weights)
    except Exception as error:  # whatever its parts raise: of shapes, and of damaged files
        raise bad_model(_sentence("the adapter cannot be loaded", error), hint, str(folder)) from None
    if odd:
        raise bad_model(
            f"the adapter does not fit the model: only one of the two has {_first_of(odd)}", hint, str(folder)
        )


def merge_adapter(model: Any, folder: Path, *, without: Sequence[str] = ()) -> Any:
    """The model with the adapter in `folder` put into its weights, in their own type; all of it trains that trained
    before. `without`: saved modules that stay the model's own, such as a head for other labels.

    One layer's update is in memory at a time, beside the adapter.
    """
    from peft import PeftConfig, get_peft_model

    trains = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    with warnings.catch_warnings():
        # peft asks transformers by names that it has renamed.
        warnings.simplefilter("ignore")
        adapted: Any = get_peft_model(model, PeftConfig.from_pretrained(str(folder)))
        load_adapter(adapted, folder, without=without)
        merged = adapted.merge_and_unload(safe_merge=True)
    for name, parameter in merged.named_parameters():
        parameter.requires_grad_(name in trains)
    return merged


def _new_head(model: Any, folder: Path, head: Head, labels: Labels | None) -> str:
    """Draws the head of a classifier anew that the files have for as many other labels, and says so; else empty.
    `LABEL_0` is no label's name."""
    had = own_labels(read_json(folder / "config.json") or {}) if labels and head in CLASSIFYING else ()
    if labels is None or any(re.fullmatch(r"LABEL_\d+", name) for name in (*had, *labels.names)):
        return ""
    if len(had) != len(labels.names) or set(had) == set(labels.names):
        return ""
    children = ((name, part) for name, part in model.named_children() if name != model.base_model_prefix)
    names = [name for name, part in children if any(True for _ in part.parameters())]
    for module in (module for name in names for module in getattr(model, name).modules()):
        for parameter in module.parameters(recurse=False):
            # transformers draws no weight that it has read.
            parameter._is_hf_initialized = False
        model._init_weights(module)
    told = one_line(", ".join(had[:5]) + (", ..." if len(had) > 5 else ""), 120)
    return f"{one_line(', '.join(names), 120)} is newly initialised: the model was trained for the labels {told}"


def load_config(
    folder: Path | None,
    config: Config,
    *,
    vocabulary: int,
    tokenizer: PreTrainedTokenizerBase,
    head: Head = CAUSAL,
    labels: Labels | None = None,
) -> PretrainedConfig:
    """The shape of a model from random weights: a folder's config.json, else as [model.scratch] says: a decoder of
    Llama's form, an encoder of BERT's for classifications, one with a decoder of T5's for seq2seq."""
    from transformers import AutoConfig

    special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    special["vocab_size"] = vocabulary
    # A decoder behind an encoder begins with padding, as T5 does.
    special |= {"decoder_start_token_id": tokenizer.pad_token_id} if head == ENCODER_DECODER else {}
    length = config.data.max_length
    if folder is not None:
        found = _config_of(folder, config.model, labels)
        for name, value in special.items():
            setattr(found, name, value)
        return found
    shape = scratch_config(config.model.scratch, vocabulary, head, max_length=length)
    shape |= special | (labels.config_fields() if labels else {})
    if head == CAUSAL:
        shape["max_position_embeddings"] = length
    made: PretrainedConfig = AutoConfig.for_model(**shape)
    return made


def config_only(fields: Mapping[str, Any], tokenizer: Any, *, is_new: bool, problem_type: str = "") -> SimpleNamespace:
    """As much of a model as a task asks for when it lays rows out: its config. `fields` as in config.json. `is_new`:
    from random weights, whose special tokens are those of `tokenizer`.

    A family that transformers does not know has the fields alone, without the family's defaults.
    """
    from transformers import AutoConfig, PretrainedConfig

    values = dict(fields)
    kind = str(values.pop("model_type", ""))
    if is_new:
        values |= {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        values["decoder_start_token_id"] = tokenizer.pad_token_id
    values |= {"problem_type": problem_type} if problem_type else {}
    try:
        config: Any = AutoConfig.for_model(kind, **values)
    except ValueError:
        config = PretrainedConfig(**values)
    return SimpleNamespace(config=config)


def new_model(
    shape: PretrainedConfig, model: ModelSection, dtype: torch.dtype, *, head: Head = CAUSAL
) -> PreTrainedModel:
    """Random weights in that shape, drawn from torch's global generator."""
    build: Any = auto_class(head, shape.model_type).from_config
    made: PreTrainedModel = build(shape, dtype=dtype, trust_remote_code=model.trust_remote_code, **_attention(model))
    keep_soft_cap(made)
    return made


def _attention(model: ModelSection) -> dict[str, Any]:
    """auto leaves the choice to transformers: torch's fused kernel wherever the model has it. One that is not known to
    the plan is tried on the loaded model: `training/fused_kernels.py`."""
    name = model.attn_implementation
    return {"attn_implementation": name} if name != "auto" and is_known_attention(name) else {}


def keep_soft_cap(model: PreTrainedModel) -> None:
    """Older transformers (5.17, and Unsloth's) give Gemma 2 to SDPA, which passes the soft cap of its scores over."""
    if model.config._attn_implementation == "sdpa" and soft_cap_of(model):
        model.set_attn_implementation("eager")


def _cannot_load(error: Exception, folder: Path, model: ModelSection) -> ConfigError:
    """What transformers could not do, in words that say what to do about it."""
    text = str(error)
    if isinstance(error, pickle.UnpicklingError):
        hint = "use the version of the model with .safetensors files"
        return bad_model("a weight file contains more than tensors and is not loaded", hint, str(folder))
    if "does not recognize this architecture" in text:
        kind = (read_json(folder / "config.json") or {}).get("model_type")
        message = f"this version of transformers does not know the architecture {one_line(str(kind), 80)}"
        return bad_model(message, "install a newer one: uv pip install -U transformers", str(folder))
    if model.attn_implementation != "auto" and "attention" in text.lower():
        message = _sentence(f"the model cannot be loaded with {model.attn_implementation}", error)
        return ConfigError(Problem(message=message, key="model.attn_implementation", hint="set it to auto"))
    return bad_model(_sentence("the model cannot be loaded", error), "copy the model again", str(folder))


def _first_of(names: Sequence[str], more: str = " and") -> str:
    rest = f"{more} {len(names) - 1} more" if len(names) > 1 else ""
    return f"{one_line(names[0], 120)}{rest}"


def _sentence(what: str, error: Exception) -> str:
    text = str(error).strip().rstrip(".") or type(error).__name__
    return f"{what}: {one_line(text, 240)}"
