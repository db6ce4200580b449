"""Models with a head for a task: loaded from stored weights or built from a config, with a notice of new weights."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest

from tests.tiny_models import ENCODERS, save_tiny_model, tiny_tokenizer
from tui_trainer.config.sections import Config, ModelSection
from tui_trainer.errors import ConfigError
from tui_trainer.models.facts import find_model
from tui_trainer.models.heads import CLASSIFYING_HEADS, Labels
from tui_trainer.models.loading import (
    config_only,
    load_config,
    load_pretrained,
    load_tokenizer,
    new_model,
    tokenizer_of_file,
)
from tui_trainer.models.problems import model_problems

LABELS = Labels(("no", "yes", "both"), "single_label_classification")
FEW = [("bert", "token_classification"), ("llama", "sequence_classification"), ("t5", "seq2seq_lm")]
FAMILIES = [*ENCODERS, "llama", "gpt2"]
MORE = [(family, CLASSIFYING_HEADS[place % 2]) for place, family in enumerate(FAMILIES)] + [("bart", "seq2seq_lm")]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    made = {}

    def folder(family):
        if family not in made:
            made[family] = save_tiny_model(tmp_path_factory.mktemp("models") / family, family)
        return made[family]

    return folder


def load(folder, head, labels=LABELS, seed=1, **more):
    """Load a model and return it with the notices to the user."""
    import torch

    torch.manual_seed(seed)
    notices: list[str] = []
    labels = labels if head in CLASSIFYING_HEADS else None
    return load_pretrained(
        folder, ModelSection(), torch.float32, head=head, labels=labels, tell=notices.append, **more
    ), notices


@pytest.mark.parametrize("cases", [FEW, pytest.param(MORE, marks=pytest.mark.full)], ids=["few", "more"])
def test_a_model_is_planned_loaded_and_run_with_its_head(cases, folder_of, subtests):
    for family, head in cases:
        with subtests.test(f"{family} {head}"):
            folder = folder_of(family)
            labels = len(LABELS.names) if head in CLASSIFYING_HEADS else 0
            facts = find_model(str(folder), head=head, labels=labels)
            assert model_problems(facts, "pretrained", False) == []
            model, notices = load(folder, head, pad_token_id=0)
            assert facts.shape.parameters == model.num_parameters()
            assert len(notices) == (1 if labels else 0)
            tokenizer = load_tokenizer(folder)
            rows = tokenizer(["3 plus 4", "17 plus 8 is 25"], padding=True, return_tensors="pt")
            rows = {name: rows[name] for name in ("input_ids", "attention_mask")}
            result = model(**rows, **({} if labels else {"labels": rows["input_ids"]}))
            wanted = {"sequence_classification": (2, 3), "token_classification": (*rows["input_ids"].shape, 3)}
            assert result.logits.shape == wanted.get(head, (*rows["input_ids"].shape, model.config.vocab_size))
            if labels:
                assert model.config.id2label == {0: "no", 1: "yes", 2: "both"}


@pytest.mark.parametrize("family", ["bert", pytest.param("llama", marks=pytest.mark.full)])
def test_a_new_head_depends_on_the_seed_and_the_body_on_the_files(family, folder_of):
    import torch

    (one, notices), (same, _), (other, _) = (
        load(folder_of(family), "sequence_classification", seed=n) for n in (1, 1, 2)
    )
    assert notices[0].endswith("newly initialised") and ("classifier" in notices[0] or "score" in notices[0])
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, same.state_dict()[name])
        is_new = not name.startswith(one.base_model_prefix + ".") or "pooler" in name
        if not is_new:
            assert torch.equal(weight, other.state_dict()[name])
    heads = [
        name for name in one.state_dict() if name.endswith(("classifier.weight", "score.weight", "out_proj.weight"))
    ]
    assert not torch.equal(one.state_dict()[heads[0]], other.state_dict()[heads[0]])


def test_a_stored_head_is_kept_for_as_many_labels_and_replaced_for_others(folder_of, tmp_path):
    import torch

    first, _ = load(folder_of("roberta"), "sequence_classification")
    first.save_pretrained(tmp_path / "three")
    shutil.copy(folder_of("roberta") / "tokenizer.json", tmp_path / "three")
    again, notices = load(tmp_path / "three", "sequence_classification", seed=9)
    assert notices == []
    assert torch.equal(again.classifier.out_proj.weight, first.classifier.out_proj.weight)
    two, notices = load(tmp_path / "three", "sequence_classification", Labels(("a", "b")), seed=9)
    assert two.classifier.out_proj.weight.shape == (2, 32)
    assert torch.equal(two.classifier.dense.weight, first.classifier.dense.weight)
    assert notices[0].startswith("classifier.out_proj.weight and 1 more are newly initialised: the model in")
    assert notices[0].endswith("has 3 labels, but this task has 2")
    kept, notices = load(tmp_path / "three", "sequence_classification", None)
    assert kept.config.id2label[2] == "both" and notices == []
    assert find_model(str(tmp_path / "three"), head="sequence_classification").shape.labels == 3


@pytest.mark.parametrize(
    ("family", "head"), [("bert", "token_classification"), pytest.param("t5", "seq2seq_lm", marks=pytest.mark.full)]
)
def test_files_without_all_weights_of_the_body_are_refused(family, head, folder_of, tmp_path):
    folder = tmp_path / family
    shutil.copytree(folder_of(family), folder)
    path = folder / "config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"num_hidden_layers": 3, "num_layers": 3}))
    with pytest.raises(ConfigError, match=r"the weights do not fit config.json: .* is missing from the files"):
        load(folder, head)
    problems = model_problems(find_model(str(folder), head=head), "pretrained", False)
    assert "specifies 3 layers, but the weights have 2" in problems[0].message


@pytest.mark.full
def test_weights_with_the_names_of_early_bert_files_are_loaded(folder_of, tmp_path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder_of("bert"), tmp_path / "bert")
    path = tmp_path / "bert" / "model.safetensors"
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): weight
           for name, weight in load_file(path).items()}  # fmt: skip
    assert any(name.endswith(".gamma") for name in old)
    save_file(old, path, {"format": "pt"})
    facts = find_model(str(tmp_path / "bert"), head="token_classification", labels=3)
    assert model_problems(facts, "pretrained", False) == []
    _, notices = load(tmp_path / "bert", "token_classification")
    assert notices == ["classifier.weight and 1 more are newly initialised"]


def test_a_model_from_scratch_has_the_architecture_of_its_head(tmp_path, subtests):
    import torch

    scratch = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "attention_dropout": 0.1}
    config = Config.model_validate({"model": {"init": "scratch", "scratch": scratch}, "data": {"max_length": 20}})
    for head in ("causal_lm", "sequence_classification", "token_classification", "seq2seq_lm"):
        with subtests.test(head):
            family = {"causal_lm": "llama", "seq2seq_lm": "t5"}.get(head, "bert")
            tiny_tokenizer(family).save_pretrained(tmp_path / head)
            tokenizer = load_tokenizer(tmp_path / head)
            labels = LABELS if head in CLASSIFYING_HEADS else None
            shape = load_config(None, config, vocabulary=384, tokenizer=tokenizer, head=head, labels=labels)
            model = new_model(shape, config.model, torch.float32, head=head)
            assert shape.model_type == family and shape.vocab_size == 384
            assert shape.pad_token_id == tokenizer.pad_token_id
            rows = torch.full((2, 20), 7)
            if head in CLASSIFYING_HEADS:
                assert shape.max_position_embeddings == 20 and shape.id2label[1] == "yes"
                # Bidirectional: the first token sees the last one.
                model.eval()
                changed = rows.clone()
                changed[:, -1] = 9
                assert not torch.allclose(model.base_model(rows)[0][:, 0], model.base_model(changed)[0][:, 0])
            if head == "seq2seq_lm":
                assert shape.decoder_start_token_id == shape.pad_token_id and shape.is_encoder_decoder
                assert shape.feed_forward_proj == "gated-gelu" and shape.dropout_rate == 0.1
                assert model(input_ids=rows, labels=rows).logits.shape == (2, 20, 384)


@pytest.mark.full
def test_a_config_takes_labels_and_vocabulary_from_the_data(folder_of):
    config = Config.model_validate({"model": {"init": "scratch"}})
    tokenizer = tiny_tokenizer("bert")
    shape = load_config(
        folder_of("bert"), config, vocabulary=100, tokenizer=tokenizer, head="token_classification", labels=LABELS
    )
    assert (shape.model_type, shape.vocab_size, shape.num_labels) == ("bert", 100, 3)


@pytest.mark.full
def test_a_tokenizer_for_pairs_marks_the_second_text(tmp_path):
    path = tmp_path / "tokenizer.json"
    tiny_tokenizer("bert").backend_tokenizer.save(str(path))
    special = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    made = tokenizer_of_file(path, 32, special, distinguishes_pairs=True)
    assert made("3", "4")["token_type_ids"] == [0, 0, 0, 1, 1]
    assert "token_type_ids" not in tokenizer_of_file(path, 32, special)("3", "4")


@pytest.mark.full
def test_weights_are_loaded_directly_to_the_card(folder_of, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM

    asked, load_really = [], AutoModelForCausalLM.from_pretrained

    def from_pretrained(*args, **kwargs):
        asked.append(kwargs.pop("device_map", None))
        return load_really(*args, **kwargs)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
    for device in (None, torch.device("cpu"), torch.device("cuda", 1)):
        load(folder_of("llama"), "causal_lm", device=device)
    assert asked == [None, None, {"": torch.device("cuda", 1)}]


@pytest.mark.gpu
def test_weights_loaded_to_the_card_are_those_of_the_files(folder_of):
    import torch

    on_card, _ = load(folder_of("llama"), "causal_lm", device=torch.device("cuda", 0))
    on_host, _ = load(folder_of("llama"), "causal_lm")
    assert {parameter.device.type for parameter in on_card.parameters()} == {"cuda"}
    pairs = zip(on_card.state_dict().values(), on_host.state_dict().values(), strict=True)
    assert all(torch.equal(one.cpu(), other) for one, other in pairs)


def content_of(content, **more):
    tokenizer = SimpleNamespace(pad_token_id=7, bos_token_id=8, eos_token_id=None)
    return config_only(content, tokenizer, **{"is_new": False, **more}).config


def test_a_config_without_a_model_has_special_tokens_and_the_kind_of_labels():
    found = content_of({"model_type": "bart", "decoder_start_token_id": 5, "pad_token_id": 3})
    assert (found.decoder_start_token_id, found.pad_token_id, found.model_type) == (5, 3, "bart")
    assert content_of({"model_type": "bart"}).decoder_start_token_id == 2, "a default of the family"
    # A new model begins with the tokens of the tokenizer.
    found = content_of({"model_type": "t5", "pad_token_id": 3}, is_new=True)
    assert (found.pad_token_id, found.bos_token_id, found.decoder_start_token_id) == (7, 8, 7)
    found = content_of({"model_type": "bert"}, problem_type="regression")
    assert found.problem_type == "regression" and found.get_text_config().pad_token_id == 0
    assert content_of({"model_type": "nobody_knows", "pad_token_id": 4}).get_text_config().pad_token_id == 4
