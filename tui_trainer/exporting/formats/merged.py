"""Full model for transformers and vLLM, with the adapter merged into the weights of its base model.

The base model is read tensor by tensor and written to files of bounded size, so that only one file is in memory at a
time. After QLoRA the adapter is merged into the original weights, not into the 4-bit weights."""

import json
import re
import shutil
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from tui_trainer.data.progress import Progress
from tui_trainer.exporting.contract import Format, Tolerance
from tui_trainer.exporting.trained_model import TrainedModel, config_in, load_tokenizer
from tui_trainer.models.added_tokens import ids_of_adapter, resized_table
from tui_trainer.models.config_json import CONFIG_FILE
from tui_trainer.models.facts import DTYPES
from tui_trainer.models.files import shards
from tui_trainer.models.files.weights import INDEX_FILE, SINGLE_FILE, read_headers
from tui_trainer.models.heads import auto_class
from tui_trainer.models.loading import save_tokenizer
from tui_trainer.models.towers import copy_processor_files


class Merged(Format):
    name = "merged"
    title = "full model, adapter merged"
    libraries: tuple[str, ...] = ("peft",)
    tower_refusal = ""

    def refusal(self, trained: TrainedModel) -> str:
        return "" if trained.base else "this run trained all weights, so its folder `model` is already a full model"

    def tolerance(self, trained: TrainedModel) -> Tolerance:
        # Merged weights are rounded to the dtype in which they are stored. bf16 has 8 significant bits.
        is_exact = {facts.dtype for facts in read_headers(trained.base or trained.folder).values()} <= {"F32", "F64"}
        return Tolerance(logits=1e-4, loss=1e-4) if is_exact else Tolerance(logits=0.05, loss=0.02)

    def write(self, trained: TrainedModel, folder: Path, progress: Progress) -> None:
        assert trained.base is not None, "refusal() rejects models without an adapter"
        tensors = _MergedTensors(_adapted_without_weights(trained), trained.base)
        missing = [name for name in tensors.names if name not in tensors.facts and name not in tensors.replacements]
        if missing or tensors.adapts_experts:
            reason = f"{missing[0]} has another name in the base model's files" if missing else "experts have adapters"
            progress(f"loading the whole model, because {reason}", 0, None, "")
            trained.load(merge=True).save_pretrained(folder, max_shard_size=shards.SHARD_BYTES)
        else:
            if trained.generates_text:
                tensors.inner.generation_config = _generation_settings(trained)
                trained.task.set_generation(trained.config, tensors.inner, load_tokenizer(trained))
            _write_shards(tensors, folder, progress)
            if trained.config.model.trust_remote_code:
                # `config.save_pretrained()` copies only the code file of the config's class.
                for code_file in trained.base.glob("*.py"):
                    shutil.copyfile(code_file, folder / code_file.name)
        save_tokenizer(load_tokenizer(trained), folder)
        copy_processor_files(trained.base, folder)


