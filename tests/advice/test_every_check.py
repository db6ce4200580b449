"""For every check, a table of inputs that make it pass, warn, fail or not apply: settings, a made-up machine and what
was gathered beside them. Asserted are the status and the keys of the fix, as `tui-trainer check --json` has them, never
sentences; and that the fix mends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.advice.machines import (
    CPU,
    GTX_1080,
    H100,
    RTX_4090,
    RTX_5090_WITH_BITSANDBYTES,
    T4,
    T4_WITH_BITSANDBYTES,
    V100,
    machine,
    with_card,
)
from tui_trainer.advice import rules
from tui_trainer.advice.checklist import Finding, all_checks, run_checks
from tui_trainer.advice.context import Context, EarlierRun, ExportComparison
from tui_trainer.advice.contract import all_rules
from tui_trainer.advice.fixes import load_patched
from tui_trainer.advice.gather import gather
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.data.preparing.cache import Counts
from tui_trainer.hardware.facts import Driver, GpuProcess, Hardware
from tui_trainer.launching.open_run import load_config
from tui_trainer.planning.planned import StepGrade
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.units import GIB, MIB

CPU_WITH_BF16 = replace(CPU, cpu_flags=frozenset({"avx2", "avx512_bf16"}))
H100_WITHOUT_TRITON = machine("NVIDIA H100", (9, 0), 80, triton=None)
H100_WITH_LIGER = machine("NVIDIA H100", (9, 0), 80, **{"liger-kernel": "0.8.5"})


def guest(pid: int) -> Hardware:
    """A card with a process on it."""
    return with_card(H100, processes=(GpuProcess(pid=pid, name="python", memory_bytes=3 * GIB),))


@dataclass(frozen=True)
class Input:
    """Settings on top of a recipe, a machine, and what was gathered beside them.

    `run_seconds` is what the whole run is planned to take, None: only a measured step tells. `memory_share` is the free
    memory of the machine as a share of what the plan needs. `gathered` replaces fields of the context; `counted` is
    what preparing the data counted, `facts` what else is known of it. `fix` names the settings of the fix, all of them.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    hardware: Hardware = CPU
    recipe: str = "quickstart"
    run_seconds: float | None = 600.0
    is_measured: bool = False
    memory_share: float = 0.0
    gathered: Mapping[str, Any] = field(default_factory=dict)
    counted: Mapping[str, int] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    cache: Mapping[str, Any] = field(default_factory=dict)
    fix: tuple[str, ...] = ()
    is_mended: bool = True
    """Whether the fix is tried: not where what was counted is made up."""


def given(settings: Mapping[str, Any] | None = None, hardware: Hardware = CPU, recipe: str = "", **rest: Any) -> Input:
    """On a CPU the quickstart, on a card a LoRA of Qwen 2.5 1.5B, unless something else is said."""
    recipe = recipe or ("qwen-lora" if hardware.gpus else "quickstart")
    return Input(settings=settings or {}, hardware=hardware, recipe=recipe, **rest)


QUICKSTART, FINE_TUNING = given(), given(hardware=H100)
CANNOT_BE_PLANNED = given({"data.path": "/nowhere/missing.txt"})
LABELS = given(recipe="docstring-topics")
FULL = {"tuning.method": "full", "training.learning_rate": "auto"}
SMALL = {"training.optim": "adafactor", "training.gradient_checkpointing": True, "data.max_length": 256}
DTYPE, PROVIDER, ADD_TOKENS = "model.dtype", "model.provider", "model.add_tokens"
OFFLOAD, STRATEGY = "distributed.cpu_offload", "distributed.strategy"
WITH_UNSLOTH = {PROVIDER: "unsloth"}
MICRO, EFFECTIVE = "training.per_device_train_batch_size", "training.effective_batch_size"
ACCUMULATION, EVAL_BATCH = "training.gradient_accumulation_steps", "evaluation.per_device_eval_batch_size"
CHECKPOINTING, COMPILE, RATE = "training.gradient_checkpointing", "training.torch_compile", "training.learning_rate"
PATIENCE, EVALUATE, SAVE = "evaluation.early_stopping_patience", "evaluation.eval_steps", "checkpoint.save_steps"
EVAL_ROWS = "evaluation.max_eval_rows"
STABLE = {"training.lr_scheduler_type": "warmup_stable_decay"}
STEPS, EPOCHS = "training.max_steps", "training.num_train_epochs"
WEEK = 7 * 86_400.0
EARLIER = EarlierRun(name="earlier", steps=100, data_share=0.004)
SLOW_TEXTS = {"earlier": replace(EARLIER, sample_seconds=0.3)}
INT8 = ExportComparison(
    format="int8", bytes=MIB, trained_bytes=4 * MIB, seconds_per_row=0.1, trained_seconds_per_row=0.2
)
CLASSES = {"problem_type": "single_label_classification", "class_rows": {"joy": 900, "anger": 90}}
MARKED, MARKS = {"task.type": "kto"}, {"class_rows": {"desirable": 120, "undesirable": 100}}
MORE_DESIRABLE = {"class_rows": {"desirable": 300, "undesirable": 100}}
FEWER_DESIRABLE = {"class_rows": {"desirable": 70, "undesirable": 100}}
EVEN_CLASSES = {"problem_type": "single_label_classification", "class_rows": {"joy": 99, "anger": 90}}


def rows(
    fix: tuple[str, ...] = (), settings: Mapping[str, Any] | None = None, facts: Any = None, **counted: int
) -> Input:
    """A table of 1,000 rows that was prepared, of which so much was counted."""
    return Input(settings=settings or {}, counted=counted, facts=facts or {}, fix=fix, is_mended=False)


