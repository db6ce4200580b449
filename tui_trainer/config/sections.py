"""Every setting, declared once. A setting exists from the day on which something reads it.

Names are Hugging Face's where they have one. Whether values go together with each other and with the machine is
judged in `planning/conflicts.py`.
"""

import re
from typing import Annotated, Literal, NewType, get_args

from tui_trainer.config.fields import (
    Address,
    Auto,
    Form,
    NameIn,
    Names,
    Numbers,
    PositiveInt,
    PositiveRate,
    RouterWeight,
    SettingsSection,
    StepsOrShare,
    WholeNumber,
    option,
)
from tui_trainer.config.mixture import Paths, paths_in
from tui_trainer.config.token_list import Tokens
from tui_trainer.methods.lr_schedules import LR_SCHEDULES, DecayType
from tui_trainer.methods.optimizers import DEFAULT, OPTIMIZERS
from tui_trainer.methods.tuning_methods import TUNING_METHODS

# [model], [tuning] and [quantization]: what a run starts from, which weights are trainable, and in how many bits.


class ScratchSection(SettingsSection):
    """The shape of a model that starts from random weights, where no folder's config.json gives one (Llama:
    RMSNorm, rotary attention, gated MLP)."""

    hidden_size: int = option(
        128, low=8, high=65536, memory="weights grow with its square", speed="time with its square", step="x2"
    )
    """Width of the model."""
    num_hidden_layers: int = option(4, low=1, high=1024, memory="grows in proportion", speed="time in proportion")
    """Number of layers."""
    num_attention_heads: int = option(4, low=1, high=1024, step="x2")
    """Attention heads; they divide hidden_size."""
    num_key_value_heads: PositiveInt | Auto = option("auto", memory="fewer save a little", step="x2", advanced=True)
    """Heads that keys and values share; auto: as many as attention heads."""
    intermediate_size: PositiveInt | Auto = option("auto", step="x2", advanced=True)
    """Width inside the gated MLP; auto: 8/3 of hidden_size, rounded up to a multiple of 32."""
    vocab_size: int = option(
        8192, low=300, high=10**6, unit="tokens", memory="embedding and head grow in proportion", step="x2"
    )
    """Tokens of the tokenizer that is trained on the text (a character model counts characters instead)."""
    attention_dropout: float = option(0.0, low=0, below=1, step="+0.05", advanced=True)
    """Share of attention weights dropped while training."""

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


KnownAttention = Literal["auto", "sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"]
_OTHER_ATTENTION = re.compile(r"flash_attention_\d+|[\w.-]+/[\w.-]+(@[\w./-]+)?(:\w+)?", re.ASCII)


def is_known_attention(name: str) -> bool:
    """Whether the plan knows what it needs; transformers takes others as well."""
    return name in get_args(KnownAttention)


def _check_attention(name: str) -> None:
    if not is_known_attention(name) and not _OTHER_ATTENTION.fullmatch(name):
        raise ValueError("no attention")


