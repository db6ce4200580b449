"""[training]: how long, in what steps, with what precision and optimizer."""

from typing import Annotated, Literal

from tui_trainer.config.fields import (
    Auto,
    NameIn,
    PositiveInt,
    PositiveRate,
    Section,
    StepsOrShare,
    WholeNumber,
    option,
)
from tui_trainer.lr_schedules import LR_SCHEDULES
from tui_trainer.optimizers import ADAPTIVE, DEFAULT, OPTIMIZERS


class TrainingSection(Section):
    num_train_epochs: float = option(3.0, "Passes over the training text.", above=0, high=10**6, step="+1")
    max_steps: int = option(
        0,
        "Stop after so many optimizer steps; 0: num_train_epochs decides.",
        low=0,
        high=10**9,
        unit="steps",
        step="1-2-5",
    )
    effective_batch_size: int = option(
        32, "Rows behind one optimizer step, however they are cut.", low=1, high=10**7, unit="rows", step="x2"
    )
    per_device_train_batch_size: PositiveInt | Literal["auto", "tune"] = option(
        "auto",
        "Rows of a forward pass (micro-batch); auto: all that fit; tune: the fastest.",
        unit="rows",
        memory="activations grow in proportion",
        speed="larger is faster until the processor is full",
        step="x2",
    )
    gradient_accumulation_steps: PositiveInt | Auto = option(
        "auto",
        "Micro-batches behind one optimizer step; auto: effective batch / micro-batch.",
        step="x2",
        advanced=True,
    )
    learning_rate: PositiveRate | Auto = option(
        "auto",
        f"Peak learning rate; auto with AdamW: {ADAPTIVE['scratch'].auto:g} from scratch, "
        f"{ADAPTIVE['lora'].auto:g} with LoRA, {ADAPTIVE['full'].auto:g} for all of a pretrained model.",
    )
    lr_scaling: Literal["none", "sqrt", "linear"] = option(
        "none",
        "How a preset's learning rate, or auto, grows with the effective batch from the preset's; your own rate stays.",
        advanced=True,
    )
    lr_scheduler_type: Annotated[str, NameIn(LR_SCHEDULES)] = option(
        "cosine", "How the learning rate goes down after the warm-up."
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
    label_smoothing_factor: float = option(
        0.0,
        "Share of each label spread evenly over all that could be; what is held out is measured without it.",
        low=0,
        below=1,
        step="+0.05",
        advanced=True,
    )
    seed: int = option(42, "Decides the initial weights, the order of the rows and dropout.", low=0, high=2**63 - 1)
    optim: Annotated[str, NameIn(OPTIMIZERS)] = option(
        DEFAULT,
        "The optimizer; those in 8 and 4 bits need bitsandbytes or torchao.",
        memory="8 bytes a trained parameter, 2 in 8 bits, 1 in 4 bits, Adafactor few",
    )
    mixed_precision: Literal["auto", "bf16", "fp16", "no"] = option(
        "auto",
        "Numbers that matmuls are computed in; auto: bf16 where it is native, fp16 on older GPUs, else fp32.",
        memory="16 bits halve the activations",
        speed="2 to 8 times the matmuls a second where they are native",
    )
    tf32: bool = option(
        True, "TF32 matmuls for what is computed in fp32, on GPUs that have them.", speed="up to 8 times"
    )
    gradient_checkpointing: bool = option(
        False,
        "Keep only the layers' inputs and compute the rest again for the backward pass.",
        memory="activations of one layer instead of all",
        speed="a quarter to a third slower",
    )
    loss_chunk_tokens: WholeNumber | Auto = option(
        "auto",
        "Compute head and loss for so many tokens at a time; 0: all at once; auto: in chunks on a GPU.",
        memory="the logits of a chunk instead of all",
        step="x2",
        advanced=True,
    )
    torch_compile: bool = option(
        False, "Compile each layer; it costs a minute or more at the start.", speed="10 to 30 % faster on GPUs"
    )
    torch_compile_mode: Literal["default", "reduce-overhead", "max-autotune-no-cudagraphs"] = option(
        "default", "How hard the compiler tries.", advanced=True
    )
    empty_cache_steps: int = option(
        0,
        "Collect garbage, and give the cached memory of a GPU back, every so many steps; 0: never.",
        low=0,
        unit="steps",
        speed="usually slows a healthy run",
        step="1-2-5",
        advanced=True,
    )
    cpu_threads: PositiveInt | Auto = option(
        "auto",
        "Threads that a run on a CPU computes with; auto: one a core, from four cores on one less.",
        unit="threads",
        advanced=True,
    )
    deterministic: bool = option(
        False, "Only kernels that give the same bits each time, on a GPU.", speed="some are slower", advanced=True
    )
