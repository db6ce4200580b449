"""Build models without data for their tensors, and count their modules and what each reads in a forward pass."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.errors import ConfigError, Problem
from tui_trainer.hardware.storage import prepared_data_folder
from tui_trainer.models import modules
from tui_trainer.models.config_json import ALIASES, bad_model
from tui_trainer.models.files.weights import layer_count
from tui_trainer.models.heads import CAUSAL, CLASSIFYING_HEADS, ENCODER_DECODER, Head, auto_class
from tui_trainer.models.towers import has_towers, language_config, language_model, tower_modules
from tui_trainer.runs.folder import write_atomically
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.worker.asking import WorkerFailed, shapes_worker
from tui_trainer.worker.questions import QUESTIONS

# A worker process with torch answers questions about the modules of a model. Each answer is stored on the disk by the
# version of transformers. `shipped_answers.json`, written by `python -m tests.ship_answers`, holds the answers for the
# recipes and the catalogue, so that their first plan needs no worker.

_SHIPPED_FILE = Path(__file__).with_name("shipped_answers.json")
# A busy machine takes minutes to load torch.
_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class Answers:
    """Cached answers of the worker to one kind of question. Answers of another `format_version` are not used."""

    name: str
    format_version: int
    _cache: dict[str, Any] = field(default_factory=dict)
    """Answers and failures that this process already has, because the screens plan again after each edit."""

    def ask(self, question: Mapping[str, Any], timeout_seconds: float = _TIMEOUT_SECONDS) -> Any:
        """Return the answer, which is JSON. The first answer about a model takes seconds. Raise WorkerFailed."""
        question_text = json.dumps(question, sort_keys=True, default=str)
        key = self.key(question_text)
        if key not in self._cache:
            self._cache[key] = self._find(key, question_text, timeout_seconds)
        if isinstance(answer := self._cache[key], WorkerFailed):
            raise answer
        return answer

    def ask_or_refuse(self, question: Mapping[str, Any], problem: Problem) -> Any:
        """Return the answer. If the worker fails, raise ConfigError with `problem` and the reason."""
        try:
            return self.ask(question)
        except WorkerFailed as failure:
            message = f"{problem.message}: {failure.reason or failure}"
            raise ConfigError(replace(problem, message=message)) from None

    def key(self, question: str) -> str:
        import xxhash

        module = QUESTIONS[self.name].partition(":")[0]
        return xxhash.xxh3_128(f"{self.format_version} {module} {question}".encode()).hexdigest()

    def _find(self, key: str, question: str, timeout_seconds: float) -> Any:
        if key in (shipped_by_key := shipped_answers()):
            return shipped_by_key[key]
        answer_file = prepared_data_folder(os.environ) / "answers" / metadata.version("transformers") / f"{key}.json"
        with suppress(OSError, ValueError):
            return json.loads(answer_file.read_text("utf-8"))
        try:
            answer = shapes_worker.ask(self.name, json.loads(question), timeout_seconds=timeout_seconds)
        except WorkerFailed as failure:
            if failure.is_cancelled:
                raise
            return failure
        # An answer that cannot be written only costs seconds the next time.
        with suppress(OSError):
            answer_file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(answer_file, json.dumps(answer).encode())
        return answer


@cache
def shipped_answers() -> dict[str, Any]:
    """Return the worker's answers in `shipped_answers.json`, by key of the question; empty without the file."""
    with suppress(OSError, ValueError):
        return dict(json.loads(_SHIPPED_FILE.read_text("utf-8")))
    return {}


# Models of any size are built from fake tensors, which have a shape but no data. This part imports torch and
# transformers and runs in the worker. Code that comes with a model is never run.

if TYPE_CHECKING:
    from torch import Tensor

# Fields with which a config could make transformers fetch or run code. The shape does not depend on them.
_CODE_FIELDS = {"auto_map", "model_type", "trust_remote_code", "attn_implementation", "quantization_config"}