class RopeScalingSection(SettingsSection):
    """Rotary positions for longer rows than a model was made for, in the words of transformers (`RopeParameters`; in
    older files `rope_scaling`). 0 and empty leave a field out."""

    rope_type: Literal["default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional"] = option("default")
    """How the positions of a model are spread over longer rows; default: they stay."""
    factor: float = option(0.0, low=0, high=10**6, step="x2")
    """How many times as long rows may become."""
    original_max_position_embeddings: int = option(0, low=0, high=10**9, unit="tokens", step="x2", advanced=True)
    """yarn, longrope, llama3: how long the rows were that the model was pretrained on; 0: as its config.json says."""
    rope_theta: float = option(0.0, low=0, high=10**12, step="x10", advanced=True)
    """The base of the wavelengths; 0: the model's own."""
    attention_factor: float = option(0.0, low=0, high=100, advanced=True)
    """yarn, longrope: what rotated queries and keys are multiplied by; 0: by the factor."""
    beta_fast: float = option(0.0, low=0, high=10**6, advanced=True)
    """yarn: what turns more often in the original length keeps its wavelength; 0: 32."""
    beta_slow: float = option(0.0, low=0, high=10**6, advanced=True)
    """yarn: what turns less often in the original length is slowed down by the factor; 0: 1."""
    mscale: float = option(0.0, low=0, high=100, advanced=True)
    """yarn: with mscale_all_dim, the attention factor as DeepSeek has it."""
    mscale_all_dim: float = option(0.0, low=0, high=100, advanced=True)
    """yarn: with mscale, the attention factor as DeepSeek has it."""
    truncate: bool = option(True, advanced=True)
    """yarn: round the ends of the range between both betas to whole dimensions."""
    low_freq_factor: float = option(0.0, low=0, high=10**6, advanced=True)
    """llama3: the original length holds fewer turns of what is slowed down by the factor; Llama 3.1 has 1."""
    high_freq_factor: float = option(0.0, low=0, high=10**6, advanced=True)
    """llama3: the original length holds more turns of what keeps its wavelength; Llama 3.1 has 4."""
    short_factor: Numbers = option("", advanced=True)
    """longrope: a factor for each pair of dimensions in rows of up to the original length, with commas."""
    long_factor: Numbers = option("", advanced=True)
    """longrope: the same in longer rows."""


class ModelSection(SettingsSection):
    model_name_or_path: str = option("", completes="folder")
    """The model to start from: a folder, its name on the hub, or a finished run: its path, its name or last."""
    revision: str = option("main", advanced=True)
    """Which version of a model from the hub: a branch, a tag or a commit."""
    init: Literal["pretrained", "scratch"] = option("pretrained")
    """pretrained: the model's own weights; scratch: random ones, with a tokenizer trained on the data."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto",
        memory="bfloat16 halves frozen weights; where they train 20 bytes each, not 18, and fewer activations",
        speed="weights in 16 bits need no casts",
    )
    """Numbers that the weights are kept in; auto: float32 where they train, else 16 bits where native. What trains in
    bfloat16 has fp32 master weights."""
    provider: Literal["transformers", "unsloth"] = option(
        "transformers",
        memory="keeps less, says Unsloth",
        speed="kernels of its own; not measured on a card here",
        advanced=True,
    )
    """unsloth: it loads and adapts language models, in an environment of its own (`tui-trainer install unsloth`)."""
    attn_implementation: Annotated[
        KnownAttention | str, Form('such as "kernels-community/flash-attn2"', _check_attention)
    ] = option("auto", memory="eager keeps all scores", speed="a fused kernel never writes the scores", advanced=True)
    """Which attention kernel; auto: torch's fused one wherever the model has it. Other names are those of transformers:
    sdpa is used where it cannot load one."""
    kernels: Literal["auto", "none", "liger"] = option(
        "auto",
        memory="fewer activations are kept",
        speed="fewer passes over memory; not measured on a card here",
        advanced=True,
    )
    """Fused kernels for norms, MLPs and the loss, where they give the same numbers; auto: liger-kernel's on a GPU."""
    towers: Literal["host", "card"] = option(
        "host", memory="host: the card has the weights of the language model alone", advanced=True
    )
    """Where a run on a GPU keeps towers for images, which no text goes through: in the machine's memory, or with the
    language model."""
    text_only: bool = option(False, memory="towers for images are neither loaded nor saved", advanced=True)
    """Of a model with towers for images, train and save the language model alone: as a text model, which reads no
    images any more."""
    trust_remote_code: bool = option(False, advanced=True)
    """Run Python code that comes with the model; it can do all that you can."""
    add_tokens: Tokens = option("", memory="embedding and head grow by a row each", completes="files", advanced=True)
    """Tokens that the tokenizer gets, with commas, or a .txt file with one a line; chat marks such as <|im_start|> are
    special tokens."""
    rope_scaling: RopeScalingSection = RopeScalingSection()
    scratch: ScratchSection = ScratchSection()