TABLE: dict[str, dict[str, Input | list[Input]]] = {
    "plan": {
        "pass": QUICKSTART,
        "fail": [CANNOT_BE_PLANNED, FINE_TUNING],  # the model is not on this machine: planned, and cannot start
    },
    "device": {
        "pass": FINE_TUNING,
        "warn": [
            given(hardware=with_card(H100, visible=False)),
            given(hardware=replace(CPU, driver=Driver(problem="NVML version mismatch"))),
        ],
        "fail": [
            given(hardware=with_card(H100, problem="has fallen off the bus")),
            given(hardware=replace(H100, torch_cuda=None)),
            given(hardware=replace(CPU, nvidia_pci_devices=2)),
        ],
        "n/a": QUICKSTART,
    },
    "libraries": {
        "pass": FINE_TUNING,
        "warn": given(hardware=replace(H100, torch_cuda=None)),
        "fail": [
            given({"training.optim": "adamw_8bit"}, RTX_4090, fix=("training.optim",)),
            given(hardware=machine("NVIDIA H100", (9, 0), 80, peft=None)),
        ],
        "n/a": QUICKSTART,
    },
    "busy_machine": {
        "pass": [given(gathered={"load_average": 0.9}), given(hardware=guest(os.getpid()))],
        "warn": [given(gathered={"load_average": 1.1}), given(hardware=guest(1))],
        "n/a": given(gathered={"load_average": None}),
    },
    "swap": {
        "pass": QUICKSTART,
        "warn": given(gathered={"swap_used_bytes": 3 * GIB}),
        "n/a": given(gathered={"swap_used_bytes": None}),
    },
    "cpu_threads": {
        "pass": [
            QUICKSTART,
            given(gathered={"environment": {"OMP_NUM_THREADS": "3"}}),
            given(gathered={"environment": {"OMP_NUM_THREADS": "x"}}),
            given(gathered={"environment": {"OMP_WAIT_POLICY": "passive"}}),
        ],
        "warn": [
            given(gathered={"environment": {"OMP_WAIT_POLICY": "ACTIVE"}}),
            given(gathered={"environment": {"OMP_NUM_THREADS": "1"}}),
            given(gathered={"environment": {"OMP_NUM_THREADS": "64"}}),
            given(gathered={"environment": {"OMP_THREAD_LIMIT": "2", "MKL_NUM_THREADS": "1"}}),
            given({"training.cpu_threads": 64}, fix=("training.cpu_threads",)),
        ],
        "n/a": CANNOT_BE_PLANNED,
    },
    "precision": {
        "pass": [FINE_TUNING, given(hardware=V100), given(hardware=CPU_WITH_BF16, recipe="distilgpt2-full")],
        "warn": [
            given({"training.mixed_precision": "no"}, RTX_4090, fix=("training.mixed_precision",)),
            given({"training.mixed_precision": "no"}, T4, "tinyllama-lora", fix=("training.mixed_precision",)),
            given({"training.mixed_precision": "bf16"}, CPU_WITH_BF16, fix=("training.mixed_precision",)),
        ],
        "fail": given({"training.mixed_precision": "fp16"}, fix=("training.mixed_precision",)),
        "n/a": QUICKSTART,
    },
    "master_weights": {
        "pass": [given(FULL, H100), given({**FULL, DTYPE: "bfloat16"}, H100)],
        "warn": [
            given({**FULL, DTYPE: "float32"}, H100, fix=(DTYPE,)),
            given(FULL, H100, "scratch-llama", fix=(DTYPE,)),
            given({**FULL, **SMALL, DTYPE: "bfloat16"}, T4, fix=(DTYPE,)),
        ],
        "fail": given({DTYPE: "float16"}, fix=(DTYPE,)),
        "n/a": [
            QUICKSTART,
            FINE_TUNING,
            given({**FULL, **SMALL}, T4),
            given({**FULL, "training.mixed_precision": "no"}, H100),
            given({}, H100, "docstring-topics"),
            given(hardware=CPU_WITH_BF16, recipe="scratch-llama"),
        ],
    },
    "tf32": {
        "pass": [FINE_TUNING, given({"training.tf32": False}, H100)],
        "warn": given(
            {"training.mixed_precision": "no", "training.tf32": False},
            RTX_4090,
            "tinyllama-lora",
            fix=("training.tf32",),
        ),
        "n/a": [QUICKSTART, given(hardware=T4), given(hardware=with_card(H100, capability=None))],
    },
    "optimizer": {
        "pass": QUICKSTART,
        "warn": [
            given({"training.optim": "sgd"}, fix=("training.optim",)),
            given({"training.optim": "sgd", RATE: 0.1}, fix=("training.optim", RATE)),
            given({"training.optim": "adamw_torch"}, fix=("training.optim",)),
            # A rate that suits neither stays: it was not written for another update.
            given({"training.optim": "adamw_torch", RATE: 0.1}, fix=("training.optim",)),
            given(FULL, RTX_5090_WITH_BITSANDBYTES, fix=("training.optim",)),
        ],
        "fail": given({"training.optim": "paged_adamw_8bit"}, fix=("training.optim",)),
        "n/a": CANNOT_BE_PLANNED,
    },
    "torch_compile": {
        "pass": given({COMPILE: True}, RTX_4090, run_seconds=7200.0),
        "warn": [
            given({COMPILE: True}, fix=(COMPILE,)),
            given({COMPILE: True}, RTX_4090, run_seconds=300.0, fix=(COMPILE,)),
            given({COMPILE: True}, H100_WITHOUT_TRITON, run_seconds=7200.0, fix=(COMPILE,)),
            given(hardware=H100, run_seconds=7200.0, fix=(COMPILE,)),
        ],
        "n/a": [
            QUICKSTART,
            given(run_seconds=None),
            given(hardware=RTX_4090, run_seconds=300.0),
            given(hardware=GTX_1080, recipe="distilgpt2-full", run_seconds=7200.0),
            given(WITH_UNSLOTH, H100, run_seconds=7200.0),
        ],
    },
    "attention": {
        "pass": [QUICKSTART, FINE_TUNING],
        "warn": [
            given({"model.attn_implementation": "eager"}, fix=("model.attn_implementation",)),
            given({"model.attn_implementation": "eager"}, RTX_4090, fix=("model.attn_implementation",)),
        ],
        "fail": [
            given({"model.attn_implementation": "flash_attention_2"}, fix=("model.attn_implementation",)),
            given({"model.attn_implementation": "flash_attention_2"}, T4, fix=("model.attn_implementation",)),
        ],
        "n/a": CANNOT_BE_PLANNED,
    },
    "kernels": {
        "pass": given(hardware=H100_WITH_LIGER),
        "warn": [
            given({"model.kernels": "none"}, H100_WITH_LIGER, fix=("model.kernels",)),
            given({"model.kernels": "liger", COMPILE: True}, H100_WITH_LIGER, fix=("model.kernels",)),
            given({"model.kernels": "liger", "training.deterministic": True}, H100_WITH_LIGER, fix=("model.kernels",)),
        ],
        "fail": given({"model.kernels": "liger"}, H100, fix=("model.kernels",)),
        "n/a": [QUICKSTART, FINE_TUNING, given(hardware=H100_WITH_LIGER, recipe="distilgpt2-full")],
    },
    "fused_adapters": {
        "pass": FINE_TUNING,
        "warn": [
            given({"tuning.fused_adapters": False}, H100, "llama-8b-lora", fix=("tuning.fused_adapters",)),
            given({"tuning.lora_dropout": 0.1}, H100),
        ],
        "n/a": [QUICKSTART, given({COMPILE: True}), given({"tuning.lora_dropout": 0.1})],
    },
    "unsloth": {
        "pass": [
            given({"data.packing": True}, H100_WITH_LIGER),
            given(
                WITH_UNSLOTH,
                H100,
                gathered={"earlier": replace(EARLIER, unsloth_parts_sentence="30 of 90", has_unsloth=True)},
            ),
        ],
        "warn": [
            given({"data.packing": False, "training.loss_chunk_tokens": 0}, RTX_4090),
            given(
                WITH_UNSLOTH,
                H100,
                gathered={"earlier": replace(EARLIER, unsloth_parts_sentence="0 of 90")},
                fix=(PROVIDER,),
            ),
            given(WITH_UNSLOTH, RTX_4090, "distilgpt2-full", fix=(PROVIDER,)),
        ],
        "fail": [
            given(WITH_UNSLOTH, recipe="distilgpt2-full", fix=(PROVIDER,)),
            given(WITH_UNSLOTH, replace(H100, platform="Windows"), fix=(PROVIDER,)),
            given(WITH_UNSLOTH, GTX_1080, fix=(PROVIDER,)),
        ],
        "n/a": [
            QUICKSTART,
            given(recipe="distilgpt2-full"),
            given(hardware=replace(H100, platform="Darwin")),
            given(hardware=RTX_4090, recipe="distilgpt2-full"),
            given(WITH_UNSLOTH, H100),
        ],
    },
    "gradient_checkpointing": {
        "pass": QUICKSTART,
        "warn": [
            given({CHECKPOINTING: True}, fix=(CHECKPOINTING,)),
            given({CHECKPOINTING: True}, H100, "tinyllama-lora", fix=(CHECKPOINTING,)),
            given({CHECKPOINTING: True, MICRO: 1}, RTX_4090, "tinyllama-lora", fix=(CHECKPOINTING,)),
            given({CHECKPOINTING: False}, RTX_4090, "llama-8b-lora", fix=(CHECKPOINTING,)),
        ],
        "n/a": CANNOT_BE_PLANNED,
    },
    "throughput": {
        "pass": [given(is_measured=True), given(is_measured=True, gathered={"earlier": EARLIER})],
        "warn": given(is_measured=True, gathered={"earlier": replace(EARLIER, step_seconds=99.0)}),
        "n/a": [QUICKSTART, given(run_seconds=None)],
    },
    "gpu_utilisation": {
        "pass": [
            given(gathered={"earlier": replace(EARLIER, busy_share=0.5)}),
            given(hardware=H100, gathered={"earlier": replace(EARLIER, busy_share=0.8)}),
        ],
        "warn": [
            given(gathered={"earlier": replace(EARLIER, busy_share=0.49)}),
            given(
                hardware=H100, gathered={"earlier": replace(EARLIER, busy_share=0.7)}, fix=(COMPILE,), is_mended=False
            ),
            given(hardware=H100, gathered={"earlier": replace(EARLIER, busy_share=0.7, data_share=0.3)}),
            given(
                {MICRO: 2}, H100, gathered={"earlier": replace(EARLIER, busy_share=0.7)}, fix=(MICRO,), is_mended=False
            ),
        ],
        "n/a": [QUICKSTART, FINE_TUNING, given(gathered={"earlier": EARLIER})],
    },
    "model_size": {
        "pass": [QUICKSTART, FINE_TUNING],
        "warn": [
            # From scratch: `test_checks.py`, because each width that is tried is asked of a process with torch.
            given(FULL, RTX_4090, fix=("tuning.method",)),
            given(hardware=T4_WITH_BITSANDBYTES, recipe="llama-8b-lora", fix=("tuning.method",)),
        ],
        "n/a": CANNOT_BE_PLANNED,
    },
    "model_choice": {
        "pass": FINE_TUNING,
        "warn": [
            given(hardware=H100, recipe="tinyllama-lora", run_seconds=WEEK),
            given({"tuning.method": "full"}, T4, "llama-8b-lora"),
        ],
        "n/a": QUICKSTART,
    },
    "lora_rank": {
        "pass": FINE_TUNING,
        "warn": [
            given({"tuning.r": 512}, H100, fix=("tuning.r",)),
            given({"tuning.target_modules": "q_proj, v_proj"}, RTX_4090, fix=("tuning.target_modules",)),
            given(
                {"tuning.target_modules": "q_proj, v_proj"},
                RTX_5090_WITH_BITSANDBYTES,
                "mistral-7b-qlora",
                fix=("tuning.target_modules",),
            ),
        ],
        "n/a": QUICKSTART,
    },
    "lora_alpha": {
        "pass": FINE_TUNING,
        "warn": [
            given({"tuning.r": 4}, RTX_4090, fix=("tuning.lora_alpha",)),
            given({"tuning.r": 4}, RTX_5090_WITH_BITSANDBYTES, "mistral-7b-qlora", fix=("tuning.lora_alpha",)),
            given({"tuning.lora_alpha": 1.0}, RTX_4090, fix=("tuning.lora_alpha",)),
            given({"tuning.lora_alpha": 128.0, "tuning.use_rslora": True}, RTX_4090, fix=("tuning.lora_alpha",)),
        ],
        "n/a": QUICKSTART,
    },
    "sequence_length": {
        "pass": [QUICKSTART, FINE_TUNING],
        "warn": [
            given({"data.max_length": 8}, fix=("data.max_length",)),
            given({"data.max_length": 65_536}, fix=("data.max_length",)),
            given({"data.max_length": 4096}, RTX_4090, "tinyllama-lora", fix=("data.max_length",)),
        ],
        "n/a": CANNOT_BE_PLANNED,
    },
    "length_by_task": {
        "pass": FINE_TUNING,
        "warn": given({"data.max_length": 4096}, H100, facts={"longest_row": 5000}),
        "n/a": QUICKSTART,
    },
    "truncation": {
        "pass": [
            rows(truncated_rows=10, truncated_answers=10),
            rows(rows_read=0, train_documents=790, facts={"packed_rows": 3.0}),
        ],
        "warn": [
            rows(("data.max_length",), truncated_rows=11, facts={"details": {"length_for_99_percent": 187}}),
            rows(("data.max_length",), truncated_rows=1000),
            rows(("data.max_length",), untrained_rows=11, untrained_long_rows=11),
            rows(truncated_answers=11),
        ],
        "n/a": [QUICKSTART, rows(rows_read=0)],
    },
    "padding": {
        "pass": [
            QUICKSTART,
            FINE_TUNING,
            given({"data.max_length": 2048}, recipe="chat-scratch"),
            given({"data.max_length": 2048, "data.group_by_length": "auto"}, recipe="chat-scratch"),
        ],
        "warn": [
            given({"data.packing": False}, RTX_4090, fix=("data.packing",)),
            given(
                {"data.max_length": 2048, "data.packing": True},
                recipe="chat-scratch",
                fix=("data.packing", "data.group_by_length"),
            ),
        ],
        "fail": given(
            {"data.packing": True, "data.group_by_length": True, "model.provider": "unsloth"},
            RTX_4090,
            fix=("data.packing",),
        ),
        "n/a": given(gathered={"facts": None}),
    },
    "data_size": {
        "pass": [QUICKSTART, given(run_seconds=None), given({"data.max_chars": 10**9})],
        "warn": [
            given({"data.max_chars": 100_000}, fix=("data.max_chars",)),
            given({"data.max_rows": 10, "data.max_chars": 0}, recipe="docstring-topics", fix=("data.max_rows",)),
        ],
        "n/a": given(gathered={"all_token_count": None}),
    },
    "left_out": {
        "pass": [rows(), rows(untrained_rows=100), rows(repeated_rows=500), rows(rows_read=0, documents_read=1000)],
        "warn": [
            rows(untrained_rows=101),
            rows(untrained_rows=101, untrained_long_rows=101),
            rows(repeated_rows=60, leaked_rows=41, settings={"data.dedup": True}),
            rows(bad_rows=101, settings={"data.on_bad_rows": "skip"}),
            rows(blank_documents=60, short_documents=41, rows_read=0, documents_read=1000),
        ],
        "fail": rows(("data.on_bad_rows",), bad_rows=1),
        "n/a": QUICKSTART,
    },
    "chat_marks": {
        "pass": given(gathered={"mark_token_counts": {"<|im_start|>": 1, "<|im_end|>": 1}}),
        "warn": [
            given(
                hardware=H100,
                gathered={"mark_token_counts": {"<|im_start|>": 6, "<|im_end|>": 1}},
                fix=(ADD_TOKENS,),
                is_mended=False,
            ),
            given({"tuning.trainable_layers": "last 1"}, gathered={"mark_token_counts": {"[INST]": 3}}),
            given(WITH_UNSLOTH, H100, gathered={"mark_token_counts": {"[INST]": 3}}),
        ],
        "n/a": QUICKSTART,
    },
    "text_frame": {
        "pass": given(gathered={"missing_frame": ()}),
        "warn": given(gathered={"missing_frame": ("[CLS]", "[SEP]")}),
        "n/a": given(gathered={"missing_frame": None}),
    },
    "trained_share": {
        "pass": [rows(train_labels=2500), rows(train_labels=900, facts={"class_count": 3})],
        "warn": rows(train_labels=2499),
        "n/a": QUICKSTART,
    },
    "known_text": {
        "pass": [rows(), rows(unknown_tokens=49), rows(unknown_labels=9, text_labels=9_001)],
        "warn": [rows(unknown_tokens=50), rows(unknown_labels=9, text_labels=9_000)],
        "n/a": QUICKSTART,
    },
    "label_balance": {
        "pass": [
            rows(facts={"details": EVEN_CLASSES}),
            rows(facts={"details": CLASSES}, settings={"task.class_weights": "balanced"}),
            rows(facts={"details": {"label_rows": {"joy": (10, 1), "anger": (99, None)}}}),
        ],
        "warn": [
            rows(("task.class_weights",), facts={"details": CLASSES}),
            rows(facts={"details": {"label_rows": {"joy": (9, 1), "anger": (99, 9)}}}),
            rows(facts={"details": {"label_rows": {"joy": (10, 0), "anger": (99, 9)}}}),
        ],
        "n/a": [
            QUICKSTART,
            rows(facts={"details": CLASSES | {"problem_type": "regression"}}),
            rows(facts={"details": CLASSES | {"problem_type": "multi_label_classification"}}),
        ],
    },
    "data_cache": {
        "pass": QUICKSTART,
        "warn": given(cache={"free_bytes": 3 * MIB}),
        "fail": [given(cache={"writable": False}), given(cache={"free_bytes": 1000})],
        "n/a": CANNOT_BE_PLANNED,
    },
    "data_loading": {
        "pass": given(gathered={"earlier": EARLIER}),
        "warn": [
            given(gathered={"earlier": replace(EARLIER, data_share=0.3)}),
            given({"dataloader.num_workers": 3}, fix=("dataloader.num_workers",)),
            given({"dataloader.num_workers": 0}, RTX_4090, fix=("dataloader.num_workers",)),
            given(
                hardware=RTX_4090,
                gathered={"earlier": replace(EARLIER, data_share=0.3)},
                fix=("dataloader.num_workers",),
                is_mended=False,
            ),
            given({"dataloader.num_workers": 32}, RTX_4090, fix=("dataloader.num_workers",)),
            given({"data.num_proc": 64}, fix=("data.num_proc",)),
        ],
        "n/a": [QUICKSTART, given({"dataloader.num_workers": 1})],
    },
    "held_out": {
        "pass": QUICKSTART,
        "warn": [
            given({"data.eval_fraction": 0}, fix=("data.eval_fraction",)),
            given({"data.eval_fraction": 0.6}, fix=("data.eval_fraction",)),
            given({"data.eval_fraction": 0.001}, fix=("data.eval_fraction",)),
            # Early stopping without held-out text keeps a plan from being made.
            given({"data.eval_fraction": 0, PATIENCE: 2}, fix=("data.eval_fraction",)),
        ],
        "n/a": CANNOT_BE_PLANNED,
    },
    "eval_leaks": {
        "pass": [rows(leaked_rows=1), rows(leaked_rows=2, settings={"data.dedup": True})],
        "warn": [
            rows(("data.dedup",), leaked_rows=2),
            rows(("data.dedup",), leaked_rows=2, rows_read=0, documents_read=1000, eval_rows=900),
        ],
        "n/a": [QUICKSTART, rows(leaked_rows=2, eval_rows=0), rows(rows_read=0)],
    },
    "four_bits": {
        "pass": [FINE_TUNING, given(hardware=RTX_5090_WITH_BITSANDBYTES, recipe="mistral-7b-qlora")],
        "warn": [
            given(FULL, RTX_5090_WITH_BITSANDBYTES, "llama-8b-lora", fix=("tuning.method",)),
            given(FULL, T4, "llama-8b-lora"),
        ],
        "n/a": QUICKSTART,
    },
    "batch_size": {
        "pass": [QUICKSTART, FINE_TUNING],
        "warn": [
            given({MICRO: 1}, fix=(MICRO,)),
            given({MICRO: 2, ACCUMULATION: 7}, fix=(MICRO, EFFECTIVE, ACCUMULATION)),
            given({ACCUMULATION: 16}, fix=(ACCUMULATION,)),
            # The profile's number for such rows, as far as the data goes, is faster by the card's rates.
            given({EFFECTIVE: 8, "hardware_profile": "rtx-40xx-50xx"}, RTX_4090, "char-lm", fix=(EFFECTIVE, RATE)),
        ],
        "n/a": CANNOT_BE_PLANNED,
    },
    "accumulation": {
        "pass": [QUICKSTART, FINE_TUNING],
        "warn": [
            given({EFFECTIVE: 33, MICRO: 16}, fix=(MICRO,)),
            given({EFFECTIVE: 13, ACCUMULATION: 5}, fix=(ACCUMULATION,)),
        ],
        "n/a": CANNOT_BE_PLANNED,
    },
    "effective_batch": {
        "pass": QUICKSTART,
        "warn": [
            given({EFFECTIVE: 4096}, fix=(EFFECTIVE,)),
            given({MICRO: 1024, ACCUMULATION: 4}, fix=(EFFECTIVE, ACCUMULATION)),
        ],
        "n/a": CANNOT_BE_PLANNED,
    },
    "memory": {
        "pass": [QUICKSTART, FINE_TUNING],
        "warn": [
            given({MICRO: 64, ACCUMULATION: 2}, memory_share=1.1, fix=(MICRO, EFFECTIVE, ACCUMULATION)),
            given(FULL, RTX_5090_WITH_BITSANDBYTES, fix=("training.optim",)),
        ],
        "fail": [
            given({MICRO: 16}, memory_share=0.8, fix=(MICRO,)),
            given({EFFECTIVE: 512, MICRO: 512}, memory_share=0.5, fix=(MICRO,)),
            given({EVAL_BATCH: 290}, memory_share=0.9, fix=(EVAL_BATCH,)),
            given(FULL, RTX_4090, fix=("tuning.method",)),
            given({EFFECTIVE: 64, MICRO: 64, "data.packing": False}, T4, "tinyllama-lora", fix=(MICRO,)),
            given({CHECKPOINTING: False}, RTX_4090, "llama-8b-lora", fix=(CHECKPOINTING,)),
            given(hardware=T4_WITH_BITSANDBYTES, recipe="llama-8b-lora", fix=("tuning.method",)),
            given(hardware=T4, recipe="llama-8b-lora"),
            given(hardware=replace(CPU, memory_available_bytes=20 * MIB)),
            given(hardware=replace(H100, memory_available_bytes=20 * MIB)),
        ],
        "n/a": given(hardware=replace(CPU, memory_available_bytes=None)),
    },
    "split_model": {
        "pass": given({**FULL, OFFLOAD: True}, RTX_4090, "llama-8b-lora"),
        "warn": [
            given({OFFLOAD: True}, H100, fix=(OFFLOAD,)),
            given({OFFLOAD: True, STRATEGY: "fsdp"}, H100, fix=(OFFLOAD, STRATEGY)),
            given({STRATEGY: "fsdp", "distributed.processes": 2}, fix=(STRATEGY,)),
        ],
        "n/a": [
            QUICKSTART,
            FINE_TUNING,
            given({OFFLOAD: True}, with_card(H100, memory_bytes=None, memory_free_bytes=None)),
        ],
    },
    "disk": {
        "pass": QUICKSTART,
        "warn": given(
            {PATIENCE: 5, "checkpoint.save_total_limit": 6},
            gathered={"disk_free_bytes": 120 * MIB},
            fix=("checkpoint.save_total_limit",),
        ),
        "fail": [
            given(
                {"checkpoint.save_total_limit": 50, SAVE: 1},
                gathered={"disk_free_bytes": 200 * MIB},
                fix=("checkpoint.save_total_limit",),
            ),
            given(gathered={"disk_free_bytes": 20 * MIB}),
        ],
        "n/a": given(gathered={"disk_free_bytes": None}),
    },
    "steps": {
        "pass": QUICKSTART,
        "warn": [
            given({STEPS: 20}, fix=(STEPS,)),
            given({STEPS: 0, EPOCHS: 0.2}, fix=(EPOCHS,)),
            given({STEPS: 0, EPOCHS: 400}, fix=(EPOCHS,)),
            given({STEPS: 50_000}, fix=(STEPS,)),
        ],
        "n/a": CANNOT_BE_PLANNED,
    },
    "duration": {
        "pass": QUICKSTART,
        "warn": [
            given({STEPS: 4}, run_seconds=WEEK),
            given({STEPS: 2_000_000}, run_seconds=WEEK, fix=(STEPS,)),
            given({STEPS: 0, EPOCHS: 20_000}, run_seconds=WEEK, fix=(EPOCHS,)),
        ],
        "n/a": given(run_seconds=None),
    },
    "learning_rate": {
        "pass": [QUICKSTART, FINE_TUNING, given({RATE: 5e-4}, H100, "distilgpt2-full")],
        "warn": [
            given({"tuning.method": "full", RATE: 5e-4}, H100, fix=(RATE,)),
            given({RATE: 0.5}, fix=(RATE,)),
            given({RATE: 1e-7}, fix=(RATE,)),
            given({RATE: 0.01}, RTX_4090, fix=(RATE,)),
            given({RATE: 1e-5}, RTX_4090, fix=(RATE,)),
            given({"tuning.method": "full", RATE: 1e-3}, H100, fix=(RATE,)),
        ],
        "n/a": CANNOT_BE_PLANNED,
    },
    "lr_scaling": {
        "pass": [
            QUICKSTART,
            given({EFFECTIVE: 128, RATE: 0.002}),
            given({EFFECTIVE: 128, "training.lr_scaling": "sqrt"}),
        ],
        "warn": [given({EFFECTIVE: 128}, fix=(RATE,)), given({EFFECTIVE: 2}, fix=(RATE,))],
        "n/a": given(recipe="finetune"),
    },
    "schedule": {
        "pass": [QUICKSTART, given(STABLE)],
        "warn": [
            given({**STABLE, "training.num_decay_steps": 0}, fix=("training.num_decay_steps",)),
            given({**STABLE, "training.num_decay_steps": 10**6}, fix=("training.num_decay_steps",)),
            given({"training.lr_scheduler_type": "constant"}, fix=("training.lr_scheduler_type",)),
            given({"training.lr_scheduler_type": "constant_with_warmup"}, fix=("training.lr_scheduler_type",)),
        ],
        "n/a": CANNOT_BE_PLANNED,
    },
    "warmup": {
        "pass": QUICKSTART,
        "warn": [
            given({"training.warmup_steps": 0}, fix=("training.warmup_steps",)),
            given({"training.warmup_steps": 400}, fix=("training.warmup_steps",)),
            given({"training.warmup_steps": 0.9, STEPS: 3}, fix=("training.warmup_steps",)),
        ],
        "n/a": given({"training.lr_scheduler_type": "constant"}),
    },
    "clipping": {
        "pass": [QUICKSTART, CANNOT_BE_PLANNED],
        "warn": [
            given({"training.max_grad_norm": 0}, fix=("training.max_grad_norm",)),
            given({"training.max_grad_norm": 1000}, fix=("training.max_grad_norm",)),
        ],
    },
    "weight_decay": {
        "pass": [
            QUICKSTART,
            CANNOT_BE_PLANNED,
            given({"training.weight_decay": 0}, RTX_4090),
            given({"training.weight_decay": 0, "tuning.init_lora_weights": "pissa"}, RTX_4090),
        ],
        "warn": [
            given(
                {"training.weight_decay": 0.01, "tuning.init_lora_weights": "pissa"},
                RTX_4090,
                fix=("training.weight_decay",),
            ),
            given({"training.weight_decay": 0}, fix=("training.weight_decay",)),
            given({"training.weight_decay": 2}, fix=("training.weight_decay",)),
        ],
    },
    "early_stopping": {
        "pass": [QUICKSTART, given({PATIENCE: 2})],
        "warn": [
            given({STEPS: 3000}, fix=(PATIENCE,)),
            given({STEPS: 3000, EVALUATE: 0}, fix=(EVALUATE, PATIENCE)),
            given({PATIENCE: 10}, fix=(PATIENCE,)),
            given({PATIENCE: 2, EVALUATE: 400}, fix=(EVALUATE,)),
            given({PATIENCE: 9, STEPS: 3}, fix=(PATIENCE,)),
        ],
        "n/a": given({"data.eval_fraction": 0}),
    },
    "generated_answers": {
        "pass": [given({"evaluation.generate_rows": 4}, H100), FINE_TUNING],
        "warn": [given({"evaluation.generate_rows": 0}, H100, fix=("evaluation.generate_rows",))],
        "n/a": QUICKSTART,
    },
    "preferences": {
        "pass": [
            given({"task.type": "preference"}),
            given({"task.type": "preference", "task.loss_type": "simpo"}),
            given({"task.type": "reward"}),
            given(MARKED),
        ],
        "n/a": QUICKSTART,
    },
    "marked_answer_balance": {
        "pass": [
            rows(settings=MARKED, facts={"details": MARKS}),
            rows(settings=MARKED | {"task.desirable_weight": 1.5}, facts={"details": FEWER_DESIRABLE}),
        ],
        "warn": [
            rows(("task.undesirable_weight",), MARKED, {"details": MORE_DESIRABLE}),
            rows(("task.desirable_weight",), MARKED, {"details": FEWER_DESIRABLE}),
        ],
        "n/a": [QUICKSTART, rows(facts={"details": CLASSES})],
    },
    "cadence": {
        "pass": [QUICKSTART, given({EVALUATE: 40}), given({EVALUATE: 0.8, "data.eval_fraction": 0.85, STEPS: 30})],
        "warn": [
            given({EVALUATE: 5}, fix=(EVALUATE,)),
            given({"logging.sample_steps": 1}, gathered=SLOW_TEXTS, fix=("logging.sample_steps",)),
            given(
                {EVALUATE: 0.01, EVAL_ROWS: 0, SAVE: 1, "logging.sample_steps": 1},
                gathered=SLOW_TEXTS,
                fix=(EVALUATE, "logging.sample_steps"),
            ),
            given({EVALUATE: 0.8, EVAL_ROWS: 0, "data.eval_fraction": 0.85, STEPS: 30}, fix=(EVALUATE,)),
            given({EVALUATE: 40, EVAL_ROWS: 0, PATIENCE: 8}, fix=(EVAL_ROWS,)),
            given({SAVE: 1}, gathered={"earlier": replace(EARLIER, save_bytes_per_second=1e6)}, fix=(SAVE,)),
        ],
        "n/a": given(run_seconds=None),
    },
    "checkpoints": {
        "pass": QUICKSTART,
        "warn": [
            given({SAVE: 0}, run_seconds=7200.0, fix=(SAVE,)),
            given({SAVE: 0.5}, run_seconds=7200.0, fix=(SAVE,)),
        ],
        "n/a": given(run_seconds=None),
    },
    "batched_writing": {
        "pass": [QUICKSTART, given(recipe="signature-summaries")],
        "warn": given({EVAL_BATCH: 1}, recipe="signature-summaries", fix=(EVAL_BATCH,)),
        "n/a": LABELS,
    },
    "quantized_model": {
        "pass": given(gathered={"earlier": replace(EARLIER, exports=(INT8,))}),
        "warn": given(gathered={"earlier": replace(EARLIER, exports=(replace(INT8, faults="logits differ"),))}),
        "n/a": [QUICKSTART, given(gathered={"earlier": EARLIER})],
    },
}


