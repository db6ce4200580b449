"""The head of a model, which a task trains, and the model types that support each head.

The model types are read from the source text of the installed transformers, because importing it would import torch.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Literal

from tui_trainer.models.towers import AUTO_CLASS, has_towers
from tui_trainer.units import listed

Head = Literal["causal_lm", "sequence_classification", "token_classification", "question_answering", "seq2seq_lm"]
ProblemType = Literal["single_label_classification", "multi_label_classification", "regression", ""]

CAUSAL: Head = "causal_lm"
"""The head of a decoder without an encoder. It predicts the next token and needs no mask for padding after its rows."""
ENCODER_DECODER: Head = "seq2seq_lm"
"""The head of an encoder-decoder, whose inputs and targets have separate lengths."""
CLASSIFYING_HEADS: tuple[Head, ...] = ("sequence_classification", "token_classification", "question_answering")
"""Heads with few logits: for labels, or for the first and the last token of an answer."""
CALIBRATION = "calibration"
"""Field of a classifier's config.json with its temperature and thresholds. transformers keeps it unused."""
# The value of `task.type` that trains each head.
TASK_OF: dict[Head, str] = {
    "causal_lm": "causal_lm",
    "sequence_classification": "sequence_classification",
    "token_classification": "token_classification",
    "question_answering": "question_answering",
    "seq2seq_lm": "seq2seq",
}

# The auto class of each head in transformers, and the name of its table of model types.
_CLASSES: dict[Head, tuple[str, str]] = {
    "causal_lm": ("AutoModelForCausalLM", "CAUSAL_LM"),
    "sequence_classification": ("AutoModelForSequenceClassification", "SEQUENCE_CLASSIFICATION"),
    "token_classification": ("AutoModelForTokenClassification", "TOKEN_CLASSIFICATION"),
    "question_answering": ("AutoModelForQuestionAnswering", "QUESTION_ANSWERING"),
    "seq2seq_lm": ("AutoModelForSeq2SeqLM", "SEQ_TO_SEQ_CAUSAL_LM"),
}
_WORDS: dict[Head, str] = {"causal_lm": "causal", "seq2seq_lm": "sequence-to-sequence"}
# Model types with bidirectional attention. Source: the documentation of transformers.
ENCODERS = frozenset(
    """albert bert camembert canine convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm esmc eurobert
    flaubert fnet funnel gte ibert jina_embeddings_v3 layoutlm lilt longformer luke markuplm megatron-bert mobilebert
    modernbert mpnet mra nezha nomic_bert nystromformer rembert roberta roberta-prelayernorm roc_bert roformer
    splinter squeezebert xlm-roberta xlm-roberta-xl xmod yoso""".split()
)
# Model types with inputs other than text, test models of transformers, and aliases.
_NO_TEXT = frozenset(
    """axk1 axk2 bros layoutlm layoutlmv2 layoutlmv3 lilt markuplm modernvbert openai_privacy_filter perceiver t5gemma2
    tapas ultrabert ultravbert audioflamingo3 glmasr granite_speech granite_speech_plus moss_transcribe_diarize
    musicflamingo nemo_speechlm qwen2_audio qwen3_asr seamless_m4t seamless_m4t_v2 vibevoice_asr voxtral
    voxtral_realtime""".split()
)

# In the question answering class of these types the base model is called `transformer`, but published files say
# `model`, so transformers would initialise it at random. Source: transformers 5.17 and 5.24.
_RENAMED_FOR_QUESTIONS = frozenset(
    "arcee diffllama exaone4 llama ministral nemotron qwen2 qwen3 qwen3_moe qwen3_next seed_oss smollm3".split()
)


@cache
def types_with(head: Head) -> frozenset[str]:
    """Return the types of text models with this head in the installed transformers; empty if they cannot be read."""
    package = PathFinder.find_spec("transformers")
    folders = package.submodule_search_locations if package else None
    source = ""
    with suppress(OSError):
        source = (Path((folders or ["."])[0]) / "models/auto/modeling_auto.py").read_text("utf-8")
    _, _, source_after = source.partition(f"\nMODEL_FOR_{_CLASSES[head][1]}_MAPPING_NAMES = OrderedDict(")
    return frozenset(re.findall(r'\(\s*"([^"]+)",', source_after.partition("\n)")[0])) - _NO_TEXT


def _is_known(model_type: str) -> bool:
    return model_type in ENCODERS or any(model_type in types_with(head) for head in TASK_OF)


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of a classifier, in the order of its logits. `problem_type` is that of config.json; tags have none."""

    names: tuple[str, ...]
    problem_type: ProblemType = ""

    def config_fields(self) -> dict[str, Any]:
        """Return these labels as fields of a config.json. Regression has one label."""
        numbers = {name: number for number, name in enumerate(self.names)}
        names = dict(enumerate(self.names))
        fields: dict[str, Any] = {"id2label": names, "label2id": numbers, "num_labels": len(names)}
        return fields | ({"problem_type": self.problem_type} if self.problem_type else {})


def config_label_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names in id2label of a config.json, in the order of the logits; empty unless it names them all."""
    names = config.get("id2label")
    if not isinstance(names, Mapping):
        return ()
    try:
        labels = {int(number): str(name) for number, name in names.items()}
    except ValueError:
        return ()
    return tuple(labels[number] for number in sorted(labels)) if set(labels) == {*range(len(names))} else ()


def auto_class_name(head: Head, model_type: object = "") -> str:
    """Return the name of the transformers class that loads and builds models of this type with this head."""
    return AUTO_CLASS if has_towers(model_type) else _CLASSES[head][0]


def auto_class(head: Head, model_type: object = "") -> Any:
    import transformers

    return getattr(transformers, auto_class_name(head, model_type))


def lacks_head(model_type: str, head: Head) -> bool:
    """Return whether a model type is known to lack this head. False for an unknown type: transformers will decide."""
    if head == CAUSAL:
        return model_type in ENCODERS or model_type in types_with(ENCODER_DECODER)
    if head == "question_answering" and model_type in _RENAMED_FOR_QUESTIONS:
        return True
    return _is_known(model_type) and model_type not in types_with(head)


def labels_per_row(head: Head, target_tokens: int) -> int:
    """Return the number of labels of a row: one for a text, else one for each target token."""
    return 1 if head == "sequence_classification" else target_tokens


def supported_heads(model_type: str) -> tuple[Head, ...]:
    """Return the heads that a model type supports; empty if no table lists the type."""
    return tuple(head for head in TASK_OF if not lacks_head(model_type, head)) if _is_known(model_type) else ()


def usable_tasks_hint(model_type: str) -> str:
    """Return a hint with the tasks that a model type supports; "" if they are unknown."""
    tasks = [TASK_OF[head] for head in supported_heads(model_type)]
    return f"with {model_type} use task.type = {listed(tasks)}" if tasks else ""


def missing_head_message(model_type: str, head: Head) -> str:
    """Return the error message for a model type without this head."""
    if head == "question_answering" and model_type in _RENAMED_FOR_QUESTIONS:
        return f"transformers cannot load published weights into the question answering head of {model_type}"
    return f"{model_type} has no {_WORDS.get(head, head.replace('_', ' '))} head"


def stored_labels(config: Mapping[str, Any]) -> int:
    """Return the number of labels in a config.json; 2 if it has none, as in transformers."""
    labels_by_id = config.get("id2label")
    if isinstance(labels_by_id, Mapping) and labels_by_id:
        return len(labels_by_id)
    label_count = config.get("num_labels")
    return label_count if type(label_count) is int and label_count > 0 else 2
