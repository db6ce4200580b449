"""One whole model for transformers and vLLM: the adapter is put into the weights that it was trained for.

The base model is read tensor by tensor from its files, and written in files of bounded size: what is in memory at one
time is one file of the result. With QLoRA the adapter goes into the original weights, not into those in 4 bits.
"""

import json
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tui_trainer.exporting.contract import Format, Tell, Tolerance
from tui_trainer.exporting.trained_model import TrainedModel, load_model
from tui_trainer.models.facts import DTYPES
from tui_trainer.models.files import shards
from tui_trainer.models.files.headers import INDEX_FILE, SINGLE_FILE, TensorFacts, header_of, read_headers
from tui_trainer.models.heads import CLASSIFYING, auto_class

_GENERATION = "generation_config.json"


class Merged(Format):
    """See `exporting/contract.py` for what each part promises."""

    name = "merged"
    title = "whole model, adapter merged"
    libraries: tuple[str, ...] = ("peft",)
    install = "uv pip install peft"

    def refusal(self, trained: TrainedModel) -> str:
        return "" if trained.base else "this run trained all weights, and its folder `model` is a whole model already"

    def needed_bytes(self, trained: TrainedModel) -> int:
        return trained.weight_bytes

    def tolerance(self, trained: TrainedModel) -> Tolerance:
        # The sum is rounded to the type that the weights are kept in: bf16 has 8 bits.
        exact = {facts.dtype for facts in read_headers(trained.base or trained.folder).values()} <= {"F32", "F64"}
        return Tolerance(logits=1e-4, loss=1e-4) if exact else Tolerance(logits=0.05, loss=0.02)

    def write(self, trained: TrainedModel, folder: Path, tell: Tell) -> None:
        assert trained.base is not None, "refused otherwise"
        model, base = _adapted_without_weights(trained), _StoredTensors(trained.base)
        names = list(_names_of(model))
        if missing := [name for name in names if name not in base and _own(model, name) is None]:
            tell(f"{missing[0]} has another name in the files of the base model: it is loaded whole", 0, None, "")
            trained.load(merge=True).save_pretrained(folder, max_shard_size=shards.SHARD_BYTES)
        else:
            _write_shards(model, base, names, folder, tell)
            if (generation := trained.folder / _GENERATION).is_file():
                # The task may end its answers otherwise than the base model.
                shutil.copyfile(generation, folder / _GENERATION)
        trained.save_beside_weights(folder)

    def load(self, trained: TrainedModel, folder: Path) -> Any:
        return load_model(folder, trained.head, None, dtype=trained.compared_dtype)


