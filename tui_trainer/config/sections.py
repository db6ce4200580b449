"""The declarations of all settings. The docstring below a setting is its help.

Names are those of Hugging Face if they exist there. `planning/conflicts.py` checks combinations of values."""

import re
from typing import Annotated, Literal, NewType, get_args

from tui_trainer.config.fields import (
    Address,
    Auto,
    Epochs,
    Form,
    LossWeight,
    NameIn,
    Names,
    Numbers,
    PositiveInt,
    PositiveRate,
    SettingsSection,
    StepsOrShare,
    WholeNumber,
    option,
)
from tui_trainer.config.mixture import Paths, paths_in
from tui_trainer.config.token_list import Tokens
from tui_trainer.methods.lr_schedules import LR_SCHEDULES, DecayType, schedules_with
from tui_trainer.methods.optimizers import DEFAULT, OPTIMIZER_KEY, OPTIMIZERS
from tui_trainer.methods.preference_losses import PREFERENCE_LOSSES
from tui_trainer.methods.tuning_methods import METHOD_KEY, TUNING_METHODS

MODEL_KEY, DATA_KEY = "model.model_name_or_path", "data.path"


class ScratchSection(SettingsSection):
    """The shape of a model with random initial weights (Llama: RMSNorm, rotary attention, gated MLP). It is not used if
    the model's folder has a config.json."""

    hidden_size: int = option(
        128,
        low=8,
        high=65536,
        memory="weights grow with the square of the width",
        speed="time grows with the square of the width",
        step="x2",
    )
    """Width of the model."""
    num_hidden_layers: int = option(
        4, low=1, high=1024, memory="proportional to the number", speed="proportional to the number"
    )
    """Number of layers."""
    num_attention_heads: int = option(4, low=1, high=1024, step="x2")
    """Attention heads; hidden_size must be divisible by them."""
    num_key_value_heads: PositiveInt | Auto = option(
        "auto", memory="fewer heads save a little memory", step="x2", advanced=True
    )
    """Key and value heads; auto: as many as attention heads."""
    intermediate_size: PositiveInt | Auto = option("auto", step="x2", advanced=True)
    """Width inside the gated MLP; auto: 8/3 of hidden_size, rounded up to a multiple of 32."""
    vocab_size: int = option(
        8192, low=300, high=10**6, unit="tokens", memory="embedding and head grow by one row per token", step="x2"
    )
    """Size of the tokenizer trained on the text (a character model uses its characters instead)."""
    attention_dropout: float = option(0.0, low=0, below=1, step="+0.05", advanced=True)
    """Dropout of attention weights in training."""

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
    """Return whether planning knows the needs of this attention kernel. transformers has further ones."""
    return name in get_args(KnownAttention)


def _check_attention(name: str) -> None:
    if not is_known_attention(name) and not _OTHER_ATTENTION.fullmatch(name):
        raise ValueError("not an attention kernel")


class RopeScalingSection(SettingsSection):
    """Rescaling of rotary positions for longer rows than in pretraining, with the names of transformers
    (`RopeParameters`; in older files `rope_scaling`). Fields that are 0 or empty are omitted."""

    rope_type: Literal["default", "linear", "yarn", "longrope", "llama3", "proportional"] = option("default")
    """How positions are rescaled for longer rows; default: not at all."""
    factor: float = option(0.0, low=0, high=10**6, step="x2")
    """How many times longer rows may become."""
    original_max_position_embeddings: int = option(0, low=0, high=10**9, unit="tokens", step="x2", advanced=True)
    """yarn, longrope, llama3: context length of pretraining; 0: from the model's config.json."""
    rope_theta: float = option(0.0, low=0, high=10**12, step="x10", advanced=True)
    """Base of the wavelengths; 0: the model's own."""
    attention_factor: float = option(0.0, low=0, high=100, advanced=True)
    """yarn, longrope: scale of rotated queries and keys; 0: derived from the factor."""
    beta_fast: float = option(0.0, low=0, high=10**6, advanced=True)
    """yarn: dimensions with more rotations in the original length keep their wavelength; 0: 32."""
    beta_slow: float = option(0.0, low=0, high=10**6, advanced=True)
    """yarn: dimensions with fewer rotations in the original length are slowed down by the factor; 0: 1."""
    mscale: float = option(0.0, low=0, high=100, advanced=True)
    """yarn: with mscale_all_dim, DeepSeek's attention factor."""
    mscale_all_dim: float = option(0.0, low=0, high=100, advanced=True)
    """yarn: with mscale, DeepSeek's attention factor."""
    truncate: bool = option(True, advanced=True)
    """yarn: round the range between beta_fast and beta_slow to whole dimensions."""
    low_freq_factor: float = option(0.0, low=0, high=10**6, advanced=True)
    """llama3: dimensions with fewer rotations in the original length are slowed down by the factor; Llama 3.1: 1."""
    high_freq_factor: float = option(0.0, low=0, high=10**6, advanced=True)
    """llama3: dimensions with more rotations in the original length keep their wavelength; Llama 3.1: 4."""
    short_factor: Numbers = option("", advanced=True)
    """longrope: a factor per pair of dimensions for rows up to the original length, separated by commas."""
    long_factor: Numbers = option("", advanced=True)
    """longrope: a factor per pair of dimensions for longer rows, separated by commas."""


