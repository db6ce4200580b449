"""What whole files of other tools mean here, where a name alone does not say it."""

import re
from pathlib import Path

import pytest
import torch

from tui_trainer.config.load import all_settings
from tui_trainer.config.sections import TrainingSection
from tui_trainer.config.toml_files import find_profile
from tui_trainer.errors import ConfigError
from tui_trainer.importing.imported import import_file
from tui_trainer.importing.rules import REFUSALS, Why

CONFIGS = Path(__file__).parent / "configs"
METHOD = "tuning.method"


def why(imported):
    return {one.key: one.why for one in imported.left_out}


def test_names_that_transformers_no_longer_has_are_rewritten():
    imported = import_file(CONFIGS / "transformers_4.json")
    values = imported.values
    assert values["training.warmup_steps"] == 0.1
    assert values["evaluation.eval_steps"] == 0.2  # once in each of 5 epochs
    assert values["checkpoint.save_steps"] == 200
    assert values["training.effective_batch_size"] == 16
    assert values["training.optim"] == "adamw_torch_fused"
    assert values["data.group_by_length"] is True
    assert values["model.dtype"] == "bfloat16"
    assert values["evaluation.metric_for_best_model"] == "loss"
    assert values["evaluation.early_stopping_patience"] == 10**6
    assert {key: why(imported)[key] for key in ("logging_dir", "max_steps")} == {
        "logging_dir": Why.NOT_NEEDED,
        "max_steps": Why.NOT_NEEDED,
    }


def test_adafactor_keeps_its_learning_rate_and_its_meaning(read):
    """Hugging Face's Trainer does not scale its steps by the weights, and neither does the one here."""
    from tui_trainer.methods.optimizers import OPTIMIZERS

    imported = read({"optim": "adafactor", "learning_rate": 1e-4, "per_device_train_batch_size": 4}, "transformers")
    assert imported.values["training.optim"] == "adafactor"
    assert imported.values["training.learning_rate"] == 1e-4
    weight = torch.nn.Parameter(torch.zeros(4, 4))
    built = OPTIMIZERS["adafactor"].build([{"params": [weight]}], 1e-4, TrainingSection(optim="adafactor"))
    weight.grad = torch.ones(4, 4)
    built.step()
    torch.testing.assert_close(weight.detach(), torch.full((4, 4), -1e-4))


def test_what_is_in_the_file_and_does_not_fit_is_not_said_to_be_missing_there(read):
    given = {"model_name_or_path": "a/b", "assistant_only_loss": True, "lr_scheduler_type": "cosine_with_min_lr"}
    imported = read(given, "trl")
    assert why(imported) == {"lr_scheduler_type": Why.DOES_NOT_FIT}
    assert "training.lr_scheduler_type" not in imported.values and imported.values["training.learning_rate"] == 2e-5


@pytest.mark.parametrize("packing", [True, False])
def test_rows_are_packed_where_only_neat_packing_is_off(packing, read):
    imported = read({"stage": "sft", "neat_packing": False, "packing": packing}, "llama_factory")
    assert imported.values["data.packing"] is packing
    assert why(imported) == {"neat_packing": Why.NOT_NEEDED}
    given = {"stage": "sft", "packing": False, "neat_packing": True, "per_device_train_batch_size": 2}
    both = read(given, "llama_factory")
    assert both.values["data.packing"] is True and not both.left_out
    assert any("documents behind a step here" in rewrite.reason for rewrite in both.rewrites)
    assert read({"stage": "sft", "neat_packing": True}, "llama_factory").values["data.packing"] is True


def test_a_length_that_cuts_nothing_is_told_and_is_not_the_default(read):
    imported = read({"model_name_or_path": "a/b", "max_length": None}, "trl")
    assert why(imported) == {"max_length": Why.DOES_NOT_FIT} and "data.max_length" not in imported.values
    with pytest.raises(ConfigError, match="max_length: null does not fit: no row is cut there"):
        imported.refuse_other_runs()
    assert read({"model_name_or_path": "a/b"}, "trl").values["data.max_length"] == 1024


@pytest.mark.parametrize("kind", ["transformers", "trl", "axolotl", "llama_factory", "modelforge", "training_script"])
def test_trackers_that_are_none_here_are_left_out(kind, read):
    key = "logging.report_to"
    assert read({"report_to": ["tensorboard", "mlflow"]}, kind).values[key] == "tensorboard, mlflow"
    some = read({"report_to": ["comet_ml", "wandb"]}, kind)
    assert some.values[key] == "wandb"
    assert any("comet_ml left out: the trackers here are" in line for line in some.report)
    for value, reason in {"azure_ml": Why.NOT_SUPPORTED, "none": Why.NOT_NEEDED, "all": Why.NOT_NEEDED}.items():
        imported = read({"report_to": value}, kind)
        assert key not in imported.values and why(imported)["report_to"] is reason


