"""GGUF with most weights in 8 bits: llama.cpp's type Q8_0, blocks of 32 weights with one scale of 2 bytes."""

from pathlib import Path

from tui_trainer.exporting.contract import Tolerance, fp32_bytes
from tui_trainer.exporting.formats.gguf import Gguf
from tui_trainer.exporting.trained_model import TrainedModel


class GgufQ8(Gguf):
    name = "gguf-q8"
    title = "GGUF Q8_0 for llama.cpp"
    in_8_bits = True
    allowed = Tolerance(logits=0.05, loss=0.02)

    def size_bytes(self, trained: TrainedModel) -> int:
        return fp32_bytes(trained, lambda name: True) * 34 // 32

    def needed_bytes(self, trained: TrainedModel) -> int:
        return self.size_bytes(trained) + (trained.weight_bytes if trained.base else 0)

    def _out_type(self, folder: Path) -> str:
        return "q8_0"


FORMAT = GgufQ8()
