"""A config without a model says what a collate asks for: special tokens, the kind of labels, the family's defaults."""

from types import SimpleNamespace

from tui_trainer.models.loading import config_only

TOKENIZER = SimpleNamespace(pad_token_id=7, bos_token_id=8, eos_token_id=None)


def test_a_pretrained_model_keeps_the_tokens_of_its_config():
    found = config_only({"model_type": "bart", "decoder_start_token_id": 5, "pad_token_id": 3}, TOKENIZER, is_new=False)
    assert (found.config.decoder_start_token_id, found.config.pad_token_id) == (5, 3)
    assert found.config.model_type == "bart"
    # What config.json leaves out is as the family has it.
    assert config_only({"model_type": "bart"}, TOKENIZER, is_new=False).config.decoder_start_token_id == 2


def test_random_weights_begin_with_the_tokens_of_the_tokenizer():
    found = config_only({"model_type": "t5", "pad_token_id": 3}, TOKENIZER, is_new=True).config
    assert (found.pad_token_id, found.bos_token_id, found.decoder_start_token_id) == (7, 8, 7)


def test_the_kind_of_labels_is_said():
    found = config_only({"model_type": "bert"}, TOKENIZER, is_new=False, problem_type="regression").config
    assert found.problem_type == "regression" and found.get_text_config().pad_token_id == 0


def test_a_family_of_its_own_code_has_its_fields():
    found = config_only({"model_type": "nobody_knows", "pad_token_id": 4}, TOKENIZER, is_new=False).config
    assert found.get_text_config().pad_token_id == 4