def test_names_that_transformers_has_now_are_rewritten():
    imported = import_file(CONFIGS / "transformers_5.json")
    assert imported.values["training.gradient_checkpointing"] is True
    assert imported.values["data.group_by_length"] is True
    assert imported.values["evaluation.eval_steps"] == 0.25
    assert imported.values["checkpoint.save_steps"] == 0
    assert imported.values["training.max_steps"] == 1000
    assert why(imported)["lr_scheduler_type"] is Why.DOES_NOT_FIT
    assert imported.values["training.torch_compile_mode"] == "max-autotune-no-cudagraphs"


def test_an_axolotl_file_keeps_its_meaning():
    imported = import_file(CONFIGS / "axolotl_qlora.yaml")
    values = imported.values
    assert values[METHOD] == "qlora"
    assert values["training.effective_batch_size"] == 8
    assert values["evaluation.eval_steps"] == 0.125  # four times in each of 2 epochs
    assert values["checkpoint.save_steps"] == 0.5
    assert values["tuning.target_modules"] == "all-linear"
    assert values["data.path"] == "./conversations.jsonl"
    assert values["task.loss_on"] == "assistant"
    assert values["training.learning_rate"] == 2e-4  # which YAML reads as a text
    assert values["model.attn_implementation"] == "flash_attention_2"
    assert [why(imported)[key] for key in ("special_tokens", "wandb_project")] == [Why.NOT_NEEDED] * 2


def test_an_axolotl_file_without_an_adapter_tunes_all_weights():
    imported = import_file(CONFIGS / "axolotl_full.yaml")
    assert imported.values[METHOD] == "full"
    assert imported.values["training.effective_batch_size"] == 64
    assert imported.values["task.type"] == "causal_lm"
    assert imported.values["data.text_column"] == "body"
    assert "training.mixed_precision" not in imported.values  # both are on
    found = why(imported)
    assert [found[key] for key in ("fp16", "bf16")] == [Why.DOES_NOT_FIT] * 2
    assert imported.values["training.optim"] == "muon"
    assert [found[key] for key in ("rl", "evals_per_epoch")] == [Why.REFUSED, Why.NOT_SUPPORTED]
    assert imported.values["data.path"] == "hub:org/texts"


def test_a_llama_factory_file_keeps_its_meaning():
    imported = import_file(CONFIGS / "llama_factory.yaml")
    values = imported.values
    assert values[METHOD] == "qlora"
    assert values["tuning.lora_alpha"] == 16  # twice the rank, which the file does not say
    assert values["tuning.target_modules"] == "all-linear"
    assert values["training.gradient_checkpointing"] is True  # it is not disabled
    assert values["task.loss_on"] == "all"
    assert values["task.chat_template"] == "chatml"
    assert values["evaluation.eval_steps"] == 500
    assert why(imported)["dataset"] is Why.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("given", "rank", "alpha"), [({}, 8, 16), ({"lora_rank": 32}, 32, 64), ({"lora_alpha": 8}, 8, 8)]
)
def test_the_alpha_of_llama_factory_goes_with_its_rank(read, given, rank, alpha):
    imported = read({"model_name_or_path": "m", "finetuning_type": "lora", **given}, "llama_factory")
    assert (imported.values["tuning.r"], imported.values["tuning.lora_alpha"]) == (rank, alpha)


def test_a_table_is_read_where_rows_name_its_keys(read):
    imported = read({"peft_config": {"name": "lora", "r": 8, "bias": "none"}, "model": "m"}, "llama_factory_v1")
    assert (imported.values[METHOD], imported.values["tuning.r"]) == ("lora", 8)
    assert why(imported) == {"peft_config.bias": Why.UNKNOWN}


def test_preferences_are_not_supported():
    found = why(import_file(CONFIGS / "llama_factory_preferences.yaml"))
    expected = [Why.REFUSED, Why.NOT_NEEDED, Why.NOT_SUPPORTED]
    assert [found[key] for key in ("stage", "pref_beta", "deepspeed")] == expected


def test_an_adapter_is_rewritten():
    values = import_file(CONFIGS / "adapter_config.json").values
    wanted = {
        "model.model_name_or_path": "org/small-model",
        "model.revision": "v2",
        METHOD: "lora",
        "tuning.r": 8,
        "tuning.lora_alpha": 64,
        "tuning.target_modules": "query, value",
        "tuning.modules_to_save": "classifier",
        "tuning.use_dora": True,
    }
    assert wanted.items() <= values.items()


