"""Counting a model of an architecture that no formula here knows, by building it without numbers.

`python -m tui_trainer.models.families.counting` reads a config from standard input and writes what it counted. It is a
process of its own because it loads torch and transformers, which the callers of this room do not. What was counted is
kept.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from tui_trainer.models.child import ChildFailed, answer_place, answer_question, ask_child, keep_answer
from tui_trainer.models.config_fields import bad_model
from tui_trainer.models.families.layers import Linear, Part, place_in_block
from tui_trainer.models.heads import Head, auto_class
from tui_trainer.safe_text import one_line

_TIMEOUT_SECONDS = 180
_FORMAT_VERSION = 2
# What could make transformers fetch or run code that a config names: the shape does not depend on it.
_UNTRUSTED = {"auto_map", "model_type", "trust_remote_code", "attn_implementation", "quantization_config"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedModel:
    """The parts of a model as its modules are. `parameters` counts tied weights once."""

    parameters: int
    tied: bool
    linears: tuple[Linear, ...]
    parts: tuple[Part, ...]


# What this process was told already: the screens plan anew after each edit.
_refused: dict[str, tuple[str, str]] = {}


def count_parameters_in_child(config: Mapping[str, Any], head: Head = "causal_lm", labels: int = 0) -> CountedModel:
    """Build the model of a config.json without numbers and count it, or take the answer of an earlier time.

    `labels` are those of a classifier.

    Takes some seconds the first time. No code that comes with a model is run. Raises ConfigError when transformers
    cannot build it.
    """
    question = json.dumps({"config": dict(config), "head": head, "labels": labels}, sort_keys=True, default=str)
    place = answer_place("counted-models", _FORMAT_VERSION, question)
    try:
        return _read(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        answer = _ask_child(question, one_line(str(config.get("model_type")), 80))
    counted = _read(answer)
    keep_answer(place, answer)
    return counted


def _ask_child(question: str, name: str) -> str:
    if question in _refused:
        raise bad_model(*_refused[question])
    try:
        return ask_child("tui_trainer.models.families.counting", question, _TIMEOUT_SECONDS)
    except ChildFailed as failure:
        if not failure.reason:
            raise bad_model(f"counting the weights of {name} {failure}") from None
        hint = "a newer transformers may know it; code that comes with a model is not run to count it"
        what = f"transformers {metadata.version('transformers')} cannot build {name}: {failure.reason}"
        _refused[question] = (what, hint)
        raise bad_model(what, hint) from None


def _read(text: str) -> CountedModel:
    content = json.loads(text)
    return CountedModel(
        parameters=int(content["parameters"]),
        tied=bool(content["tied"]),
        linears=tuple(Linear(**entry) for entry in content["linears"]),
        parts=tuple(Part(**entry) for entry in content["parts"]),
    )


def _count(config: dict[str, Any], head: Head, labels: int) -> CountedModel:
    """In the child: the modules of a model on the meta device."""
    import torch
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if config.get("model_type") not in CONFIG_MAPPING:
        sys.exit("it does not know the architecture")
    fields = {name: value for name, value in config.items() if name not in _UNTRUSTED and not name.startswith("_")}
    made = AutoConfig.for_model(config["model_type"], **fields)
    if labels:
        made.num_labels = labels
    with torch.device("meta"):
        model = auto_class(head).from_config(made)
    linears, parts = _modules(model)
    output, table = model.get_output_embeddings(), model.get_input_embeddings()
    tied = output is not None and table is not None and output.weight is table.weight
    return CountedModel(parameters=model.num_parameters(), tied=tied, linears=linears, parts=parts)


def _modules(model: Any) -> tuple[tuple[Linear, ...], tuple[Part, ...]]:
    import torch
    from transformers.pytorch_utils import Conv1D

    linears: dict[tuple[Any, ...], int] = {}
    parts: dict[tuple[Any, ...], int] = {}
    output = model.get_output_embeddings()
    for name, module in model.named_modules():
        # The classifier's: outside of what is pretrained, or what pools its results.
        beside_body = not name.startswith(f"{model.base_model_prefix}.") or "pooler" in name.split(".")
        is_head = module is output or (output is None and beside_body)
        if isinstance(module, torch.nn.Linear | Conv1D):
            inputs, outputs = module.weight.shape if isinstance(module, Conv1D) else reversed(module.weight.shape)
            # Keys and values of the attention between both halves read the input; they cannot be told by their name.
            behind_decoder = module is output and model.config.is_encoder_decoder
            reads = "target" if ".decoder." in f".{name}" or behind_decoder else "source"
            key = (place_in_block(name), inputs, outputs, module.bias is not None, is_head, reads)
            linears[key] = linears.get(key, 0) + 1
        elif own := sum(weight.numel() for weight in module.parameters(recurse=False)):
            part = (place_in_block(name), own, isinstance(module, torch.nn.Embedding), is_head)
            parts[part] = parts.get(part, 0) + 1
    found = (
        Linear(name=p.rpartition(".")[2], path=p, inputs=i, outputs=o, has_bias=b, is_head=h, reads=r, count=count)
        for (p, i, o, b, h, r), count in linears.items()
    )
    return (
        tuple(sorted(found, key=lambda linear: linear.is_head)),
        tuple(
            Part(path=p, parameters_each=n, is_embedding=e, is_head=h, count=count)
            for (p, n, e, h), count in parts.items()
        ),
    )


if __name__ == "__main__":
    answer_question(lambda question: asdict(_count(**question)))
