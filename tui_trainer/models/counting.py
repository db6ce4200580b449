"""What a model consists of, counted by building it without numbers: its modules, and what a pass reads with each."""

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
from tui_trainer.models.config_json import ALIASES, bad_model
from tui_trainer.models.files.weights import layer_count
from tui_trainer.models.heads import CAUSAL, CLASSIFYING, ENCODER_DECODER, Head, auto_class
from tui_trainer.models.modules import (
    AttentionFacts,
    Linear,
    ModelPart,
    Reads,
    facts_of,
    place_in_block,
    recorded_calls,
)
from tui_trainer.models.towers import has_towers, language_config, language_model, tower_modules
from tui_trainer.runs.folder import write_atomically
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.worker.asking import WorkerFailed, shapes_worker
from tui_trainer.worker.questions import QUESTIONS

# What a model consists of and what its layers compute, as a process with torch has found it: asked once, and kept.
#
# Answers about the recipes and the models of the catalogue are shipped in `shipped_answers.json`, so that their first
# plan asks nobody; `python -m tests.ship_answers` writes it. All others are kept on the disk, by version of
# transformers.

_SHIPPED = Path(__file__).with_name("shipped_answers.json")
# A busy machine takes minutes to load torch.
_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class Answers:
    """To the questions of one name. Those of another form of questions and answers, which `format_version` counts, are
    not believed."""

    name: str
    format_version: int
    _known: dict[str, Any] = field(default_factory=dict)
    """What this process was told already, failures too: the screens plan anew after each edit."""

    def ask(self, question: Mapping[str, Any], timeout_seconds: float = _TIMEOUT_SECONDS) -> Any:
        """The answer, which is JSON; the first one about a model takes seconds. Raises WorkerFailed."""
        text = json.dumps(question, sort_keys=True, default=str)
        key = self.key(text)
        if key not in self._known:
            self._known[key] = self._find(key, text, timeout_seconds)
        if isinstance(found := self._known[key], WorkerFailed):
            raise found
        return found

    def ask_or_refuse(self, question: Mapping[str, Any], problem: Problem) -> Any:
        """Return the answer. Raises ConfigError with this problem and the reason where there is none."""
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
        if key in (shipped := shipped_answers()):
            return shipped[key]
        place = prepared_data_folder(os.environ) / "answers" / metadata.version("transformers") / f"{key}.json"
        with suppress(OSError, ValueError):
            return json.loads(place.read_text("utf-8"))
        try:
            found = shapes_worker.ask(self.name, json.loads(question), timeout_seconds=timeout_seconds)
        except WorkerFailed as failure:
            if failure.is_cancelled:
                raise
            return failure
        # What cannot be written costs seconds the next time, and nothing else.
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, json.dumps(found).encode())
        return found


@cache
def shipped_answers() -> dict[str, Any]:
    """By key; none where the file is not there."""
    with suppress(OSError, ValueError):
        return dict(json.loads(_SHIPPED.read_text("utf-8")))
    return {}


# Models whose tensors have a shape and no numbers, however large: what they consist of, and what they would compute.
#
# Loads torch and transformers: for the worker. No code that comes with a model is run.

if TYPE_CHECKING:
    from torch import Tensor

# What could make transformers fetch or run code that a config names: the shape does not depend on it.
_UNTRUSTED = {"auto_map", "model_type", "trust_remote_code", "attn_implementation", "quantization_config"}