@pytest.mark.parametrize(
    ("task", "ours"),
    [
        ("SEQ_CLS", "sequence_classification"),
        ("TOKEN_CLS", "token_classification"),
        ("QUESTION_ANS", "question_answering"),
        ("SEQ_2_SEQ_LM", "seq2seq"),
        ("CAUSAL_LM", "causal_lm"),
    ],
)
def test_the_task_of_an_adapter_is_ours(read, task, ours):
    imported = read({"peft_type": "LORA", "r": 4, "task_type": task})
    assert imported.values["task.type"] == ours


def test_trl_switches_and_tables_are_rewritten():
    imported = import_file(CONFIGS / "trl_sft.yaml")
    assert imported.values["model.revision"] == "abc"
    assert imported.values["task.loss_on"] == "assistant"
    assert imported.values["evaluation.eval_steps"] == 0  # YAML reads `no` as false
    assert imported.values["data.num_proc"] == 4
    old = import_file(CONFIGS / "trl_old.yaml")
    assert old.values["data.max_length"] == 512
    assert old.values["data.text_column"] == "body"
    assert old.values["task.loss_on"] == "all"
    assert old.values[METHOD] == "full"


@pytest.mark.parametrize(
    ("given", "effective", "reason"),
    [
        ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}, 16, "of one device there"),
        ({"per_device_train_batch_size": 6}, 6, "--processes N multiplies it"),
        ({"gradient_accumulation_steps": 4}, 32, "8 x 4: the default there"),
    ],
)
def test_a_batch_is_the_product_of_its_cut(read, given, effective, reason):
    [rewrite] = read(given, "transformers").rewrites
    assert (rewrite.key, rewrite.value) == ("training.effective_batch_size", effective)
    assert reason in rewrite.reason


def test_a_micro_batch_that_is_no_number_is_left_to_memory(read):
    values = read({"per_device_train_batch_size": "auto"}, "transformers").values
    assert values == {"training.per_device_train_batch_size": "auto"}


def test_packed_rows_are_told_from_documents(read):
    given = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "packing": True}
    assert any("documents behind a step" in rewrite.reason for rewrite in read(given, "trl").rewrites)


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({"warmup_ratio": 0.03, "warmup_steps": 0}, 0.03),
        ({"warmup_ratio": 0.03, "warmup_steps": 100}, 100),
        ({"warmup_steps": 100}, 100),
    ],
)
def test_of_two_warm_ups_the_one_that_counts_is_taken(read, given, steps):
    imported = read(given)
    assert imported.values == {"training.warmup_steps": steps}
    assert len(imported.rewrites) + len(imported.left_out) == len(given)


def test_a_warm_up_of_all_steps_does_not_become_one_step(read):
    imported = read({"warmup_ratio": 1, "seed": 3})
    assert imported.values == {"training.seed": 3}
    assert why(imported) == {"warmup_ratio": Why.DOES_NOT_FIT}


@pytest.mark.parametrize(("epochs", "share"), [(1, 0), (4, 0.25)])
def test_once_an_epoch_is_a_share_of_all_steps(read, epochs, share):
    imported = read({"save_strategy": "epoch", "num_train_epochs": epochs})
    assert imported.values["checkpoint.save_steps"] == share


def test_where_steps_decide_the_length_an_epoch_is_no_measure(read):
    imported = read({"save_strategy": "epoch", "max_steps": 100})
    assert why(imported) == {"save_strategy": Why.NOT_SUPPORTED}


def test_values_out_of_range_are_refused_with_the_range(read, tmp_path):
    imported = read({"lora_r": 100_000, "lora_alpha": 16, "use_peft": True, "learning_rate": "fast"})
    assert imported.values == {"tuning.lora_alpha": 16, METHOD: "lora"}
    with pytest.raises(ConfigError) as caught:
        imported.refuse_other_runs()
    first, second = map(str, caught.value.problems)
    where, expected = tmp_path / "foreign.json", all_settings()["tuning.r"].expected
    assert first == f"{where}: lora_r: 100000 does not fit: tuning.r must be {expected}"
    assert f"{where}: learning_rate: fast does not fit: training.learning_rate must be" in second
    assert "--without lora_r,learning_rate imports the rest" in second


def test_two_keys_that_contradict_each_other_are_told(read):
    imported = read({"torch_dtype": "float16", "dtype": "bfloat16"})
    assert imported.values == {"model.dtype": "float16"}
    assert why(imported) == {"dtype": Why.DOES_NOT_FIT}


