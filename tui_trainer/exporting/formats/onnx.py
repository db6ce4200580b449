"""ONNX, for ONNX Runtime: one graph with the model's logits, and for decoders those of generation with a KV cache.

By transformers' own exporter (`transformers.exporters`, which versions from 5.20 on have); loaded again by
`transformers.exporters.ExportedModel.from_pretrained`, or by ONNX Runtime alone.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tui_trainer.exporting.contract import Tell, Tolerance
from tui_trainer.exporting.trained_model import TrainedModel

# Two rows of unequal sizes, as torch takes a size of 1 for a constant.
_EXAMPLE_ROWS, _EXAMPLE_TOKENS = 2, 7


class Onnx:
    """See `exporting/contract.py` for what each part promises."""

    name = "onnx"
    title = "ONNX, for ONNX Runtime"
    libraries: tuple[str, ...] = ("onnx", "onnxscript", "onnxruntime")
    install = "uv pip install onnx onnxscript onnxruntime"

    def refusal(self, trained: TrainedModel) -> str:
        if find_spec("transformers.exporters") is None:
            return "the installed transformers has no exporters: `uv pip install -U transformers`"
        if trained.head == "seq2seq_lm":
            return "an encoder with a decoder is not exported to ONNX yet"
        return ""

    def needed_bytes(self, trained: TrainedModel) -> int:
        return 2 * trained.weight_bytes

    def tolerance(self, trained: TrainedModel) -> Tolerance:
        return Tolerance(logits=1e-3, loss=1e-3)

    def write(self, trained: TrainedModel, folder: Path, tell: Tell) -> None:
        tell("loading", 0, None, "")
        model = trained.load(dtype="float32", merge=True)
        tell("tracing the model", 0, None, "")
        self._graph(model).save_pretrained(folder)
        trained.save_beside_weights(folder)

    def _graph(self, model: Any) -> Any:
        import torch
        from transformers.exporters.configs import OnnxConfig
        from transformers.exporters.exporter_onnx import OnnxExporter

        ids = torch.zeros(_EXAMPLE_ROWS, _EXAMPLE_TOKENS, dtype=torch.int64)
        # Without a cache the graph gives logits alone, as a comparison wants them.
        model.config.use_cache = False
        settings = OnnxConfig(dynamic=True, quantizer=self._quantizer())
        return OnnxExporter().export(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, settings)

    def _quantizer(self) -> Any:
        return None

    def load(self, trained: TrainedModel, folder: Path) -> Any:
        from transformers.exporters.base import ExportedModel

        return _as_module(ExportedModel.from_pretrained(folder))


def _as_module(exported: Any) -> Any:
    """Called as a model of transformers: its head is a layer that changes nothing, so that a loss can choose places in
    front of it."""
    import torch
    from torch import nn

    class _Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = exported.config
            self._head = nn.Identity()
            self._none = nn.Parameter(torch.zeros(0))

        def get_output_embeddings(self) -> nn.Module:
            return self._head

        def forward(self, input_ids: Any, attention_mask: Any = None, **_: Any) -> Any:
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            found = exported(input_ids=input_ids, attention_mask=mask)
            found.logits = self._head(found.logits)
            return found

    return _Module().eval()


FORMAT = Onnx()
