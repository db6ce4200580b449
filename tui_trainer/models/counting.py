"""What a model consists of, counted by building it without numbers: its modules, and what a pass reads with each."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any

from tui_trainer.models.answers import Answers
from tui_trainer.models.attention_facts import AttentionFacts, facts_of, recorded_calls
from tui_trainer.models.config_fields import ALIASES, bad_model
from tui_trainer.models.fake_tensors import empty_model, fake_tensors, inputs_of, model_config
from tui_trainer.models.files.weights import layer_count
from tui_trainer.models.heads import CLASSIFYING, Head
from tui_trainer.models.modules import Linear, Part, Reads, place_in_block
from tui_trainer.safe_text import one_line
from tui_trainer.worker.asking import WorkerFailed

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
    try:
        found = answers.ask({"config": kept, "head": head, "labels": _CLASSES if labels else 0})
    except WorkerFailed as failure:
        name = one_line(str(config.get("model_type")), 80)
        if not failure.reason:
            raise bad_model(f"counting the weights of {name} {failure}") from None
        hint = "a newer transformers may know it; code that comes with a model is not run to count it"
        what = f"transformers {metadata.version('transformers')} cannot build {name}: {failure.reason}"
        raise bad_model(what, hint) from None
    sizes = {_WORDS: vocabulary, _CLASSES: labels}
    linears = tuple(
        Linear(**entry | {name: sizes.get(entry[name], entry[name]) for name in ("inputs", "outputs")})
        for entry in found["linears"]
    )
    parts = tuple(_part_with_sizes(Part(**entry), sizes) for entry in found["parts"])
    return {**found, "linears": linears, "parts": parts, "attention": AttentionFacts(**found["attention"])}


def _part_with_sizes(entry: Part, sizes: Mapping[int, int]) -> Part:
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
        linears, parts = _modules(model, head, tokens)
        output = model.get_output_embeddings()
        # Without a head over the vocabulary nobody asks for the other: CANINE, which has several, has no answer.
        table = None if output is None else model.get_input_embeddings()
        tied = table is not None and output.weight is table.weight
    hidden, heads = _size(made, "hidden_size", 0), _size(made, "num_attention_heads", 1)
    head_size = _size(made, "head_dim", 0) or _size(made, "d_kv", 0) or max(hidden // heads, 1)
    return {
        "linears": [asdict(entry) for entry in linears],
        "parts": [asdict(entry) for entry in parts],
        "tied": tied,
        "key_value_heads": _size(made, "num_key_value_heads", heads),
        "head_size": head_size,
        "mlp_size": _size(made, "intermediate_size", 4 * hidden),
        "decoder_layers": decoder_layers(made) if head == "seq2seq_lm" else 0,
        "stored_blocks": layer_count(name for name, _ in model.named_parameters()),
        "positions": _positions(model, made),
        "attention_dropout": float(_told(made, "attention_dropout") or 0),
        "attention": facts_of(model, calls, head_size, whole=bool(tokens)),
    }


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
    found: dict[str, list[int]] = {name: [] for name, module in model.named_modules() if _is_product(module)}
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


def _is_product(module: Any) -> bool:
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, nn.Linear | Conv1D)


def _modules(model: Any, head: Head, tokens: Mapping[str, list[int]]) -> tuple[Iterable[Linear], Iterable[Part]]:
    """Products and other modules with weights, each kind once."""
    from torch import nn

    linears: Counter[Linear] = Counter()
    parts: Counter[Part] = Counter()
    output, prefix, seen = model.get_output_embeddings(), f"{model.base_model_prefix}.", set[int]()
    for name, module in model.named_modules():
        weights = [weight for weight in module.parameters(recurse=False) if id(weight) not in seen]
        seen.update(map(id, weights))
        # The classifier's: outside of what is pretrained, or what pools its results.
        is_head = module is output or (
            head in CLASSIFYING and (not name.startswith(prefix) or "pooler" in name.split("."))
        )
        path = place_in_block(name.removeprefix(prefix) if is_head else name)
        if _is_product(module) and (weights or module is output):
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
            part = Part(path=path, parameters_each=own, is_embedding=bool(rows), rows=rows, is_head=is_head)
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
    return "target" if head == "seq2seq_lm" and (is_output or ".decoder." in f".{name}") else "source"