AdapterInit = Literal["default", "gaussian", "pissa", "olora"]
_FAST_PISSA = re.compile(r"pissa_niter_\d{1,3}", re.ASCII)


def _check_init(name: str) -> None:
    if name not in get_args(AdapterInit) and not _FAST_PISSA.fullmatch(name):
        raise ValueError("no initialisation")


class TuningSection(SettingsSection):
    method: Annotated[str, NameIn(TUNING_METHODS)] = option(
        "full",
        memory="full keeps 16 bytes a parameter, LoRA 2 to 4, QLoRA 0.6",
        speed="LoRA skips gradients of weights; QLoRA unpacks these often",
    )
    """Which weights are trainable: all, or LoRA adapters on frozen ones; qlora keeps these in 4 bits, on a GPU."""
    trainable_layers: str = option("", memory="what is frozen has no gradient and no optimizer state", advanced=True)
    """full: only these train: "last 2" or "first 2" layers, or a regular expression found in names of weights (a
    classifier's head always trains); empty: all."""
    continue_adapter: Literal["auto", "continue", "merge"] = option("auto")
    """An adapter to start from: continue trains it further as it is, merge puts it into its model first; auto: merge
    where all weights train."""
    r: int = option(16, low=1, high=4096, memory="adapters grow in proportion", step="x2")
    """LoRA: width of the update."""
    lora_alpha: float = option(32.0, above=0, high=10**6, step="x2")
    """LoRA: the update is scaled by lora_alpha / r (by its root with use_rslora)."""
    lora_dropout: float = option(
        0.0,
        low=0,
        below=1,
        memory="above 0 a mask and a copy of the input of each adapted layer is kept",
        speed="above 0 each layer and its adapter are computed apart",
        step="+0.05",
    )
    """LoRA: share of the adapters' inputs dropped."""
    target_modules: Names = option("all-linear")
    """LoRA: names of layers that get an adapter, with commas; all-linear: all but the head; or a regular expression of
    whole paths: '.*(q|v)_proj'."""
    target_parameters: Names = option(
        "",
        memory="the backward pass keeps a copy of each such tensor",
        speed="each pass adds the update to all of it",
        advanced=True,
    )
    """LoRA: tensors of experts that get an adapter, with commas: experts.gate_up_proj, experts.down_proj; all-linear
    has those of Mixtral and Qwen."""
    use_rslora: bool = option(False, advanced=True)
    """LoRA: scale by lora_alpha / sqrt(r), which keeps wide updates from fading."""
    use_dora: bool = option(False, speed="a third to a half slower", advanced=True)
    """LoRA: learn lengths and directions of the weights apart (DoRA)."""
    init_lora_weights: Annotated[AdapterInit | str, Form('such as "pissa_niter_16"', _check_init)] = option(
        "default",
        memory="pissa and olora: a copy of one matrix in fp32 and its factors while they are taken out",
        speed="pissa: an SVD of each adapted matrix before the first step; pissa_niter_16 a far shorter one",
        advanced=True,
    )
    """LoRA: what adapters begin with, by peft's names; pissa and olora take a part out of the weights, and are saved as
    LoRA of rank 2r."""
    fused_adapters: bool = option(True, speed="fewer passes over memory; not measured on a card here", advanced=True)
    """LoRA: compute a layer and its adapter in one function, where it gives the same numbers."""
    loraplus_lr_ratio: float = option(1.0, above=0, high=10**6, step="x2", advanced=True)
    """LoRA: the second matrix of an adapter learns so many times as fast as the first; LoRA+ takes 16, 1 is LoRA."""
    modules_to_save: Names = option("", advanced=True)
    """LoRA: layers trained as a whole and saved with the adapter, such as embed_tokens."""

    @property
    def has_adapter(self) -> bool:
        """Whether the model's own weights are frozen, and LoRA adapters train."""
        return TUNING_METHODS[self.method].has_adapter

    @property
    def mutates_weights(self) -> bool:
        """Whether adapters begin as a part of the frozen weights, which is taken out of these."""
        return self.has_adapter and self.init_lora_weights.startswith(("pissa", "olora"))

    @property
    def in_four_bits(self) -> bool:
        """Whether these frozen weights are kept in 4 bits."""
        return TUNING_METHODS[self.method].in_four_bits