@contextmanager
def fake_tensors(head: Head) -> Iterator[None]:
    """Create all tensors without data, and disable what would read data: transformers initialises weights, looks for
    documents in positions, drops layers at random, and checks whether a mask masks anything. Products of experts use
    transformers' own code, which gives the same shapes, because torch's works only in bf16 (2.11)."""
    from unittest.mock import patch

    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import PreTrainedModel, masking_utils
    from transformers.integrations import moe

    original_rand = torch.rand
    return_false = partial(_do_nothing, answer=False)

    def rand(*size: Any, **options: Any) -> Any:
        return original_rand(*size, **options) if size != ([],) else 1.0

    replacements: list[tuple[Any, str, Any]] = [
        (torch.nn.Module, "_apply", _convert),
        (torch, "rand", rand),
        (PreTrainedModel, "initialize_weights", _do_nothing),
        (masking_utils, "find_packed_sequence_indices", _do_nothing),
        (moe, "_can_use_grouped_mm", return_false),
    ]
    if head != CAUSAL:
        names = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")
        replacements += [(masking_utils, name, return_false) for name in names]
    with ExitStack() as stack:
        for owner, name, replacement in replacements:
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, replacement))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def model_config(config: dict[str, Any], labels: int = 0) -> Any:
    """Return the transformers config for a config.json. Raise ValueError for an unsupported architecture."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if config.get("model_type") not in CONFIG_MAPPING:
        raise ValueError("transformers does not know the architecture")
    fields = {name: value for name, value in config.items() if name not in _CODE_FIELDS and not name.startswith("_")}
    built = AutoConfig.for_model(config["model_type"], **fields)
    if labels:
        built.num_labels = labels
    return built


def make_inputs(head: Head, rows: int, row_tokens: int, answer_tokens: int) -> dict[str, Tensor]:
    """Return the inputs of a forward pass within `fake_tensors`, with a padding mask unless the head is causal."""
    import torch

    inputs: dict[str, Any] = {"input_ids": torch.zeros(rows, row_tokens, dtype=torch.int64)}
    if head != CAUSAL:
        inputs["attention_mask"] = torch.ones(rows, row_tokens, dtype=torch.int64)
    if head == ENCODER_DECODER:
        inputs["decoder_input_ids"] = torch.zeros(rows, max(answer_tokens, 1), dtype=torch.int64)
    # A training pass caches no keys and values.
    return inputs if head in CLASSIFYING_HEADS else inputs | {"use_cache": False}


def empty_model(config: Any, head: Head, **options: Any) -> Any:
    """Build the model of a config in training mode, within `fake_tensors`."""
    return auto_class(head, config.model_type).from_config(config, **options).train()


def _do_nothing(*_arguments: Any, answer: Any = None, **_options: Any) -> Any:
    return answer


def _convert(module: Any, change: Any, recurse: bool = True) -> Any:
    """Apply `change` to each weight of a module. Shared weights stay shared.

    It replaces `Module._apply`, which needs data that fake tensors lack."""
    from torch import nn

    new_by_weight: dict[nn.Parameter, nn.Parameter] = {}
    for part in module.modules() if recurse else (module,):
        for name, weight in part._parameters.items():
            if weight is None:
                continue
            if weight not in new_by_weight:
                new_weight = change(weight.detach())
                is_new_dtype = new_weight.dtype != weight.dtype
                new_by_weight[weight] = nn.Parameter(new_weight, weight.requires_grad) if is_new_dtype else weight
            part._parameters[name] = new_by_weight[weight]
    return module


# Placeholders for the vocabulary size and the number of classes. These depend on the data, and other data should need
# no new answer. The placeholders are primes that are no other size of a model.
_WORDS, _CLASSES = 1_000_003, 10_007
# Fields of config.json that do not affect the answer.
_IGNORED_FIELDS = ("id2label", "label2id", "problem_type", "num_labels", "architectures", "torch_dtype", "dtype")
_ROWS, _ROW_TOKENS, _ANSWER_TOKENS = 2, 16, 11
answers = Answers("count_model", format_version=5)


def deciding_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config.json that decide modules and results. Some models number positions from the id of
    the pad token."""
    return {
        name: value
        for name, value in config.items()
        if name == "pad_token_id" or not (name in _IGNORED_FIELDS or name.startswith("_") or name.endswith("_token_id"))
    }


