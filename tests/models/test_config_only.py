"""A config without a model has what a collate function needs: special tokens, labels, family defaults."""

from types import SimpleNamespace

from tui_trainer.models.loading import config_only

TOKENIZER = SimpleNamespace(pad_token_id=7, bos_token_id=8, eos_token_id=None)


def config_of(content, **more):
    return config_only(content, TOKENIZER, **{"is_new": False, **more}).config


def test_a_config_without_a_model_has_special_tokens_and_the_kind_of_labels():
    found = config_of({"model_type": "bart", "decoder_start_token_id": 5, "pad_token_id": 3})
    assert (found.decoder_start_token_id, found.pad_token_id, found.model_type) == (5, 3, "bart")
    assert config_of({"model_type": "bart"}).decoder_start_token_id == 2, "a default of the family"
    # A new model begins with the tokens of the tokenizer.
    found = config_of({"model_type": "t5", "pad_token_id": 3}, is_new=True)
    assert (found.pad_token_id, found.bos_token_id, found.decoder_start_token_id) == (7, 8, 7)
    found = config_of({"model_type": "bert"}, problem_type="regression")
    assert found.problem_type == "regression" and found.get_text_config().pad_token_id == 0
    assert config_of({"model_type": "nobody_knows", "pad_token_id": 4}).get_text_config().pad_token_id == 4
