"""What DeepSpeed and FSDP split and keep on the host, and the numbers of DeepSpeed's optimizer and schedule."""

import json
from pathlib import Path

from tui_trainer.importing.imported import import_file
from tui_trainer.importing.rules import Why

CONFIGS = Path(__file__).parent / "configs"


def why(imported):
    return {one.key: one.why for one in imported.left_out}


def test_a_deepspeed_file_is_imported():
    imported = import_file(CONFIGS / "deepspeed.json")
    assert imported.values == {
        "training.effective_batch_size": 64,
        "training.max_grad_norm": 0.5,
        "logging.logging_steps": 20,
        "training.mixed_precision": "bf16",
        "training.optim": "adamw_torch_fused",
        "training.lr_scheduler_type": "linear",
        "distributed.strategy": "deepspeed-2",
        "distributed.cpu_offload": True,
    }
    [line] = [line for line in imported.report if "distributed.cpu_offload" in line]
    assert "gradients and the optimizer's state stay on the host" in line


ZERO = [
    ({"stage": 0}, {"distributed.strategy": "ddp"}, {}),
    ({"stage": 1, "offload_optimizer": {"device": "cpu"}}, {"distributed.strategy": "fsdp"},
     {"offload_optimizer": Why.NOT_SUPPORTED}),
    ({"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "none"}},
     {"distributed.strategy": "deepspeed-3", "distributed.cpu_offload": True}, {"offload_optimizer": Why.NOT_NEEDED}),
    ({"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/disk"}}, {"distributed.strategy": "deepspeed-3"},
     {"offload_param": Why.NOT_SUPPORTED}),
]  # fmt: skip


def test_zero_stages_and_offloading_are_imported(tmp_path, subtests):
    for zero, values, left_out in ZERO:
        with subtests.test(zero=zero):
            path = tmp_path / "ds.json"
            path.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": zero}))
            imported = import_file(path)
            assert imported.values == {"training.effective_batch_size": 8} | values
            found = why(imported)
            assert {name: found[f"zero_optimization.{name}"] for name in left_out} == left_out


def test_the_optimizer_and_schedule_of_deepspeed_are_imported(read):
    optimizer = {"lr": 3e-5, "betas": [0.8, 0.95], "eps": "1e-7", "weight_decay": 0.1, "momentum": 0.9}
    scheduler = {"warmup_num_steps": 50, "warmup_min_lr": 0, "warmup_type": "log"}
    given = {"optimizer": {"type": "AdamW", "params": optimizer}}
    imported = read({**given, "scheduler": {"type": "WarmupLR", "params": scheduler}}, "deepspeed")
    assert imported.values == {
        "training.optim": "adamw_torch_fused",
        "training.learning_rate": 3e-5,
        "training.adam_beta1": 0.8,
        "training.adam_beta2": 0.95,
        "training.adam_epsilon": 1e-7,
        "training.weight_decay": 0.1,
        "training.lr_scheduler_type": "constant_with_warmup",
        "training.warmup_steps": 50,
    }
    assert why(imported) == {
        "optimizer.params.momentum": Why.REFUSED,
        "scheduler.params.warmup_min_lr": Why.ALWAYS,
        "scheduler.params.warmup_type": Why.REFUSED,
    }
    scheduler = {"type": "WarmupCosineLR", "params": {"cos_min_ratio": 0.1}}
    imported = read({"scheduler": scheduler}, "deepspeed")
    assert imported.values == {"training.lr_scheduler_type": "cosine", "training.min_lr_rate": 0.1}
    assert not imported.left_out


RATES = [
    (None, 2e-5, 2e-5, {}),
    ("auto", 2e-5, 2e-5, {"lr": Why.AUTOMATIC}),
    (3e-5, "auto", 3e-5, {"warmup_max_lr": Why.AUTOMATIC}),
    (3e-5, 2e-5, 2e-5, {"lr": Why.NOT_NEEDED}),
]


def test_the_peak_of_the_schedule_wins_over_the_learning_rate_of_the_optimizer(read, subtests):
    for lr, peak, rate, left_out in RATES:
        with subtests.test(lr=lr, peak=peak):
            params = {"eps": 1e-8} if lr is None else {"lr": lr}
            given = {"optimizer": {"params": params}, "scheduler": {"params": {"warmup_max_lr": peak}}}
            imported = read(given, "deepspeed")
            assert imported.values["training.learning_rate"] == rate
            assert {key.rpartition(".")[2]: reason for key, reason in why(imported).items()} == left_out


def test_auto_in_a_deepspeed_file_is_left_to_the_script_beside_it(read):
    optimizer = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
    scheduler = dict.fromkeys(("warmup_num_steps", "warmup_max_lr"), "auto")
    given = {"optimizer": {"params": optimizer}, "scheduler": {"params": scheduler}}
    imported = read(given, "deepspeed")
    assert imported.values == {}
    assert {one.reason for one in imported.left_out} == {"the script beside it says it"} and len(imported.left_out) == 6


KINDS = ["transformers", "trl", "axolotl", "llama_factory", "modelforge", "training_script"]
FSDP = [
    ({"fsdp": "full_shard auto_wrap offload"}, {"strategy": "fsdp", "cpu_offload": True}),
    ({"fsdp": ["hybrid_shard", "offload"]}, {"strategy": "hsdp", "cpu_offload": True}),
    ({"fsdp": "full_shard auto_wrap"}, {"strategy": "fsdp"}),
    ({"fsdp": True, "fsdp_config": {"offload_params": True}}, {"strategy": "fsdp", "cpu_offload": True}),
    ({"fsdp": True, "fsdp_config": {"cpu_offload": True}}, {"strategy": "fsdp", "cpu_offload": True}),
    ({"fsdp": True, "fsdp_config": {"fsdp_offload_params": False}}, {"strategy": "fsdp"}),
    ({"fsdp": True, "fsdp_offload_params": True}, {"strategy": "fsdp", "cpu_offload": True}),
    ({"fsdp": "offload"}, {}),
    ({"use_cpu_offload": True}, {"cpu_offload": True}),
    ({"use_cpu_offload": False}, {}),
    ({"gradient_accumulation_kwargs": {"use_cpu_offload": True}}, {"cpu_offload": True}),
    ({"gradient_accumulation_kwargs": {"num_steps": 2}}, {}),
]


def test_fsdp_and_cpu_offload_are_imported(read, subtests):
    for kind in KINDS:
        for given, values in FSDP:
            with subtests.test(kind=kind, given=given):
                imported = read(given | {"learning_rate": 1e-4}, kind)
                found = {key: value for key, value in imported.values.items() if key.startswith("distributed.")}
                assert found == {f"distributed.{key}": value for key, value in values.items()}


CHECKPOINTING = [
    {"fsdp": True, "fsdp_config": {"activation_checkpointing": True}, "gradient_checkpointing": False},
    {"fsdp": True, "fsdp_config": {"fsdp_activation_checkpointing": True}},
    {"gradient_checkpointing": True, "fsdp": True, "fsdp_activation_checkpointing": False},
]


def test_checkpointing_of_fsdp_is_imported(read, subtests):
    for kind in KINDS:
        for given in CHECKPOINTING:
            with subtests.test(kind=kind, given=given):
                imported = read(given | {"learning_rate": 1e-4}, kind)
                assert imported.values["training.gradient_checkpointing"] is True
                assert not [one for one in imported.left_out if one.why is Why.DOES_NOT_FIT]