def inputs_of(name: str, state: str) -> list[Input]:
    entry = TABLE[name].get(state, [])
    return [entry] if isinstance(entry, Input) else entry


FILES_OF_RULES = sorted(path.stem for path in Path(rules.__path__[0]).glob("*.py") if path.stem != "__init__")


pytestmark = pytest.mark.usefixtures("large_disk")


@dataclass
class Gathered:
    """What was gathered for each config and machine: rows of the table that share them gather once."""

    documents: Path
    contexts: dict[tuple[str, str], Context] = field(default_factory=dict)

    def context(self, row: Input) -> Context:
        key = json.dumps([row.recipe, row.settings]), repr(row.hardware)
        if key not in self.contexts:
            self.contexts[key] = gather(load(row, self.documents), hardware=row.hardware)
        return self.contexts[key]


@pytest.fixture(scope="module")
def gathered(documents: Path) -> Gathered:
    return Gathered(documents)


def load(row: Input, documents: Path) -> LoadedConfig:
    path = {"data.path": str(documents)} if row.hardware.gpus or row.recipe in ("finetune", "distilgpt2-full") else {}
    # On a CPU "auto" chooses this profile as well, but reads all of them first.
    hardware = {} if row.hardware.gpus else {"hardware_profile": "cpu"}
    settings = {"profile": row.recipe, **hardware, **path, **row.settings}
    return load_config(Request(assignments=tuple(f"{key}={json.dumps(value)}" for key, value in settings.items())))