@contextmanager
def fake_tensors(head: Head) -> Iterator[None]:
    """All tensors that are made have no numbers, and nobody looks for any: transformers fills weights, looks for
    documents in positions, leaves layers out by chance, and asks whether a mask masks any. None does here. Products of
    experts are transformers' own, which keep the same: torch knows the shape of its own for bf16 only (2.11)."""
    from unittest.mock import patch

    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import PreTrainedModel, masking_utils
    from transformers.integrations import moe

    draw = torch.rand
    never = partial(_nothing, answer=False)

    def rand(*size: Any, **more: Any) -> Any:
        return draw(*size, **more) if size != ([],) else 1.0

    changes: list[tuple[Any, str, Any]] = [
        (torch.nn.Module, "_apply", _convert),
        (torch, "rand", rand),
        (PreTrainedModel, "initialize_weights", _nothing),
        (masking_utils, "find_packed_sequence_indices", _nothing),
        (moe, "_can_use_grouped_mm", never),
    ]
    if head != CAUSAL:
        changes += [(masking_utils, f"_ignore_{kind}_mask_sdpa", never) for kind in ("causal", "bidirectional")]
    with ExitStack() as stack:
        for owner, name, value in changes:
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def model_config(config: dict[str, Any], labels: int = 0) -> Any:
    """The config of transformers. Raises ValueError for an architecture that it does not know."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if config.get("model_type") not in CONFIG_MAPPING:
        raise ValueError("transformers does not know the architecture")
    fields = {name: value for name, value in config.items() if name not in _UNTRUSTED and not name.startswith("_")}
    made = AutoConfig.for_model(config["model_type"], **fields)
    if labels:
        made.num_labels = labels
    return made


def inputs_of(head: Head, rows: int, row_tokens: int, answer_tokens: int) -> dict[str, Tensor]:
    """What a forward pass takes, with a mask of the padding but for a causal head; for use within `fake_tensors`."""
    import torch

    inputs: dict[str, Any] = {"input_ids": torch.zeros(rows, row_tokens, dtype=torch.int64)}
    if head != CAUSAL:
        inputs["attention_mask"] = torch.ones(rows, row_tokens, dtype=torch.int64)
    if head == ENCODER_DECODER:
        inputs["decoder_input_ids"] = torch.zeros(rows, max(answer_tokens, 1), dtype=torch.int64)
    # Keys and values are not kept for a next token.
    return inputs if head in CLASSIFYING else inputs | {"use_cache": False}


def empty_model(config: Any, head: Head, **more: Any) -> Any:
    """The model of a config, in training; for use within `fake_tensors`."""
    return auto_class(head, config.model_type).from_config(config, **more).train()


def _nothing(*given: Any, answer: Any = None, **more: Any) -> Any:
    return answer


def _convert(module: Any, change: Any, recurse: bool = True) -> Any:
    """What `Module.to` and its like do, for tensors without numbers: torch's own way exchanges their insides. What is
    one weight in two places stays one."""
    from torch import nn

    converted: dict[nn.Parameter, nn.Parameter] = {}
    for part in module.modules() if recurse else (module,):
        for name, weight in part._parameters.items():
            if weight is None:
                continue
            if weight not in converted:
                changed = change(weight.detach())
                is_other = changed.dtype != weight.dtype
                converted[weight] = nn.Parameter(changed, weight.requires_grad) if is_other else weight
            part._parameters[name] = converted[weight]
    return module


# Data decides the size of the vocabulary, and the number of classes: models are counted with these instead, so that
# other data asks no new question. Primes that no other size of a model is.
_WORDS, _CLASSES = 1_000_003, 10_007
# Of what decides nothing here.
_IGNORED = ("id2label", "label2id", "problem_type", "num_labels", "architectures", "torch_dtype", "dtype")
_ROWS, _ROW_TOKENS, _ANSWER_TOKENS = 2, 16, 11
answers = Answers("count_model", format_version=5)


def deciding_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a config.json, without what neither modules nor their results depend on: ids of tokens, but for that of the
    padding, which may move positions."""
    return {
        name: value
        for name, value in config.items()
        if name == "pad_token_id" or not (name in _IGNORED or name.startswith("_") or name.endswith("_token_id"))
    }