class QuantizationSection(SettingsSection):
    """Weights in 4 bits by bitsandbytes, under its names. The head and the embeddings are never among them."""

    bnb_4bit_quant_type: Literal["nf4", "fp4"] = option("nf4")
    """QLoRA: which 16 numbers 4 bits stand for; nf4 suits weights, which are spread like a bell curve."""
    bnb_4bit_use_double_quant: bool = option(True, memory="4.13 bits a weight instead of 4.5", advanced=True)
    """QLoRA: also quantise the scale that each 64 weights share."""
    bnb_4bit_compute_dtype: Literal["auto", "bfloat16", "float16", "float32"] = option(
        "auto", speed="float32 is several times slower", advanced=True
    )
    """QLoRA: numbers that weights are unpacked to for a matmul; auto: those of the weights that are not in 4 bits."""


SCHEMA_VERSION = 1

__all__ = ["ModelSection", "QuantizationSection", "RopeScalingSection", "ScratchSection", "TuningSection"]


class TaskSection(SettingsSection):
    type: str = option("causal_lm")
    """What is learnt: causal_lm, char_lm, chat, question_answering, seq2seq, sequence_classification or
    token_classification."""
    loss_on: Literal["assistant", "completion", "all"] = option("assistant")
    """Chat: which tokens are learnt: every answer, only the last answer, or the whole conversation."""
    chat_template: str = option("", completes="file")
    """Chat: the template of a conversation: chatml, llama3, mistral, gemma, phi3, zephyr, alpaca, vicuna, a file;
    empty: the tokenizer's own."""
    problem_type: Literal["auto", "single_label_classification", "multi_label_classification", "regression"] = option(
        "auto"
    )
    """Classification of texts: one label each, any number of labels, or a number; auto: as the data shows."""
    class_weights: Literal["none", "balanced"] = option("none")
    """Classification: balanced counts rare classes as much as frequent ones."""
    source_prefix: str = option("")
    """Sequence to sequence: text put before every input, with its space: T5 was trained with "summarize: "."""
    max_target_length: PositiveInt = option(128, unit="tokens", memory="logits grow with it", step="x2")
    """Sequence to sequence: tokens of the answer."""
    doc_stride: PositiveInt = option(128, unit="tokens")
    """Question answering: tokens that two windows of a long context share, half of a window at the most."""
    max_answer_length: PositiveInt = option(30, unit="tokens")
    """Question answering: tokens of the longest answer that is looked for."""