def context_of(row: Input, gathered: Context, step_seconds: float | None = None) -> Context:
    """Return what the checks look at: what was gathered, and beside it what the row of the table sets.

    `step_seconds` is the time of a step of a run that other settings made quicker or slower, not its machine.
    """
    cache = replace(gathered.cache, **{"free_bytes": 100 * GIB, "writable": True, **row.cache})
    quiet = {"load_average": 0.0, "environment": {}, "earlier": None}
    context = replace(gathered, **{**quiet, "disk_free_bytes": 2000 * GIB, "cache": cache, **row.gathered})
    if context.plan is not None:
        steps = context.plan.total_steps.value
        step = step_seconds or (None if row.run_seconds is None else row.run_seconds / steps)
        grade = StepGrade.MEASURED if row.is_measured else StepGrade.ESTIMATED
        whole = {"value": None if step is None else step * steps}
        times = {
            "step_seconds": context.plan.step_seconds.model_copy(update={"value": step, "reason": grade}),
            "step_grade": grade,
            "duration_seconds": context.plan.duration_seconds.model_copy(update=whole),
        }
        context = replace(context, plan=context.plan.model_copy(update=times))
    if row.counted is not None:
        context = replace(context, facts=facts_of(row.counted))
    return replace(context, facts=replace(context.facts, **row.facts)) if row.facts else context


