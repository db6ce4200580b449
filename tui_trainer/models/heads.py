"""What a model ends with: the head that a task trains, and which kinds of model have one. No torch here.

The tables repeat the names of `MODEL_FOR_..._MAPPING_NAMES` in modeling_auto.py of transformers 5.23, as far as they
read text; a test compares them with the installed version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Head = Literal["causal_lm", "sequence_classification", "token_classification", "seq2seq_lm"]
ProblemType = Literal["single_label_classification", "multi_label_classification", "regression", ""]

CLASSIFYING: tuple[Head, ...] = ("sequence_classification", "token_classification")
# The value of `task.type` that trains each head.
TASK_OF: dict[Head, str] = {
    "causal_lm": "causal_lm",
    "sequence_classification": "sequence_classification",
    "token_classification": "token_classification",
    "seq2seq_lm": "seq2seq",
}
_AUTO_CLASSES: dict[Head, str] = {
    "causal_lm": "AutoModelForCausalLM",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "seq2seq_lm": "AutoModelForSeq2SeqLM",
}
_LACKING: dict[Head, str] = {
    "causal_lm": "causal",
    "sequence_classification": "sequence classification",
    "token_classification": "token classification",
    "seq2seq_lm": "sequence-to-sequence",
}


def _types(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Types whose plain architecture sees the tokens to the right as well. Source: the documentation of transformers.
ENCODERS = _types(
    """albert bert camembert canine convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm esmc eurobert
    flaubert fnet funnel gte ibert jina_embeddings_v3 layoutlm lilt longformer luke markuplm megatron-bert mobilebert
    modernbert mpnet mra nezha nomic_bert nystromformer rembert roberta roberta-prelayernorm roc_bert roformer
    splinter squeezebert xlm-roberta xlm-roberta-xl xmod yoso"""
)
ENCODER_DECODERS = _types(
    """bart bigbird_pegasus blenderbot blenderbot-small encoder-decoder fsmt led longt5 m2m_100 marian mbart mt5 mvp
    nllb-moe pegasus pegasus_x plbart prophetnet switch_transformers t5 t5gemma umt5"""
)
_SEQUENCE_CLASSIFIERS = _types(
    """albert arcee bart bert big_bird bigbird_pegasus biogpt bloom camembert canine cohere_compass_text convbert ctrl
    data2vec-text deberta deberta-v2 deepseek_v2 deepseek_v3 diffllama distilbert doge electra ernie esm esmc eurobert
    exaone4 falcon flaubert fnet funnel gemma gemma2 gemma3 gemma3_text glm glm4 gpt-sw3 gpt2 gpt_bigcode gpt_neo
    gpt_neox gpt_oss gptj gte helium hunyuan_v1_dense hunyuan_v1_moe ibert jamba jetmoe jina_embeddings_v3 llama
    longformer luke mbart megatron-bert minicpm3 minimax ministral ministral3 mistral mistral4 mixtral mobilebert
    modernbert modernbert-decoder mpnet mpt mra mt5 mvp nemotron nomic_bert nystromformer olmo olmo2 olmo3 openai-gpt
    opt persimmon phi phi3 phimoe plbart qwen2 qwen2_moe qwen3 qwen3_5 qwen3_5_text qwen3_moe qwen3_next reformer
    rembert roberta roberta-prelayernorm roc_bert roformer seed_oss smollm3 squeezebert stablelm starcoder2 t5 t5gemma
    umt5 xlm xlm-roberta xlm-roberta-xl xlnet xmod yoso zamba zamba2"""
)
_TOKEN_CLASSIFIERS = _types(
    """albert apertus arcee bert big_bird biogpt bloom camembert canine convbert data2vec-text deberta deberta-v2
    deepseek_v3 diffllama distilbert electra ernie esm esmc eurobert exaone4 falcon flaubert fnet funnel gemma gemma2
    glm glm4 gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gte helium ibert jina_embeddings_v3 llama longformer
    luke megatron-bert minimax ministral ministral3 mistral mistral4 mixtral mobilebert modernbert mpnet mpt mra mt5
    nemotron nomic_bert nystromformer persimmon phi phi3 qwen2 qwen2_moe qwen3 qwen3_5 qwen3_moe qwen3_next rembert
    roberta roberta-prelayernorm roc_bert roformer seed_oss smollm3 squeezebert stablelm starcoder2 t5 t5gemma umt5
    xlm xlm-roberta xlm-roberta-xl xlnet xmod yoso"""
)
# Some of those that only continue texts.
_ONLY_CAUSAL = _types(
    """bamba bitnet codegen cohere cohere2 dbrx ernie4_5 falcon_h1 falcon_mamba granite granitemoe mamba mamba2 nanochat
    nemotron_h olmoe recurrent_gemma rwkv solar_open xglm xlstm"""
)
TYPES: dict[Head, frozenset[str]] = {
    "sequence_classification": _SEQUENCE_CLASSIFIERS,
    "token_classification": _TOKEN_CLASSIFIERS,
    "seq2seq_lm": ENCODER_DECODERS,
}
_KNOWN = _ONLY_CAUSAL.union(ENCODERS, *TYPES.values())


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


def auto_class(head: Head) -> Any:
    """The class of transformers that loads and makes models with this head."""
    import transformers

    return getattr(transformers, _AUTO_CLASSES[head])


def is_unfit(model_type: str, head: Head) -> bool:
    """Whether a kind of model is known not to have this head. What no table knows, transformers will judge."""
    if head == "causal_lm":
        return model_type in ENCODERS or model_type in ENCODER_DECODERS
    return model_type in _KNOWN and model_type not in TYPES[head]


def fit_heads(model_type: str) -> tuple[Head, ...]:
    """The heads that a kind of model can have; empty where no table knows it."""
    return tuple(head for head in TASK_OF if not is_unfit(model_type, head)) if model_type in _KNOWN else ()


def instead(model_type: str) -> str:
    """What can be done with a kind of model, as a hint; empty where nothing is known of it."""
    tasks = [TASK_OF[head] for head in fit_heads(model_type)]
    listed = " or ".join(filter(None, (", ".join(tasks[:-1]), *tasks[-1:])))
    return f"with {model_type} use task.type = {listed}" if tasks else ""


def lack_of(model_type: str, head: Head) -> str:
    """The sentence about a kind of model that has no such head."""
    return f"{model_type} has no {_LACKING[head]} head"


def stored_labels(config: Mapping[str, Any]) -> int:
    """How many labels a config.json tells of; 2, as in transformers, where it is silent."""
    names = config.get("id2label")
    if isinstance(names, Mapping) and names:
        return len(names)
    number = config.get("num_labels")
    return number if type(number) is int and number > 0 else 2
