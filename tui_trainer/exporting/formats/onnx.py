"""ONNX for ONNX Runtime, by transformers' own exporter (`transformers.exporters`, complete since 5.23).

A classifier is one graph, and so is a decoder with its key-value cache. An encoder-decoder model is an encoder and two
decoder graphs: the first pass computes the keys and values of the encoder's output, and later passes read them from the
cache. All graphs read their weights from one file. `run_onnx.py` is copied into the folder. It needs only NumPy, ONNX
Runtime and tokenizers, and the comparison runs it."""

import hashlib
import os
import shutil
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tui_trainer.data.progress import Progress
from tui_trainer.exporting.contract import Format, fp32_bytes, saved_tokenizer
from tui_trainer.exporting.trained_model import TrainedModel, config_in, load_tokenizer
from tui_trainer.models.heads import CAUSAL, CLASSIFYING_HEADS, ENCODER_DECODER
from tui_trainer.models.loading import save_tokenizer

# All sizes differ and none is 1, because torch treats equal sizes as one, and a size of 1 as a constant.
_ROWS, _TOKENS, _ANSWER_TOKENS = 2, 7, 3
_ALIGNMENT_BYTES = 64
_LEAST_TRANSFORMERS = "5.23"  # the first with ExportedModel; quantizers are there since 5.20


class Onnx(Format):
    name = "onnx"
    title = "ONNX for ONNX Runtime"
    libraries: tuple[str, ...] = ("onnx", "onnxscript", "onnxruntime")
    has_own_speed = one_text_at_a_time = True
    tower_refusal = (
        "the exported graph reads text only and would not contain the vision towers; "
        "to export the language model alone, train with model.text_only = true"
    )

    def refusal(self, trained: TrainedModel) -> str:
        from packaging.version import Version

        if Version(found_version := version("transformers")) < Version(_LEAST_TRANSFORMERS):
            command = f"`uv pip install 'transformers>={_LEAST_TRANSFORMERS}'`"
            return f"transformers {found_version} cannot export models to ONNX; install a newer version with {command}"
        return ""

    def size_bytes(self, trained: TrainedModel) -> int:
        return fp32_bytes(trained)

    def needed_bytes(self, trained: TrainedModel) -> int:
        # Until the two decoder graphs share one file, each has its own copy of the weights.
        return (3 if trained.head == ENCODER_DECODER else 2) * fp32_bytes(trained)

    def write(self, trained: TrainedModel, folder: Path, progress: Progress) -> None:
        from tui_trainer.exporting import run_onnx
        from tui_trainer.tasks.parts import thresholds, word_windows

        progress("loading", 0, None, "")
        model = trained.load(dtype="float32", merge=True)
        # A model's `save_pretrained()` sets `architectures`, but the exporter saves only the config.
        model.config.architectures = [type(model).__name__]
        progress("tracing the model", 0, None, "")
        graphs = self._graphs(model, trained.head)
        if trained.generates_text:
            graphs.generation_config = model.generation_config
        progress("writing", 0, None, "")
        graphs.save_pretrained(folder)
        _share_weights(folder)
        save_tokenizer(load_tokenizer(trained), folder)
        for source_file in map(Path, filter(None, (run_onnx.__file__, thresholds.__file__, word_windows.__file__))):
            shutil.copyfile(source_file, folder / source_file.name)

    def _graphs(self, model: Any, head: str) -> Any:
        import torch
        from transformers import GenerationConfig
        from transformers.exporters.base import ExportedModel
        from transformers.exporters.configs import OnnxConfig
        from transformers.exporters.exporter_onnx import OnnxExporter

        exporter, options = OnnxExporter(), OnnxConfig(dynamic=True, quantizer=self._quantizer())
        ids = torch.zeros(_ROWS, _TOKENS, dtype=torch.int64)
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if head in CLASSIFYING_HEADS:
            if getattr(model.config, "type_vocab_size", 0) > 1:
                inputs["token_type_ids"] = ids.clone()  # the same tensor twice would be traced as one input
            model.config.use_cache = False
            return exporter.export(model, inputs, options)
        # Greedy decoding, because beams and lengths of the model's own settings would change the cache.
        id_names = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
        special_ids = {name: getattr(model.generation_config, name) for name in id_names}
        export = partial(
            exporter.export_for_generation, generation_config=GenerationConfig(do_sample=False, **special_ids)
        )
        if head == CAUSAL:
            graphs = export(model, inputs, options, multi_token_decode=True)
            # The decode graph also reads the prompt, with an empty cache.
            return ExportedModel({"model": graphs.components["decode"]}, graphs.export_format, config=model.config)
        answer_ids = torch.zeros(_ROWS, _ANSWER_TOKENS, dtype=torch.int64)
        graphs = export(model, {**inputs, "decoder_input_ids": answer_ids}, options)
        components = {
            "encoder": exporter.export(model.get_encoder(), inputs, options).components["model"],
            "decoder": graphs.components["prefill"],
            "decoder_with_past": graphs.components["decode"],
        }
        return ExportedModel(components, graphs.export_format, config=model.config)

    def _quantizer(self) -> Any:
        return None

    def load(self, trained: TrainedModel, folder: Path) -> Any:
        from tui_trainer.exporting.run_onnx import Graphs

        return _as_module(Graphs(folder), config_in(trained, folder))

    def tokenizer(self, trained: TrainedModel, folder: Path) -> Any:
        """Return the tokenizer that run_onnx.py uses, which needs no transformers."""
        from tui_trainer.exporting.run_onnx import Graphs, encode, inputs, read_tokenizer

        if saved_tokenizer(trained, folder) is None:
            return None
        graphs, tokenizer = Graphs(folder), read_tokenizer(folder)

        def encode_texts(*texts: str, **_: bool) -> dict[str, list[int]]:
            encoding = inputs(graphs, encode(graphs, tokenizer, *texts))
            return {name: ids[0].tolist() for name, ids in encoding.items()}

        return encode_texts