def count_model(config: Mapping[str, Any], head: Head, labels: int, vocabulary: int) -> dict[str, Any]:
    """Count the modules of the model that a config.json describes, with this head and number of labels.
    Return fields of a `ModelShape`, with the defaults of transformers where config.json is silent. `positions` is the
    number of learned positions that a row can use, 0 without such a table.

    The first answer about a model takes seconds. Code that comes with a model is never run. Raise ConfigError if
    transformers cannot build the model."""
    fields = deciding_fields(config)
    if config.get("vocab_size") == vocabulary:
        fields["vocab_size"] = _WORDS
    # DistilBERT requires exactly two labels, for the first and the last token of an answer.
    placeholder_labels = labels if head == "question_answering" else _CLASSES if labels else 0
    try:
        counts = answers.ask({"config": fields, "head": head, "labels": placeholder_labels})
    except WorkerFailed as failure:
        name = one_line(str(config.get("model_type")), 80)
        if not failure.reason or failure.is_killed or failure.is_cancelled:
            raise bad_model(f"counting the weights of {name} {failure}") from None
        hint = "a newer transformers may support this model; the model's own Python code is not run to count its "
        hint += "weights"
        message = f"transformers {metadata.version('transformers')} cannot build {name}: {failure.reason}"
        raise bad_model(message, hint) from None
    real_sizes = {_WORDS: vocabulary, _CLASSES: labels}
    linears = tuple(
        modules.Linear(**entry | {name: real_sizes.get(entry[name], entry[name]) for name in ("inputs", "outputs")})
        for entry in counts["linears"]
    )
    parts = tuple(_part_with_sizes(modules.ModelPart(**entry), real_sizes) for entry in counts["parts"])
    return {**counts, "linears": linears, "parts": parts, "attention": modules.AttentionFacts(**counts["attention"])}


def _part_with_sizes(entry: modules.ModelPart, sizes: Mapping[int, int]) -> modules.ModelPart:
    """Return a part with its real size in place of a placeholder. `sizes` maps placeholders to real sizes."""
    for placeholder, real_size in sizes.items():
        if entry.parameters_each % placeholder == 0:
            rows = real_size if entry.rows == placeholder else entry.rows
            return replace(entry, parameters_each=entry.parameters_each // placeholder * real_size, rows=rows)
    return entry


def answer(question: dict[str, Any], _: Any) -> dict[str, Any]:
    """Answer `count_model` in the worker, which has torch."""
    head: Head = question["head"]
    with fake_tensors(head):
        full_config = model_config(question["config"], question["labels"])
        model = empty_model(full_config, head)
        with modules.recorded_calls() as calls:
            vectors_by_layer = _tokens_read(model, head)
        towers = tower_modules(model)
        tower_ids = {id(module) for tower in towers.values() for module in tower.modules()}
        linears, parts = _modules(model, head, vectors_by_layer, tower_ids)
        output = model.get_output_embeddings()
        # `get_input_embeddings` raises for CANINE, which has several and no head over the vocabulary.
        table = None if output is None else model.get_input_embeddings()
        is_tied = table is not None and output.weight is table.weight
    config, body = language_config(full_config), language_model(model)[1]
    hidden_size, head_count = _size(config, "hidden_size", 0), _size(config, "num_attention_heads", 1)
    head_size = _size(config, "head_dim", 0) or _size(config, "d_kv", 0) or max(hidden_size // head_count, 1)
    counts = {
        "linears": [asdict(entry) for entry in linears],
        "parts": [asdict(entry) for entry in parts],
        "tied": is_tied,
        "key_value_heads": _size(config, "num_key_value_heads", head_count),
        "head_size": head_size,
        "mlp_size": _size(config, "intermediate_size", 4 * hidden_size),
        "decoder_layers": decoder_layers(config) if head == ENCODER_DECODER else 0,
        "stored_blocks": layer_count(name for name, _ in body.named_parameters()),
        "positions": _positions(body, config),
        "attention_dropout": float(_field(config, "attention_dropout") or 0),
        "attention": modules.attention_facts(body, calls, head_size, is_finished=bool(vectors_by_layer)),
    }
    if has_towers(full_config.model_type):
        # Published config files omit the defaults of their family.
        plain_types = (str, int, float, type(None))
        counts["language"] = {name: value for name, value in config.to_dict().items() if isinstance(value, plain_types)}
        weight_counts = {path: sum(weight.numel() for weight in towers[path].parameters()) for path in towers}
        counts["towers"] = {path.rpartition(".")[2]: count for path, count in weight_counts.items()}
    return counts


def decoder_layers(config: Any) -> int:
    """Return the number of decoder layers, which defaults to the number of encoder layers."""
    layers = _size(config, "decoder_layers", 0) or _size(config, "num_decoder_layers", 0)
    return layers or _size(config, "num_hidden_layers", 1)


def _field(config: Any, name: str) -> Any:
    """Return a field of a config by any of its names, or None."""
    values = (getattr(config, alias, None) for alias in ALIASES.get(name, [name]))
    return next((value for value in values if value is not None), None)


def _size(config: Any, name: str, default: int) -> int:
    value = _field(config, name)
    return value if isinstance(value, int) and value > 0 else default


def _positions(model: Any, config: Any) -> int:
    """Return the number of learned positions that a row can use: those after the pad token's (RoBERTa)."""
    from torch import nn

    for name, module in model.named_modules():
        ending = name.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and (ending == "wpe" or ("position" in ending and "rel" not in ending)):
            if module.padding_idx is not None:
                return int(module.num_embeddings - module.padding_idx - 1)
            return _size(config, "max_position_embeddings", module.num_embeddings)
    return 0


def _tokens_read(model: Any, head: Head) -> dict[str, list[int]]:
    """Return how many vectors each linear layer receives, for each of its uses in a pass. Empty if the pass fails."""
    by_name: dict[str, list[int]] = {name: [] for name, module in model.named_modules() if is_linear_layer(module)}
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, inputs, layer_counts=layer_counts: layer_counts.append(inputs[0].numel() // inputs[0].shape[-1])
        )
        for name, layer_counts in by_name.items()
    ]
    try:
        with suppress(Exception):  # a model may read data that fake tensors lack
            model(**make_inputs(head, _ROWS, _ROW_TOKENS, _ANSWER_TOKENS))
            return by_name
        return {}
    finally:
        for hook in hooks:
            hook.remove()


def is_linear_layer(module: Any) -> bool:
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, nn.Linear | Conv1D)


