"""`training.effective_batch_size = "auto"`: the number of the card, bounded by the data, and the learning rate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planning.test_processes import FACTS as LORA_FACTS
from tests.planning.test_processes import FOUR
from tests.planning.test_profiles_on_machines import FACTS, loaded_on, machine, machine_of
from tui_trainer.config.load import Request, load
from tui_trainer.config.sections import step_rows
from tui_trainer.config.toml_files import all_profiles, read_profile
from tui_trainer.errors import ConfigError
from tui_trainer.launching.prepare import edited_settings
from tui_trainer.measure.micro_batches import micro_batch_patch
from tui_trainer.planning import plan as planning
from tui_trainer.planning.effective_batch import with_rows_of_step
from tui_trainer.planning.plan_file import plan_bytes, read_plan_file
from tui_trainer.runs.folder import RunFolder
from tui_trainer.tasks import task_names

AUTO = "training.effective_batch_size=auto"
T4 = machine("Tesla T4", (7, 5), 15360)
RTX_3090 = machine("NVIDIA GeForce RTX 3090", (8, 6), 24576)
A100_40 = machine("NVIDIA A100-SXM4-40GB", (8, 0), 40960)
A100_80 = machine("NVIDIA A100-SXM4-80GB", (8, 0), 81920)
H100 = machine("NVIDIA H100 80GB HBM3", (9, 0), 81559)
TWEETS = replace(FACTS, rows=50_000, class_count=3)


def planned(recipe, hardware, *assignments, facts=TWEETS):
    return planning.make(loaded_on(hardware, recipe, assignments), hardware, facts)


ROWS_OF_CARDS = [
    ("tweet-sentiment", T4, 32, 4e-5),
    ("tweet-sentiment", RTX_3090, 48, 4.9e-5),
    ("tweet-sentiment", A100_40, 64, 5.66e-5),
    ("tweet-sentiment", A100_80, 128, 8e-5),
    ("tweet-sentiment", H100, 128, 8e-5),
    ("ner", T4, 32, 4e-5),
    ("ner", RTX_3090, 48, 4.9e-5),
    ("ner", A100_40, 64, 5.66e-5),
    ("ner", H100, 128, 8e-5),
    ("char-lm", T4, 128, 1e-3),
    ("char-lm", RTX_3090, 192, 1.22e-3),
    ("char-lm", A100_40, 192, 1.22e-3),
    ("char-lm", H100, 192, 1.22e-3),
    ("mistral-7b-qlora", machine_of("gtx-10xx-16xx"), 8, 2e-4),
    ("mistral-7b-qlora", machine_of("rtx-20xx"), 8, 2e-4),
    ("mistral-7b-qlora", RTX_3090, 8, 2e-4),
    ("mistral-7b-qlora", machine_of("rtx-40xx-50xx"), 8, 2e-4),
    ("llama-8b-lora", RTX_3090, 8, 2e-4),
    ("llama-8b-lora", A100_40, 8, 2e-4),
    ("llama-8b-lora", H100, 8, 2e-4),
]


def test_auto_takes_the_cards_number_and_scales_the_learning_rate_by_its_root(subtests):
    for recipe, hardware, rows, rate in ROWS_OF_CARDS:
        with subtests.test(f"{recipe} on {hardware.gpus[0].name}"):
            facts = TWEETS if recipe in ("tweet-sentiment", "ner") else replace(TWEETS, class_count=0)
            plan = planned(recipe, hardware, AUTO, facts=facts)
            assert (plan.effective_batch_size.value, plan.learning_rate.value) == (rows, rate)
            assert plan.config.training.effective_batch_size == rows and plan.effective_batch_is_auto
            profile = plan.hardware_profile
            number = f"hardware profile {profile}" + (": an 8B model in 4 bits" if "7b-qlora" in recipe else "")
            assert number in plan.effective_batch_size.reason and plan.total_steps.value >= 300
            before = planned(recipe, hardware, "training.lr_scaling=none", AUTO, facts=facts).learning_rate.value
            assert (f"{before:g} -> {rate:g}" in plan.learning_rate.reason) == (before != rate)


def test_only_three_recipes_leave_the_batch_size_to_the_card_and_the_epochs_to_the_data():
    written = {name: one.values["training"] for name, one in all_profiles("recipes").items()}
    for key in ("effective_batch_size", "num_train_epochs"):
        decided = {name for name, training in written.items() if training.get(key) == "auto"}
        assert decided == {"finetune", "tweet-sentiment", "ner"}


# Rows of the data, epochs asked for; epochs, rows per step and steps as planned.
LITTLE_DATA = [
    (50_000, 3, (3, 128, 1173)),
    (8_000, 3, (3, 64, 375)),
    (1_600, 3, (3, 16, 300)),
    (1_600, 12, (12, 64, 300)),
    (40, 3, (3, 8, 15)),
    (8_000, "auto", (3, 64, 375)),
    (1_600, "auto", (3, 16, 300)),
    (400, "auto", (4, 8, 200)),
    (200, "auto", (8, 8, 200)),
    (30, "auto", (10, 8, 40)),
    (5, "auto", (10, 4, 20)),
]


def test_little_data_is_read_more_often_in_smaller_steps(subtests):
    for rows, asked, expected in LITTLE_DATA:
        with subtests.test(f"{rows} rows, {asked} epochs"):
            setting = f"training.num_train_epochs={asked}"
            plan = planned("tweet-sentiment", H100, setting, facts=replace(TWEETS, rows=rows))
            epochs, batch = plan.config.training.num_train_epochs, plan.effective_batch_size.value
            assert (epochs, batch, plan.total_steps.value) == expected
            assert ("fewer than 300 steps" in plan.effective_batch_size.reason) == (batch < 128)
            if batch == 16:
                assert "4e-05 -> 2.83e-05" in plan.learning_rate.reason
            figure = plan.resolved().get("training.num_train_epochs")
            assert figure is None if asked != "auto" else figure.value == epochs
            assert asked != "auto" or ("fewer than 200 steps" in figure.reason) == (epochs > 3)


def test_without_a_number_for_the_card_the_batch_is_that_of_the_recipes_learning_rate():
    for hardware, settings, words in (
        (machine_of("cpu"), (), "on a CPU"),
        (H100, ("hardware_profile=none",), 'hardware_profile = "none"'),
        (H100, ("hardware_profile=gtx-10xx-16xx",), "has no value for sequence_classification"),
    ):
        plan = planned("tweet-sentiment", hardware, *settings)
        assert (plan.effective_batch_size.value, plan.learning_rate.value) == (32, 4e-5)
        assert words in plan.effective_batch_size.reason
        assert planned("tweet-sentiment", hardware, *settings, "training.base_batch_size=8").learning_rate.value == 4e-5


@pytest.mark.full
def test_rows_of_another_length_keep_the_tokens_of_a_step():
    short, long = (planned("tweet-sentiment", H100, f"data.max_length={length}") for length in (64, 512))
    assert (short.effective_batch_size.value, long.effective_batch_size.value) == (256, 32)
    assert "128 rows of 128 tokens" in short.effective_batch_size.reason


@pytest.mark.full
def test_several_cards_multiply_the_number_and_each_process_has_a_row():
    facts = replace(LORA_FACTS, rows=50_000, packed_rows=None)
    loaded = loaded_on(FOUR, "finetune", ("model.model_name_or_path=distilbert/distilgpt2",))
    plan = planning.make(loaded, FOUR, facts)
    one = planning.make(loaded, FOUR, facts, chosen_gpu=0)
    assert plan.processes.value == 4 and one.processes.value == 1
    assert plan.effective_batch_size.value == 4 * one.effective_batch_size.value
    few = planning.make(loaded, FOUR, replace(facts, rows=2))
    assert few.processes.value == few.effective_batch_size.value == 2
    asked = loaded_on(FOUR, "finetune", ("distributed.processes=4", "model.model_name_or_path=distilbert/distilgpt2"))
    assert planning.make(asked, FOUR, replace(facts, rows=2)).effective_batch_size.value == 4


def test_an_explicit_micro_batch_and_accumulation_decide_the_batch():
    cut = ("training.per_device_train_batch_size=8", "training.gradient_accumulation_steps=3")
    plan = planned("tweet-sentiment", H100, *cut)
    assert plan.effective_batch_size.value == 24 and not plan.effective_batch_is_auto
    assert plan.learning_rate.value == 3.46e-5
    # What is changed about the passes leaves the number to the card.
    assert micro_batch_patch(planned("tweet-sentiment", H100, cut[1]), 8).keys() == {
        "training.per_device_train_batch_size", "training.gradient_accumulation_steps",
    }  # fmt: skip


def test_the_learning_rate_is_scaled_as_suits_the_optimizer_within_its_range():
    assert planned("tweet-sentiment", H100, "training.lr_scaling=linear").learning_rate.value == pytest.approx(1.6e-4)
    sgd = planned("tweet-sentiment", H100, "training.optim=sgd", "training.learning_rate=auto")
    assert sgd.learning_rate.value == pytest.approx(0.03 * 4) and "linear scaling" in sgd.learning_rate.reason
    assert sgd.usual_learning_rate == sgd.learning_rate.value
    written = planned("tweet-sentiment", H100, "training.optim=sgd", "training.learning_rate=0.5")
    assert (written.learning_rate.value, written.usual_learning_rate) == (0.5, sgd.usual_learning_rate)
    own = planned("tweet-sentiment", H100, "training.learning_rate=3e-5")
    assert own.learning_rate.value == 3e-5 and "a rate that you set is not scaled" in own.learning_rate.reason
    own = planned("tweet-sentiment", H100, "training.learning_rate=1e-5", "training.base_batch_size=32")
    assert own.learning_rate.value == 2e-5
    # A number of one's own on a recipe whose batch is auto has the rate that auto has with it.
    number = planned("tweet-sentiment", H100, "training.effective_batch_size=128")
    assert number.learning_rate.value == 8e-5 and not number.effective_batch_is_auto
    far = planned(
        "tweet-sentiment", H100, "training.base_batch_size=1", "training.optim=sgd", "training.learning_rate=auto"
    )
    assert far.learning_rate.value == 0.3 and "tends to diverge" in far.learning_rate.reason


@pytest.mark.full
def test_packed_rows_are_counted_for_the_chosen_batch():
    facts = replace(TWEETS, class_count=0, packed_rows=1.0, compute_packed_rows=lambda documents: documents / 4)
    loaded = loaded_on(A100_40, "finetune", ("model.model_name_or_path=distilbert/distilgpt2",))
    resolved, found = with_rows_of_step(loaded, A100_40, facts)
    assert step_rows(resolved.config) == 64 and found.packed_rows == 16.0
    assert with_rows_of_step(resolved, A100_40, found) == (resolved, found)


def test_a_resumed_run_keeps_its_batch_and_does_not_count_as_edited(tmp_path):
    plan = planned("tweet-sentiment", H100, AUTO)
    again = read_plan_file(plan_bytes(plan))
    assert again.config.training.effective_batch_size == 128 and again.effective_batch_is_auto
    folder = RunFolder.create(tmp_path, "run")
    folder.config.write_text(
        'profile = "tweet-sentiment"\n[training]\neffective_batch_size = "auto"\nnum_train_epochs = "auto"\n'
    )
    assert edited_settings(folder, again) is None
    folder.config.write_text('profile = "tweet-sentiment"\n[training]\neffective_batch_size = 64\n')
    found = edited_settings(folder, again)
    assert found and "64 (128 in this run)" in found.message
    number = again.model_copy(update={"effective_batch_is_auto": False})
    folder.config.write_text('profile = "tweet-sentiment"\n[training]\neffective_batch_size = "auto"\n')
    assert edited_settings(folder, number) is not None


@pytest.mark.full
def test_batch_tables_of_shipped_profiles_name_existing_tasks_and_a_source():
    tables = [table for profile in all_profiles("hardware").values() for table in profile.batches]
    assert len(tables) >= 20
    assert all(set(table.tasks) <= set(task_names()) and table.source for table in tables)


DAMAGED_TABLES = [
    ("rows = 8", "tasks"),
    ('tasks = ["causal_lm"]\ntokens = 8\nrows = 0\nsource = "x"', "batches.rows"),
    ('tasks = "causal_lm"\ntokens = 8\nrows = 8\nsource = "x"', "batches.tasks"),
    ('tasks = ["causal_lm"]\ntokens = 8.5\nrows = 8\nsource = "x"', "batches.tokens"),
    ('tasks = ["causal_lm"]\ntokens = 8\nrows = 8\nsource = "x"\nparameters_at_most = true', "parameters_at_most"),
    ('tasks = ["causal_lm"]\ntokens = 8\nrows = 8\nsource = "x"\nspeed = 3', "batches.speed"),
    ('tasks = ["causal_lm"]\ntokens = 8\nrows = 8\nsource = "x"\nmemory_gib = [9, 3]', "batches.memory_gib"),
]


def test_a_damaged_batch_table_is_refused_with_its_key(tmp_path, subtests):
    path = tmp_path / "mine.toml"
    texts = [(f'[match]\ndevice = "cuda"\n[[batches]]\n{table}\n', words) for table, words in DAMAGED_TABLES]
    texts += [(f'batches = {value}\n[match]\ndevice = "cuda"\n', "batches") for value in ("3", "[3]")]
    for text, words in texts:
        with subtests.test(text):
            path.write_text(text)
            with pytest.raises(ConfigError, match=words):
                read_profile(path, "hardware")
    path.write_text("[[batches]]\nrows = 8\n")
    with pytest.raises(ConfigError, match="unknown"):
        load(Request(profile=str(path)), lambda requested: (None, ""))