class ModelSection(SettingsSection):
    model_name_or_path: str = option("", completes="folder")
    """The model to start from: a folder, a name on the hub, or a finished run (its path, its name or last)."""
    revision: str = option("main", advanced=True)
    """Version of a model from the hub: a branch, a tag or a commit."""
    init: Literal["pretrained", "scratch"] = option("pretrained")
    """pretrained: the model's own weights; scratch: random ones, with a tokenizer trained on the data."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto",
        memory="bfloat16 halves frozen weights and reduces activations; trainable weights take 20 bytes each, not 18",
        speed="16-bit weights need no casts",
        in_step_key=True,
    )
    """Data type of the weights; auto: float32 for trainable weights, else 16 bits if native. Trainable bfloat16 weights
    have fp32 master weights."""
    provider: Literal["transformers", "unsloth"] = option(
        "transformers",
        memory="less memory, according to Unsloth",
        speed="Unsloth has its own kernels; their speed has not been measured yet",
        advanced=True,
    )
    """Library that loads and adapts the model; unsloth: in its own environment (`tui-trainer install unsloth`)."""
    attn_implementation: Annotated[
        KnownAttention | str, Form('such as "kernels-community/flash-attn2"', _check_attention)
    ] = option(
        "auto",
        memory="eager stores all attention scores",
        speed="fused kernels never write attention scores to memory",
        advanced=True,
        in_step_key=True,
    )
    """Attention kernel; auto: torch's fused kernel if the model supports it. Other names are those of transformers;
    sdpa is used if it cannot load one."""
    kernels: Literal["auto", "none", "liger"] = option(
        "auto",
        memory="fused kernels store fewer activations",
        speed="fewer passes over memory; the speed has not been measured on a GPU yet",
        advanced=True,
        in_step_key=True,
    )
    """Fused kernels for norms, MLPs and the loss, if they give the same results; auto: liger-kernel on a GPU."""
    towers: Literal["host", "card"] = option(
        "host", memory="host: only the language model's weights are on the GPU", advanced=True
    )
    """Where a GPU run keeps vision towers, which text does not use: in host memory, or on the GPU with the language
    model."""
    text_only: bool = option(False, memory="vision towers are neither loaded nor saved", advanced=True)
    """Train and save only the language model of a vision-language model, as a text model that no longer reads
    images."""
    trust_remote_code: bool = option(False, advanced=True)
    """Run Python code that comes with the model. It can do anything that you can."""
    add_tokens: Tokens = option(
        "", memory="embedding and head grow by one row per token", completes="files", advanced=True
    )
    """Tokens added to the tokenizer, separated by commas, or a .txt file with one per line; chat marks such as
    <|im_start|> become special tokens."""
    rope_scaling: RopeScalingSection = RopeScalingSection()
    scratch: ScratchSection = ScratchSection()


AdapterInit = Literal["default", "gaussian", "pissa", "olora"]
_FAST_PISSA = re.compile(r"pissa_niter_\d{1,3}", re.ASCII)


def _check_init(name: str) -> None:
    if name not in get_args(AdapterInit) and not _FAST_PISSA.fullmatch(name):
        raise ValueError(f"must be one of {', '.join(get_args(AdapterInit))}, or pissa_niter_ with a number")


class TuningSection(SettingsSection):
    method: Annotated[str, NameIn(TUNING_METHODS)] = option(
        "full",
        memory="full: 16 bytes per parameter, LoRA: 2 to 4, QLoRA: 0.6",
        speed="LoRA skips weight gradients; QLoRA has to unpack the weights",
    )
    """Which weights are trainable: all, or LoRA adapters on frozen weights; qlora: frozen weights in 4 bits (GPU)."""
    trainable_layers: str = option("", memory="frozen weights have no gradients and no optimizer state", advanced=True)
    """full: the trainable layers: "last 2", "first 2", or a regular expression matched against weight names (a
    classifier's head is always trainable); empty: all."""
    continue_adapter: Literal["auto", "continue", "merge"] = option("auto")
    """For a run that starts from an adapter: continue trains that adapter, merge merges it into its model first; auto:
    merge if all weights are trainable."""
    r: int = option(16, low=1, high=4096, memory="adapter size is proportional to r", step="x2")
    """LoRA rank."""
    lora_alpha: float = option(32.0, above=0, high=10**6, step="x2")
    """LoRA: the update is scaled by lora_alpha / r (lora_alpha / sqrt(r) with use_rslora)."""
    lora_dropout: float = option(
        0.0,
        low=0,
        below=1,
        memory="above 0, a mask and a copy of each adapted layer's input are stored",
        speed="above 0, each layer and its adapter are computed separately",
        step="+0.05",
        in_step_key=True,
    )
    """LoRA: dropout of the adapters' inputs."""
    target_modules: Names = option("all-linear", in_step_key=True)
    """LoRA: names of layers that get an adapter, separated by commas; all-linear: all but the head; or a regular
    expression that matches whole paths: '.*(q|v)_proj'."""
    target_parameters: Names = option(
        "",
        memory="the backward pass stores a copy of each tensor",
        speed="each pass adds the update to the whole tensor",
        advanced=True,
        in_step_key=True,
    )
    """LoRA: expert tensors that get an adapter, separated by commas: experts.gate_up_proj, experts.down_proj;
    all-linear includes those of Mixtral and Qwen."""
    use_rslora: bool = option(False, advanced=True)
    """LoRA: scale by lora_alpha / sqrt(r), so that high ranks still learn."""
    use_dora: bool = option(False, speed="a third to a half slower", advanced=True, in_step_key=True)
    """LoRA: train magnitude and direction of the weights separately (DoRA)."""
    init_lora_weights: Annotated[AdapterInit | str, Form('such as "pissa_niter_16"', _check_init)] = option(
        "default",
        memory="pissa and olora: one matrix in fp32 and its factors during initialisation",
        speed="pissa: an SVD of each adapted matrix before the first step; pissa_niter_16: a much faster SVD",
        advanced=True,
    )
    """LoRA: initial adapter weights, by peft's names; pissa and olora move a part of the weights into the adapter, and
    are saved as LoRA of rank 2r."""
    fused_adapters: bool = option(
        True, speed="fewer passes over memory; the speed has not been measured yet", advanced=True, in_step_key=True
    )
    """LoRA: compute a layer and its adapter in one function, if it gives the same results."""
    loraplus_lr_ratio: float = option(1.0, above=0, high=10**6, step="x2", advanced=True)
    """LoRA: learning rate of the second matrix of an adapter, relative to the first; LoRA+ uses 16, LoRA 1."""
    modules_to_save: Names = option("", advanced=True, in_step_key=True)
    """LoRA: layers trained as a whole and saved with the adapter, such as embed_tokens."""

    @property
    def has_adapter(self) -> bool:
        """Whether LoRA adapters are trained and the model's own weights are frozen."""
        return TUNING_METHODS[self.method].has_adapter

    @property
    def mutates_weights(self) -> bool:
        """Whether the initial adapter is a part of the model's weights, which is subtracted from them."""
        return self.has_adapter and self.init_lora_weights.startswith(("pissa", "olora"))

    @property
    def in_four_bits(self) -> bool:
        """Whether the frozen weights are stored in 4 bits."""
        return TUNING_METHODS[self.method].in_four_bits


class QuantizationSection(SettingsSection):
    """4-bit weights of bitsandbytes, with its names. The head and the embeddings are never quantized."""

    bnb_4bit_quant_type: Literal["nf4", "fp4"] = option("nf4")
    """QLoRA: the 4-bit data type; nf4 suits weights, which are normally distributed."""
    bnb_4bit_use_double_quant: bool = option(
        True, memory="4.13 bits per weight instead of 4.5", advanced=True, in_step_key=True
    )
    """QLoRA: also quantise the scale shared by each block of 64 weights."""
    bnb_4bit_compute_dtype: Literal["auto", "bfloat16", "float16", "float32"] = option(
        "auto", speed="float32 is several times slower", advanced=True, in_step_key=True
    )
    """QLoRA: data type that weights are unpacked to for a matmul; auto: that of the weights that are not in 4 bits."""


SCHEMA_VERSION = 1


class TaskSection(SettingsSection):
    type: str = option("causal_lm")
    """The task: causal_lm, char_lm, chat, kto, preference, question_answering, reward, seq2seq,
    sequence_classification or token_classification."""
    loss_on: Literal["assistant", "completion", "all"] = option("assistant")
    """Chat: tokens to train on: assistant turns, only the completion (the last turn), or the whole conversation."""
    chat_template: str = option("", completes="file")
    """Chat: template of conversations: chatml, llama3, mistral, gemma, phi3, zephyr, alpaca, vicuna, a file;
    empty: the tokenizer's own."""
    problem_type: Literal["auto", "single_label_classification", "multi_label_classification", "regression"] = option(
        "auto"
    )
    """Text classification: one label per text, any number of labels, or a number; auto: inferred from the data."""
    class_weights: Literal["none", "balanced"] = option("none")
    """Classification: balanced counts rare classes as much as frequent ones."""
    source_prefix: str = option("")
    """Sequence to sequence: text before every input, including its final space: T5 was trained with "summarize: "."""
    max_target_length: PositiveInt = option(128, unit="tokens", memory="logits grow with the length", step="x2")
    """Sequence to sequence: maximum tokens of an answer."""
    doc_stride: PositiveInt = option(128, unit="tokens")
    """Question answering: overlap of two windows of a long context, at most half a window."""
    max_answer_length: PositiveInt = option(30, unit="tokens")
    """Question answering: maximum tokens of an answer."""
    loss_type: Annotated[str, NameIn(PREFERENCE_LOSSES)] = option("sigmoid")
    """Preference: loss over a chosen and a rejected answer."""
    beta: PositiveRate | Auto = option("auto")
    """Preference, KTO: how much rewards weigh; higher stays closer to the model before training; auto: 0.1,
    sigmoid_norm 5, simpo 2."""
    simpo_gamma: float = option(1.0, low=0)
    """Preference, simpo: reward by which the chosen answer should lead."""
    label_smoothing: float = option(0.0, low=0, below=0.5, step="+0.05")
    """Preference, robust: share of the pairs whose answers may be swapped."""
    sft_weight: LossWeight | Auto = option("auto")
    """Preference: weight of the cross entropy of the chosen answers, added to the loss; auto: 1 for orpo and cpo,
    else 0."""
    center_rewards_coefficient: LossWeight = option(0.0)
    """Reward: weight of the squared sum of both rewards of a pair, which keeps rewards near 0, such as 0.01
    (arXiv:2312.09244, TRL)."""
    reference: str = option("", completes="folder")
    """Preference: another model, as in model.model_name_or_path, to compare with; it is loaded only before the first
    step; empty: the model to start from."""
    desirable_weight: float = option(1.0, low=0.001, high=1000)
    """KTO: weight of desirable answers; their number times it should be 1 to 1.33 times that of the others
    (arXiv:2402.01306)."""
    undesirable_weight: float = option(1.0, low=0.001, high=1000)
    """KTO: weight of undesirable answers."""


class DataSection(SettingsSection):
    path: Paths = option("", completes="files")
    """Files, folders, globs, data sets on the hub (owner/name) or sample:NAME, separated by commas: text, JSONL, JSON,
    CSV, Parquet, Arrow, saved datasets."""
    name: str = option("")
    """Configuration of a data set that has several, such as a language; empty: the only one."""
    split: str = option("")
    """Split to train on, or a slice in the syntax of datasets, such as train[:10%], train[1000:] or train+extra;
    empty: train."""
    eval_split: str = option("")
    """Split to evaluate on, or a slice of it, in data.eval_path or else in data.path; empty: validation."""
    streaming: bool = option(False, advanced=True)
    """Stream data sets that are not on this machine from the hub: only their tokens are stored on disk."""
    revision: str = option("", advanced=True)
    """Version of data sets from the hub: a branch, a tag or a commit; empty: main."""
    weights: Numbers = option("")
    """How often each source is used per epoch, a number per path, separated by commas: 2 = each row twice, 0.5 = half
    of the rows, chosen by data.seed; empty: once."""
    replay: Paths = option("", completes="files")
    """Other sources, with rows like those that the model learnt before, so that it forgets less; replay_share of an
    epoch, never held out; empty: none."""
    replay_share: float = option(0.03, low=0.001, high=0.5)
    """Share of the training rows (of texts: of their characters) that come from data.replay."""
    eval_path: Paths = option("", completes="files")
    """Other sources to evaluate on, separated by commas; empty: the validation split of data.path if it has one, else
    eval_fraction of the text is held out."""
    text_column: str = option("auto")
    """Column with the text; auto: detected."""
    text_pair_column: str = option("")
    """Column with a second text that is read together with the first; empty: none."""
    label_column: str = option("auto")
    """Column with labels, tags or margins, or several: one of 0 and 1 per class, or two of scores; auto: the one with
    a usual name, or all of 0 and 1."""
    target_column: str = option("auto")
    """Column with answers or summaries; auto: the column with a usual name."""
    eval_fraction: float = option(0.1, low=0, high=0.9, step="+0.05")
    """Share of the text that is held out for evaluation, in whole documents, if there is neither eval_path nor a
    validation split."""
    max_length: int = option(
        256,
        low=2,
        high=1048576,
        unit="tokens",
        memory="activations are proportional to the row length",
        speed="attention time grows with the square of the row length",
        step="x2",
    )
    """Maximum tokens per row."""
    packing: Literal["auto"] | bool = option("auto", speed="no time spent on padding")
    """Put several documents into one row, without attention between them; auto: if that saves padding."""
    group_by_length: Literal["auto"] | bool = option(False, speed="less padding", advanced=True, in_step_key=True)
    """Make batches of documents of similar length if they are not packed; auto: if more than 10 %
    would be padding."""
    on_bad_rows: Literal["stop", "skip"] = option("stop")
    """What to do with invalid rows: stop and list them, or skip and count them."""
    dedup: bool = option(False)
    """Remove duplicate rows from the training data, and rows that are also held out."""
    max_rows: int = option(0, low=0, unit="rows", step="1-2-5", advanced=True)
    """Maximum rows of each source; 0: all."""
    num_proc: PositiveInt | Auto = option("auto", speed="more processes prepare the data faster", advanced=True)
    """Processes that read and tokenise rows; auto: one per 16 MiB of data, limited by cores and memory."""
    max_chars: int = option(0, low=0, unit="characters", step="1-2-5", advanced=True)
    """Maximum characters of text of each source; 0: all."""
    seed: int = option(42, low=0, high=2**63 - 1, advanced=True)
    """Seed for the held-out rows, and for the rows that a weight below 1 selects."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the sources in `path`."""
        return paths_in(self.path)

    @property
    def eval_paths(self) -> tuple[str, ...]:
        return paths_in(self.eval_path) if self.eval_path else ()

    @property
    def replay_paths(self) -> tuple[str, ...]:
        return paths_in(self.replay) if self.replay else ()


class DataloaderSection(SettingsSection):
    num_workers: WholeNumber | Auto = option(
        "auto", speed="prepares batches while the device works", step="+1", in_step_key=True
    )
    """Threads that prepare batches in advance; 0: batches are made when needed."""
    prefetch_factor: int = option(2, low=1, high=1000, advanced=True)
    """Batches that each thread prepares in advance."""
    pin_memory: bool = option(True, speed="copies overlap with computing", advanced=True, in_step_key=True)
    """Keep batches in pinned memory, which a GPU reads without another copy."""


_DECAYS_AT_THE_END = schedules_with("has_decay_steps", "and")


class TrainingSection(SettingsSection):
    num_train_epochs: Epochs | Auto = option(3.0, step="+1")
    """Passes over the training data; auto: 3, or up to 10 if the run would have fewer than 200 steps."""
    max_steps: int = option(0, low=0, high=10**9, unit="steps", step="1-2-5")
    """Number of optimizer steps; 0: num_train_epochs decides."""
    effective_batch_size: PositiveInt | Auto = option(
        32, unit="rows", speed="more rows take no longer until the GPU is fully used", step="x2"
    )
    """Rows per optimizer step; auto: enough to use the GPU fully, but fewer (at least 8) if the run would have fewer
    than 300 steps."""
    base_batch_size: PositiveInt = option(32, unit="rows", step="x2", advanced=True)
    """Effective batch size that the learning rate is meant for; effective_batch_size = auto and lr_scaling start
    from it."""
    per_device_train_batch_size: PositiveInt | Literal["auto", "tune"] = option(
        "auto",
        unit="rows",
        memory="activations are proportional to the rows",
        speed="larger micro-batches are faster until the GPU or CPU is fully used",
        step="x2",
    )
    """Rows per forward pass (micro-batch); auto: as many as fit; tune: the fastest."""
    gradient_accumulation_steps: PositiveInt | Auto = option("auto", step="x2", advanced=True)
    """Micro-batches per optimizer step; auto: effective batch / micro-batch."""
    learning_rate: PositiveRate | Auto = option(
        "auto", "Peak learning rate; auto: a published value for the method and model size, adjusted by lr_scaling."
    )
    lr_scaling: Literal["auto", "none", "sqrt", "linear"] = option("auto", advanced=True)
    """How a learning rate that you did not set grows with the effective batch; auto: with its square root (SGD:
    linearly) if the batch is auto, else not at all."""
    lr_scheduler_type: Annotated[str, NameIn(LR_SCHEDULES)] = option("cosine")
    """Learning-rate schedule after the warm-up."""
    warmup_steps: StepsOrShare = option(0.05, unit="steps")
    """Warm-up steps until the peak learning rate; below 1: a share of all steps."""
    num_decay_steps: StepsOrShare = option(
        0.1,
        f"Decay steps at the end of {_DECAYS_AT_THE_END}; below 1: a share of all steps. Other schedules ignore it.",
        unit="steps",
        advanced=True,
    )
    decay_type: DecayType = option(
        "cosine",
        f"Shape of the decay of {_DECAYS_AT_THE_END}: cosine, linear, or 1 minus the square root of the progress.",
        advanced=True,
    )
    min_lr_rate: float = option(
        0.0,
        f"Final rate of {schedules_with('has_floor', 'and')}, as a share of the peak rate; other schedules ignore it.",
        low=0,
        below=1,
        step="+0.05",
        advanced=True,
    )
    weight_decay: float = option(0.0, low=0, high=10)
    """Weight decay of matrices (not of norms); each step multiplies it by the learning rate."""
    max_grad_norm: float = option(1.0, low=0)
    """Gradient clipping: maximum gradient norm; 0: off."""
    adam_beta1: float = option(0.9, low=0, below=1, step="nines", advanced=True)
    """AdamW: decay rate of the gradient's mean."""
    adam_beta2: float = option(0.999, low=0, below=1, step="nines", advanced=True)
    """AdamW: decay rate of the squared gradient's mean."""
    adam_epsilon: float = option(1e-8, above=0, high=1, step="x10", advanced=True)
    """AdamW: added to the denominator."""
    neftune_noise_alpha: float = option(0.0, low=0, high=10**6, advanced=True)
    """Noise on embeddings in training, up to this value / sqrt(row length x hidden_size); NEFTune uses 5 to 15."""
    label_smoothing_factor: float = option(0.0, low=0, below=1, step="+0.05", advanced=True)
    """Label smoothing: share of each label spread over all tokens or classes; not used in evaluation."""
    router_aux_loss_coef: LossWeight | Literal["auto", "model"] = option(
        "auto", memory="the router logits of each token are stored for the loss", advanced=True
    )
    """Weight of the load-balancing loss of experts; 0: none; model: the model's own; auto: the model's own, if its
    config sets output_router_logits."""
    seed: int = option(42, low=0, high=2**63 - 1)
    """Seed for the initial weights, the order of the rows and dropout."""
    optim: Annotated[str, NameIn(OPTIMIZERS)] = option(
        DEFAULT,
        memory="AdamW: 8 bytes per trainable parameter, 8-bit: 2, 4-bit: 1; Muon: 4 in layers; Adafactor: far fewer",
        in_step_key=True,
    )
    """The optimizer; 8-bit and 4-bit ones need bitsandbytes or torchao."""
    mixed_precision: Literal["auto", "bf16", "fp16", "no"] = option(
        "auto", memory="16 bits halve the activations", speed="matmuls are 2 to 8 times faster with hardware support"
    )
    """Data type of matmuls; auto: bf16 if native, fp16 on older GPUs, else fp32."""
    tf32: bool = option(True, speed="up to 8 times faster", in_step_key=True)
    """Use TF32 for fp32 matmuls, on GPUs that support it."""
    gradient_checkpointing: bool = option(
        False,
        memory="activations of one layer instead of all layers",
        speed="a third slower (half with LoRA): layers run forward twice",
    )
    """Store only the layers' inputs and recompute the other activations in the backward pass."""
    loss_chunk_tokens: WholeNumber | Auto = option(
        "auto", memory="logits of one chunk instead of all", step="x2", advanced=True, in_step_key=True
    )
    """Tokens per chunk of head and loss; 0: all at once; auto: in chunks on a GPU."""
    torch_compile: bool = option(False, speed="10 to 30 % faster on GPUs")
    """Compile each layer with torch.compile; takes a minute or more at the start."""
    torch_compile_mode: Literal["default", "reduce-overhead", "max-autotune-no-cudagraphs"] = option(
        "default", advanced=True, in_step_key=True
    )
    """How much time the compiler spends on faster code."""
    empty_cache_steps: int = option(
        0,
        low=0,
        unit="steps",
        speed="usually slows a run that has enough memory",
        step="1-2-5",
        advanced=True,
        in_step_key=True,
    )
    """Collect garbage and release cached GPU memory every this many steps; 0: never."""
    cpu_threads: PositiveInt | Auto = option("auto", unit="threads", advanced=True)
    """Threads of a run on a CPU; auto: one per core, or one fewer with four cores or more."""
    deterministic: bool = option(False, speed="some kernels are slower", advanced=True, in_step_key=True)
    """Use only deterministic kernels on a GPU, for bit-identical results."""


EVALUATIONS_SHARE = 0.03
"""Share of the run's time that evaluations may take if nobody has set how many rows they read."""
ANSWERS_SHARE = 0.05
"""Share of the run's time that answers at evaluations may take if nobody has set how many rows are answered."""
GATE_SUITE, GENERAL_SUITE = "evaluation.gate_suite", "general"
"""Setting that names a suite, and its value for this program's own suite."""
LEAST_EVAL_ROWS = 32
"""Smallest number of held-out rows with a meaningful loss."""


class EvaluationSection(SettingsSection):
    eval_steps: StepsOrShare = option(0.1, unit="steps", speed="training waits during an evaluation")
    """Evaluate every this many steps; below 1: a share of all steps; 0: only at the end."""
    per_device_eval_batch_size: PositiveInt | Auto = option("auto", unit="rows", step="x2", advanced=True)
    """Rows per forward pass of an evaluation; auto: as in training."""
    max_eval_rows: WholeNumber | Auto = option(
        "auto",
        "Maximum held-out rows per evaluation, evenly spaced; 0: all; "
        f"auto: as many as take {100 * EVALUATIONS_SHARE:g} % of the run's time.",
        unit="rows",
        step="1-2-5",
        advanced=True,
    )
    early_stopping_patience: int = option(0, low=0)
    """Early stopping after this many evaluations without improvement, keeping the best weights; 0: off."""
    early_stopping_threshold: float = option(0.0, low=0, advanced=True)
    """An improvement must be larger than this to count."""
    metric_for_best_model: str = option("loss")
    """Metric for the best model and early stopping: loss, or a score of the task such as accuracy or f1."""
    generate_rows: WholeNumber | Auto = option(
        "auto",
        "Held-out rows that the model answers at evaluations; 0: none; auto: 32 for seq2seq, else 8, at as many "
        f"evaluations as take {100 * ANSWERS_SHARE:g} % of the time.",
        unit="rows",
        speed="an answer takes one pass per token",
        step="x2",
    )
    gate_suite: str = option("", speed="an answer takes one pass per token", completes="file", advanced=True)
    """Suite of `gate` whose "keep" rows the model answers too: a file, or general; the score counts those that were
    right before training; empty: off."""


class CheckpointSection(SettingsSection):
    save_steps: StepsOrShare = option(0.2, unit="steps", speed="training waits while a checkpoint is copied or written")
    """Save a checkpoint every this many steps; below 1: a share of all steps; 0: only at the end."""
    save_in_background: bool | Auto = option("auto", speed="training waits only while weights and state are copied")
    """Write scheduled checkpoints while training continues, from a copy in host memory; auto: on one GPU, if host
    memory has room for the copy."""
    save_total_limit: int = option(2, low=1, high=10**6)
    """Number of checkpoints to keep; an old one is deleted only once a newer one is complete."""


class LoggingSection(SettingsSection):
    logging_steps: int = option(
        10, low=1, high=10**6, unit="steps", speed="each write waits for the device", step="1-2-5"
    )
    """Write steps to the journal in groups of this many, or after two seconds."""
    sample_steps: StepsOrShare = option(0.25, unit="steps")
    """Generate a sample every this many steps; below 1: a share of all steps; 0: never."""
    report_to: Names = option("", speed="no effect: a separate process reads the journal")
    """Trackers for the run's metrics: tensorboard, wandb, mlflow, trackio; separated by commas."""


class TargetsSection(SettingsSection):
    samples_per_second: float = option(0.0, low=0, unit="rows/s")
    """Train at least this many rows per second; 0: no target."""
    inference_samples_per_second: float = option(0.0, low=0, unit="rows/s")
    """Answer at least this many rows per second in batches, as `bench RUN` measures it later; 0: no target."""
    memory_gib: float = option(0.0, low=0, unit="GiB")
    """Maximum peak memory: of the GPU, or of the process on a CPU; 0: no target."""
    model_size_gib: float = option(0.0, low=0, unit="GiB")
    """Maximum size of the model on disk, with an adapter counted as merged; 0: no target."""
    loss: float = option(0.0, low=0)
    """Reach this held-out loss or a lower one; 0: no target."""
    score: float = option(0.0, low=0)
    """Reach this value of evaluation.metric_for_best_model or a higher one; 0: no target."""


class DistributedSection(SettingsSection):
    processes: PositiveInt | Auto = option(
        "auto", speed="each process computes its share of every step; gradients are summed once per step"
    )
    """Processes per node that train one model together, one per GPU; auto: as many as there are GPUs like the chosen
    one, and one on a CPU."""
    nodes: PositiveInt = option(1, speed="gradients are summed over the network")
    """Machines that train one model together, each with `processes` processes; in a Slurm step: its number
    of nodes."""
    rendezvous: Address = option("", advanced=True)
    """Rendezvous of the nodes: HOST:PORT of the first node; empty: its name and a free port."""
    strategy: Literal["auto", "ddp", "fsdp", "hsdp", "deepspeed-2", "deepspeed-3"] = option(
        "auto",
        memory="fsdp, hsdp and deepspeed-3 split weights and optimizer state; deepspeed-2 splits only the state",
        in_step_key=True,
    )
    """What each process holds: ddp: a full copy; fsdp: a part; hsdp: a part of its node's copy; deepspeed-2, -3: ZeRO;
    auto: ddp if it fits, else fsdp or hsdp."""
    cpu_offload: bool = option(
        False,
        memory="a GPU holds only the layers that it is computing",
        speed="weights are copied to the GPU in each pass, and gradients are copied back",
        advanced=True,
    )
    """Keep weights, gradients and optimizer state in host memory, and update them on the CPU: with fsdp, hsdp or
    DeepSpeed, also on one GPU."""


def _check_folder(path: str) -> None:
    if re.match(r"\w[\w+.-]*://", path):
        raise ValueError("not a folder")


class OutputSection(SettingsSection):
    runs_dir: Annotated[str, Form('a folder, such as "./runs"', _check_folder)] = option("./runs", completes="folder")
    """The folder that holds the run folders."""
    name: str = option("")
    """Name of the run and its folder; empty: DATA-MODEL-TIME."""


class Config(SettingsSection):
    """All settings. Values of the user take precedence over profiles, and profiles over defaults."""

    schema_version: Literal[1] = option(1, advanced=True)
    """Version of this file format."""
    profile: str = option("", completes="recipe")
    """The recipe to start from: a name from `tui-trainer profiles`, or a file."""
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
    def libraries(self) -> list[tuple[str, str]]:
        """Pairs of a setting and a library that its value needs in addition to torch and transformers.

        Libraries of attention and fused kernels are not included, because a run has a fallback without them."""
        needed_libraries = [(METHOD_KEY, library) for library in TUNING_METHODS[self.tuning.method].libraries]
        needed_libraries += [(OPTIMIZER_KEY, OPTIMIZERS[self.training.optim].library)]
        needed_libraries += [("distributed.strategy", "deepspeed" * self.distributed.strategy.startswith("deepspeed"))]
        return [(key, library) for key, library in needed_libraries if library]

    @property
    def is_from_scratch(self) -> bool:
        """Whether a run starts with random weights, and with a tokenizer trained on its data."""
        return self.model.init == "scratch" or (self.task.type == "char_lm" and not self.model.model_name_or_path)


ResolvedConfig = NewType("ResolvedConfig", Config)
"""A Config whose effective batch size and epochs are numbers. Only `planning/effective_batch.py` creates one."""


def step_rows(config: ResolvedConfig) -> int:
    """Return the number of rows of one optimizer step."""
    rows = config.training.effective_batch_size
    assert rows != "auto"
    return rows


def epochs_of(config: ResolvedConfig) -> float:
    """Return how often a run reads its data, unless `max_steps` ends it earlier or later."""
    epochs = config.training.num_train_epochs
    assert epochs != "auto"
    return epochs
