"""What a model ends with: the head that a task trains, and which kinds of model have one. No torch here.

Which kinds those are is read from the text of the installed transformers: importing it would take torch.
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
"""A decoder alone: it learns the next token, and needs no mask of the padding behind its rows."""
ENCODER_DECODER: Head = "seq2seq_lm"
"""What the decoder writes has a width of its own beside that of the input."""
CLASSIFYING: tuple[Head, ...] = ("sequence_classification", "token_classification", "question_answering")
"""Few logits: of labels, or of the first and the last token of an answer."""
# The value of `task.type` that trains each head.
TASK_OF: dict[Head, str] = {
    "causal_lm": "causal_lm",
    "sequence_classification": "sequence_classification",
    "token_classification": "token_classification",
    "question_answering": "question_answering",
    "seq2seq_lm": "seq2seq",
}


# The class of each in transformers, and the name of the table of model types there.
_CLASSES: dict[Head, tuple[str, str]] = {
    "causal_lm": ("AutoModelForCausalLM", "CAUSAL_LM"),
    "sequence_classification": ("AutoModelForSequenceClassification", "SEQUENCE_CLASSIFICATION"),
    "token_classification": ("AutoModelForTokenClassification", "TOKEN_CLASSIFICATION"),
    "question_answering": ("AutoModelForQuestionAnswering", "QUESTION_ANSWERING"),
    "seq2seq_lm": ("AutoModelForSeq2SeqLM", "SEQ_TO_SEQ_CAUSAL_LM"),
}
_WORDS: dict[Head, str] = {"causal_lm": "causal", "seq2seq_lm": "sequence-to-sequence"}
# Types whose plain architecture sees the tokens to the right as well. Source: the documentation of transformers.
ENCODERS = frozenset(
    """albert bert camembert canine convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm esmc eurobert
    flaubert fnet funnel gte ibert jina_embeddings_v3 layoutlm lilt longformer luke markuplm megatron-bert mobilebert
    modernbert mpnet mra nezha nomic_bert nystromformer rembert roberta roberta-prelayernorm roc_bert roformer
    splinter squeezebert xlm-roberta xlm-roberta-xl xmod yoso""".split()
)
# Images, speech and tables beside text, or instead of it; tests of transformers' own; and copies under another name.
_NO_TEXT = frozenset(
    """axk1 axk2 bros layoutlm layoutlmv2 layoutlmv3 lilt markuplm modernvbert openai_privacy_filter perceiver t5gemma2
    tapas ultrabert ultravbert audioflamingo3 glmasr granite_speech granite_speech_plus moss_transcribe_diarize
    musicflamingo nemo_speechlm qwen2_audio qwen3_asr seamless_m4t seamless_m4t_v2 vibevoice_asr voxtral
    voxtral_realtime""".split()
)

# Whose class for questions names its body `transformer`, where published files have `model`: transformers would begin
# with random numbers in its place. Source: transformers 5.17 and 5.24.
_RENAMED_FOR_QUESTIONS = frozenset(
    "arcee diffllama exaone4 llama ministral nemotron qwen2 qwen3 qwen3_moe qwen3_next seed_oss smollm3".split()
)


@cache
def types_with(head: Head) -> frozenset[str]:
    """The types of text models that have such a head, in the installed transformers; none where it cannot be read."""
    package = PathFinder.find_spec("transformers")
    folders = package.submodule_search_locations if package else None
    text = ""
    with suppress(OSError):
        text = (Path((folders or ["."])[0]) / "models/auto/modeling_auto.py").read_text("utf-8")
    _, _, table = text.partition(f"\nMODEL_FOR_{_CLASSES[head][1]}_MAPPING_NAMES = OrderedDict(")
    return frozenset(re.findall(r'\(\s*"([^"]+)",', table.partition("\n)")[0])) - _NO_TEXT


def _is_known(model_type: str) -> bool:
    return model_type in ENCODERS or any(model_type in types_with(head) for head in TASK_OF)


@dataclass(frozen=True, slots=True)
class Labels:
    """What a classifier tells apart, in the order of its logits. `problem_type` as in a model's config.json; empty
    for tokens, which transformers has no choice for."""

    names: tuple[str, ...]
    problem_type: ProblemType = ""

    def config_fields(self) -> dict[str, Any]:
        """The fields of a config.json. A regression of one number has one label."""
        fields: dict[str, Any] = {
            "id2label": dict(enumerate(self.names)),
            "label2id": {name: number for number, name in enumerate(self.names)},
            "num_labels": len(self.names),
        }
        return fields | ({"problem_type": self.problem_type} if self.problem_type else {})


def own_labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names in a model's id2label, in the order of its logits; none where they are not named one by one."""
    named = config.get("id2label")
    if not isinstance(named, Mapping):
        return ()
    try:
        by_number = {int(number): str(name) for number, name in named.items()}
    except ValueError:
        return ()
    return (
        tuple(by_number[number] for number in range(len(by_number))) if set(by_number) == {*range(len(named))} else ()
    )


def auto_class_name(head: Head, model_type: object = "") -> str:
    """The class of transformers that loads and makes models of this kind with this head."""
    return AUTO_CLASS if has_towers(model_type) else _CLASSES[head][0]


def auto_class(head: Head, model_type: object = "") -> Any:
    import transformers

    return getattr(transformers, auto_class_name(head, model_type))


def is_unfit(model_type: str, head: Head) -> bool:
    """Whether a kind of model is known not to have this head. What no table knows, transformers will judge."""
    if head == CAUSAL:
        return model_type in ENCODERS or model_type in types_with(ENCODER_DECODER)
    if head == "question_answering" and model_type in _RENAMED_FOR_QUESTIONS:
        return True
    return _is_known(model_type) and model_type not in types_with(head)


def labels_each(head: Head, target_tokens: int) -> int:
    """Labels of a row: one of a text, else those of the longest answer."""
    return 1 if head == "sequence_classification" else target_tokens


def fit_heads(model_type: str) -> tuple[Head, ...]:
    """The heads that a kind of model can have; empty where no table knows it."""
    return tuple(head for head in TASK_OF if not is_unfit(model_type, head)) if _is_known(model_type) else ()


def instead(model_type: str) -> str:
    """What can be done with a kind of model, as a hint; empty where nothing is known of it."""
    tasks = [TASK_OF[head] for head in fit_heads(model_type)]
    return f"with {model_type} use task.type = {listed(tasks)}" if tasks else ""


def lack_of(model_type: str, head: Head) -> str:
    """The sentence about a kind of model that has no such head."""
    if head == "question_answering" and model_type in _RENAMED_FOR_QUESTIONS:
        return f"transformers cannot load published weights into the question answering head of {model_type}"
    return f"{model_type} has no {_WORDS.get(head, head.replace('_', ' '))} head"


def stored_labels(config: Mapping[str, Any]) -> int:
    """How many labels a config.json tells of; 2, as in transformers, where it is silent."""
    names = config.get("id2label")
    if isinstance(names, Mapping) and names:
        return len(names)
    number = config.get("num_labels")
    return number if type(number) is int and number > 0 else 2