def test_two_attention_kernels_of_an_axolotl_file_are_told(read):
    imported = read({"base_model": "m", "attn_implementation": "sdpa", "flash_attention": True}, "axolotl")
    assert imported.values["model.attn_implementation"] == "sdpa"
    assert why(imported) == {"flash_attention": Why.DOES_NOT_FIT}
    off = read({"base_model": "m", "attn_implementation": "sdpa", "flash_attention": False}, "axolotl")
    assert why(off) == {"flash_attention": Why.AUTOMATIC}


def test_tensor_parallelism_of_an_axolotl_file_is_named_as_missing(read):
    imported = read({"base_model": "m", "tensor_parallel_size": 2}, "axolotl")
    (left,) = (one for one in imported.left_out if one.key == "tensor_parallel_size")
    assert left.why is Why.REFUSED and "whole layers" in left.reason
    assert why(read({"base_model": "m", "tensor_parallel_size": 1}, "axolotl")) == {"tensor_parallel_size": Why.ALWAYS}


def test_a_misspelt_key_is_left_out_with_its_nearest_neighbour(read):
    imported = read({"learning_rat": 1e-4, "seed": 1, "num_train_epochs": 1})
    [left] = imported.left_out
    assert (left.why, left.reason) == (Why.UNKNOWN, "did you mean learning_rate?")