def count_model(config: Mapping[str, Any], head: Head, labels: int, vocabulary: int) -> dict[str, Any]:
    """The model of a config.json with this head; a classifier with so many labels: fields of a `ModelShape`, as its
    config has them, or takes them where config.json is silent. `positions`: of a table of learned ones, how many a row
    can have; 0 where there is none.

    The first answer about a model takes seconds. No code that comes with a model is run. Raises ConfigError when
    transformers cannot build it.
    """
    kept = deciding_fields(config)
    if config.get("vocab_size") == vocabulary:
        kept["vocab_size"] = _WORDS
    # The first and the last token of an answer: DistilBERT refuses any other number.
    asked = labels if head == "question_answering" else _CLASSES if labels else 0
    try:
        found = answers.ask({"config": kept, "head": head, "labels": asked})
    except WorkerFailed as failure:
        name = one_line(str(config.get("model_type")), 80)
        if not failure.reason or failure.is_killed or failure.is_cancelled:
            raise bad_model(f"counting the weights of {name} {failure}") from None
        hint = (
            "a newer transformers may support this model; the model's own Python code is not run to count its weights"
        )
        what = f"transformers {metadata.version('transformers')} cannot build {name}: {failure.reason}"
        raise bad_model(what, hint) from None
    sizes = {_WORDS: vocabulary, _CLASSES: labels}
    linears = tuple(
        Linear(**entry | {name: sizes.get(entry[name], entry[name]) for name in ("inputs", "outputs")})
        for entry in found["linears"]
    )
    parts = tuple(_part_with_sizes(ModelPart(**entry), sizes) for entry in found["parts"])
    return {**found, "linears": linears, "parts": parts, "attention": AttentionFacts(**found["attention"])}


def _part_with_sizes(entry: ModelPart, sizes: Mapping[int, int]) -> ModelPart:
    for told, real in sizes.items():
        if entry.parameters_each % told == 0:
            rows = real if entry.rows == told else entry.rows
            return replace(entry, parameters_each=entry.parameters_each // told * real, rows=rows)
    return entry


def answer(question: dict[str, Any], _: Any) -> dict[str, Any]:
    """In the worker, which has torch: what `count_model` gives."""
    head: Head = question["head"]
    with fake_tensors(head):
        made = model_config(question["config"], question["labels"])
        model = empty_model(made, head)
        with recorded_calls() as calls:
            tokens = _tokens_read(model, head)
        towers = tower_modules(model)
        outside = {id(module) for tower in towers.values() for module in tower.modules()}
        linears, parts = _modules(model, head, tokens, outside)
        output = model.get_output_embeddings()
        # Without a head over the vocabulary nobody asks for the other: CANINE, which has several, has no answer.
        table = None if output is None else model.get_input_embeddings()
        tied = table is not None and output.weight is table.weight
    whole, made, body = made, language_config(made), language_model(model)[1]
    hidden, heads = _size(made, "hidden_size", 0), _size(made, "num_attention_heads", 1)
    head_size = _size(made, "head_dim", 0) or _size(made, "d_kv", 0) or max(hidden // heads, 1)
    found = {
        "linears": [asdict(entry) for entry in linears],
        "parts": [asdict(entry) for entry in parts],
        "tied": tied,
        "key_value_heads": _size(made, "num_key_value_heads", heads),
        "head_size": head_size,
        "mlp_size": _size(made, "intermediate_size", 4 * hidden),
        "decoder_layers": decoder_layers(made) if head == ENCODER_DECODER else 0,
        "stored_blocks": layer_count(name for name, _ in body.named_parameters()),
        "positions": _positions(body, made),
        "attention_dropout": float(_told(made, "attention_dropout") or 0),
        "attention": facts_of(body, calls, head_size, whole=bool(tokens)),
    }
    if has_towers(whole.model_type):
        # Published files leave out what transformers knows of a family.
        plain = (str, int, float, type(None))
        found["language"] = {name: value for name, value in made.to_dict().items() if isinstance(value, plain)}
        found["towers"] = {
            path.rpartition(".")[2]: sum(weight.numel() for weight in tower.parameters())
            for path, tower in towers.items()
        }
    return found


def decoder_layers(made: Any) -> int:
    """Behind an encoder; as many as that has where it is not said."""
    told = _size(made, "decoder_layers", 0) or _size(made, "num_decoder_layers", 0)
    return told or _size(made, "num_hidden_layers", 1)


def _told(made: Any, name: str) -> Any:
    """A field by any of its names; None where no name is there."""
    told = (getattr(made, alias, None) for alias in ALIASES.get(name, [name]))
    return next((value for value in told if value is not None), None)


def _size(made: Any, name: str, default: int) -> int:
    value = _told(made, name)
    return value if isinstance(value, int) and value > 0 else default


def _positions(model: Any, made: Any) -> int:
    """Of a table that is added to the input, the rows behind that of the padding (RoBERTa counts from there)."""
    from torch import nn

    for name, module in model.named_modules():
        kind = name.rpartition(".")[2]
        if isinstance(module, nn.Embedding) and (kind == "wpe" or ("position" in kind and "rel" not in kind)):
            if module.padding_idx is not None:
                return int(module.num_embeddings - module.padding_idx - 1)
            return _size(made, "max_position_embeddings", module.num_embeddings)
    return 0


def _tokens_read(model: Any, head: Head) -> dict[str, list[int]]:
    """How many vectors each product is given in a forward pass, each time; empty where a pass needs numbers."""
    found: dict[str, list[int]] = {name: [] for name, module in model.named_modules() if is_product(module)}
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda module, given, seen=seen: seen.append(given[0].numel() // given[0].shape[-1])
        )
        for name, seen in found.items()
    ]
    try:
        with suppress(Exception):  # a model may ask for anything
            model(**inputs_of(head, _ROWS, _ROW_TOKENS, _ANSWER_TOKENS))
            return found
        return {}
    finally:
        for hook in hooks:
            hook.remove()


def is_product(module: Any) -> bool:
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, nn.Linear | Conv1D)


