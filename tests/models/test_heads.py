"""Which model types have which head, against the tables of transformers, and refusals of the others."""

from __future__ import annotations

from typing import get_args

import pytest

from tui_trainer.errors import ConfigError
from tui_trainer.models import heads
from tui_trainer.models.config_json import refuse_other_kinds
from tui_trainer.models.heads import (
    ENCODERS,
    TASK_OF,
    Head,
    Labels,
    auto_class,
    lacks_head,
    supported_heads,
    types_with,
)

MAPPINGS = {
    "causal_lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "sequence_classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "token_classification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "seq2seq_lm": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
}


@pytest.mark.full
def test_types_with_a_head_are_those_of_transformers(subtests):
    from transformers.models.auto import modeling_auto

    for head, mapping in MAPPINGS.items():
        with subtests.test(head):
            theirs = set(getattr(modeling_auto, mapping))
            assert types_with(head) == theirs - heads._NO_TEXT
            assert len(types_with(head)) > 20


def test_heads_of_well_known_model_types():
    assert supported_heads("bert") == ("sequence_classification", "token_classification", "question_answering")
    assert "seq2seq_lm" in supported_heads("t5") and "causal_lm" not in supported_heads("t5")
    assert supported_heads("llama") == ("causal_lm", "sequence_classification", "token_classification")
    assert "question_answering" in supported_heads("mistral")
    assert supported_heads("granite") == ("causal_lm",)
    assert supported_heads("novel") == () and not any(lacks_head("novel", head) for head in TASK_OF)
    assert len(ENCODERS) > 30
    assert all(auto_class(head).__name__.startswith("AutoModelFor") and TASK_OF[head] for head in get_args(Head))


@pytest.mark.full
@pytest.mark.versions
def test_question_answering_heads_that_do_not_load_the_published_weights_are_refused():
    from transformers import AutoModelForCausalLM, AutoModelForQuestionAnswering
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    renamed = {
        name
        for name in types_with("question_answering") & types_with("causal_lm") - ENCODERS
        if AutoModelForQuestionAnswering._model_mapping[CONFIG_MAPPING[name]].base_model_prefix
        != AutoModelForCausalLM._model_mapping[CONFIG_MAPPING[name]].base_model_prefix
    }
    assert renamed and all(lacks_head(name, "question_answering") for name in renamed)
    with pytest.raises(ConfigError, match="cannot load published weights into the question answering head of qwen3"):
        refuse_other_kinds({"model_type": "qwen3"}, head="question_answering")


WITHOUT_THE_HEAD = [
    ({"model_type": "bert"}, "causal_lm",
     ("bert is an encoder", "need a decoder", "token_classification or question_answering")),
    ({"model_type": "t5", "is_encoder_decoder": True}, "causal_lm", ("an encoder-decoder model", "or seq2seq")),
    ({"model_type": "bert"}, "seq2seq_lm", ("bert has no sequence-to-sequence head", "token_classification")),
    ({"model_type": "gpt2"}, "seq2seq_lm", ("gpt2 has no sequence-to-sequence head", "task.type = causal_lm")),
    ({"model_type": "bart"}, "token_classification", ("bart has no token classification head", "or seq2seq")),
    ({"model_type": "granite"}, "sequence_classification", ("has no sequence classification head", "causal_lm")),
    ({"model_type": "x", "text_config": {}}, "sequence_classification", ("a multimodal model",)),
    ({"model_type": "x", "text_config": {}}, None, ("a multimodal model",)),
]  # fmt: skip


def test_a_model_that_cannot_have_the_head_is_refused_with_the_tasks_it_can_do(subtests):
    for config, head, words in WITHOUT_THE_HEAD:
        with subtests.test(f"{config} {head}"):
            with pytest.raises(ConfigError) as caught:
                refuse_other_kinds(config, "here", head)
            assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_model_that_can_have_the_head_is_accepted_whatever_it_was_trained_for():
    for model_type, head in (
        ("bert", "token_classification"), ("gpt2", "sequence_classification"), ("t5", "seq2seq_lm"), ("bert", None),
        ("novel", "token_classification"),
    ):  # fmt: skip
        for ending in ("Model", "ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"):
            refuse_other_kinds({"model_type": model_type, "architectures": [f"X{ending}"]}, head=head)
    refuse_other_kinds({"model_type": "bert", "is_decoder": True, "architectures": ["BertLMHeadModel"]})
    with pytest.raises(ConfigError):
        refuse_other_kinds({"model_type": "bert", "architectures": ["BertLMHeadModel"]})


def test_labels_become_fields_of_the_config():
    from transformers import BertConfig

    config = BertConfig(**Labels(("no", "yes", "both"), "multi_label_classification").config_fields())
    assert (config.num_labels, config.id2label[2], config.label2id["yes"]) == (3, "both", 1)
    assert config.problem_type == "multi_label_classification"
    assert "problem_type" not in Labels(("O", "B-PER")).config_fields()
