"""Logits in chunks equal those of the model, whatever it does after its head; a plan counts only on such chunks."""

import weakref
from importlib.metadata import version

import numpy as np
import pytest
import torch
from packaging.version import Version
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.tiny_models import SEQ2SEQ, SHAPES, tiny_model
from tui_trainer.config.load import Request
from tui_trainer.config.sections import TuningSection
from tui_trainer.data.batching.collate import collate
from tui_trainer.launching.open_run import load_config
from tui_trainer.losses.chunked_head import HeadLoss
from tui_trainer.losses.micro_batch import MicroBatch, micro_batch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.models import modules as logits
from tui_trainer.models.modules import logit_transform
from tui_trainer.models.shape import shape_of
from tui_trainer.planning import automatic_values as choices
from tui_trainer.tuning import find_method

CHUNK = 4
_TINY = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "num_local_experts": 2, "num_experts_per_tok": 1,
}  # fmt: skip
# Strong enough that a loss without them would be another.
CHANGED = {
    "gemma2": {"final_logit_softcapping": 0.3},
    "gemma3_text": {"final_logit_softcapping": 0.3},
    "vaultgemma": {"final_logit_softcapping": 0.3},
    "nanochat": {"final_logit_softcapping": 0.3},
    "cohere": {"logit_scale": 3.0},
    "cohere2": {"logit_scale": 0.0625},
    "granite": {"logits_scaling": 8.0},
    "granitemoe": {"logits_scaling": 8.0},
    "hyperclovax": {"logits_scaling": 0.25},
}
# Values with which the same fields change nothing.
UNCHANGED = {"final_logit_softcapping": 1e5, "logit_scale": 1.0, "logits_scaling": 1.0}


def changed_model(family: str, **more):
    torch.manual_seed(1)
    config = AutoConfig.for_model(family, **_TINY, **CHANGED[family] | more)
    model = AutoModelForCausalLM.from_config(config).train()
    with torch.no_grad():
        # Fresh weights make logits near to 0, where a cap does nothing.
        for parameter in model.get_output_embeddings().parameters():
            parameter.normal_(std=0.5)
    return model


@pytest.fixture
def batch() -> MicroBatch:
    draw = np.random.default_rng(1)
    rows = [draw.integers(3, 90, length).astype("int32") for length in (9, 17, 5)]
    return micro_batch(collate(rows, 0))


def gradients(model, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def assert_same_in_chunks(model, batch: MicroBatch, smoothing: float = 0.0) -> float:
    """Compare the loss and all gradients in chunks, as a sum and by label, with those of the model's own logits."""
    plain, chunked = (NextTokenLoss(model, chunk_tokens=chunk, label_smoothing=smoothing) for chunk in (0, CHUNK))
    wanted = plain(batch)
    expected = gradients(model, wanted)
    for loss in (chunked(batch), chunked.label_losses(batch).sum(), plain.label_losses(batch).sum()):
        assert chunked.chunk_tokens == CHUNK
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
        mine = gradients(model, loss)
        assert len(mine) == len(expected) > 0
        for one, other in zip(mine, expected, strict=True):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
    return wanted.item()


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[pytest.mark.full] * (name not in ("gemma2", "cohere", "granite"))) for name in CHANGED],
)
def test_chunks_have_the_loss_and_gradients_of_a_model_that_changes_its_logits(family, batch):
    loss = assert_same_in_chunks(changed_model(family), batch)
    unchanged = changed_model(family, **{name: UNCHANGED[name] for name in CHANGED[family]})
    assert NextTokenLoss(unchanged)(batch).item() != pytest.approx(loss, rel=1e-3), "the control"
    if family in ("gemma2", "granite"):
        assert_same_in_chunks(changed_model(family), batch, smoothing=0.1)


