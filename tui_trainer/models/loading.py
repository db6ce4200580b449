"""Load models and tokenizers with transformers. torch and transformers are imported inside of the functions.

A failure to load becomes a one-sentence error with the file, the reason and the remedy.
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
from tui_trainer.models import heads
from tui_trainer.models.config_json import bad_model, read_json
from tui_trainer.models.four_bits import FourBits, bitsandbytes_config, refuse_poisoned_files
from tui_trainer.models.modules import soft_cap_of
from tui_trainer.models.rope import set_positions
from tui_trainer.models.shape import scratch_config
from tui_trainer.models.text_only import load_text_model
from tui_trainer.models.towers import has_towers
from tui_trainer.terminal.safe_text import one_line

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


# Loading arguments that transformers stores in a tokenizer's settings.
_ABOUT_LOADING = ("local_files_only", "is_local", "trust_remote_code", "token")


def load_tokenizer(folder: Path, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load the model's own tokenizer. Raise ConfigError if it cannot be loaded."""
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # transformers and tokenizers document no exception types
        raise bad_model(_sentence("the tokenizer cannot be loaded", error), "copy it again", str(folder)) from None
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer without the arguments that it was loaded with. Raise OSError."""
    for name in _ABOUT_LOADING:
        tokenizer.init_kwargs.pop(name, None)
    try:
        tokenizer.save_pretrained(folder)
    except OSError:
        raise
    except Exception as error:  # tokenizers raises a plain Exception when a disk is full
        raise OSError(f"the tokenizer cannot be written: {error}") from error


def set_truncation(tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    """Store the length and side at which training truncates texts, so that `truncation=True` does the same later."""
    tokenizer.model_max_length = max_length
    tokenizer.truncation_side = tokenizer.init_kwargs["truncation_side"] = "right"
    # The model's inputs, for places that load the tokenizer without its class.
    tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names


def tokenizer_of_file(
    path: Path, max_length: int, special: Mapping[str, str], *, distinguishes_pairs: bool = False
) -> PreTrainedTokenizerBase:
    """Return a tokenizer that was made from the data. `special` maps transformers' names to tokens. With
    `distinguishes_pairs`, it also returns token_type_ids, with which BERT distinguishes the texts of a pair."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_file=str(path),
        **special,
        model_input_names=["input_ids", *["token_type_ids"] * distinguishes_pairs, "attention_mask"],
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
    head: heads.Head = heads.CAUSAL,
    labels: heads.Labels | None = None,
    pad_token_id: int | None = None,
    four_bits: FourBits | None = None,
    positions: Mapping[str, Any] | None = None,
    tell: Callable[[str], None] = lambda words: None,
) -> PreTrainedModel:
    """Load a model with its weights. Raise ConfigError if weights and config do not fit together.

    On a GPU, each tensor is moved immediately after it is read, so the whole model is never in host memory.
    `device=None` is the CPU. With `four_bits`, weights are quantised while loaded; `dtype` applies to the others.

    A classifier head that the files lack, or that has another number of labels, is initialised from torch's global
    generator and reported to `tell` in a sentence. Without `labels`, a classifier keeps those of its config.
    `pad_token_id` is for models without one whose head is not causal, because a decoder that classifies looks for the
    last token before the padding. `positions` is a config.json with other rotary positions."""
    try:
        with _quiet():
            model_config = _config_of(folder, model, labels)
            if positions:
                set_positions(model_config, positions)
            model_class: Any = heads.auto_class(head, model_config.model_type)
            options = _attention(model)
            if device is not None and device.type != "cpu":
                options["device_map"] = {"": device}
            if four_bits is not None:
                refuse_poisoned_files(folder)
                options["quantization_config"] = bitsandbytes_config(four_bits, model_config, model, dtype, model_class)
            if model.text_only and has_towers(model_config.model_type):
                built_model, report = load_text_model(folder, model_config, dtype, **options)
            else:
                built_model, report = model_class.from_pretrained(
                    folder,
                    config=model_config,
                    dtype=dtype,
                    local_files_only=True,
                    trust_remote_code=model.trust_remote_code,
                    output_loading_info=True,
                    # `_new_parts` names the tensors that do not fit; transformers would only refer to its log.
                    ignore_mismatched_sizes=True,
                    weights_only=True,
                    **options,
                )
    except Exception as error:  # transformers documents no exception types
        raise error if isinstance(error, ConfigError) else _load_error(error, folder, model) from None
    checked_model: PreTrainedModel = built_model
    use_eager_for_soft_cap(checked_model)
    set_padding(checked_model, head, pad_token_id)
    if has_towers(checked_model.config.model_type) and not _is_tied(checked_model):
        # If config.json does not say so, transformers assumes a tied head until it reads the files.
        checked_model.config.tie_word_embeddings = False
    for sentence in (_new_parts(checked_model, report, folder, head), _new_head(checked_model, folder, head, labels)):
        if sentence:
            tell(sentence)
    return checked_model