def _adapted_without_weights(trained: TrainedModel) -> Any:
    """The adapter with its weights on a model without: tensors that have a shape and no memory."""
    import torch
    from peft import PeftConfig, get_peft_model
    from peft.utils import load_peft_weights, set_peft_model_state_dict
    from transformers import AutoConfig

    assert trained.base is not None
    labelled = trained.folder if trained.head in CLASSIFYING else trained.base
    config = AutoConfig.from_pretrained(labelled, local_files_only=True)
    with torch.device("meta"):
        model = auto_class(trained.head).from_config(config, dtype=torch.float32)
    # One zero seen as a whole tensor: on the meta device peft would take the adapter's numbers there as well.
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            setattr(module, name, torch.nn.Parameter(torch.zeros(()).expand(weight.shape), requires_grad=False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, PeftConfig.from_pretrained(str(trained.folder)))
    set_peft_model_state_dict(adapted, load_peft_weights(str(trained.folder), device="cpu"), low_cpu_mem_usage=True)
    return adapted.eval()


class _StoredTensors:
    """Tensors of a folder of .safetensors files by their names, read when they are asked for.

    Each is mapped by itself, for as long as it is in use: what is mapped counts as memory of the process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.facts = read_headers(folder)

    def __contains__(self, name: str) -> bool:
        return name in self.facts

    def get(self, name: str) -> Any:
        """None where there is no such tensor."""
        from safetensors import safe_open

        if name not in self.facts:
            return None
        with safe_open(self._folder / self.facts[name].file, framework="pt") as file:
            return file.get_tensor(name)

    @property
    def file_bytes(self) -> int:
        """Of the largest file."""
        return max((self._folder / facts.file).stat().st_size for facts in self.facts.values())


def _names_of(model: Any) -> Iterator[str]:
    """The tensors of the merged model, each once, under the names that they have without an adapter."""
    inner = model.get_base_model()
    tied = set(getattr(inner, "all_tied_weights_keys", None) or ())
    seen = set()
    for name in inner.state_dict():
        plain = _plain(name)
        if plain and plain not in seen and plain not in tied:
            seen.add(plain)
            yield plain


def _plain(name: str) -> str:
    """`h.0.attn.base_layer.weight` and `head.modules_to_save.default.weight` as they are called without an adapter;
    empty for tensors of the adapter itself."""
    if re.search(r"\.(lora_[A-Za-z_]+|original_module)(\.|$)", name):
        return ""
    return re.sub(r"\.(base_layer|modules_to_save\.default)(?=\.)", "", name)


def _own(model: Any, name: str) -> Any:
    """The tensor of a module that was trained as a whole; None where it comes from the base model."""
    from peft.utils import ModulesToSaveWrapper

    path, _, last = name.rpartition(".")
    parts = path.split(".")
    for count in range(1, len(parts) + 1):
        module = _module(model.get_base_model(), parts[:count])
        if isinstance(module, ModulesToSaveWrapper):
            return module.modules_to_save["default"].get_parameter(".".join([*parts[count:], last]))
    return None


def _module(inner: Any, parts: list[str]) -> Any:
    for part in parts:
        inner = getattr(inner, "base_layer", inner) if not hasattr(inner, part) else inner
        inner = getattr(inner, part, None)
    return inner


def _merged_tensor(model: Any, base: _StoredTensors, name: str) -> Any:
    """One tensor of the result, in the type that the base model keeps it in."""
    import torch
    from peft.tuners.tuners_utils import BaseTunerLayer

    own = _own(model, name)
    stored = base.get(name)
    if own is not None:
        return own.detach().to(own.dtype if stored is None else stored.dtype).contiguous()
    path, _, last = name.rpartition(".")
    layer = _module(model.get_base_model(), path.split("."))
    if last != "weight" or not isinstance(layer, BaseTunerLayer) or not layer.active_adapters:
        return stored
    below = layer.get_base_layer()
    below.weight = torch.nn.Parameter(stored.float(), requires_grad=False)
    layer.merge(safe_merge=True)
    merged = below.weight.detach().to(stored.dtype).contiguous()
    layer.merged_adapters.clear()
    below.weight = torch.nn.Parameter(torch.zeros(()).expand(merged.shape), requires_grad=False)
    return merged


def _write_shards(model: Any, base: _StoredTensors, names: list[str], folder: Path, tell: Tell) -> None:
    inner = model.get_base_model()
    facts = {name: _facts_of(model, base, name) for name in names}
    # Where the base model comes in small files, there may be little memory where the result is loaded.
    limit = min(shards.SHARD_BYTES, base.file_bytes)
    parts = shards.split((([name], facts[name].size_bytes) for name in names), limit)
    files = shards.file_names(SINGLE_FILE, len(parts))
    done = 0
    for file, part in zip(files, parts, strict=True):
        with (folder / file).open("wb") as stream:
            # The library keeps numbers of one kind together, the widest first, so that all of them are aligned.
            stored = sorted(part, key=lambda name: -facts[name].size_bytes // max(1, facts[name].parameters))
            stream.write(header_of({name: facts[name] for name in stored}))
            for name in stored:
                tell("merging", done, len(names), "tensors")
                stream.write(_bytes_of(_merged_tensor(model, base, name)))
                done += 1
    if len(parts) > 1:
        written = sum(one.size_bytes for one in facts.values())
        index = shards.index_of(dict(zip(files, parts, strict=True)), written)
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=1))
    inner.config.architectures = [type(inner).__name__]
    inner.config.save_pretrained(folder)
    if (generation := getattr(inner, "generation_config", None)) is not None:
        generation.save_pretrained(folder)


def _facts_of(model: Any, base: _StoredTensors, name: str) -> TensorFacts:
    """What a tensor of the result will be, without making it."""
    own, stored = _own(model, name), base.facts.get(name)
    if own is None:
        assert stored is not None, "a merge in memory otherwise"
        return stored
    kind = stored.dtype if stored else {name: kind for kind, name in DTYPES.items()}[str(own.dtype)[len("torch.") :]]
    return TensorFacts(shape=tuple(own.shape), dtype=kind, file="")


def _bytes_of(tensor: Any) -> Any:
    import torch

    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


FORMAT = Merged()