def test_a_logit_cap_is_followed_whatever_its_name(batch, monkeypatch):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    shapes = {
        "recurrent_gemma": {"lru_width": 32, "num_attention_heads": 4, "logits_soft_cap": 2.0},
        "xlstm": {"num_heads": 4, "num_blocks": 2, "output_logit_soft_cap": 2.0},
    }
    for family, shape in shapes.items():
        monkeypatch.setitem(SHAPES, family, sizes | shape)
        model = tiny_model(family).eval()
        with torch.no_grad():
            whole, chunked = (float(NextTokenLoss(model, chunk_tokens=chunk)(batch)) for chunk in (0, CHUNK))
        assert chunked == pytest.approx(whole, rel=1e-5), family


def test_a_bias_of_the_head_and_a_saved_tied_head_are_chunked(batch, subtests):
    for family in ("phi", "gpt2", "llama"):
        model = tiny_model(family)
        if (bias := model.get_output_embeddings().bias) is not None:
            bias.data.normal_()
        with subtests.test(family):
            assert_same_in_chunks(model, batch)
    for family, module in (("gemma2", "lm_head"), ("cohere", "embed_tokens"), ("granite", "lm_head")):
        tuning = TuningSection(method="lora", r=2, modules_to_save=module)
        tied = changed_model(family, tie_word_embeddings=True)
        adapted = find_method("lora").apply(tied, tuning, seed=0, autocast=False).train()
        with subtests.test(f"{family}, whose {module} is saved beside an adapter"):
            assert any(weight.requires_grad and weight.shape == (97, 32) for weight in adapted.parameters())
            assert_same_in_chunks(adapted, batch)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_capped_chunks_in_16_bits_are_close_to_fp32(dtype, batch):
    model = changed_model("gemma2", final_logit_softcapping=30.0)
    exact = gradients(model, NextTokenLoss(model)(batch))
    with torch.autocast("cpu", dtype):
        loss = NextTokenLoss(model, chunk_tokens=CHUNK)(batch)
    for mine, theirs in zip(gradients(model, loss), exact, strict=True):
        assert (mine - theirs).norm() <= 0.1 * theirs.norm()


def test_the_gradient_of_a_head_in_16_bits_is_as_exact_in_many_chunks_as_in_one():
    draw = torch.Generator().manual_seed(1)
    # All of one sign: what is added last is below the last bit of a sum in 16 bits.
    hidden, labels = torch.rand(2048, 8, generator=draw) + 0.5, torch.zeros(2048, dtype=torch.int64)

    def gradient(dtype: torch.dtype, chunk_tokens: int) -> torch.Tensor:
        weight = torch.zeros(16, 8, dtype=dtype, requires_grad=True)
        HeadLoss(chunk_tokens=chunk_tokens).sum(hidden.to(dtype), weight, labels).backward()
        return weight.grad.float()

    exact = gradient(torch.float32, 2048)
    one, many = ((gradient(torch.bfloat16, chunk) - exact).norm() / exact.norm() for chunk in (2048, 1))
    assert one < 0.01 and many < 0.01


def test_logits_that_change_in_an_unknown_way_are_not_chunked(batch, monkeypatch):
    model = changed_model("gemma2").eval()
    assert (loss := NextTokenLoss(model, chunk_tokens=CHUNK)).chunks_match_model(batch)
    monkeypatch.delitem(logits._RULES, "gemma2")
    unknown = NextTokenLoss(model, chunk_tokens=CHUNK)
    assert unknown.chunk_tokens == CHUNK, "by its name it could be any model that ends with its head"
    assert not unknown.chunks_match_model(batch)
    assert unknown.chunk_tokens == 0
    assert unknown(batch).item() == pytest.approx(loss(batch).item(), rel=1e-6)


# Planned and done -----------------------------------------------------------------------------------------------------


def assert_plan_counts_on_the_chunks_of_the_loss(family: str, is_known: bool = True) -> None:
    model = changed_model(family) if family in CHANGED else tiny_model(family)
    shape = shape_of(model.config.to_dict(), head="seq2seq_lm" if family in SEQ2SEQ else "causal_lm")
    card = choices.TrainingDevice(device="cuda", reason="", gpu=None)
    for asked, wanted in (("auto", logits.FEW_LABELS), (7, 7), (0, 0)):
        loaded = load_config(Request(assignments=(f"training.loss_chunk_tokens={asked}",)))
        planned = choices.loss_chunk(loaded, card, shape)
        assert planned.value == (wanted if is_known else 0)
        assert NextTokenLoss(model, chunk_tokens=wanted).chunk_tokens == planned.value
        assert ("all at once" in planned.reason) != is_known


