"""Counting a model of an architecture that no formula here knows, by building it without numbers.

`python -m tui_trainer.models.counting` reads a config from standard input and writes what it counted. It is a process
of its own because it loads torch and transformers, which the callers of this room do not. What was counted is kept.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tui_trainer.hardware.places import prepared_data_folder
from tui_trainer.models.config_fields import bad_model
from tui_trainer.models.layers import Linear, Part, place_in_block
from tui_trainer.safe_text import one_line

_TIMEOUT_SECONDS = 180
_FORMAT_VERSION = 1
# What could make transformers fetch or run code that a config names: the shape does not depend on it.
_UNTRUSTED = {"auto_map", "model_type", "trust_remote_code", "attn_implementation", "quantization_config"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedModel:
    """The parts of a model as its modules are. `parameters` counts tied weights once."""

    parameters: int
    tied: bool
    linears: tuple[Linear, ...]
    parts: tuple[Part, ...]


def count_parameters_in_child(config: Mapping[str, Any]) -> CountedModel:
    """Build the model of a config.json without numbers and count it, or take the answer of an earlier time.

    Takes some seconds the first time. No code that comes with a model is run. Raises ConfigError when transformers
    cannot build it.
    """
    place = _cache_folder() / f"{_config_hash(config)}.json"
    try:
        return _read(place.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError):
        answer = _ask_child(config)
    counted = _read(answer)
    _keep(place, answer)
    return counted


def _config_hash(config: Mapping[str, Any]) -> str:
    import xxhash

    parts = [_FORMAT_VERSION, metadata.version("transformers"), dict(config)]
    return str(xxhash.xxh3_128(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest())


def _cache_folder() -> Path:
    return prepared_data_folder(os.environ) / "counted-models"


def _ask_child(config: Mapping[str, Any]) -> str:
    # -P: a torch.py in the folder that the user stands in is not ours.
    command = [sys.executable, "-P", "-m", "tui_trainer.models.counting"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    name = one_line(str(config.get("model_type")), 80)
    try:
        done = subprocess.run(
            command,
            input=json.dumps(dict(config)),
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise bad_model(f"counting the weights of {name} took more than {_TIMEOUT_SECONDS} s") from None
    if done.returncode:
        reason = one_line((done.stderr.strip().splitlines() or ["no reason given"])[-1], 200)
        hint = "a newer transformers may know it; code that comes with a model is not run to count it"
        raise bad_model(f"transformers {metadata.version('transformers')} cannot build {name}: {reason}", hint)
    return done.stdout


def _read(text: str) -> CountedModel:
    content = json.loads(text)
    return CountedModel(
        parameters=int(content["parameters"]),
        tied=bool(content["tied"]),
        linears=tuple(Linear(**entry) for entry in content["linears"]),
        parts=tuple(Part(**entry) for entry in content["parts"]),
    )


def _keep(place: Path, answer: str) -> None:
    """A cache that cannot be written costs seconds the next time, and nothing else."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False, encoding="utf-8") as file:
            file.write(answer)
        Path(file.name).replace(place)
    except OSError:
        return


def _count(config: dict[str, Any]) -> CountedModel:
    """In the child: the modules of a model on the meta device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if config.get("model_type") not in CONFIG_MAPPING:
        sys.exit("it does not know the architecture")
    fields = {name: value for name, value in config.items() if name not in _UNTRUSTED and not name.startswith("_")}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            AutoConfig.for_model(config["model_type"], **fields)
        )
    linears, parts = _modules(model)
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head is not None and table is not None and head.weight is table.weight
    return CountedModel(parameters=model.num_parameters(), tied=tied, linears=linears, parts=parts)


def _modules(model: Any) -> tuple[tuple[Linear, ...], tuple[Part, ...]]:
    import torch
    from transformers.pytorch_utils import Conv1D

    linears: dict[tuple[Any, ...], int] = {}
    parts: dict[tuple[Any, ...], int] = {}
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | Conv1D):
            inputs, outputs = module.weight.shape if isinstance(module, Conv1D) else reversed(module.weight.shape)
            key = (place_in_block(name), inputs, outputs, module.bias is not None, module is head)
            linears[key] = linears.get(key, 0) + 1
        elif own := sum(weight.numel() for weight in module.parameters(recurse=False)):
            part = (place_in_block(name), own, isinstance(module, torch.nn.Embedding))
            parts[part] = parts.get(part, 0) + 1
    return (
        tuple(
            Linear(name=p.rpartition(".")[2], path=p, inputs=i, outputs=o, has_bias=b, is_head=h, count=count)
            for (p, i, o, b, h), count in linears.items()
        ),
        tuple(Part(path=p, parameters_each=n, is_embedding=e, count=count) for (p, n, e), count in parts.items()),
    )


def _main() -> None:
    import logging

    logging.disable(logging.WARNING)
    print(json.dumps(asdict(_count(json.loads(sys.stdin.read())))))


if __name__ == "__main__":
    _main()