class DataSection(SettingsSection):
    path: Paths = option("", completes="files")
    """Files, folders, globs, data sets of the hub (owner/name), sample:NAME, with commas: text, JSONL, JSON, CSV,
    Parquet, Arrow, saved datasets."""
    name: str = option("")
    """The configuration, where a data set has several, such as a language; empty: the only one."""
    split: str = option("")
    """The split to train on, or a slice as datasets writes it, such as train[:10%], train[1000:] or train+extra;
    empty: train."""
    eval_split: str = option("")
    """The split to measure on, or a slice of it, in data.eval_path or else in data.path; empty: validation."""
    streaming: bool = option(False, advanced=True)
    """Read data sets that are not on this machine from the hub: once prepared, only their tokens stay on the disk."""
    revision: str = option("", advanced=True)
    """A branch, a tag or a commit of data sets of the hub; empty: main."""
    weights: Numbers = option("")
    """How often each row of a source is used in an epoch, a number for each path with commas: 2 = twice, 0.5 = a
    half of them, chosen by data.seed; empty: once."""
    eval_path: Paths = option("", completes="files")
    """Other sources to measure on, with commas; empty: the validation split of data.path where there is one, else
    eval_fraction of the text is held out."""
    text_column: str = option("auto")
    """The column of a table that holds the text; auto: the one that looks like it."""
    text_pair_column: str = option("")
    """The column of a second text that is read with the first; empty: none."""
    label_column: str = option("auto")
    """The column of labels or tags, or with commas those that hold a 0 or 1 for a class each; auto: the one with a
    usual name, or all that hold a 0 or 1."""
    target_column: str = option("auto")
    """The column of answers or summaries; auto: the one with a usual name."""
    eval_fraction: float = option(0.1, low=0, high=0.9, step="+0.05")
    """Share of the text held out, whole documents at a time, to measure what was learnt, where neither eval_path
    nor a validation split is measured on."""
    max_length: int = option(
        256,
        low=2,
        high=1048576,
        unit="tokens",
        memory="activations grow with it",
        speed="attention with its square",
        step="x2",
    )
    """Tokens in a row."""
    packing: Literal["auto"] | bool = option("auto", speed="no time for padding")
    """Several documents of a batch in one row, without attention between them; auto: where that saves padding."""
    group_by_length: Literal["auto"] | bool = option(False, speed="less padding", advanced=True)
    """Draw batches from documents of similar length where they are not packed; auto: above 10 % of padding."""
    on_bad_rows: Literal["stop", "skip"] = option("stop")
    """Rows that cannot be used: stop and list them, or skip and count them."""
    dedup: bool = option(False)
    """Use each text once: repeats, and what is held out as well, leave the training data."""
    max_rows: int = option(0, low=0, unit="rows", step="1-2-5", advanced=True)
    """Use at most so many rows of each source; 0: all."""
    num_proc: PositiveInt | Auto = option("auto", speed="preparing goes in proportion", advanced=True)
    """Processes that read rows and make tokens; auto: one for each 16 MiB, as far as cores and memory go."""
    max_chars: int = option(0, low=0, unit="characters", step="1-2-5", advanced=True)
    """Use at most so many characters of the text of each source; 0: all."""
    seed: int = option(42, low=0, high=2**63 - 1, advanced=True)
    """Decides what is held out, and which rows a weight below 1 takes."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The single paths of `path`, each a source."""
        return paths_in(self.path)

    @property
    def eval_paths(self) -> tuple[str, ...]:
        return paths_in(self.eval_path) if self.eval_path else ()


class DataloaderSection(SettingsSection):
    num_workers: WholeNumber | Auto = option(
        "auto", speed="hides the making of batches behind the device's work", step="+1"
    )
    """Threads that make batches ahead of the training; 0: made when they are needed."""
    prefetch_factor: int = option(2, low=1, high=1000, advanced=True)
    """Batches that each of them makes ahead."""
    pin_memory: bool = option(True, speed="copies run beside the work", advanced=True)
    """Keep batches where a GPU reads them without a copy."""