def _modules(
    model: Any, head: Head, tokens: Mapping[str, list[int]], outside: set[int]
) -> tuple[Iterable[Linear], Iterable[ModelPart]]:
    """Products and other modules with weights, each kind once, without those `outside` by their ids."""
    from torch import nn

    linears: Counter[Linear] = Counter()
    parts: Counter[ModelPart] = Counter()
    output, prefix, seen = model.get_output_embeddings(), f"{model.base_model_prefix}.", set[int]()
    for name, module in model.named_modules():
        if id(module) in outside:
            continue
        weights = [weight for weight in module.parameters(recurse=False) if id(weight) not in seen]
        seen.update(map(id, weights))
        # The classifier's: outside of what is pretrained, or what pools its results.
        is_head = module is output or (
            head in CLASSIFYING and (not name.startswith(prefix) or "pooler" in name.split("."))
        )
        path = place_in_block(name.removeprefix(prefix) if is_head else name)
        if is_product(module) and (weights or module is output):
            inputs, outputs = module.weight.shape
            if isinstance(module, nn.Linear):
                inputs, outputs = outputs, inputs
            read = tokens.get(name, [])
            kind = Linear(
                name=path.rpartition(".")[2],
                path=path,
                inputs=inputs,
                outputs=outputs,
                count=1,
                has_bias=module.bias is not None,
                is_head=is_head,
                uses=max(len(read), 1),
                reads=_reads(read, name, head, module is output),
            )
            linears[kind] += 1
        elif own := sum(weight.numel() for weight in weights):
            rows = module.weight.shape[0] if isinstance(module, nn.Embedding) else 0
            part = ModelPart(path=path, parameters_each=own, is_embedding=bool(rows), rows=rows, is_head=is_head)
            parts[part] += 1
    ordered = sorted(linears.items(), key=lambda found: found[0].is_head)
    return (
        [replace(kind, count=count) for kind, count in ordered],
        [replace(kind, count=count) for kind, count in parts.items()],
    )


def _reads(given: Sequence[int], name: str, head: Head, is_output: bool) -> Reads:
    """By the vectors that a product is given; of others (distances between tokens) as of the input. By its name where
    none was seen, which cannot tell that keys and values of the attention between both halves read the input."""
    if given:
        return "row" if given[0] == _ROWS else "target" if given[0] == _ROWS * _ANSWER_TOKENS else "source"
    return "target" if head == ENCODER_DECODER and (is_output or ".decoder." in f".{name}") else "source"
