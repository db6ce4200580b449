import pytest
import torch
from transformers import AutoConfig

from tests.combinations import first_by_default
from tests.planning.families import config_of, layer_of, setup_of
from tests.tiny_models import TOWERS
from tui_trainer.models.counting import Answers
from tui_trainer.models.heads import auto_class
from tui_trainer.models.shape import shape_of
from tui_trainer.planning.memory import dry_run
from tui_trainer.planning.memory.dry_run import measure_layer
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.worker import asking
from tui_trainer.worker.asking import WorkerFailed

pytestmark = pytest.mark.dry_run


def measure(family, setup, row_tokens=24, **changes):
    config = config_of(family, **changes)
    return measure_layer(config, shape_of(config), setup, row_tokens)


@pytest.fixture
def counted():
    """What a llama consists of is asked before nobody answers."""
    shape_of(config_of("llama"))


def test_what_cannot_be_counted_says_why(counted, monkeypatch):
    def ask(*_, **__):
        raise WorkerFailed("ended with: no memory", "no memory")

    monkeypatch.setattr(asking.Worker, "ask", ask)
    found = measure("llama", setup_of("llama", lora_rank=77))
    assert found == (None, "not known: the dry run ended with: no memory")


@pytest.mark.parametrize(("number", "answer"), enumerate(["", [], [{"kept": 3, "made": 3}], {"kept": None}]))
def test_an_answer_that_is_none_is_not_known(counted, monkeypatch, number, answer):
    monkeypatch.setattr(asking.Worker, "ask", lambda *_, **__: answer)
    monkeypatch.setattr(dry_run, "answers", Answers("dry_run", format_version=-1 - number))
    assert measure("llama", setup_of("llama"))[1] == "not known: the dry run gave no answer"


_ROW, _ANSWER = 192, 160
_SMALL = {
    "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 200,
    "intermediate_size": 96, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_HALVES = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 200, "max_position_embeddings": 256, "pad_token_id": 0,
    "decoder_start_token_id": 2, "is_encoder_decoder": True,
}  # fmt: skip
# Attention of other kinds, experts, recurrence, and layers that differ from one another; the quick ones first.
ARCHITECTURES = {
    "lfm2": {**_SMALL, "layer_types": ["conv", "conv", "full_attention", "conv", "conv"]},
    "olmoe": {**_SMALL, "num_experts": 4, "num_experts_per_tok": 2},
    "gemma2": {**_SMALL, "head_dim": 16},
    "bloom": {"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 200},
    "mamba": {"hidden_size": 64, "num_hidden_layers": 3, "state_size": 4, "vocab_size": 200},
    "recurrent_gemma": {**_SMALL, "head_dim": 16, "lru_width": 64, "attention_window_size": 32},
    "modernbert": {**_SMALL, "cls_token_id": 1, "sep_token_id": 2},
    "m2m_100": _HALVES,
}
_HEADS = {"modernbert": "sequence_classification", "m2m_100": "seq2seq_lm"}


@pytest.mark.versions
@pytest.mark.parametrize("family", first_by_default(ARCHITECTURES, 2))
def test_any_architecture_is_counted(family):
    """As much is kept as the whole model really keeps of one more row, with numbers."""
    head = _HEADS.get(family, "causal_lm")
    config = {"model_type": family, **ARCHITECTURES[family]}
    setup = TrainingSetup(head=head, target_tokens=_ANSWER if head == "seq2seq_lm" else 0)
    layer = layer_of(config, setup, _ROW)
    assert layer.counted.kept == pytest.approx(_kept_of_a_row(config, head) / _ROW / layer.shape.layers, rel=0.15)
    assert layer.counted.made >= layer.counted.kept and layer.counted.evaluated > 0


def _kept_of_a_row(config, head):
    """Bytes that autograd keeps of one more row, in a model with numbers whose head sees one token."""
    fields = {name: value for name, value in config.items() if name != "model_type"}
    if head == "seq2seq_lm":
        fields |= {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}  # layers are left out by chance
    model = auto_class(head).from_config(AutoConfig.for_model(config["model_type"], **fields)).train()
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    if output := model.get_output_embeddings():
        output.register_forward_pre_hook(lambda module, given: (given[0][:, :1],))
    found = []
    for rows in (1, 2):
        kept = {}

        def keep(tensor, kept=kept):
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage
            return tensor

        inputs = {"input_ids": torch.randint(3, 200, (rows, _ROW))}
        if head == "seq2seq_lm":
            inputs["decoder_input_ids"] = torch.randint(3, 200, (rows, _ANSWER))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(**inputs, **({"use_cache": False} if head != "sequence_classification" else {}))
        found.append(sum(storage.nbytes() for key, storage in kept.items() if key not in weights))
    return found[1] - found[0]


@pytest.mark.parametrize("family", ["gemma3", "mistral3"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_layers_beside_towers_keep_what_they_keep_alone(family, method):
    """A pass over text goes through no tower, and no adapter is in one."""
    whole = {"model_type": family, **TOWERS[family]}
    setup = TrainingSetup(method=method, lora_rank=4, lora_targets=("q_proj", "up_proj") if method == "lora" else ())
    found, alone = (measure_layer(each, shape_of(each), setup, 24) for each in (whole, whole["text_config"]))
    assert found == alone and found[0] is not None