def test_a_plan_counts_on_chunks_exactly_where_the_loss_is_chunked(monkeypatch, subtests):
    for family in ("llama", "gemma2", "t5"):
        with subtests.test(family):
            assert_plan_counts_on_the_chunks_of_the_loss(family)
    monkeypatch.setattr(logits, "_UNSUPPORTED", logits._UNSUPPORTED | {"llama", "t5"})
    for family in ("llama", "t5"):
        with subtests.test(f"{family}, if no chunk could follow its logits"):
            assert_plan_counts_on_the_chunks_of_the_loss(family, is_known=False)


@pytest.mark.full
def test_a_plan_counts_on_chunks_for_every_family(subtests):
    for family in dict.fromkeys((*SHAPES, *SEQ2SEQ, *CHANGED)):
        with subtests.test(family):
            assert_plan_counts_on_the_chunks_of_the_loss(family)


def test_as_many_labels_as_a_chunk_has_are_in_chunks():
    rows = [(4096, 4096, True), (2048, 4096, True), (2047, 4096, False), (8, 8, True), (7, 8, False), (4096, 0, False)]
    for labels, chunk_tokens, expected in rows:
        assert logits.uses_chunks(labels, chunk_tokens) == expected, (labels, chunk_tokens)


def test_a_classifier_is_not_planned_in_chunks():
    shape = shape_of(tiny_model("llama").config.to_dict(), head="token_classification", labels=3)
    card = choices.TrainingDevice(device="cuda", reason="", gpu=None)
    planned = choices.loss_chunk(load_config(Request()), card, shape)
    assert (planned.value, planned.reason) == (0, "a classifier has few logits")


def test_the_table_of_logit_rules_fits_transformers():
    known = [name for name in logits._RULES if name in CONFIG_MAPPING]
    assert len(known) >= 15
    for family in known:
        silent = {"model_type": family}
        assert logit_transform(silent) == logit_transform(CONFIG_MAPPING[family]().to_dict()), family
    if Version(version("transformers")) >= Version("5.23"):  # that the tables were read from
        assert not [name for name in (*logits._RULES, *logits._UNSUPPORTED) if name not in CONFIG_MAPPING]


# Counted ------------------------------------------------------------------------------------------------------------


class LiveBlocks(TorchDispatchMode):
    """Counts the matrix products, and how many blocks of a size are alive at one time at the most."""

    def __init__(self, size_bytes: int = 0) -> None:
        super().__init__()
        self.size_bytes, self.most, self.products = size_bytes, 0, 0
        self._live: weakref.WeakSet = weakref.WeakSet()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.products += function.overloadpacket is torch.ops.aten.mm
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and (storage := result.untyped_storage()).nbytes() == self.size_bytes:
            self._live.add(storage)
            self.most = max(self.most, len({each.data_ptr() for each in self._live}))
        return result


@pytest.mark.parametrize("learns", [True, False])
def test_the_logits_of_one_chunk_are_in_memory_at_a_time(learns):
    hidden, weight = torch.randn(60, 8, requires_grad=learns), torch.randn(300, 8, requires_grad=learns)
    with LiveBlocks(10 * 300 * 4) as blocks:
        HeadLoss(chunk_tokens=10).sum(hidden, weight, torch.arange(60))
    assert blocks.most == 1


def test_an_evaluation_computes_no_gradients_of_chunks():
    hidden, labels = torch.randn(16, 8, requires_grad=True), torch.arange(16)
    weight = torch.randn(20, 8, requires_grad=True)
    with LiveBlocks() as training:
        HeadLoss(chunk_tokens=4).sum(hidden, weight, labels)
    with torch.no_grad(), LiveBlocks() as evaluation:
        HeadLoss(chunk_tokens=4).sum(hidden, weight, labels)
    assert (training.products, evaluation.products) == (12, 4)