def _is_tied(model: Any) -> bool:
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable transformers' table of missing and unexpected tensors, which `load_pretrained` reports itself."""
    from transformers.utils import logging

    verbosity_before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity_before)


def set_padding(model: Any, head: heads.Head, pad_token_id: int | None) -> None:
    """Set the padding of a loaded model. transformers does not train the pad token, but it may also end texts.

    In a causal model, padding has no label and no token attends to it, so its row gets no gradient from padding, and a
    token that both pads and ends documents may learn. Models with other heads recognise padding by its id."""
    text_config = model.config.get_text_config()
    pad_id = getattr(text_config, "pad_token_id", None)
    has_none = pad_id is None or pad_id < 0  # -1 in early Llamas
    if head == heads.CAUSAL or has_none:
        model.get_input_embeddings().padding_idx = None
    if head != heads.CAUSAL and has_none:
        text_config.pad_token_id = pad_token_id


def _config_of(folder: Path, model: ModelSection, labels: heads.Labels | None) -> PretrainedConfig:
    from transformers import AutoConfig

    options = {"local_files_only": True, "trust_remote_code": model.trust_remote_code}
    config: PretrainedConfig = AutoConfig.from_pretrained(folder, **options)
    for name, value in (labels.config_fields() if labels else {}).items():
        setattr(config, name, value)
    return config


def _new_parts(model: Any, report: Mapping[str, Any], folder: Path, head: heads.Head) -> str:
    """Return a sentence about newly initialised parts, or "". Raise ConfigError if the body lacks weights."""
    missing_names = sorted(map(str, report.get("missing_keys") or ()))
    # The shapes in the files and in the model, by tensor name.
    entries = report.get("mismatched_keys") or ()
    shapes_by_name = {str(name): (tuple(stored_shape), tuple(expected)) for name, stored_shape, expected in entries}
    body_prefix = f"{model.base_model_prefix}."
    # Masked language models are published without a pooler.
    head_names = (*missing_names, *shapes_by_name) if head in heads.CLASSIFYING_HEADS else ()
    new_names = [name for name in head_names if not name.startswith(body_prefix) or ".pooler." in name]
    for names in (missing_names, sorted(shapes_by_name)):
        if wrong_names := [name for name in names if name not in new_names]:
            reason = "is missing from the files"
            if wrong_names[0] in shapes_by_name:
                stored_shape, expected = shapes_by_name[wrong_names[0]]
                reason = f"has the shape {list(stored_shape)} in the files, but {list(expected)} in config.json"
            hint = "copy the model again, config.json and weights together"
            problem = f"the weights do not fit config.json: {_first_of(wrong_names, ', and')} {reason}"
            raise bad_model(problem, hint, str(folder))
    if not new_names:
        return ""
    new_names.sort(key=lambda name: (name.startswith(body_prefix), name.endswith(".bias"), name))
    sentence = f"{_first_of(new_names)} {'are' if len(new_names) > 1 else 'is'} newly initialised"
    shape_pairs = shapes_by_name.values()
    label_counts = {
        stored_shape[0]
        for stored_shape, expected in shape_pairs
        if stored_shape[1:] == expected[1:] and stored_shape[0] != expected[0]
    }
    if label_counts:
        old_label_count = label_counts.pop()
        sentence += f": the model in {one_line(str(folder))} has {old_label_count} labels, "
        sentence += f"but this task has {model.num_labels}"
    return sentence


