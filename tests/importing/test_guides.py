"""Every configuration printed in the five guides, as a file of keys and values, and the settings that it becomes.

A comment in a guide is a key `a comment` here. Blocks are numbered in the order of their guide. What B, C and D print
as Python has a name instead: arguments of a trainer, a loader or a compiler, and batch sizes by card.
"""

from pathlib import Path

from tui_trainer.config.changes import is_same_value
from tui_trainer.importing.imported import import_file
from tui_trainer.importing.rules import Why

CONFIGS = Path(__file__).parent / "configs"
BLOCKS = {"a": 10, "b": 4, "c": 21, "e": 5}

MODEL, METHOD, PRECISION = "model.model_name_or_path", "tuning.method", "training.mixed_precision"
EFFECTIVE, LENGTH, WORKERS = "training.effective_batch_size", "data.max_length", "dataloader.num_workers"
CHECKPOINTING, UNSLOTH = "training.gradient_checkpointing", {"model.provider": "unsloth"}
COMPILE, COMPILE_MODE = "training.torch_compile", "training.torch_compile_mode"
CHARS, QLORA = {"profile": "char-lm"}, {METHOD: "qlora"}

EXPECTED = {
    "guide_a_01.yaml": {MODEL: "sangam/IndianLanguages-Tamil-BERT-v0.1"},
    "guide_a_02.yaml": {MODEL: "distilgpt2"},
    "guide_a_03.yaml": {PRECISION: "fp16"},
    "guide_a_04.yaml": {EFFECTIVE: 16},
    "guide_a_05.yaml": {WORKERS: 4, "dataloader.prefetch_factor": 2, "dataloader.pin_memory": True},
    "guide_a_06.yaml": {
        "training.learning_rate": 5e-5, "training.lr_scheduler_type": "cosine", "training.warmup_steps": 0.1,
    },
    "guide_a_07.yaml": {"evaluation.early_stopping_patience": 3, "evaluation.early_stopping_threshold": 0.001},
    "guide_a_08.yaml": {"training.max_grad_norm": 1},
    "guide_a_09.yaml": {"training.weight_decay": 0.01},
    "guide_a_10.yaml": {WORKERS: 0, EFFECTIVE: 2, PRECISION: "no"},
    "guide_b_01.yaml": {EFFECTIVE: 8},
    "guide_b_02.yaml": {
        "evaluation.eval_steps": 20, "checkpoint.save_steps": 100, "logging.logging_steps": 5,
        "checkpoint.save_total_limit": 1,
    },
    "guide_b_03.yaml": {PRECISION: "fp16"},
    "guide_b_04.yaml": {EFFECTIVE: 9},
    "guide_b_flags.yaml": {
        CHECKPOINTING: True, "training.optim": "adamw_torch_fused", WORKERS: 0, "dataloader.pin_memory": True,
        "data.group_by_length": False, "model.attn_implementation": "flash_attention_2",
        "distributed.cpu_offload": True,
    },
    "guide_b_compile.yaml": {COMPILE: True, COMPILE_MODE: "reduce-overhead"},
    "guide_c_01.json": {**UNSLOTH},
    "guide_c_02.json": {PRECISION: "bf16"},
    "guide_c_03.json": {EFFECTIVE: 8},
    "guide_c_04.json": {LENGTH: 1024},
    "guide_c_05.json": {
        **QLORA, "quantization.bnb_4bit_compute_dtype": "bfloat16", "quantization.bnb_4bit_quant_type": "nf4",
    },
    "guide_c_06.json": {CHECKPOINTING: True},
    "guide_c_07.json": {"tuning.r": 16, METHOD: "lora"},
    "guide_c_08.json": {"training.optim": "paged_adamw_32bit"},
    "guide_c_09.json": {"dataloader.pin_memory": True},
    "guide_c_10.json": {"data.group_by_length": True},
    "guide_c_11.json": {"data.packing": True},
    "guide_c_12.json": {"training.learning_rate": 3e-4},
    "guide_c_13.json": {"training.warmup_steps": 0.03},
    "guide_c_14.json": {"training.lr_scheduler_type": "cosine"},
    "guide_c_15.json": {**UNSLOTH, **QLORA, PRECISION: "bf16", LENGTH: 2048, CHECKPOINTING: True},
    "guide_c_16.json": {**UNSLOTH, **QLORA, PRECISION: "bf16", LENGTH: 2048},
    "guide_c_17.json": {**QLORA, PRECISION: "bf16", LENGTH: 1024},
    "guide_c_18.json": {**UNSLOTH, **QLORA, PRECISION: "bf16", EFFECTIVE: 8},
    "guide_c_19.json": {**UNSLOTH, **QLORA, PRECISION: "fp16", EFFECTIVE: 8},
    "guide_c_20.json": {**QLORA, PRECISION: "fp16", EFFECTIVE: 8, LENGTH: 512},
    "guide_c_21.json": {PRECISION: "bf16", "training.tf32": True},
    "guide_c_compile.json": {COMPILE: True, COMPILE_MODE: "max-autotune-no-cudagraphs"},
    "guide_d_card_of_40_gb.json": {EFFECTIVE: 64},
    "guide_d_card_of_24_gb.json": {EFFECTIVE: 48},
    "guide_d_card_of_16_gb.json": {
        EFFECTIVE: 32, WORKERS: 8, "dataloader.prefetch_factor": 4, "training.learning_rate": 4e-5,
    },
    "guide_d_card_of_12_gb.json": {
        EFFECTIVE: 32, WORKERS: 4, "dataloader.prefetch_factor": 2, "training.learning_rate": 3e-5,
    },
    "guide_d_loader.json": {
        EFFECTIVE: 32, WORKERS: 8, "dataloader.prefetch_factor": 4, "dataloader.pin_memory": True,
    },
    "guide_e_01.yaml": {**CHARS, EFFECTIVE: 96},
    "guide_e_02.yaml": {**CHARS, "training.torch_compile": False},
    "guide_e_03.yaml": {
        **CHARS, EFFECTIVE: 128, "training.torch_compile": True, "training.max_grad_norm": 1,
        "logging.logging_steps": 100,
    },
    "guide_e_04.yaml": {**CHARS, EFFECTIVE: 96},
    "guide_e_05.yaml": {**CHARS, EFFECTIVE: 192},
}  # fmt: skip
LEFT_OUT = {
    "guide_b_flags.yaml": {"deepspeed": Why.NOT_SUPPORTED, "remove_unused_columns": Why.AUTOMATIC,
     "low_cpu_mem_usage": Why.ALWAYS, "use_cache": Why.ALWAYS},
    "guide_c_17.json": {"provider": Why.ALWAYS},
    "guide_c_20.json": {"provider": Why.ALWAYS},
    "guide_d_loader.json": {"persistent_workers": Why.AUTOMATIC},
}  # fmt: skip


def test_there_is_a_file_for_every_block_of_the_guides():
    names = {path.name for path in CONFIGS.glob("guide_*")}
    assert names == set(EXPECTED)
    for guide, count in BLOCKS.items():
        assert len([name for name in names if name[6] == guide and name[8:10].isdigit()]) == count


def test_a_printed_config_becomes_the_same_settings_and_each_is_reported_in_one_line(subtests):
    for name, expected in EXPECTED.items():
        with subtests.test(name):
            imported = import_file(CONFIGS / name)
            assert imported.values == expected
            assert all(is_same_value(imported.values[key], value) for key, value in expected.items())
            assert {left.key: left.why for left in imported.left_out} == LEFT_OUT.get(name, {})
            for rewrite in imported.rewrites:
                [line] = [line for line in imported.report if f" -> {rewrite.key} = " in line]
                assert all(source in line for source in rewrite.sources)
