"""[model], [tuning] and [quantization]: what a run starts from, which weights are trainable, and in how many bits."""

import re
from typing import Annotated, Literal, get_args

from tui_trainer.config.fields import Auto, Form, NameIn, Names, PositiveInt, Section, option
from tui_trainer.tuning_methods import TUNING_METHODS


class ScratchSection(Section):
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


class ModelSection(Section):
    model_name_or_path: str = option("", completes="folder")
    """The model to start from: a folder, or its name on the hub."""
    revision: str = option("main", advanced=True)
    """Which version of a model from the hub: a branch, a tag or a commit."""
    init: Literal["pretrained", "scratch"] = option("pretrained")
    """pretrained: the model's own weights; scratch: random ones, with a tokenizer trained on the data."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "auto",
        memory="bfloat16 halves frozen weights; where they train 20 bytes each, not 18, and fewer activations",
        speed="weights in 16 bits need no casts",
    )
    """Numbers that the weights are kept in; auto: float32 where they train, else 16 bits where they are native. Where
    they train in bfloat16, the optimizer updates an fp32 copy of each, its master weight."""
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
    trust_remote_code: bool = option(False, advanced=True)
    """Run Python code that comes with the model; it can do all that you can."""
    scratch: ScratchSection = ScratchSection()


class TuningSection(Section):
    method: Annotated[str, NameIn(TUNING_METHODS)] = option(
        "full",
        memory="full keeps 16 bytes a parameter, LoRA 2 to 4, QLoRA 0.6",
        speed="LoRA skips gradients of weights; QLoRA unpacks these often",
    )
    """Which weights are trainable: all, or LoRA adapters on frozen ones; qlora keeps these in 4 bits, on a GPU."""
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
    """LoRA: names of the layers that get an adapter, with commas; all-linear: all but the head."""
    use_rslora: bool = option(False, advanced=True)
    """LoRA: scale by lora_alpha / sqrt(r), which keeps wide updates from fading."""
    use_dora: bool = option(False, speed="a third to a half slower", advanced=True)
    """LoRA: learn lengths and directions of the weights apart (DoRA)."""
    fused_adapters: bool = option(True, speed="fewer passes over memory; not measured on a card here", advanced=True)
    """LoRA: compute a layer and its adapter in one function, where it gives the same numbers."""
    modules_to_save: Names = option("", advanced=True)
    """LoRA: layers trained as a whole and saved with the adapter, such as embed_tokens."""

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

    bnb_4bit_quant_type: Literal["nf4", "fp4"] = option("nf4")
    """QLoRA: which 16 numbers 4 bits stand for; nf4 suits weights, which are spread like a bell curve."""
    bnb_4bit_use_double_quant: bool = option(True, memory="4.13 bits a weight instead of 4.5", advanced=True)
    """QLoRA: also quantise the scale that each 64 weights share."""
    bnb_4bit_compute_dtype: Literal["auto", "bfloat16", "float16", "float32"] = option(
        "auto", speed="float32 is several times slower", advanced=True
    )
    """QLoRA: numbers that weights are unpacked to for a matmul; auto: those of the weights that are not in 4 bits."""