class TrainingSection(SettingsSection):
    num_train_epochs: float = option(3.0, above=0, high=10**6, step="+1")
    """Passes over the training text."""
    max_steps: int = option(0, low=0, high=10**9, unit="steps", step="1-2-5")
    """Stop after so many optimizer steps; 0: num_train_epochs decides."""
    effective_batch_size: PositiveInt | Auto = option(
        32, unit="rows", speed="a card that is not full learns from more rows in the same time", step="x2"
    )
    """Rows behind one optimizer step, however they are cut; auto: as many as the hardware profile says feed the card,
    and no more than leave 300 steps."""
    base_batch_size: PositiveInt = option(32, unit="rows", step="x2", advanced=True)
    """Rows that the learning rate is meant for: what effective_batch_size = auto starts from, and lr_scaling."""
    per_device_train_batch_size: PositiveInt | Literal["auto", "tune"] = option(
        "auto",
        unit="rows",
        memory="activations grow in proportion",
        speed="larger is faster until the processor is full",
        step="x2",
    )
    """Rows of a forward pass (micro-batch); auto: all that fit; tune: the fastest."""
    gradient_accumulation_steps: PositiveInt | Auto = option("auto", step="x2", advanced=True)
    """Micro-batches behind one optimizer step; auto: effective batch / micro-batch."""
    learning_rate: PositiveRate | Auto = option(
        "auto",
        "Peak learning rate; auto: by method and size of the model, as published; lr_scaling fits it to the batch.",
    )
    lr_scaling: Literal["auto", "none", "sqrt", "linear"] = option("auto", advanced=True)
    """How a learning rate that is not your own grows with the effective batch; auto: with its root (SGD: in proportion)
    where the batch is auto, else not."""
    lr_scheduler_type: Annotated[str, NameIn(LR_SCHEDULES)] = option("cosine")
    """How the learning rate goes down after the warm-up."""
    warmup_steps: StepsOrShare = option(0.05, unit="steps")
    """Steps until the peak learning rate; below 1: a share of all steps."""
    num_decay_steps: StepsOrShare = option(0.1, unit="steps", advanced=True)
    """Last steps in which warmup_stable_decay goes down; below 1: a share of all steps. Other schedules have none."""
    decay_type: DecayType = option("cosine", advanced=True)
    """Along what warmup_stable_decay goes down: half a cosine, a line, or 1 less the root of the decay steps' share."""
    min_lr_rate: float = option(0.0, low=0, below=1, step="+0.05", advanced=True)
    """Share of the peak learning rate at which cosine and warmup_stable_decay end; others have no such floor."""
    weight_decay: float = option(0.0, low=0, high=10)
    """Decay of weight matrices (not of norms) per step, times the learning rate."""
    max_grad_norm: float = option(1.0, low=0)
    """Gradients longer than this are cut to it; 0: never."""
    adam_beta1: float = option(0.9, low=0, below=1, step="nines", advanced=True)
    """AdamW: memory of the gradient's mean."""
    adam_beta2: float = option(0.999, low=0, below=1, step="nines", advanced=True)
    """AdamW: memory of the gradient's square."""
    adam_epsilon: float = option(1e-8, above=0, high=1, step="x10", advanced=True)
    """AdamW: added to the denominator."""
    neftune_noise_alpha: float = option(0.0, low=0, high=10**6, advanced=True)
    """Noise on embeddings in training, up to so much / sqrt(width of a pass x hidden_size); NEFTune takes 5 to 15."""
    label_smoothing_factor: float = option(0.0, low=0, below=1, step="+0.05", advanced=True)
    """Share of each label spread evenly over all that could be; what is held out is measured without it."""
    router_aux_loss_coef: RouterWeight | Literal["auto", "model"] = option(
        "auto", memory="what the loss keeps of each token's router logits", advanced=True
    )
    """Weight of the loss that spreads tokens over experts; 0: none; model: the model's own; auto: the same, where its
    config asks for output_router_logits."""
    seed: int = option(42, low=0, high=2**63 - 1)
    """Decides the initial weights, the order of the rows and dropout."""
    optim: Annotated[str, NameIn(OPTIMIZERS)] = option(
        DEFAULT, memory="8 bytes a trained parameter, 2 in 8 bits, 1 in 4 bits, Muon 4 in layers, Adafactor few"
    )
    """The optimizer; those in 8 and 4 bits need bitsandbytes or torchao."""
    mixed_precision: Literal["auto", "bf16", "fp16", "no"] = option(
        "auto", memory="16 bits halve the activations", speed="2 to 8 times the matmuls a second where they are native"
    )
    """Numbers that matmuls are computed in; auto: bf16 where it is native, fp16 on older GPUs, else fp32."""
    tf32: bool = option(True, speed="up to 8 times")
    """TF32 matmuls for what is computed in fp32, on GPUs that have them."""
    gradient_checkpointing: bool = option(
        False,
        memory="activations of one layer instead of all",
        speed="a third slower, half with LoRA: layers go forward twice",
    )
    """Keep only the layers' inputs and compute the rest again for the backward pass."""
    loss_chunk_tokens: WholeNumber | Auto = option(
        "auto", memory="the logits of a chunk instead of all", step="x2", advanced=True
    )
    """Compute head and loss for so many tokens at a time; 0: all at once; auto: in chunks on a GPU."""
    torch_compile: bool = option(False, speed="10 to 30 % faster on GPUs")
    """Compile each layer; it costs a minute or more at the start."""
    torch_compile_mode: Literal["default", "reduce-overhead", "max-autotune-no-cudagraphs"] = option(
        "default", advanced=True
    )
    """How hard the compiler tries."""
    empty_cache_steps: int = option(
        0, low=0, unit="steps", speed="usually slows a healthy run", step="1-2-5", advanced=True
    )
    """Collect garbage, and give the cached memory of a GPU back, every so many steps; 0: never."""
    cpu_threads: PositiveInt | Auto = option("auto", unit="threads", advanced=True)
    """Threads that a run on a CPU computes with; auto: one a core, from four cores on one less."""
    deterministic: bool = option(False, speed="some are slower", advanced=True)
    """Only kernels that give the same bits each time, on a GPU."""


