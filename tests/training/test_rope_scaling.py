"""Rotary positions that reach further, as transformers computes them: planned, trained, saved and continued."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.tiny_models import save_tiny_model, texts
from tests.trained_runs import write_rows
from tests.training.finished_runs import STILL, assert_resumes_to_the_bit, loss_of, of_kind
from tui_trainer.config.sections import RopeScalingSection
from tui_trainer.errors import ConfigError
from tui_trainer.exporting.trained_model import TrainedModel, load_tokenizer
from tui_trainer.launching.open_run import open_new
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.models.rope import FIELDS
from tui_trainer.models.writing import longest_sequence_tokens
from tui_trainer.runs.events import StepDone

FROM, ROPE, METHOD, LENGTH = "model.model_name_or_path", "model.rope_scaling", "tuning.method", "data.max_length"
POSITIONS = 32  # of the model; rows are longer
LONG_ROWS = [" ".join(texts(24)[at : at + 5]) for at in range(8)]
LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
TYPES = {
    "linear": {"factor": 4.0},
    "yarn": {"factor": 4.0, "beta_fast": 16.0},
    "llama3": LLAMA3,
    "longrope": {"factor": 4.0, "short_factor": [1.0] * 4, "long_factor": [1.5, 2.0, 3.0, 4.0]},
    "proportional": {"factor": 4.0},
}
ALL_ROWS = {
    "data.eval_fraction": 0, "data.packing": "false", "training.effective_batch_size": 8, "training.max_steps": 3,
    "training.lr_scheduler_type": "constant", "training.warmup_steps": 0, "training.learning_rate": 0.01,
}  # fmt: skip
LONGROPE = {f"{ROPE}.rope_type": "longrope", f"{ROPE}.factor": 2}
YARN = {f"{ROPE}.rope_type": "yarn", f"{ROPE}.factor": 2}


@pytest.fixture
def settings(tmp_path):
    def make(kind="", changes=None, family="llama"):
        folder = tmp_path / family
        where = folder if folder.exists() else save_tiny_model(folder, family, max_position_embeddings=POSITIONS)
        data = write_rows(tmp_path / "rows.jsonl", [{"text": text} for text in LONG_ROWS])
        fields = {"rope_type": kind, **TYPES[kind]} if kind else {}
        texts_of = {
            name: ", ".join(map(str, value)) if isinstance(value, list) else value for name, value in fields.items()
        }
        return {
            "profile": "finetune", "model.init": "pretrained", FROM: where, "data.path": data, LENGTH: 100,
            METHOD: "full", **{f"{ROPE}.{name}": json.dumps(value) for name, value in texts_of.items()},
            **(changes or {}),
        }  # fmt: skip

    return make


@pytest.mark.versions
def test_the_types_are_those_of_transformers():
    # Dynamic scaling depends on the longest row seen so far, so no run could be resumed exactly.
    assert FIELDS.keys() == ROPE_INIT_FUNCTIONS.keys() - {"dynamic"}
    kinds = set(RopeScalingSection.model_json_schema()["properties"]["rope_type"]["enum"])
    assert kinds == {"default", *FIELDS}
    for needs, takes in FIELDS.values():
        assert {*needs, *takes} <= RopeScalingSection.model_fields.keys()


@pytest.mark.full
@pytest.mark.versions
@pytest.mark.parametrize("kind", ["yarn", "llama3", "longrope"])
def test_losses_equal_those_of_a_plain_loop_with_the_same_positions(tiny_run, settings, kind):
    asked = settings(kind, ALL_ROWS)
    run, outcome = tiny_run(kind, asked)
    assert outcome.exit_code == 0, outcome
    config = AutoConfig.from_pretrained(asked[FROM])
    config.rope_parameters = {"rope_theta": 10000.0, "rope_type": kind, **TYPES[kind]}
    tokenizer = AutoTokenizer.from_pretrained(asked[FROM])
    bare = AutoModelForCausalLM.from_pretrained(asked[FROM], config=config)
    plain = AutoModelForCausalLM.from_pretrained(asked[FROM])
    optimizer = torch.optim.AdamW(bare.parameters(), lr=0.01, weight_decay=0.0)
    ids = [torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])[:, :100] for text in LONG_ROWS]
    assert 2 * POSITIONS < max(row.shape[1] for row in ids) < 100
    losses = []
    for _ in range(3):
        loss = loss_of_rows(bare, ids)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(bare.parameters(), 1.0)
        optimizer.step()
    found = [event.loss for event in of_kind(run, StepDone)]
    assert found == pytest.approx(losses, abs=1e-5)
    assert abs(loss_of_rows(plain, ids).item() - found[0]) > 1e-4
    # A loaded result has the same positions.
    saved = AutoModelForCausalLM.from_pretrained(run.model)
    assert saved.config.rope_parameters["rope_type"] == kind == saved.model.rotary_emb.rope_type
    assert saved.config.max_position_embeddings == 4 * POSITIONS
    assert longest_sequence_tokens(saved, AutoTokenizer.from_pretrained(run.model)) == 4 * POSITIONS
    with torch.no_grad():
        assert torch.allclose(saved(ids[0]).logits, bare(ids[0]).logits, atol=1e-4)


def loss_of_rows(model, ids):
    logits = torch.cat([model(row[:, :-1]).logits[0] for row in ids])
    return torch.nn.functional.cross_entropy(logits, torch.cat([row[0, 1:] for row in ids]))


@pytest.mark.full
def test_a_continued_adapter_keeps_its_positions(tiny_run, settings):
    more = {METHOD: "lora", "tuning.r": 4, "data.eval_fraction": 0.5}
    run, outcome = tiny_run("lora", settings("yarn", more))
    assert outcome.exit_code == 0, outcome
    trained = TrainedModel.of(run)
    model = trained.load(merge=True)
    assert model.config.rope_parameters["rope_type"] == "yarn" == model.model.rotary_emb.rope_type
    assert longest_sequence_tokens(model, load_tokenizer(trained)) == 4 * POSITIONS
    assert "positions" in (run.model / "README.md").read_text()
    for name, method in (("continued", "lora"), ("merged", "full")):
        again, outcome = tiny_run(name, {**settings("", more), FROM: "lora", METHOD: method, **STILL})
        assert outcome.exit_code == 0, outcome
        assert loss_of(again) == pytest.approx(loss_of(run), abs=1e-5)


def test_rows_may_be_as_long_as_the_positions_reach(tiny_config, settings):
    plan = estimated_plan(tiny_config("x", settings("yarn")))
    assert "yarn positions for 128 tokens instead of 32" in plan.parameters.reason
    assert plan.model_shape().max_position_embeddings == 128


REFUSED = [
    ({f"{ROPE}.rope_type": "yarn"}, "model.rope_scaling.factor: is required by yarn"),
    ({f"{ROPE}.rope_type": "llama3", f"{ROPE}.factor": 2}, "low_freq_factor: is required by llama3"),
    ({f"{ROPE}.rope_type": "linear", f"{ROPE}.factor": 0.5}, "is below 1, which would make the context shorter"),
    ({f"{ROPE}.rope_type": "linear", f"{ROPE}.factor": 2, f"{ROPE}.beta_fast": 8}, "is not used by linear"),
    ({f"{ROPE}.factor": 2}, "has no effect with model.rope_scaling.rope_type = default"),
    ({f"{ROPE}.rope_type": "ntk", f"{ROPE}.factor": 2}, "model.rope_scaling.rope_type"),
    ({**LONGROPE, f"{ROPE}.short_factor": "1, x", f"{ROPE}.long_factor": "2"},
     "model.rope_scaling.short_factor: is required by longrope"),
    ({**LONGROPE, f"{ROPE}.short_factor": "1", f"{ROPE}.long_factor": "2, 3"},
     "short_factor has 1 factors, but a head has 4 pairs of dimensions"),
    ({**YARN, "model.init": "scratch"}, "learns all positions of data.max_length"),
    ({**YARN, "model.provider": "unsloth"}, "is not supported with model.provider"),
]  # fmt: skip


def test_impossible_scalings_are_refused_with_the_reason(tiny_config, settings, tmp_path, subtests):
    other_models = [
        ({**YARN, FROM: save_tiny_model(tmp_path / family, family), LENGTH: 64}, words)
        for family, words in (("gpt2", "no rotary positions"), ("bloom", "how many positions"))
    ]
    for changes, words in REFUSED + other_models:
        with subtests.test(words):
            with pytest.raises(ConfigError) as refused:
                open_new(tiny_config("refused", settings("", changes)))
            assert words in str(refused.value)


def test_a_model_of_another_type_is_refused_and_one_of_the_same_type_reaches_further(tiny_config, settings, tmp_path):
    own = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    folder = save_tiny_model(tmp_path / "scaled", "llama", max_position_embeddings=64, rope_parameters=own)
    with pytest.raises(ConfigError, match="is yarn, but the model was trained with the type linear"):
        open_new(tiny_config("refused", settings("yarn", {FROM: folder})))
    plan = estimated_plan(tiny_config("x", settings("linear", {FROM: folder})))
    assert plan.model_shape().max_position_embeddings == 4 * POSITIONS


def test_a_warning_of_long_rows_names_the_scaling_that_reaches_them(tiny_config, settings, tmp_path):
    from tui_trainer.models.problems import length_warning

    loaded = tiny_config("x", settings(""))
    words = length_warning(estimated_plan(loaded).model_shape(), 100)
    assert "model.rope_scaling with a factor of 4 to extend" in words
    changes = {FROM: save_tiny_model(tmp_path / "gpt2", "gpt2"), LENGTH: 500}
    with pytest.raises(ConfigError, match="only rotary positions can be extended"):
        open_new(tiny_config("refused", settings("", changes)))


@pytest.mark.full
def test_a_stopped_run_with_longer_positions_is_resumed_to_the_bit(tiny_run, settings):
    changes = {METHOD: "lora", "tuning.r": 4, "tuning.loraplus_lr_ratio": 16}
    asked = settings("yarn", {**ALL_ROWS, "training.max_steps": 6, "training.learning_rate": 1e-3, **changes})
    assert_resumes_to_the_bit(tiny_run, asked, step=3)
