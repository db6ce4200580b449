"""Every setting, declared once. A setting exists from the day on which something reads it.

Names are Hugging Face's where they have one. Whether values go together with each other and with the machine is
judged in `planning/rules.py`.
"""

from __future__ import annotations

from typing import Literal

from tui_trainer.config.fields import Auto, PositiveInt, Section, StepsOrShare, option

SCHEMA_VERSION = 1


class TaskSection(Section):
    type: str = option("char_lm", "What is learnt: the name of a file in tasks/.")


class ScratchSection(Section):
    """The shape of a model that starts from random weights (Llama: RMSNorm, rotary attention, gated MLP)."""

    hidden_size: int = option(
        128,
        "Width of the model.",
        low=8,
        high=65536,
        memory="weights grow with its square",
        speed="time with its square",
        step="x2",
    )
    num_hidden_layers: int = option(
        4, "Number of layers.", low=1, high=1024, memory="grows in proportion", speed="time in proportion"
    )
    num_attention_heads: int = option(4, "Attention heads; they divide hidden_size.", low=1, high=1024, step="x2")
    num_key_value_heads: PositiveInt | Auto = option(
        "auto",
        "Heads that keys and values share; auto: as many as attention heads.",
        memory="fewer save a little",
        step="x2",
        advanced=True,
    )
    intermediate_size: PositiveInt | Auto = option(
        "auto",
        "Width inside the gated MLP; auto: 8/3 of hidden_size, rounded up to a multiple of 32.",
        step="x2",
        advanced=True,
    )
    attention_dropout: float = option(
        0.0, "Share of attention weights dropped while training.", low=0, below=1, step="+0.05", advanced=True
    )

    @property
    def key_value_heads(self) -> int:
        """`num_key_value_heads` with auto resolved."""
        return self.num_attention_heads if self.num_key_value_heads == "auto" else self.num_key_value_heads

    @property
    def mlp_size(self) -> int:
        """`intermediate_size` with auto resolved: 8/3 of the width, as in Llama (arXiv:2302.13971, section 2.2)."""
        if self.intermediate_size != "auto":
            return self.intermediate_size
        return -(-self.hidden_size * 8 // 3 // 32) * 32


class ModelSection(Section):
    scratch: ScratchSection = ScratchSection()


class DataSection(Section):
    path: str = option("", "A file, a folder, a glob, or sample:NAME. Plain text or JSONL, also .gz.", completes="file")
    text_column: str = option("text", "The field of a JSONL row that holds the text.")
    eval_fraction: float = option(
        0.1,
        "Share of the text held out, whole documents at a time, to measure what was learnt.",
        low=0,
        high=0.9,
        step="+0.05",
    )
    max_length: int = option(
        256,
        "Tokens in a row.",
        low=2,
        high=1048576,
        unit="tokens",
        memory="activations grow with it",
        speed="attention with its square",
        step="x2",
    )
    max_chars: int = option(
        0, "Use at most so many characters of the text; 0: all.", low=0, unit="characters", step="1-2-5", advanced=True
    )
    seed: int = option(42, "Decides which documents are held out.", low=0, high=2**63 - 1, advanced=True)


class TrainingSection(Section):
    num_train_epochs: float = option(3.0, "Passes over the training text.", above=0, high=10**6, step="+1")
    max_steps: int = option(
        0,
        "Stop after so many optimiser steps; 0: num_train_epochs decides.",
        low=0,
        high=10**9,
        unit="steps",
        step="1-2-5",
    )
    effective_batch_size: int = option(
        32, "Rows behind one optimiser step, however they are cut.", low=1, high=10**7, unit="rows", step="x2"
    )
    per_device_train_batch_size: PositiveInt | Auto = option(
        "auto",
        "Rows in one forward pass (the micro-batch); auto: the largest that the plan fits.",
        unit="rows",
        memory="activations grow in proportion",
        speed="larger is faster until the processor is full",
        step="x2",
    )
    gradient_accumulation_steps: PositiveInt | Auto = option(
        "auto",
        "Micro-batches behind one optimiser step; auto: effective batch / micro-batch.",
        step="x2",
        advanced=True,
    )
    learning_rate: float = option(1e-3, "Peak learning rate.", above=0, high=10)
    lr_scheduler_type: Literal["cosine", "linear", "constant", "constant_with_warmup", "polynomial", "inverse_sqrt"] = (
        option("cosine", "How the learning rate goes down after the warm-up.")
    )
    warmup_steps: StepsOrShare = option(
        0.05, "Steps until the peak learning rate; below 1: a share of all steps.", unit="steps"
    )
    weight_decay: float = option(
        0.0, "Decay of weight matrices (not of norms) per step, times the learning rate.", low=0, high=10
    )
    max_grad_norm: float = option(1.0, "Gradients longer than this are cut to it; 0: never.", low=0)
    adam_beta1: float = option(
        0.9, "AdamW: memory of the gradient's mean.", low=0, below=1, step="nines", advanced=True
    )
    adam_beta2: float = option(
        0.999, "AdamW: memory of the gradient's square.", low=0, below=1, step="nines", advanced=True
    )
    adam_epsilon: float = option(1e-8, "AdamW: added to the denominator.", above=0, high=1, step="x10", advanced=True)
    seed: int = option(42, "Decides the initial weights, the order of the rows and dropout.", low=0, high=2**63 - 1)


class EvaluationSection(Section):
    eval_steps: StepsOrShare = option(
        0.1,
        "Evaluate every so many steps; below 1: a share of all steps; 0: only at the end.",
        unit="steps",
        speed="each evaluation reads all held-out rows",
    )
    per_device_eval_batch_size: PositiveInt | Auto = option(
        "auto",
        "Rows in one forward pass of an evaluation; auto: as in training.",
        unit="rows",
        step="x2",
        advanced=True,
    )
    max_eval_rows: int = option(
        0,
        "Evaluate on at most so many held-out rows, evenly spaced; 0: all.",
        low=0,
        unit="rows",
        step="1-2-5",
        advanced=True,
    )
    early_stopping_patience: int = option(
        0, "Stop after so many evaluations in a row without improvement and keep the best weights; 0: off.", low=0
    )
    early_stopping_threshold: float = option(
        0.0, "The held-out loss must fall by more than this to count.", low=0, unit="nats", advanced=True
    )


class CheckpointSection(Section):
    save_steps: StepsOrShare = option(
        0.2,
        "Save a checkpoint every so many steps; below 1: a share of all steps; 0: only at the end.",
        unit="steps",
        speed="training waits while a checkpoint is written",
    )
    save_total_limit: int = option(
        2, "Checkpoints kept; an older one goes only when a newer one is safe.", low=1, high=10**6
    )


class LoggingSection(Section):
    logging_steps: int = option(
        10,
        "Write the steps to the journal in groups of so many, and what waits after two seconds.",
        low=1,
        high=10**6,
        unit="steps",
        speed="each group waits once for the device",
        step="1-2-5",
    )
    sample_steps: StepsOrShare = option(
        0.25, "Let the model write a text every so many steps; below 1: a share of all steps; 0: never.", unit="steps"
    )


class OutputSection(Section):
    runs_dir: str = option("./runs", "The folder that holds the run folders.", completes="folder")
    name: str = option("", "Name of the run folder; empty: RECIPE-DATE-TIME.")


class Config(Section):
    """All that is asked for. Values that the user wrote always win over profiles, profiles over defaults."""

    schema_version: Literal[1] = option(1, "Version of this file format.", advanced=True)
    profile: str = option(
        "", "The recipe this starts from: a name from `tui-trainer profiles`, or a file.", completes="recipe"
    )
    hardware_profile: str = option(
        "auto", 'The hardware profile: "auto" (the one that matches), a name, or "none".', completes="hardware profile"
    )
    task: TaskSection = TaskSection()
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    training: TrainingSection = TrainingSection()
    evaluation: EvaluationSection = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    logging: LoggingSection = LoggingSection()
    output: OutputSection = OutputSection()
