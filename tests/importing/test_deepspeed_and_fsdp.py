"""Settings of DeepSpeed and FSDP: what is split, what stays on the host, and DeepSpeed's optimizer and schedule."""

from __future__ import annotations

from pathlib import Path

from tests.importing.checks import check, reasons
from tui_trainer.importing.imported import import_file
from tui_trainer.importing.rules import Why

CONFIGS = Path(__file__).parent / "configs"
STRATEGY, OFFLOAD = "distributed.strategy", "distributed.cpu_offload"
RATE, SCHEDULE = "training.learning_rate", "training.lr_scheduler_type"


def test_a_deepspeed_file_is_imported():
    imported = import_file(CONFIGS / "deepspeed.json")
    assert imported.values == {
        "training.effective_batch_size": 64, "training.max_grad_norm": 0.5, "logging.logging_steps": 20,
        "training.mixed_precision": "bf16", "training.optim": "adamw_torch_fused", SCHEDULE: "linear",
        STRATEGY: "deepspeed-2", OFFLOAD: True,
    }  # fmt: skip
    [line] = [line for line in imported.report if OFFLOAD in line]
    assert "gradients and optimizer state stay in host memory" in line


ZERO = [
    ({"stage": 0}, {STRATEGY: "ddp"}, {}),
    ({"stage": 1, "offload_optimizer": {"device": "cpu"}}, {STRATEGY: "fsdp"},
     {"zero_optimization.offload_optimizer": Why.NOT_SUPPORTED}),
    ({"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "none"}},
     {STRATEGY: "deepspeed-3", OFFLOAD: True}, {"zero_optimization.offload_optimizer": Why.NOT_NEEDED}),
    ({"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/disk"}}, {STRATEGY: "deepspeed-3"},
     {"zero_optimization.offload_param": Why.NOT_SUPPORTED}),
]  # fmt: skip


def test_zero_stages_and_offloading_are_imported(read, subtests):
    for zero, values, left_out in ZERO:
        with subtests.test(zero=zero):
            imported = read({"train_batch_size": 8, "zero_optimization": zero})
            assert imported.values == {"training.effective_batch_size": 8} | values
            check(imported, {}, left_out)


def test_the_optimizer_and_schedule_of_deepspeed_are_imported(read):
    optimizer = {"lr": 3e-5, "betas": [0.8, 0.95], "eps": "1e-7", "weight_decay": 0.1, "momentum": 0.9}
    scheduler = {"warmup_num_steps": 50, "warmup_min_lr": 0, "warmup_type": "log"}
    given = {"optimizer": {"type": "AdamW", "params": optimizer}}
    imported = read({**given, "scheduler": {"type": "WarmupLR", "params": scheduler}}, "deepspeed")
    assert imported.values == {
        "training.optim": "adamw_torch_fused", RATE: 3e-5, "training.adam_beta1": 0.8, "training.adam_beta2": 0.95,
        "training.adam_epsilon": 1e-7, "training.weight_decay": 0.1, SCHEDULE: "constant_with_warmup",
        "training.warmup_steps": 50,
    }  # fmt: skip
    assert reasons(imported) == {
        "optimizer.params.momentum": Why.REFUSED, "scheduler.params.warmup_min_lr": Why.ALWAYS,
        "scheduler.params.warmup_type": Why.REFUSED,
    }  # fmt: skip
    # The floor of the cosine schedule is imported.
    cosine = read({"scheduler": {"type": "WarmupCosineLR", "params": {"cos_min_ratio": 0.1}}}, "deepspeed")
    assert cosine.values == {SCHEDULE: "cosine", "training.min_lr_rate": 0.1} and not cosine.left_out


RATES = [
    (None, 2e-5, 2e-5, {}),
    ("auto", 2e-5, 2e-5, {"optimizer.params.lr": Why.AUTOMATIC}),
    (3e-5, "auto", 3e-5, {"scheduler.params.warmup_max_lr": Why.AUTOMATIC}),
    (3e-5, 2e-5, 2e-5, {"optimizer.params.lr": Why.NOT_NEEDED}),
]


def test_the_peak_of_the_schedule_wins_over_the_learning_rate_of_the_optimizer(read, subtests):
    for lr, peak, rate, left_out in RATES:
        with subtests.test(lr=lr, peak=peak):
            params = {"eps": 1e-8} if lr is None else {"lr": lr}
            given = {"optimizer": {"params": params}, "scheduler": {"params": {"warmup_max_lr": peak}}}
            imported = read(given, "deepspeed")
            assert imported.values[RATE] == rate and reasons(imported) == left_out


def test_auto_in_a_deepspeed_file_is_left_to_the_script_beside_it(read):
    optimizer = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
    scheduler = dict.fromkeys(("warmup_num_steps", "warmup_max_lr"), "auto")
    imported = read({"optimizer": {"params": optimizer}, "scheduler": {"params": scheduler}}, "deepspeed")
    assert imported.values == {} and len(imported.left_out) == 6
    assert {left.reason for left in imported.left_out} == {"set by the training script"}


KINDS = ("transformers", "trl", "axolotl", "llama_factory", "modelforge", "training_script")
FSDP = [
    ({"fsdp": "full_shard auto_wrap offload"}, {STRATEGY: "fsdp", OFFLOAD: True}),
    ({"fsdp": ["hybrid_shard", "offload"]}, {STRATEGY: "hsdp", OFFLOAD: True}),
    ({"fsdp": "full_shard auto_wrap"}, {STRATEGY: "fsdp"}),
    ({"fsdp": True, "fsdp_config": {"offload_params": True}}, {STRATEGY: "fsdp", OFFLOAD: True}),
    ({"fsdp": True, "fsdp_config": {"cpu_offload": True}}, {STRATEGY: "fsdp", OFFLOAD: True}),
    ({"fsdp": True, "fsdp_config": {"fsdp_offload_params": False}}, {STRATEGY: "fsdp"}),
    ({"fsdp": True, "fsdp_offload_params": True}, {STRATEGY: "fsdp", OFFLOAD: True}),
    ({"fsdp": "offload"}, {}),
    ({"use_cpu_offload": True}, {OFFLOAD: True}),
    ({"use_cpu_offload": False}, {}),
    ({"gradient_accumulation_kwargs": {"use_cpu_offload": True}}, {OFFLOAD: True}),
    ({"gradient_accumulation_kwargs": {"num_steps": 2}}, {}),
]
CHECKPOINTING = [
    {"fsdp": True, "fsdp_config": {"activation_checkpointing": True}, "gradient_checkpointing": False},
    {"fsdp": True, "fsdp_config": {"fsdp_activation_checkpointing": True}},
    {"gradient_checkpointing": True, "fsdp": True, "fsdp_activation_checkpointing": False},
]


def test_fsdp_offloading_and_checkpointing_are_imported(read, subtests):
    for kind in KINDS:
        for given, values in FSDP:
            with subtests.test(f"{kind} {given}"):
                imported = read(given | {"learning_rate": 1e-4}, kind)
                found = {key: value for key, value in imported.values.items() if key.startswith("distributed.")}
                assert found == values
        for given in CHECKPOINTING:
            with subtests.test(f"{kind} {given}"):
                imported = read(given | {"learning_rate": 1e-4}, kind)
                assert imported.values["training.gradient_checkpointing"] is True
                assert Why.DOES_NOT_FIT not in reasons(imported).values()
