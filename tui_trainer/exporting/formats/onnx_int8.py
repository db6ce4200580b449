"""ONNX int8 for CPUs, by ONNX Runtime's dynamic quantisation: activations are quantised during each pass."""

from typing import Any

from tui_trainer.exporting.contract import Tolerance, fp32_bytes
from tui_trainer.exporting.formats.onnx import Onnx
from tui_trainer.exporting.trained_model import TrainedModel


class OnnxInt8(Onnx):
    name = "onnx-int8"
    title = "ONNX int8 for CPUs"
    in_8_bits = True
    allowed = Tolerance(logits=0.25, loss=0.05)

    def size_bytes(self, trained: TrainedModel) -> int:
        return fp32_bytes(trained, lambda name: True)

    def _quantizer(self) -> Any:
        from transformers.exporters.quantizers import quantizer_onnxruntime as quantizers

        # Each output has its own scale. With one scale per matrix, rows of small weights would become 0.
        return quantizers.OnnxRuntimeQuantizer(quantizers.OnnxRuntimeDynamicConfig(per_channel=True))


FORMAT = OnnxInt8()