def _adapted_without_weights(trained: TrainedModel) -> Any:
    """Return the base model with the trained adapter, in which only the adapter's weights take memory."""
    import torch
    from peft import PeftConfig, get_peft_model
    from peft.utils import load_peft_weights, set_peft_model_state_dict

    assert trained.base is not None
    # An adapter has its own config if the run changed labels, tokens or positions.
    has_own_config = (trained.folder / CONFIG_FILE).is_file()
    config = config_in(trained, trained.folder if has_own_config else trained.base)
    trusts_code = trained.config.model.trust_remote_code
    with torch.device("meta"):
        model = auto_class(trained.head, config.model_type).from_config(
            config, dtype=torch.float32, trust_remote_code=trusts_code
        )
    # Each weight becomes a single zero, expanded to its shape. With meta tensors peft would make the adapter one too.
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            setattr(module, name, torch.nn.Parameter(torch.zeros(()).expand(weight.shape), requires_grad=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peft_model = get_peft_model(model, PeftConfig.from_pretrained(str(trained.folder)))
    set_peft_model_state_dict(peft_model, load_peft_weights(str(trained.folder), device="cpu"), low_cpu_mem_usage=True)
    return peft_model.eval()


def _generation_settings(trained: TrainedModel) -> Any:
    """Return the generation settings saved with the adapter, else those of the base model, else default settings."""
    from transformers import GenerationConfig

    for folder in filter(None, (trained.folder, trained.base)):
        with suppress(OSError):
            return GenerationConfig.from_pretrained(folder, local_files_only=True)
    return GenerationConfig.from_model_config(config_in(trained, trained.base or trained.folder))


class _MergedTensors:
    """Tensors of the merged model, under the base model's names. Each tensor is computed when it is read.

    `replacements` has the tensors of modules that were trained as a whole. `facts` describes tensors in the base
    model's files, which are mapped for one tensor at a time, because mapped files count as memory of the process."""

    def __init__(self, model: Any, base: Path) -> None:
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils import ModulesToSaveWrapper

        adapter_fields = model.peft_config["default"].to_dict()
        self.inner, self.facts, self._base = model.get_base_model(), read_headers(base), base
        tied_names = set(getattr(self.inner, "all_tied_weights_keys", None) or ())
        names = dict.fromkeys(map(_base_name, self.inner.state_dict()))
        self.names = [name for name in names if name and name not in tied_names]
        self.replacements: dict[str, Any] = {}
        self.adapts_experts = False
        self._layers: dict[str, Any] = {}
        self._rows = self.inner.config.get_text_config().vocab_size
        self._ids = ids_of_adapter(adapter_fields) or range(0)
        embeddings = (self.inner.get_input_embeddings(), self.inner.get_output_embeddings())
        self._tables = {
            _base_name(f"{path}.{name}")
            for path, module in self.inner.named_modules()
            if any(module is embedding for embedding in embeddings)
            for name in ("token_adapter.base_layer.weight", "weight", "bias")
        }
        for path, module in self.inner.named_modules(remove_duplicate=False):
            if isinstance(module, ModulesToSaveWrapper):
                trained_tensors = module.modules_to_save["default"].state_dict()
                self.replacements |= {_base_name(f"{path}.{name}"): tensor for name, tensor in trained_tensors.items()}
            elif isinstance(module, BaseTunerLayer) and hasattr(module, "parameter_name"):
                self.adapts_experts = True
            elif isinstance(module, BaseTunerLayer) and module.active_adapters:
                self._layers[_base_name(f"{path}.weight")] = module

    @property
    def largest_file_bytes(self) -> int:
        return max((self._base / facts.file).stat().st_size for facts in self.facts.values())

    def size_bytes(self, name: str) -> int:
        if name not in self.facts or name in self.replacements:
            return int(self.replacements[name].nbytes)
        stored_facts = self.facts[name]
        grows = name in self._tables and self._rows > stored_facts.shape[0]
        return stored_facts.size_bytes * self._rows // stored_facts.shape[0] if grows else stored_facts.size_bytes

    def get(self, name: str) -> Any:
        """Return one tensor in the dtype in which the base model stores it."""
        import torch

        replacement, stored_tensor = self.replacements.get(name), self._read_stored(name)
        if replacement is not None:
            return replacement.to(replacement.dtype if stored_tensor is None else stored_tensor.dtype).contiguous()
        if (layer := self._layers.get(name)) is None:
            return stored_tensor
        base_layer = layer.get_base_layer()
        base_layer.weight = torch.nn.Parameter(stored_tensor.float(), requires_grad=False)
        layer.merge(safe_merge=True)
        merged_weight = base_layer.weight.detach().to(stored_tensor.dtype).contiguous()
        layer.merged_adapters.clear()
        base_layer.weight = torch.nn.Parameter(torch.zeros(()).expand(merged_weight.shape), requires_grad=False)
        return merged_weight

    def _read_stored(self, name: str) -> Any:
        from safetensors import safe_open

        if name not in self.facts:
            return None
        with safe_open(self._base / self.facts[name].file, framework="pt") as file:
            tensor = file.get_tensor(name)
        return resized_table(tensor, self._rows, self._ids) if name in self._tables else tensor


def _base_name(name: str) -> str:
    """Return the base model's name of a weight: `h.0.weight` for `h.0.base_layer.weight`; '' for the adapter's."""
    if re.search(r"\.(lora_[A-Za-z_]+|original_module|trainable_tokens_[a-z]+)(\.|$)", name):
        return ""
    return re.sub(r"\.(base_layer|modules_to_save\.default|token_adapter)(?=\.)", "", name)


def _write_shards(result: _MergedTensors, folder: Path, progress: Progress) -> None:
    from safetensors.torch import save_file

    # Small files of the base model suggest that users load it with little memory.
    limit_bytes = min(shards.SHARD_BYTES, result.largest_file_bytes)
    files = shards.split({name: result.size_bytes(name) for name in result.names}, SINGLE_FILE, limit_bytes)
    tensor_count = total_bytes = 0
    for file_name, names in files.items():
        tensors = {}
        for name in names:
            progress("merging", tensor_count, len(result.names), "tensors")
            tensors[name] = result.get(name)
            total_bytes += tensors[name].nbytes
            tensor_count += 1
        save_file(tensors, folder / file_name, metadata={"format": "pt"})
    if len(files) > 1:
        index = shards.index_of(files, total_bytes)
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=1))
    result.inner.config.architectures = [type(result.inner).__name__]
    # Libraries load the model in this dtype. The model without weights above has fp32.
    [(dtype, _)] = Counter(result.facts[name].dtype for name in result.names if name in result.facts).most_common(1)
    result.inner.config.dtype = DTYPES.get(dtype, "float32")
    result.inner.config.save_pretrained(folder)
    if (generation_config := getattr(result.inner, "generation_config", None)) is not None:
        generation_config.save_pretrained(folder)


FORMAT = Merged()
