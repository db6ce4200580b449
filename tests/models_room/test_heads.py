"""Which kinds of model have which head, against the tables of transformers; and what a user is told of others."""

from __future__ import annotations

from importlib.metadata import version
from typing import get_args

import pytest
from packaging.version import Version

from tui_trainer.errors import ConfigError
from tui_trainer.models import heads
from tui_trainer.models.config_json import refuse_other_kinds
from tui_trainer.models.heads import ENCODERS, TASK_OF, Head, Labels, auto_class, fit_heads, is_unfit, types_with

MAPPINGS = {
    "causal_lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "sequence_classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "token_classification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "seq2seq_lm": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
}


@pytest.mark.parametrize("head", MAPPINGS)
def test_the_types_are_those_that_transformers_has_when_it_is_imported(head):
    from transformers.models.auto import modeling_auto

    theirs = set(getattr(modeling_auto, MAPPINGS[head]))
    assert types_with(head) == theirs - heads._NO_TEXT
    assert len(types_with(head)) > 20


@pytest.mark.skipif(Version(version("transformers")) < Version("5.23"), reason="the table is of transformers 5.23")
def test_the_types_that_are_left_out_for_what_they_read_are_types_of_transformers():
    from transformers.models.auto import modeling_auto

    assert {name for mapping in MAPPINGS.values() for name in getattr(modeling_auto, mapping)} >= heads._NO_TEXT


def test_an_unreadable_transformers_says_nothing_of_any_type(monkeypatch):
    monkeypatch.setattr(heads.PathFinder, "find_spec", lambda name: None)
    assert types_with.__wrapped__("causal_lm") == frozenset()


def test_what_only_continues_texts_has_no_other_head():
    only = ("bamba", "codegen", "cohere2", "dbrx", "granite", "mamba", "mamba2", "nanochat", "olmoe", "rwkv", "xglm")
    assert all(fit_heads(model_type) == ("causal_lm",) for model_type in only)


@pytest.mark.parametrize("head", get_args(Head))
def test_each_head_has_a_class_and_a_task(head):
    assert auto_class(head).__name__.startswith("AutoModelFor")
    assert TASK_OF[head]


def test_heads_of_well_known_kinds():
    assert fit_heads("bert") == ("sequence_classification", "token_classification", "question_answering")
    assert "seq2seq_lm" in fit_heads("t5") and "causal_lm" not in fit_heads("t5")
    assert fit_heads("llama") == ("causal_lm", "sequence_classification", "token_classification")
    assert "question_answering" in fit_heads("mistral")
    assert fit_heads("granite") == ("causal_lm",)
    assert fit_heads("novel") == () and not any(is_unfit("novel", head) for head in TASK_OF)
    assert len(ENCODERS) > 30


@pytest.mark.versions
def test_heads_for_questions_whose_body_has_another_name_than_the_published_weights_are_refused():
    from transformers import AutoModelForCausalLM, AutoModelForQuestionAnswering
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    renamed = {
        name
        for name in types_with("question_answering") & types_with("causal_lm") - ENCODERS
        if AutoModelForQuestionAnswering._model_mapping[CONFIG_MAPPING[name]].base_model_prefix
        != AutoModelForCausalLM._model_mapping[CONFIG_MAPPING[name]].base_model_prefix
    }
    assert renamed and all(is_unfit(name, "question_answering") for name in renamed)
    with pytest.raises(
        ConfigError, match="question answering head of qwen3 in transformers does not take the published weights"
    ):
        refuse_other_kinds({"model_type": "qwen3"}, head="question_answering")


@pytest.mark.parametrize(
    ("config", "head", "words"),
    [
        ({"model_type": "bert"}, "causal_lm",
         ("bert is an encoder", "take a decoder", "token_classification or question_answering")),
        ({"model_type": "t5", "is_encoder_decoder": True}, "causal_lm", ("sequence-to-sequence", "or seq2seq")),
        ({"model_type": "bert"}, "seq2seq_lm", ("bert has no sequence-to-sequence head", "token_classification")),
        ({"model_type": "gpt2"}, "seq2seq_lm", ("gpt2 has no sequence-to-sequence head", "task.type = causal_lm")),
        ({"model_type": "bart"}, "token_classification", ("bart has no token classification head", "or seq2seq")),
        ({"model_type": "granite"}, "sequence_classification", ("has no sequence classification head", "causal_lm")),
        ({"model_type": "x", "text_config": {}}, "sequence_classification", ("several kinds of input",)),
        ({"model_type": "x", "text_config": {}}, None, ("several kinds of input",)),
    ],
)  # fmt: skip
def test_a_model_that_cannot_have_the_head_is_said_to_and_what_it_can_do(config, head, words):
    with pytest.raises(ConfigError) as caught:
        refuse_other_kinds(config, "here", head)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "head"),
    [("bert", "token_classification"), ("gpt2", "sequence_classification"), ("t5", "seq2seq_lm"), ("bert", None),
     ("novel", "token_classification")],
)  # fmt: skip
def test_a_model_that_can_have_the_head_is_taken_whatever_it_was_trained_for(model_type, head):
    for ending in ("Model", "ForMaskedLM", "ForTokenClassification", "ForQuestionAnswering"):
        refuse_other_kinds({"model_type": model_type, "architectures": [f"X{ending}"]}, head=head)


def test_labels_are_the_fields_of_a_config():
    from transformers import BertConfig

    config = BertConfig(**Labels(("no", "yes", "both"), "multi_label_classification").config_fields())
    assert (config.num_labels, config.id2label[2], config.label2id["yes"]) == (3, "both", 1)
    assert config.problem_type == "multi_label_classification"
    assert "problem_type" not in Labels(("O", "B-PER")).config_fields()