def _modules(
    model: Any, head: Head, tokens: Mapping[str, list[int]], skipped_ids: set[int]
) -> tuple[Iterable[modules.Linear], Iterable[modules.ModelPart]]:
    """Return linear layers and other modules with weights, each kind once. `skipped_ids` are ids of modules to skip."""
    from torch import nn

    linears: Counter[modules.Linear] = Counter()
    parts: Counter[modules.ModelPart] = Counter()
    output_layer, body_prefix, counted_ids = model.get_output_embeddings(), f"{model.base_model_prefix}.", set[int]()
    for name, module in model.named_modules():
        if id(module) in skipped_ids:
            continue
        weights = [weight for weight in module.parameters(recurse=False) if id(weight) not in counted_ids]
        counted_ids.update(map(id, weights))
        # A classifier's head is everything outside of the base model, and the pooler.
        is_head = module is output_layer or (
            head in CLASSIFYING_HEADS and (not name.startswith(body_prefix) or "pooler" in name.split("."))
        )
        path = modules.path_in_block(name.removeprefix(body_prefix) if is_head else name)
        if is_linear_layer(module) and (weights or module is output_layer):
            inputs, outputs = module.weight.shape
            if isinstance(module, nn.Linear):
                inputs, outputs = outputs, inputs
            token_counts = tokens.get(name, [])
            kind = modules.Linear(
                name=path.rpartition(".")[2],
                path=path,
                inputs=inputs,
                outputs=outputs,
                count=1,
                has_bias=module.bias is not None,
                is_head=is_head,
                uses=max(len(token_counts), 1),
                reads=_reads(token_counts, name, head, module is output_layer),
            )
            linears[kind] += 1
        elif parameters := sum(weight.numel() for weight in weights):
            rows = module.weight.shape[0] if isinstance(module, nn.Embedding) else 0
            sizes = {"parameters_each": parameters, "rows": rows}
            parts[modules.ModelPart(path=path, **sizes, is_embedding=bool(rows), is_head=is_head)] += 1
    head_last = sorted(linears, key=lambda linear: linear.is_head)
    counted_linears = [replace(linear, count=linears[linear]) for linear in head_last]
    return counted_linears, [replace(part, count=count) for part, count in parts.items()]


def _reads(token_counts: Sequence[int], name: str, head: Head, is_output: bool) -> modules.Reads:
    """Return what a linear layer reads, from the numbers of vectors that it received. Unknown numbers count as input.
    If there are none, decide by name, which is wrong for keys and values of cross-attention."""
    if token_counts:
        vector_count = token_counts[0]
        return "row" if vector_count == _ROWS else "target" if vector_count == _ROWS * _ANSWER_TOKENS else "source"
    return "target" if head == ENCODER_DECODER and (is_output or ".decoder." in f".{name}") else "source"