def facts_of(counted: Mapping[str, int]) -> DataFacts:
    """A table of 1,000 rows of 50 tokens, of which 100 are held out; `counted` is what is different."""
    usual = {"rows_read": 1000, "train_rows": 900, "eval_rows": 100, "eval_documents": 100}
    usual |= {"train_tokens": 50_000, "train_labels": 9_000}
    counts = Counts(**{**dict.fromkeys(Counts.__dataclass_fields__, 0), **usual, **counted})
    return DataFacts(
        rows=counts.train_rows,
        eval_rows=counts.eval_rows,
        tokens=counts.train_tokens,
        eval_tokens=counts.eval_tokens,
        vocabulary=counts.vocabulary,
        exact=True,
        reason="counted in the prepared data",
        row_tokens=50,
        longest_row=128,
        counts=counts,
    )


def finding_of(name: str, context: Context) -> Finding:
    (finding,) = run_checks(context, [check for check in all_checks() if check.name == name])
    return finding


@pytest.mark.parametrize("file", FILES_OF_RULES)
def test_each_check_has_the_status_and_the_fix_of_the_table_and_the_fix_mends(file, gathered, subtests):
    for check in all_checks():
        if check.judge_config.__module__ != f"{rules.__name__}.{file}":
            continue
        for state in TABLE[check.name]:
            for number, row in enumerate(inputs_of(check.name, state)):
                with subtests.test(f"{check.name}, {state}, input {number}"):
                    assert_finding(check.name, state, row, gathered)


