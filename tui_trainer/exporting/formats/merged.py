"""One whole model for transformers and vLLM: the adapter is put into the weights that it was trained for.

The base model is read tensor by tensor from its files, and written in files of bounded size: what is in memory at one
time is one file of the result. With QLoRA the adapter goes into the original weights, not into those in 4 bits.
"""

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
    against_towers = ""

    def refusal(self, trained: TrainedModel) -> str:
        return "" if trained.base else "this run trained all weights, so its folder `model` is already a full model"

    def tolerance(self, trained: TrainedModel) -> Tolerance:
        # The sum is rounded to the type that the weights are kept in: bf16 has 8 bits.
        exact = {facts.dtype for facts in read_headers(trained.base or trained.folder).values()} <= {"F32", "F64"}
        return Tolerance(logits=1e-4, loss=1e-4) if exact else Tolerance(logits=0.05, loss=0.02)

    def write(self, trained: TrainedModel, folder: Path, tell: Progress) -> None:
        assert trained.base is not None, "refused otherwise"
        result = _MergedTensors(_adapted_without_weights(trained), trained.base)
        missing = [name for name in result.names if name not in result.facts and name not in result.own]
        if missing or result.adapts_experts:
            why = f"{missing[0]} has another name in the base model's files" if missing else "experts are adapted"
            tell(f"loading the whole model, because {why}", 0, None, "")
            trained.load(merge=True).save_pretrained(folder, max_shard_size=shards.SHARD_BYTES)
        else:
            if trained.writes:
                result.inner.generation_config = _generation_settings(trained)
                trained.task.set_generation(trained.config, result.inner, load_tokenizer(trained))
            _write_shards(result, folder, tell)
            if trained.config.model.trust_remote_code:
                # The configuration saves its own file of it only.
                for code in trained.base.glob("*.py"):
                    shutil.copyfile(code, folder / code.name)
        save_tokenizer(load_tokenizer(trained), folder)
        copy_processor_files(trained.base, folder)