def _share_weights(folder: Path) -> None:
    """Store each tensor that several graphs have only once, in the largest weight file."""
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    files = sorted(folder.glob("*.onnx.data"), key=lambda path: -path.stat().st_size)
    if len(files) < 2:
        return
    offsets: dict[bytes, int] = {}
    with files[0].open("r+b") as shared_file:
        for data_file in files:
            path = data_file.with_suffix("")
            graph = onnx.load(path, load_external_data=False)
            for tensor in filter(uses_external_data, graph.graph.initializer):
                location = ExternalDataInfo(tensor)
                with data_file.open("rb") as file:
                    offset = file.seek(location.offset or 0)
                    content = file.read(location.length)
                digest = hashlib.sha256(content).digest()
                if data_file == files[0]:
                    offsets.setdefault(digest, offset)
                elif digest not in offsets:
                    file_end = shared_file.seek(0, os.SEEK_END)
                    offsets[digest] = shared_file.seek(file_end + -file_end % _ALIGNMENT_BYTES)
                    shared_file.write(content)
                del tensor.external_data[:]
                entry = {"location": files[0].name, "offset": offsets[digest], "length": len(content)}
                for key, value in entry.items():
                    tensor.external_data.add(key=key, value=str(value))
            onnx.save(graph, path)
            if data_file != files[0]:
                data_file.unlink()


def _as_module(graphs: Any, config: Any) -> Any:
    """Return a module that runs the graphs and is called like a transformers model.

    Its head is an identity, so that a loss can select positions before the head."""
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

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **others: Any) -> Any:
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            extra_inputs = {name: values.numpy() for name, values in others.items() if name in _EXTRA_INPUTS}
            if graphs.has_span_logits:
                edge_logits = graphs.span_logits(input_ids.numpy(), mask.numpy(), **extra_inputs)
                start_logits, end_logits = map(torch.from_numpy, edge_logits)
                return QuestionAnsweringModelOutput(start_logits=start_logits, end_logits=end_logits)
            logits_of = graphs.answer_logits if graphs.has_encoder else graphs.logits
            logits = torch.from_numpy(logits_of(input_ids.numpy(), mask.numpy(), **extra_inputs))
            return SequenceClassifierOutput(logits=self._head(logits))

        def generate(self, input_ids: torch.Tensor, max_new_tokens: int, **more: Any) -> torch.Tensor:
            """Generate one text by greedy decoding. As in transformers, the result begins with the prompt."""
            [ids] = input_ids.tolist()
            prompt = [graphs.generation["decoder_start_token_id"]] if graphs.has_encoder else ids
            return torch.tensor([prompt + graphs.generate(ids, max_new_tokens)])

    return _Module().eval()


_EXTRA_INPUTS = ("token_type_ids", "decoder_input_ids")

FORMAT = Onnx()