def assert_finding(name: str, state: str, row: Input, gathered: Gathered) -> None:
    found = gathered.context(row)
    if row.memory_share:
        available = int(row.memory_share * found.required_plan.memory_bytes.value)
        found = gather(found.loaded, hardware=replace(row.hardware, memory_available_bytes=available))
    context = context_of(row, found)
    finding = finding_of(name, context)
    assert (finding.status, {*(finding.fix or ())}) == (state, {*row.fix}), finding.verdict
    assert finding.is_open == (state in ("warn", "fail")) and finding.measured_gain is None
    verdict, evidence = finding.verdict, finding.verdict.evidence
    assert not finding.is_open or finding.fix or verdict.advice, "there is nothing to do about it"
    assert not (verdict.fix and verdict.opposite_patch), "one alternative is measured"
    # The remedies of other rules make a plan fit.
    others = [rule for rule in all_rules() if rule.remedies] if name == "memory" else []
    assert {*(finding.alternative or ())} <= {key for rule in (finding.rule, *others) for key in rule.settings}
    assert state != "pass" or any(sign.isdigit() for sign in evidence), "it passes without a figure"
    assert evidence.isascii() and evidence.isprintable() and not evidence.endswith(".")
    if finding.fix and row.is_mended:
        step = context.step_seconds if context.plan else None
        mended = gather(load_patched(found.loaded, finding.fix), hardware=found.hardware)
        after = finding_of(name, context_of(row, mended, step))
        assert after.status in ("pass", "n/a"), (dict(finding.fix), after.verdict)


def test_the_table_has_inputs_for_every_check():
    assert {check.name for check in all_checks()} == TABLE.keys()
    assert all(inputs_of(name, state) for name in TABLE for state in TABLE[name])
    assert all(row.fix == () for name in TABLE for state in ("pass", "n/a") for row in inputs_of(name, state))