def load_adapter(adapted: Any, folder: Path, *, excluded: Sequence[str] = ()) -> None:
    """Load the weights of the adapter in `folder` into a peft model with the same adapter settings. The saved modules
    in `excluded` keep their present weights. Raise ConfigError if names or shapes differ."""
    from peft.utils import get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    hint = "copy the adapter again, adapter_config.json and weights together"
    try:
        adapter_weights = load_peft_weights(str(folder), device="cpu")
        model_weights = get_peft_model_state_dict(adapted, save_embedding_layers=False)
        # peft requires every saved module in the weights.
        replaced_names = (name for name in model_weights if any(f".{module}." in f".{name}" for module in excluded))
        adapter_weights |= {name: model_weights[name] for name in replaced_names}
        other_names = sorted(adapter_weights.keys() ^ model_weights.keys())
        if not other_names:
            set_peft_model_state_dict(adapted, adapter_weights)
    except Exception as error:  # peft and torch raise many types for wrong shapes and damaged files
        raise bad_model(_sentence("the adapter cannot be loaded", error), hint, str(folder)) from None
    if other_names:
        problem = f"the adapter does not fit the model: only one of them has {_first_of(other_names)}"
        raise bad_model(problem, hint, str(folder))


def merge_adapter(model: Any, folder: Path, *, excluded: Sequence[str] = ()) -> Any:
    """Merge the adapter in `folder` into the weights of a model, in their own dtype, and return the model. The same
    parameters train as before. `excluded` names saved modules that are not replaced, such as a head for other labels.
    Only one layer's update is in memory at a time, in addition to the adapter."""
    from peft import PeftConfig, get_peft_model

    trainable_names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    with warnings.catch_warnings():
        # peft uses deprecated names of transformers.
        warnings.simplefilter("ignore")
        peft_model: Any = get_peft_model(model, PeftConfig.from_pretrained(str(folder)))
        load_adapter(peft_model, folder, excluded=excluded)
        merged_model = peft_model.merge_and_unload(safe_merge=True)
    for name, parameter in merged_model.named_parameters():
        parameter.requires_grad_(name in trainable_names)
    return merged_model


def _new_head(model: Any, folder: Path, head: heads.Head, labels: heads.Labels | None) -> str:
    """Reset a classifier's head if the stored head is for other labels of the same number. Return a sentence about it,
    else "". Labels called `LABEL_0` have no name to compare."""
    if labels is None or head not in heads.CLASSIFYING_HEADS:
        return ""
    old_labels = heads.config_label_names(read_json(folder / "config.json") or {})
    if any(re.fullmatch(r"LABEL_\d+", name) for name in (*old_labels, *labels.names)):
        return ""
    if len(old_labels) != len(labels.names) or set(old_labels) == set(labels.names):
        return ""
    head_parts = ((name, part) for name, part in model.named_children() if name != model.base_model_prefix)
    head_names = [name for name, part in head_parts if any(True for _ in part.parameters())]
    for module in (module for name in head_names for module in getattr(model, name).modules()):
        for parameter in module.parameters(recurse=False):
            # transformers initialises only weights that it has not read.
            parameter._is_hf_initialized = False
        model._init_weights(module)
    shown_labels = one_line(", ".join(old_labels[:5]) + (", ..." if len(old_labels) > 5 else ""), 120)
    shown_parts = one_line(", ".join(head_names), 120)
    return f"{shown_parts} is newly initialised: the model was trained for the labels {shown_labels}"