class EvaluationSection(SettingsSection):
    eval_steps: StepsOrShare = option(0.1, unit="steps", speed="training waits while it evaluates")
    """Evaluate every so many steps; below 1: a share of all steps; 0: only at the end."""
    per_device_eval_batch_size: PositiveInt | Auto = option("auto", unit="rows", step="x2", advanced=True)
    """Rows in one forward pass of an evaluation; auto: as in training."""
    max_eval_rows: WholeNumber | Auto = option("auto", unit="rows", step="1-2-5", advanced=True)
    """Evaluate on at most so many held-out rows, evenly spaced; 0: all; auto: what takes 3 % of the time."""
    early_stopping_patience: int = option(0, low=0)
    """Stop after so many evaluations in a row without improvement and keep the best weights; 0: off."""
    early_stopping_threshold: float = option(0.0, low=0, advanced=True)
    """The metric must get better by more than this to count."""
    metric_for_best_model: str = option("loss")
    """What early stopping goes by: loss, or a score of the task such as accuracy or f1."""
    generate_rows: int = option(32, low=0, unit="rows", speed="an answer takes one pass a token", step="x2")
    """Held-out rows that are answered at each evaluation, where a task scores answers; 0: none."""


class CheckpointSection(SettingsSection):
    save_steps: StepsOrShare = option(0.2, unit="steps", speed="training waits while a checkpoint is written")
    """Save a checkpoint every so many steps; below 1: a share of all steps; 0: only at the end."""
    save_total_limit: int = option(2, low=1, high=10**6)
    """Checkpoints kept; an older one goes only when a newer one is safe."""


class LoggingSection(SettingsSection):
    logging_steps: int = option(
        10, low=1, high=10**6, unit="steps", speed="each group waits once for the device", step="1-2-5"
    )
    """Write the steps to the journal in groups of so many, and what waits after two seconds."""
    sample_steps: StepsOrShare = option(0.25, unit="steps")
    """Let the model write a text every so many steps; below 1: a share of all steps; 0: never."""
    report_to: Names = option("", speed="none: a process of its own reads them from the journal")
    """Trackers that get the run's metrics as well: tensorboard, wandb, mlflow, trackio; several with commas."""


