"""[model], [tuning] and [quantization]: what a run starts from, which weights are trainable, and in how many bits."""

from typing import Annotated, Literal

from tui_trainer.config.fields import Auto, NameIn, Names, PositiveInt, Section, option
from tui_trainer.tuning_methods import TUNING_METHODS


class ScratchSection(Section):
    """The shape of a model that starts from random weights, where no folder's config.json gives one (Llama:
    RMSNorm, rotary attention, gated MLP)."""

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
    vocab_size: int = option(
        8192,
        "Tokens of the tokenizer that is trained on the text (a character model counts characters instead).",
        low=300,
        high=10**6,
        unit="tokens",
        memory="embedding and head grow in proportion",
        step="x2",
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
    model_name_or_path: str = option(
        "", "The model to start from: a folder, or its name on the hub.", completes="folder"
    )
    revision: str = option("main", "Which version of a model from the hub: a branch, a tag or a commit.", advanced=True)
    init: Literal["pretrained", "scratch"] = option(
        "pretrained",
        "pretrained: the model's own weights; scratch: random ones, with a tokenizer trained on the data.",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto",
        "Numbers that the weights are kept in; auto: float32 where they train, else 16 bits where they are native.",
        memory="bfloat16 halves the weights",
        speed="weights in 16 bits need no casts",
    )
    provider: Literal["transformers", "unsloth"] = option(
        "transformers",
        "unsloth: it loads and adapts language models, in an environment of its own (`tui-trainer install unsloth`).",
        memory="keeps less, says Unsloth",
        speed="kernels of its own; not measured on a card here",
        advanced=True,
    )
    attn_implementation: Literal[
        "auto", "sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"
    ] = option(
        "auto",
        "Which attention kernel; auto: torch's fused one wherever the model has it.",
        memory="eager keeps all scores",
        speed="a fused kernel never writes the scores",
        advanced=True,
    )
    kernels: Literal["auto", "none", "liger", "hub"] = option(
        "auto",
        "Fused kernels for norms and gated MLPs, where they give the same numbers; auto: liger-kernel's on a GPU; "
        "hub: those of the hub in the cache.",
        memory="fewer activations are kept",
        speed="fewer passes over memory; not measured on a card here",
        advanced=True,
    )
    trust_remote_code: bool = option(
        False, "Run Python code that comes with the model; it can do all that you can.", advanced=True
    )
    scratch: ScratchSection = ScratchSection()


class TuningSection(Section):
    method: Annotated[str, NameIn(TUNING_METHODS)] = option(
        "full",
        "Which weights are trainable: all, or LoRA adapters on frozen ones; qlora keeps these in 4 bits, on a GPU.",
        memory="full keeps 16 bytes a parameter, LoRA 2 to 4, QLoRA 0.6",
        speed="LoRA skips gradients of weights; QLoRA unpacks these often",
    )
    r: int = option(16, "LoRA: width of the update.", low=1, high=4096, memory="adapters grow in proportion", step="x2")
    lora_alpha: float = option(
        32.0,
        "LoRA: the update is scaled by lora_alpha / r (by its root with use_rslora).",
        above=0,
        high=10**6,
        step="x2",
    )
    lora_dropout: float = option(0.0, "LoRA: share of the adapters' inputs dropped.", low=0, below=1, step="+0.05")
    target_modules: Names = option(
        "all-linear", "LoRA: names of the layers that get an adapter, with commas; all-linear: all but the head."
    )
    use_rslora: bool = option(
        False, "LoRA: scale by lora_alpha / sqrt(r), which keeps wide updates from fading.", advanced=True
    )
    use_dora: bool = option(
        False,
        "LoRA: learn lengths and directions of the weights apart (DoRA).",
        speed="a third to a half slower",
        advanced=True,
    )
    modules_to_save: Names = option(
        "", "LoRA: layers trained as a whole and saved with the adapter, such as embed_tokens.", advanced=True
    )

    @property
    def has_adapter(self) -> bool:
        """Whether the model's own weights are frozen, and LoRA adapters train."""
        return TUNING_METHODS[self.method].has_adapter

    @property
    def in_four_bits(self) -> bool:
        """Whether these frozen weights are kept in 4 bits."""
        return TUNING_METHODS[self.method].in_four_bits


class QuantizationSection(Section):
    """Weights in 4 bits by bitsandbytes, under its names. The head and the embeddings are never among them."""

    bnb_4bit_quant_type: Literal["nf4", "fp4"] = option(
        "nf4", "QLoRA: which 16 numbers 4 bits stand for; nf4 suits weights, which are spread like a bell curve."
    )
    bnb_4bit_use_double_quant: bool = option(
        True,
        "QLoRA: also quantise the scale that each 64 weights share.",
        memory="4.13 bits a weight instead of 4.5",
        advanced=True,
    )
    bnb_4bit_compute_dtype: Literal["auto", "bfloat16", "float16", "float32"] = option(
        "auto",
        "QLoRA: numbers that weights are unpacked to for a matmul; auto: those of the weights that are not in 4 bits.",
        speed="float32 is several times slower",
        advanced=True,
    )