def load_config(
    folder: Path | None,
    config: Config,
    *,
    vocabulary: int,
    tokenizer: PreTrainedTokenizerBase,
    head: heads.Head = heads.CAUSAL,
    labels: heads.Labels | None = None,
) -> PretrainedConfig:
    """Return the config of a model with random weights: the folder's config.json, else the model of [model.scratch]
    (Llama for causal models, BERT for classifiers, T5 for seq2seq)."""
    from transformers import AutoConfig

    token_fields = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    token_fields["vocab_size"] = vocabulary
    # The decoder starts with the pad token, as in T5.
    token_fields |= {"decoder_start_token_id": tokenizer.pad_token_id} if head == heads.ENCODER_DECODER else {}
    max_length = config.data.max_length
    if folder is not None:
        stored_config = _config_of(folder, config.model, labels)
        for name, value in token_fields.items():
            setattr(stored_config, name, value)
        return stored_config
    fields = scratch_config(config.model.scratch, vocabulary, head, max_length=max_length)
    fields |= token_fields | (labels.config_fields() if labels else {})
    if head == heads.CAUSAL:
        fields["max_position_embeddings"] = max_length
    new_config: PretrainedConfig = AutoConfig.for_model(**fields)
    return new_config


def config_only(fields: Mapping[str, Any], tokenizer: Any, *, is_new: bool, problem_type: str = "") -> SimpleNamespace:
    """Return an object with the part of a model that a task reads when it prepares rows: its `config`.
    `fields` are those of config.json. With `is_new`, the model starts from random weights and has the special tokens of
    `tokenizer`. A family that transformers does not support gets the fields without the family's defaults."""
    from transformers import AutoConfig, PretrainedConfig

    values = dict(fields)
    model_type = str(values.pop("model_type", ""))
    if is_new:
        values |= {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
        values["decoder_start_token_id"] = tokenizer.pad_token_id
    values |= {"problem_type": problem_type} if problem_type else {}
    try:
        config: Any = AutoConfig.for_model(model_type, **values)
    except ValueError:
        config = PretrainedConfig(**values)
    return SimpleNamespace(config=config)


def new_model(
    shape: PretrainedConfig, model: ModelSection, dtype: torch.dtype, *, head: heads.Head = heads.CAUSAL
) -> PreTrainedModel:
    """Return a model of this config with random weights from torch's global generator."""
    build: Any = heads.auto_class(head, shape.model_type).from_config
    built: PreTrainedModel = build(shape, dtype=dtype, trust_remote_code=model.trust_remote_code, **_attention(model))
    use_eager_for_soft_cap(built)
    return built


def _attention(model: ModelSection) -> dict[str, Any]:
    """Return the attention argument for transformers. Without one, transformers chooses torch's fused kernel if it can.
    If the plan does not know the kernel, `training/fused_kernels.py` tries it on the loaded model."""
    name = model.attn_implementation
    return {"attn_implementation": name} if name != "auto" and is_known_attention(name) else {}


def use_eager_for_soft_cap(model: PreTrainedModel) -> None:
    """Use eager attention for a model with a soft cap of scores: transformers 5.17 would run SDPA, which ignores it."""
    if model.config._attn_implementation == "sdpa" and soft_cap_of(model):
        model.set_attn_implementation("eager")


def _load_error(error: Exception, folder: Path, model: ModelSection) -> ConfigError:
    """Return the error of a failed load, with a hint about the remedy."""
    error_text = str(error)
    if isinstance(error, pickle.UnpicklingError):
        hint = "use the version of the model with .safetensors files"
        return bad_model("a weight file contains objects other than tensors, so it is not loaded", hint, str(folder))
    if "does not recognize this architecture" in error_text:
        model_type = (read_json(folder / "config.json") or {}).get("model_type")
        message = f"this version of transformers does not know the architecture {one_line(str(model_type), 80)}"
        return bad_model(message, "install a newer version: uv pip install -U transformers", str(folder))
    if model.attn_implementation != "auto" and "attention" in error_text.lower():
        message = _sentence(f"the model cannot be loaded with {model.attn_implementation}", error)
        return ConfigError(Problem(message=message, key="model.attn_implementation", hint="set it to auto"))
    return bad_model(_sentence("the model cannot be loaded", error), "copy the model again", str(folder))


def _first_of(names: Sequence[str], conjunction: str = " and") -> str:
    more_text = f"{conjunction} {len(names) - 1} more" if len(names) > 1 else ""
    return f"{one_line(names[0], 120)}{more_text}"


def _sentence(failure: str, error: Exception) -> str:
    text = str(error).strip().rstrip(".") or type(error).__name__
    return f"{failure}: {one_line(text, 240)}"
