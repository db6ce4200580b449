"""The tuning methods, one row each, for the plan and the screens. The code of each method is a file in `tuning/`."""

from dataclasses import dataclass

METHOD_KEY, BITSANDBYTES = "tuning.method", "bitsandbytes"


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningMethod:
    """One tuning method, without its code."""

    label: str
    help: str
    has_adapter: bool = False
    """Whether the model's own weights are frozen, and an adapter is trained."""
    in_four_bits: bool = False
    """Whether bitsandbytes keeps the frozen weights in 4 bits, on a GPU."""

    @property
    def libraries(self) -> tuple[str, ...]:
        """Libraries that the method needs in addition to torch and transformers."""
        return ("peft",) * self.has_adapter + (BITSANDBYTES,) * self.in_four_bits


TUNING_METHODS: dict[str, TuningMethod] = {
    "full": TuningMethod(label="all weights", help="trains all weights of the model"),
    "lora": TuningMethod(label="LoRA", help="trains LoRA adapters; the model's weights are frozen", has_adapter=True),
    "qlora": TuningMethod(
        label="QLoRA",
        help="trains LoRA adapters on frozen 4-bit weights, on a GPU",
        has_adapter=True,
        in_four_bits=True,
    ),
}