def test_an_expression_is_kept_and_one_among_names_is_none(read):
    wanted = {"target_modules": r".*\.(q|v)_proj", "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}
    imported = read({"peft_type": "LORA", "r": 4, **wanted})
    assert imported.values["tuning.target_modules"] == wanted["target_modules"] and not why(imported)
    assert imported.values["tuning.target_parameters"] == "experts.gate_up_proj, experts.down_proj"
    imported = read({"peft_type": "LORA", "r": 4, "target_modules": ["q_proj", ".*v_proj"]})
    assert why(imported) == {"target_modules": Why.DOES_NOT_FIT}


def test_llama_factorys_muon_and_loss_of_routers_are_settings(read):
    imported = read({"stage": "sft", "finetuning_type": "full", "use_muon": True, "moe_aux_loss_coef": 0.02})
    assert imported.values["training.optim"] == "muon" and imported.values["training.router_aux_loss_coef"] == 0.02


def test_a_file_that_two_kinds_read_differently_is_not_guessed_at(read):
    with pytest.raises(ConfigError) as caught:
        read({"gradient_accumulation_steps": 4})
    assert "could be transformers" in str(caught.value)
    assert "--as: transformers, trl, peft" in str(caught.value)
    assert read({"gradient_accumulation_steps": 4}, "modelforge").values == {"training.effective_batch_size": 4}


def test_what_a_whole_file_does_not_say_is_the_other_tools_default(read):
    whole = read({"model_name_or_path": "org/m", "learning_rate": 1e-4}, "transformers")
    assert whole.values["training.lr_scheduler_type"] == "linear" and whole.values["training.learning_rate"] == 1e-4
    assert 'not in the file -> training.lr_scheduler_type = "linear" (the default of transformers)' in whole.report
    assert 'lr_scheduler_type = "linear"  # not in the file: the default of transformers' in whole.toml
    assert read({"learning_rate": 1e-4}, "transformers").values == {"training.learning_rate": 1e-4}


def test_a_default_batch_is_of_one_device(read):
    assert read({"model_name_or_path": "org/m"}, "trl", devices=4).values["training.effective_batch_size"] == 32


def test_keys_are_left_out_where_that_is_asked_for(read):
    given = {"learning_rate": 1e-4, "optim_args": "a=5", "runs": 3}
    imported = read(given, "trl", without=["runs", "optim_args"])
    imported.refuse_other_runs()
    assert imported.values == {"training.learning_rate": 1e-4}
    assert why(imported) == {"runs": Why.AS_ASKED, "optim_args": Why.AS_ASKED}
    with pytest.raises(ConfigError, match="--without: the file has no key 'seed'; known: learning_rate"):
        read(given, "trl", without=["seed"])


@pytest.mark.parametrize("tool", ["transformers", "trl", "axolotl", "llama_factory"])
def test_noise_on_embeddings_and_faster_second_matrices_are_taken(tool, read):
    begin = {"stage": "sft", "finetuning_type": "lora"} if tool == "llama_factory" else {}
    found = read({**begin, "neftune_noise_alpha": 5, "loraplus_lr_ratio": 16.0}, tool).values
    assert found["training.neftune_noise_alpha"] == 5 and found["tuning.loraplus_lr_ratio"] == 16


@pytest.mark.parametrize(
    ("given", "tool", "init"),
    [
        ({"peft_type": "LORA", "r": 4, "init_lora_weights": "pissa_niter_4"}, "peft", "pissa_niter_4"),
        ({"peft_type": "LORA", "r": 4, "init_lora_weights": True}, "peft", "default"),
        ({"adapter": "lora", "peft_init_lora_weights": "olora"}, "axolotl", "olora"),
        ({"adapter": "lora", "peft_init_lora_weights": "gaussian"}, "axolotl", "gaussian"),
        ({"init_lora_weights": "pissa"}, "training_script", "pissa"),
        ({"pissa_init": True}, "llama_factory", "pissa_niter_16"),
        ({"pissa_init": True, "pissa_iter": 4, "pissa_convert": True}, "llama_factory", "pissa_niter_4"),
        ({"pissa_init": True, "pissa_iter": -1}, "llama_factory", "pissa"),
    ],
)
def test_what_adapters_begin_with_is_taken(given, tool, init, read):
    begin = {"stage": "sft", "finetuning_type": "lora"} if tool == "llama_factory" else {}
    found = read({**begin, **given}, tool)
    found.refuse_other_runs()
    assert found.values["tuning.init_lora_weights"] == init


@pytest.mark.parametrize(("number", "layers"), [(3, "last 3"), (-2, "first 2"), (None, "last 2")])
def test_some_layers_of_llama_factory_are_taken_by_their_number(number, layers, read):
    given = {"stage": "sft", "finetuning_type": "freeze", "freeze_trainable_layers": number}
    found = read({**given, "freeze_trainable_modules": "all"}, "llama_factory")
    found.refuse_other_runs()
    assert (found.values["tuning.method"], found.values["tuning.trainable_layers"]) == ("full", layers)


def test_patterns_of_axolotl_are_one_with_the_same_meaning(read):
    patterns = ["^lm_head.weight$", "model.layers.3[01].mlp", "layers.5", "model.norm.+"]
    found = read({"base_model": "org/m", "unfrozen_parameters": patterns}, "axolotl").values["tuning.trainable_layers"]
    names = ["lm_head.weight", "model.layers.30.mlp.up_proj.weight", "model.layers.5.mlp.up_proj.weight",
             "modelxlayers.31.mlp", "model.norm.weight", "model.layers.32.mlp"]  # fmt: skip
    assert [name for name in names if re.search(found, name)] == [names[0], names[1], names[4]]
    refused = read({"base_model": "org/m", "unfrozen_parameters": ["^model.embed_tokens.weight$[:32000]"]}, "axolotl")
    assert why(refused)["unfrozen_parameters"] is Why.DOES_NOT_FIT


def test_a_number_is_no_switch(read):
    imported = read({"stage": "pt", "disable_gradient_checkpointing": 1})
    assert why(imported)["disable_gradient_checkpointing"] is Why.DOES_NOT_FIT


def test_numbers_of_another_spelling_are_read(read):
    given = {"peft_type": "LORA", "r": 8.0, "lora_alpha": "16", "lora_dropout": "5e-2"}
    values = read(given).values
    assert [values[f"tuning.{name}"] for name in ("r", "lora_alpha", "lora_dropout")] == [8, 16, 0.05]


def test_an_empty_adapter_is_no_adapter_whatever_else_speaks_of_one(read):
    assert read({"base_model": "m", "adapter": None, "lora_r": 8}).values[METHOD] == "full"
    assert read({"base_model": "m", "lora_r": 8}, "axolotl").values[METHOD] == "lora"


def test_a_task_that_is_not_there_does_not_fit(read, monkeypatch):
    monkeypatch.setattr("tui_trainer.importing.rules.task_names", lambda: ["char_lm"])
    imported = read({"peft_type": "LORA", "r": 4, "task_type": "CAUSAL_LM"})
    assert "task.type" not in imported.values
    assert why(imported) == {"task_type": Why.DOES_NOT_FIT}


@pytest.mark.parametrize(
    ("task", "ours"),
    [
        ("text-generation", "causal_lm"),
        ("Text Generation", "causal_lm"),
        ("text_generation", "causal_lm"),
        ("TEXT-GENERATION", "causal_lm"),
        ("summarization", "seq2seq"),
        ("Summarisation", "seq2seq"),
        (" SUMMARIZATION ", "seq2seq"),
        ("extractive-question-answering", "question_answering"),
        ("Extractive Question Answering", "question_answering"),
        ("question-answering", "question_answering"),
    ],
)
def test_a_task_of_modelforge_is_ours_in_each_of_its_spellings(task, ours, read):
    assert read({"task": task, "learning_rate": 1e-4}, "modelforge").values["task.type"] == ours


@pytest.mark.parametrize(
    ("strategy", "four_bits", "method"),
    [("sft", False, "lora"), ("sft", True, "qlora"), ("qlora", True, "qlora"), (None, False, "lora")],
)
def test_modelforge_trains_adapters(strategy, four_bits, method, read):
    given = {"model_name": "org/m", "strategy": strategy, "use_4bit": four_bits, "task": "text-generation"}
    assert read({key: value for key, value in given.items() if value is not None}).values[METHOD] == method


@pytest.mark.parametrize(
    ("training", "share"),
    [
        ({"save_every": 5}, 0.2),  # of the recipe's 25 epochs
        ({"save_every": 5, "epochs": 10}, 0.5),
        ({"save_every": 3, "num_epochs": 9}, 0.333333),
        ({"save_every": 10, "epochs": 10}, 0),
        ({"save_every": 0}, 0),
    ],
)
def test_saving_every_so_many_epochs_is_a_share_of_all_steps(training, share, read):
    imported = read({"training": training})
    assert imported.importer.name == "char_trainer" and imported.left_out == ()
    assert imported.values["checkpoint.save_steps"] == share
    recipe = find_profile("char-lm", "recipes").values["training"]
    assert recipe["num_train_epochs"] == 25


def test_saving_every_so_many_epochs_wants_a_number(read):
    imported = read({"training": {"save_every": "often", "batch_size": 4}})
    assert why(imported) == {"training.save_every": Why.DOES_NOT_FIT}


@pytest.mark.parametrize(
    ("given", "kind"), [({"provider": "unsloth"}, "modelforge"), ({"use_unsloth": True}, "llama_factory")]
)
def test_unsloth_is_the_provider_of_the_model(given, kind, read):
    imported = read({**given, "learning_rate": 1e-4}, kind)
    assert imported.values["model.provider"] == "unsloth" and not imported.left_out


FLOOR, DECAY = {"lr_scheduler_type": "cosine_with_min_lr"}, {"lr_scheduler_type": "warmup_stable_decay"}


@pytest.mark.parametrize(
    ("kind", "given", "schedule", "found"),
    [
        ("transformers", {**FLOOR, "lr_scheduler_kwargs": {"min_lr_rate": 0.1}}, "cosine", {"min_lr_rate": 0.1}),
        ("trl", {**FLOOR, "lr_scheduler_kwargs": '{"min_lr_rate": 0.1, "num_cycles": 0.5}'}, "cosine",
         {"min_lr_rate": 0.1}),
        ("transformers", {**FLOOR, "learning_rate": "2e-4", "lr_scheduler_kwargs": {"min_lr": 5e-5}}, "cosine",
         {"min_lr_rate": 0.25, "learning_rate": 2e-4}),
        ("modelforge", {**DECAY, "lr_scheduler_kwargs": {"num_decay_steps": 20}}, "warmup_stable_decay",
         {"num_decay_steps": 20}),
        ("transformers", {**DECAY, "lr_scheduler_kwargs": {
            "num_decay_steps": 20, "decay_type": "1-sqrt", "min_lr_ratio": 0.1, "warmup_type": "linear"}},
         "warmup_stable_decay", {"num_decay_steps": 20, "decay_type": "1-sqrt", "min_lr_rate": 0.1}),
        ("llama_factory", {**DECAY, "max_steps": 100, "warmup_steps": 10,
                           "lr_scheduler_kwargs": {"num_stable_steps": 70, "num_decay_steps": 20}},
         "warmup_stable_decay", {"num_decay_steps": 20, "max_steps": 100, "warmup_steps": 10}),
        ("axolotl", {"lr_scheduler": "cosine", "cosine_min_lr_ratio": 0.1}, "cosine", {"min_lr_rate": 0.1}),
        ("axolotl", {"cosine_min_lr_ratio": 0.1}, None, {"min_lr_rate": 0.1}),
        ("axolotl", {"lr_scheduler": "linear", "cosine_min_lr_ratio": 0.1}, "linear", {}),
        ("axolotl", {"lr_scheduler": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.2}}, "cosine",
         {"min_lr_rate": 0.2}),
        ("training_script", {"scheduler": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 20}},
         "warmup_stable_decay", {"num_decay_steps": 20}),
    ],
)  # fmt: skip
def test_a_schedule_comes_with_its_arguments(read, kind, given, schedule, found):
    imported = read(given, kind)
    expected = {f"training.{key}": value for key, value in found.items()}
    expected |= {"training.lr_scheduler_type": schedule} if schedule else {}
    said = {rewrite.key: rewrite.value for rewrite in imported.rewrites if rewrite.sources}
    assert said == expected
    assert not [one for one in imported.left_out if one.why in REFUSALS]