def _adapted_without_weights(trained: TrainedModel) -> Any:
    """The adapter with its weights on a model without: tensors that have a shape and no memory."""
    import torch
    from peft import PeftConfig, get_peft_model
    from peft.utils import load_peft_weights, set_peft_model_state_dict

    assert trained.base is not None
    # Beside an adapter where the base model has other labels, tokens or positions.
    has_own = (trained.folder / CONFIG_FILE).is_file()
    config, trusted = (
        config_in(trained, trained.folder if has_own else trained.base),
        trained.config.model.trust_remote_code,
    )
    with torch.device("meta"):
        model = auto_class(trained.head, config.model_type).from_config(
            config, dtype=torch.float32, trust_remote_code=trusted
        )
    # One zero seen as a whole tensor: on the meta device peft would take the adapter's numbers there as well.
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            setattr(module, name, torch.nn.Parameter(torch.zeros(()).expand(weight.shape), requires_grad=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, PeftConfig.from_pretrained(str(trained.folder)))
    set_peft_model_state_dict(adapted, load_peft_weights(str(trained.folder), device="cpu"), low_cpu_mem_usage=True)
    return adapted.eval()


def _generation_settings(trained: TrainedModel) -> Any:
    """Return those beside the adapter, or of its base model; plain ones where neither has any."""
    from transformers import GenerationConfig

    for folder in filter(None, (trained.folder, trained.base)):
        with suppress(OSError):
            return GenerationConfig.from_pretrained(folder, local_files_only=True)
    return GenerationConfig.from_model_config(config_in(trained, trained.base or trained.folder))


class _MergedTensors:
    """The tensors of the result by the names that they have without an adapter, each made when it is asked for.

    Those of the base model are mapped one by one, for as long as they are in use: what is mapped counts as memory of
    the process. `own` are those of modules that were trained as a whole, `facts` those in the base model's files.
    """

    def __init__(self, model: Any, base: Path) -> None:
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils import ModulesToSaveWrapper

        fields = model.peft_config["default"].to_dict()
        self.inner, self.facts, self._base = model.get_base_model(), read_headers(base), base
        tied = set(getattr(self.inner, "all_tied_weights_keys", None) or ())
        names = dict.fromkeys(map(_plain, self.inner.state_dict()))
        self.names = [name for name in names if name and name not in tied]
        self.own: dict[str, Any] = {}
        self.adapts_experts = False
        self._layers: dict[str, Any] = {}
        self._rows = self.inner.config.get_text_config().vocab_size
        self._ids = ids_of_adapter(fields) or range(0)
        ends = (self.inner.get_input_embeddings(), self.inner.get_output_embeddings())
        self._tables = {
            _plain(f"{path}.{name}")
            for path, module in self.inner.named_modules()
            if any(module is one for one in ends)
            for name in ("token_adapter.base_layer.weight", "weight", "bias")
        }
        for path, module in self.inner.named_modules(remove_duplicate=False):
            if isinstance(module, ModulesToSaveWrapper):
                trained = module.modules_to_save["default"].state_dict()
                self.own |= {_plain(f"{path}.{name}"): tensor for name, tensor in trained.items()}
            elif isinstance(module, BaseTunerLayer) and hasattr(module, "parameter_name"):
                self.adapts_experts = True
            elif isinstance(module, BaseTunerLayer) and module.active_adapters:
                self._layers[_plain(f"{path}.weight")] = module

    @property
    def largest_file_bytes(self) -> int:
        return max((self._base / facts.file).stat().st_size for facts in self.facts.values())

    def size_bytes(self, name: str) -> int:
        if name not in self.facts or name in self.own:
            return int(self.own[name].nbytes)
        stored = self.facts[name]
        grows = name in self._tables and self._rows > stored.shape[0]
        return stored.size_bytes * self._rows // stored.shape[0] if grows else stored.size_bytes

    def get(self, name: str) -> Any:
        """One tensor, in the type that the base model keeps it in."""
        import torch

        own, stored = self.own.get(name), self._stored(name)
        if own is not None:
            return own.to(own.dtype if stored is None else stored.dtype).contiguous()
        if (layer := self._layers.get(name)) is None:
            return stored
        below = layer.get_base_layer()
        below.weight = torch.nn.Parameter(stored.float(), requires_grad=False)
        layer.merge(safe_merge=True)
        merged = below.weight.detach().to(stored.dtype).contiguous()
        layer.merged_adapters.clear()
        below.weight = torch.nn.Parameter(torch.zeros(()).expand(merged.shape), requires_grad=False)
        return merged

    def _stored(self, name: str) -> Any:
        from safetensors import safe_open

        if name not in self.facts:
            return None
        with safe_open(self._base / self.facts[name].file, framework="pt") as file:
            found = file.get_tensor(name)
        return resized_table(found, self._rows, self._ids) if name in self._tables else found


def _plain(name: str) -> str:
    """`h.0.attn.base_layer.weight` and `head.modules_to_save.default.weight` as they are called without an adapter;
    empty for tensors of the adapter itself."""
    if re.search(r"\.(lora_[A-Za-z_]+|original_module|trainable_tokens_[a-z]+)(\.|$)", name):
        return ""
    return re.sub(r"\.(base_layer|modules_to_save\.default|token_adapter)(?=\.)", "", name)


def _write_shards(result: _MergedTensors, folder: Path, tell: Progress) -> None:
    from safetensors.torch import save_file

    # Where the base model comes in small files, there may be little memory where the result is loaded.
    limit = min(shards.SHARD_BYTES, result.largest_file_bytes)
    files = shards.split({name: result.size_bytes(name) for name in result.names}, SINGLE_FILE, limit)
    done = written = 0
    for file, part in files.items():
        tensors = {}
        for name in part:
            tell("merging", done, len(result.names), "tensors")
            tensors[name] = result.get(name)
            written += tensors[name].nbytes
            done += 1
        save_file(tensors, folder / file, metadata={"format": "pt"})
    if len(files) > 1:
        index = shards.index_of(files, written)
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=1))
    result.inner.config.architectures = [type(result.inner).__name__]
    # What loads it goes by this; the model without weights that it was made with was in fp32.
    [(most, _)] = Counter(result.facts[name].dtype for name in result.names if name in result.facts).most_common(1)
    result.inner.config.dtype = DTYPES.get(most, "float32")
    result.inner.config.save_pretrained(folder)
    if (generation := getattr(result.inner, "generation_config", None)) is not None:
        generation.save_pretrained(folder)


FORMAT = Merged()
