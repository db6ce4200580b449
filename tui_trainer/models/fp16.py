"""Families that reach numbers inside which fp16 does not have: they were trained in bf16 or fp32."""

from collections.abc import Mapping

from tui_trainer.config.sections import Config
from tui_trainer.errors import Problem

_T5 = "github.com/huggingface/transformers/issues/5651, and _keep_in_fp32_modules = ['wo'] in modeling_t5.py"
_GEMMA_3 = "github.com/huggingface/transformers/issues/36822, unsloth.ai/blog/gemma3: beyond 65,504, and so NaN"
_GEMMA_3N = "unsloth.ai/blog/gemma-3n: activations become infinite in fp16 as well"
_GEMMA_4 = "github.com/unslothai/unsloth-zoo/pull/600: the MLP's products pass 65,504 under autocast"
_GPT_OSS = "github.com/microsoft/onnxruntime-genai/pull/2444: beyond 65,504 in the last layer, and so NaN"

# `model_type` and where it is written. Loss scaling does not help: it is the forward pass that overflows.
OVERFLOWS_IN_FP16: Mapping[str, str] = {
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5", "switch_transformers", "udop", "pop2piano"), _T5),
    **dict.fromkeys(("gemma3", "gemma3_text"), _GEMMA_3),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), _GEMMA_3N),
    **dict.fromkeys(("gemma4", "gemma4_text"), _GEMMA_4),
    "gpt_oss": _GPT_OSS,
}


def fp16_problems(config: Config, model_type: str) -> list[Problem]:
    """fp16 that was asked for, of a model that overflows in it."""
    if model_type not in OVERFLOWS_IN_FP16:
        return []
    message = f"{model_type} overflows in fp16: numbers inside it pass 65,504"
    hint = "set it to auto: bf16 where the card has it, else fp32"
    asked = {
        "training.mixed_precision": config.training.mixed_precision == "fp16",
        "model.dtype": config.model.dtype == "float16",
    }
    return [Problem(message=message, key=key, hint=hint) for key, is_asked in asked.items() if is_asked]
