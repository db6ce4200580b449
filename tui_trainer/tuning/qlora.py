"""Train LoRA adapters on frozen weights in 4 bits (QLoRA, arXiv:2305.14314). `models/four_bits.py` quantises the model.

Frozen embeddings and head are not cast to fp32, as peft's prepare_model_for_kbit_training does, because that doubles
their size. The saved adapter also loads with the model in 16 bits. To merge it, load the model in 16 bits, because a
merge into 4 bits would round the sum again.
"""

from collections.abc import Sequence
from typing import Any

from tui_trainer.config.sections import TuningSection
from tui_trainer.tuning.lora import Lora


class Qlora(Lora):
    name = "qlora"

    def apply(
        self, model: Any, tuning: TuningSection, *, seed: int, autocast: bool, token_ids: Sequence[int] = ()
    ) -> Any:
        assert getattr(model, "is_loaded_in_4bit", False), "the model is loaded in 4 bits"
        return super().apply(model, tuning, seed=seed, autocast=autocast, token_ids=token_ids)


METHOD = Qlora()
