"""ONNX, for ONNX Runtime: one graph of a classifier or a decoder with its key-value cache, or an encoder and a decoder.

By transformers' own exporter (`transformers.exporters`, whole since 5.23). `run_onnx.py` is written beside the graphs:
it answers with NumPy, ONNX Runtime and tokenizers alone, and is what the certificate runs.

A decoder behind an encoder is two graphs, as the first pass computes the keys and values of what the encoder read, and
later ones take them from the cache; both read their weights from one file.
"""

import hashlib
import os
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tui_trainer.data.progress import Progress
from tui_trainer.exporting.contract import Format, fp32_bytes, saved_tokenizer
from tui_trainer.exporting.trained_model import TrainedModel, config_in, load_tokenizer
from tui_trainer.models.heads import CAUSAL, CLASSIFYING, ENCODER_DECODER
from tui_trainer.models.loading import save_tokenizer

# Rows and tokens of which no two are equal, as torch takes equal sizes for one, and a size of 1 for a constant.
_ROWS, _TOKENS, _ANSWER_TOKENS = 2, 7, 3
_ALIGNMENT_BYTES = 64
_LEAST_TRANSFORMERS = "5.23"  # the first with ExportedModel; quantizers are there since 5.20


class Onnx(Format):
    name = "onnx"
    title = "ONNX for ONNX Runtime"
    libraries: tuple[str, ...] = ("onnx", "onnxscript", "onnxruntime")
    has_own_speed = one_text_at_a_time = True
    against_towers = (
        "the exported graph reads text only and would not contain the vision towers: "
        "to export the language model alone, train with model.text_only = true"
    )

    def refusal(self, trained: TrainedModel) -> str:
        from packaging.version import Version

        if Version(found := version("transformers")) < Version(_LEAST_TRANSFORMERS):
            newer = f"`uv pip install 'transformers>={_LEAST_TRANSFORMERS}'`"
            return f"transformers {found} cannot export whole models; install a newer version with {newer}"
        return ""

    def size_bytes(self, trained: TrainedModel) -> int:
        return fp32_bytes(trained)

    def needed_bytes(self, trained: TrainedModel) -> int:
        # A decoder that answers is written twice, as it begins and as it goes on, before both share one file.
        return (3 if trained.head == ENCODER_DECODER else 2) * fp32_bytes(trained)

    def write(self, trained: TrainedModel, folder: Path, tell: Progress) -> None:
        from tui_trainer.exporting import run_onnx
        from tui_trainer.tasks.parts import word_windows

        tell("loading", 0, None, "")
        model = trained.load(dtype="float32", merge=True)
        # As save_pretrained() of a model writes it; the exporter saves the configuration alone.
        model.config.architectures = [type(model).__name__]
        tell("tracing the model", 0, None, "")
        exported = self._graphs(model, trained.head)
        if trained.writes:
            exported.generation_config = model.generation_config
        tell("writing", 0, None, "")
        exported.save_pretrained(folder)
        _share_weights(folder)
        save_tokenizer(load_tokenizer(trained), folder)
        for source in map(Path, filter(None, (run_onnx.__file__, word_windows.__file__))):
            shutil.copyfile(source, folder / source.name)

    def _graphs(self, model: Any, head: str) -> Any:
        import torch
        from transformers import GenerationConfig
        from transformers.exporters.base import ExportedModel
        from transformers.exporters.configs import OnnxConfig
        from transformers.exporters.exporter_onnx import OnnxExporter

        exporter, settings = OnnxExporter(), OnnxConfig(dynamic=True, quantizer=self._quantizer())
        ids = torch.zeros(_ROWS, _TOKENS, dtype=torch.int64)
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if head in CLASSIFYING:
            if getattr(model.config, "type_vocab_size", 0) > 1:
                inputs["token_type_ids"] = ids.clone()  # the same tensor twice would be traced as one input
            model.config.use_cache = False
            return exporter.export(model, inputs, settings)
        # The cache as generate() builds it, whatever the model's own settings say of beams and lengths.
        own = model.generation_config
        plain = GenerationConfig(
            do_sample=False,
            **{name: getattr(own, name) for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id")},
        )
        if head == CAUSAL:
            both = exporter.export_for_generation(
                model, inputs, settings, generation_config=plain, multi_token_decode=True
            )
            # It reads a text as well, after a cache that holds nothing.
            return ExportedModel({"model": both.components["decode"]}, both.export_format, config=model.config)
        answers = torch.zeros(_ROWS, _ANSWER_TOKENS, dtype=torch.int64)
        both = exporter.export_for_generation(
            model, {**inputs, "decoder_input_ids": answers}, settings, generation_config=plain
        )
        components = {
            "encoder": exporter.export(model.get_encoder(), inputs, settings).components["model"],
            "decoder": both.components["prefill"],
            "decoder_with_past": both.components["decode"],
        }
        return ExportedModel(components, both.export_format, config=model.config)

    def _quantizer(self) -> Any:
        return None

    def load(self, trained: TrainedModel, folder: Path) -> Any:
        from tui_trainer.exporting.run_onnx import Graphs

        return _as_module(Graphs(folder), config_in(trained, folder))

    def tokenizer(self, trained: TrainedModel, folder: Path) -> Any:
        """As run_onnx.py reads, without transformers."""
        from tui_trainer.exporting.run_onnx import Graphs, encoded, inputs, read_tokenizer

        if saved_tokenizer(trained, folder) is None:
            return None
        graphs, tokenizer = Graphs(folder), read_tokenizer(folder)

        def read(*texts: str, **_: bool) -> dict[str, list[int]]:
            found = inputs(graphs, encoded(graphs, tokenizer, *texts))
            return {name: values[0].tolist() for name, values in found.items()}

        return read


def _share_weights(folder: Path) -> None:
    """Tensors that several graphs have stand once, in the file of the graph that has most of them."""
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    files = sorted(folder.glob("*.onnx.data"), key=lambda path: -path.stat().st_size)
    if len(files) < 2:
        return
    places: dict[bytes, int] = {}
    with files[0].open("r+b") as shared:
        for data in files:
            path = data.with_suffix("")
            graph = onnx.load(path, load_external_data=False)
            for tensor in filter(uses_external_data, graph.graph.initializer):
                place = ExternalDataInfo(tensor)
                with data.open("rb") as file:
                    offset = file.seek(place.offset or 0)
                    content = file.read(place.length)
                digest = hashlib.sha256(content).digest()
                if data == files[0]:
                    places.setdefault(digest, offset)
                elif digest not in places:
                    end = shared.seek(0, os.SEEK_END)
                    places[digest] = shared.seek(end + -end % _ALIGNMENT_BYTES)
                    shared.write(content)
                del tensor.external_data[:]
                told = {"location": files[0].name, "offset": places[digest], "length": len(content)}
                for key, value in told.items():
                    tensor.external_data.add(key=key, value=str(value))
            onnx.save(graph, path)
            if data != files[0]:
                data.unlink()


def _as_module(graphs: Any, config: Any) -> Any:
    """Called as a model of transformers: its head is a layer that changes nothing, so that a loss can choose places in
    front of it."""
    import torch
    from torch import nn
    from transformers.modeling_outputs import QuestionAnsweringModelOutput, SequenceClassifierOutput

    class _Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = config
            self._head = nn.Identity()
            self._none = nn.Parameter(torch.zeros(0))
            self.device = torch.device("cpu")

        def get_output_embeddings(self) -> nn.Module:
            return self._head

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **more: Any) -> Any:
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            given = {name: values.numpy() for name, values in more.items() if name in _READ}
            if graphs.marks_answers:
                both = graphs.places(input_ids.numpy(), mask.numpy(), **given)
                start_logits, end_logits = (torch.from_numpy(one) for one in both)
                return QuestionAnsweringModelOutput(start_logits=start_logits, end_logits=end_logits)
            read = graphs.answer_logits if graphs.has_encoder else graphs.logits
            logits = torch.from_numpy(read(input_ids.numpy(), mask.numpy(), **given))
            return SequenceClassifierOutput(logits=self._head(logits))

        def generate(self, input_ids: torch.Tensor, max_new_tokens: int, **more: Any) -> torch.Tensor:
            """One text, always the likeliest token, with what stands before it as transformers' own returns it."""
            [ids] = input_ids.tolist()
            before = [graphs.generation["decoder_start_token_id"]] if graphs.has_encoder else ids
            return torch.tensor([before + graphs.written(ids, max_new_tokens)])

    return _Module().eval()


_READ = ("token_type_ids", "decoder_input_ids")

FORMAT = Onnx()