@pytest.mark.parametrize(
    ("kind", "given", "reason"),
    [
        ("transformers", FLOOR, "needs min_lr_rate or min_lr, not both"),
        ("transformers", {**FLOOR, "lr_scheduler_kwargs": {"min_lr_rate": 0.1, "min_lr": 1e-5}}, "not both"),
        ("transformers", {**FLOOR, "lr_scheduler_kwargs": {"min_lr": 1e-5}}, "min_lr is a share of learning_rate here"),
        ("transformers", {**FLOOR, "lr_scheduler_kwargs": {"min_lr_rate": 0.1, "num_cycles": 2}}, "num_cycles: here"),
        ("transformers", {**FLOOR, "lr_scheduler_kwargs": {"min_lr_rate": 1.5}}, "training.min_lr_rate must be"),
        ("transformers", {**FLOOR, "lr_scheduler_kwargs": [0.1]}, "lr_scheduler_kwargs must be a table"),
        ("transformers", {**FLOOR, "lr_scheduler_kwargs": "min_lr_rate"}, "lr_scheduler_kwargs must be a table"),
        ("transformers", DECAY, "needs num_decay_steps, a whole number"),
        ("transformers", {**DECAY, "lr_scheduler_kwargs": {"num_decay_steps": 0.1}}, "a whole number"),
        ("transformers", {**DECAY, "lr_scheduler_kwargs": {"num_decay_steps": 9, "decay_type": "log"}},
         "training.decay_type must be"),
        ("transformers", {**DECAY, "lr_scheduler_kwargs": {"num_decay_steps": 9, "warmup_type": "cosine"}},
         "warmup_type: here"),
        ("transformers", {**DECAY, "max_steps": 90, "lr_scheduler_kwargs": {
            "num_decay_steps": 9, "num_stable_steps": 9}}, "must be max_steps together"),
        ("transformers", {**DECAY, "max_steps": 18, "warmup_steps": 0, "warmup_ratio": 0.1, "lr_scheduler_kwargs": {
            "num_decay_steps": 9, "num_stable_steps": 9}}, "must be max_steps together"),
        ("llama_factory", {**DECAY, "lr_scheduler_kwargs": {"num_decay_steps": 9}}, "which is a third there"),
        ("transformers", {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
         "only cosine_with_min_lr and warmup_stable_decay take arguments"),
    ],
)  # fmt: skip
def test_a_schedule_with_other_arguments_is_refused(read, kind, given, reason):
    imported = read(given, kind)
    with pytest.raises(ConfigError, match=re.escape(reason)):
        imported.refuse_other_runs()


@pytest.mark.parametrize(
    ("tool", "template", "model", "is_taken"),
    [
        ("llama_factory", "qwen2_vl", "Qwen/Qwen2.5-VL-7B-Instruct", True),
        ("llama_factory", "qwen3_vl_nothink", "Qwen/Qwen3-VL-4B-Instruct", True),
        ("llama_factory", "qwen2_vl", "Qwen/Qwen2-VL-7B-Instruct", False),
        ("llama_factory", "qwen3_vl", "Qwen/Qwen3-VL-4B-Thinking", False),
        ("llama_factory", "qwen3_5", "Qwen/Qwen3.5-4B", False),
        ("llama_factory", "kimi_vl", "moonshotai/Kimi-VL-A3B-Instruct", False),
        ("axolotl", "qwen2_vl", "Qwen/Qwen2.5-VL-7B-Instruct", True),
        ("axolotl", "qwen2_vl", "Qwen/Qwen3-VL-4B-Instruct", False),
        ("axolotl", "qwen3_5", "Qwen/Qwen3.5-4B", False),
    ],
)
def test_a_model_with_towers_learns_conversations_by_its_own_template(read, tool, template, model, is_taken):
    given = {"stage": "sft", "template": template, "model_name_or_path": model, "finetuning_type": "lora"}
    key = "template"
    if tool == "axolotl":
        key, given = "chat_template", {"base_model": model, "chat_template": template, "adapter": "lora"}
        given |= {"datasets": [{"path": "a.jsonl", "type": "chat_template"}]}
    found = why(read(given, tool))[key]
    assert found is (Why.ALWAYS if is_taken else Why.REFUSED)


@pytest.mark.parametrize(
    ("tool", "given", "tokens"),
    [
        ("axolotl", {"base_model": "a/b", "tokens": ["<|im_start|>", "a, b"]}, "<|im_start|>, a\\, b"),
        (
            "llama_factory",
            {"stage": "sft", "add_tokens": "gene, protein", "add_special_tokens": "<|cell|>", "resize_vocab": True},
            "gene, protein, <|cell|>",
        ),
        ("training_script", {"model_name": "a/b", "lr": 1e-4, "new_tokens": ["gene"]}, "gene"),
        (
            "axolotl",
            {
                "base_model": "a/b",
                "tokens": ["gene"],
                "special_tokens": {"pad_token": "<pad>", "additional_special_tokens": ["<|cell|>"]},
            },
            "gene, <|cell|>",
        ),
    ],
)
def test_new_tokens_of_other_tools_are_added(read, tool, given, tokens):
    imported = read(given, tool)
    assert imported.values["model.add_tokens"] == tokens
    assert not [one for one in imported.left_out if one.why in REFUSALS]


@pytest.mark.parametrize(
    ("tool", "given", "key"),
    [
        ("llama_factory", {"stage": "sft", "add_special_tokens": "gene"}, "add_special_tokens"),
        ("llama_factory", {"stage": "sft", "init_special_tokens": "desc_init"}, "init_special_tokens"),
        ("axolotl", {"base_model": "a/b", "added_tokens_overrides": {9: "<|im_start|>"}}, "added_tokens_overrides"),
        ("axolotl", {"base_model": "a/b", "tokens": [1, 2]}, "tokens"),
        ("axolotl", {"base_model": "a/b", "special_tokens": {"bos_token": "<s>"}}, "special_tokens"),
        ("axolotl", {"base_model": "a/b", "special_tokens": {"additional_special_tokens": ["gene"]}}, "special_tokens"),
        ("axolotl", {"base_model": "a/b", "rope_scaling": {"type": "ntk", "factor": 2}}, "rope_scaling"),
        ("axolotl", {"base_model": "a/b", "rope_scaling": {"type": "yarn", "alpha": 2}}, "rope_scaling"),
        ("axolotl", {"base_model": "a/b", "model_config": {"attention_dropout": 0}}, "model_config"),
        ("llama_factory", {"stage": "sft", "rope_scaling": "dynamic"}, "rope_scaling"),
        ("llama_factory", {"stage": "sft", "rope_scaling": "yarn", "model_name_or_path": "no/where"}, "rope_scaling"),
    ],
)  # fmt: skip
def test_tokens_and_positions_that_mean_something_else_are_refused(read, tool, given, key):
    assert why(read(given, tool))[key] in REFUSALS


_YARN = {"rope_type": "yarn", "factor": 4}


@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("axolotl", {"base_model": "a/b", "rope_scaling": {"type": "yarn", "factor": 4.0}}),
        ("axolotl", {"base_model": "a/b", "overrides_of_model_config": {"rope_scaling": _YARN}}),
        ("transformers", {"learning_rate": 1e-4, "warmup_steps": 1, "rope_scaling": _YARN}),
        ("trl", {"assistant_only_loss": True, "rope_scaling": _YARN}),
    ],
)
def test_longer_positions_of_other_tools_are_the_same_here(read, tool, given):
    values = read(given, tool).values
    assert (values["model.rope_scaling.rope_type"], values["model.rope_scaling.factor"]) == ("yarn", 4)


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_llama_factorys_positions_go_by_the_length_and_the_model(read, tmp_path, kind):
    """`configure_rope`: rows of 100 tokens and 32 positions make a factor of 4."""
    from tests.tiny_models import save_tiny_model

    folder = save_tiny_model(tmp_path / "llama", "llama", max_position_embeddings=32)
    given = {"stage": "sft", "model_name_or_path": str(folder), "rope_scaling": kind}
    found = {
        key.rpartition(".")[2]: value
        for key, value in read({**given, "cutoff_len": 100}, "llama_factory").values.items()
        if key.startswith("model.rope_scaling.")
    }
    more = {} if kind == "linear" else {"original_max_position_embeddings": 32}
    more |= {"low_freq_factor": 1, "high_freq_factor": 4} if kind == "llama3" else {}
    assert found == {"rope_type": kind, "factor": 4, **more}
    assert why(read({**given, "cutoff_len": 32}, "llama_factory"))["rope_scaling"] == Why.NOT_NEEDED