class TargetsSection(SettingsSection):
    samples_per_second: float = option(0.0, low=0, unit="rows/s")
    """Train at least so many rows a second; 0: no target."""
    inference_samples_per_second: float = option(0.0, low=0, unit="rows/s")
    """Answer at least so many rows a second in batches, as `bench RUN` measures it afterwards; 0: no target."""
    memory_gib: float = option(0.0, low=0, unit="GiB")
    """Peak at so much memory at most: of the card, or of the process on a CPU; 0: no target."""
    model_size_gib: float = option(0.0, low=0, unit="GiB")
    """Leave a model of so much on disk at most, an adapter counted as merged into its model; 0: no target."""
    loss: float = option(0.0, low=0)
    """Reach this held-out loss or a lower one; 0: no target."""
    score: float = option(0.0, low=0)
    """Reach this value of evaluation.metric_for_best_model or a higher one; 0: no target."""


class DistributedSection(SettingsSection):
    processes: PositiveInt | Auto = option(
        "auto", speed="each computes its share of every step; the gradients are summed once a step"
    )
    """Processes of each node that train one model together, one on each card; auto: as many as there are cards like
    the chosen one, and one on a CPU."""
    nodes: PositiveInt = option(1, speed="what is summed goes over the network between them")
    """Machines that train one model together, each with so many processes; in a step of Slurm those that it has."""
    rendezvous: Address = option("", advanced=True)
    """Where the nodes meet: HOST:PORT of the first one; empty: its name and a free port."""
    strategy: Literal["auto", "ddp", "fsdp", "hsdp", "deepspeed-2", "deepspeed-3"] = option(
        "auto", memory="fsdp, hsdp, deepspeed-3 split weights and state; deepspeed-2 the state"
    )
    """ddp: a copy each; fsdp: a part; hsdp: a part of its node's copy; deepspeed-2, -3: ZeRO; auto: ddp, else fsdp or
    hsdp."""
    cpu_offload: bool = option(
        False,
        memory="a card has only what computes",
        speed="all weights go to the card in each pass, gradients come back",
        advanced=True,
    )
    """Weights, gradients and optimizer state stay in the machine's memory, and the CPU updates them: with fsdp,
    hsdp or DeepSpeed, on one card as well."""


def _check_folder(path: str) -> None:
    if re.match(r"\w[\w+.-]*://", path):
        raise ValueError("an address")


class OutputSection(SettingsSection):
    runs_dir: Annotated[str, Form('a folder, such as "./runs"', _check_folder)] = option("./runs", completes="folder")
    """The folder that holds the run folders."""
    name: str = option("")
    """Name of the run folder; empty: RECIPE-DATE-TIME."""


class Config(SettingsSection):
    """All that is asked for. Values that the user wrote always win over profiles, profiles over defaults."""

    schema_version: Literal[1] = option(1, advanced=True)
    """Version of this file format."""
    profile: str = option("", completes="recipe")
    """The recipe this starts from: a name from `tui-trainer profiles`, or a file."""
    hardware_profile: str = option("auto", completes="hardware profile")
    """The hardware profile: "auto" (the one that matches), a name, or "none"."""
    task: TaskSection = TaskSection()
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    tuning: TuningSection = TuningSection()
    quantization: QuantizationSection = QuantizationSection()
    training: TrainingSection = TrainingSection()
    dataloader: DataloaderSection = DataloaderSection()
    evaluation: EvaluationSection = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    logging: LoggingSection = LoggingSection()
    distributed: DistributedSection = DistributedSection()
    targets: TargetsSection = TargetsSection()
    output: OutputSection = OutputSection()

    @property
    def is_from_scratch(self) -> bool:
        """Whether a run begins with random weights, and with tokens of its data."""
        return self.model.init == "scratch" or (self.task.type == "char_lm" and not self.model.model_name_or_path)


ResolvedConfig = NewType("ResolvedConfig", Config)
"""A Config whose effective batch size is a number. Only `planning/effective_batch.py` makes one out of a Config."""


def step_rows(config: ResolvedConfig) -> int:
    """Return the rows behind one optimizer step."""
    rows = config.training.effective_batch_size
    assert rows != "auto"
    return rows
