"""int8 for CPUs, by torchao: weights have 8 bits, and activations are quantised during each pass.

transformers loads the folder like any other model if torchao is installed."""

import tempfile
from pathlib import Path
from typing import Any

from tui_trainer.data.progress import Progress
from tui_trainer.errors import InputError
from tui_trainer.exporting.contract import Format, Tolerance, fp32_bytes
from tui_trainer.exporting.trained_model import TrainedModel, load_model, load_tokenizer
from tui_trainer.models.files.weights import is_embedding, is_head
from tui_trainer.models.heads import auto_class
from tui_trainer.models.loading import save_tokenizer


class Int8(Format):
    name = "int8"
    title = "int8 for CPUs (torchao)"
    libraries: tuple[str, ...] = ("torchao",)
    in_8_bits = has_own_speed = True
    allowed = Tolerance(logits=0.25, loss=0.05)
    tower_refusal = (
        "the vision towers would be quantised as well, and the effect on images is not measured; "
        "to export the language model alone, train with model.text_only = true"
    )

    def size_bytes(self, trained: TrainedModel) -> int:
        # torchao quantises all linear layers except the head.
        return fp32_bytes(trained, lambda name: not (is_embedding(name) or is_head(name)))

    def needed_bytes(self, trained: TrainedModel) -> int:
        # The whole model is on the disk in fp32 until it is quantised.
        return self.size_bytes(trained) + fp32_bytes(trained)

    def write(self, trained: TrainedModel, folder: Path, progress: Progress) -> None:
        import torch
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig
        from transformers import TorchAoConfig

        quantization = TorchAoConfig(Int8DynamicActivationInt8WeightConfig())
        with tempfile.TemporaryDirectory(dir=folder) as full_folder:
            progress("loading", 0, None, "")
            trained.load(dtype="float32", merge=True).save_pretrained(full_folder)
            progress("quantising", 0, None, "")
            model = auto_class(trained.head).from_pretrained(
                full_folder,
                quantization_config=quantization,
                dtype=torch.float32,
                trust_remote_code=trained.config.model.trust_remote_code,
            )
        if not any(type(parameter).__name__ == "Int8Tensor" for parameter in model.parameters()):
            model_type = model.config.model_type
            hint = "use the format onnx-int8 instead"
            raise InputError(f"a model of type {model_type} has no linear layers that torchao can quantise", hint=hint)
        model.save_pretrained(folder)
        save_tokenizer(load_tokenizer(trained), folder)

    def load(self, trained: TrainedModel, folder: Path) -> Any:
        return load_model(trained, folder, None)


FORMAT = Int8()
