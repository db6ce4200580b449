"""Conversion of new tokens, rotary positions and router losses of other tools to our settings."""

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tui_trainer.config.fields import names_in
from tui_trainer.config.sections import RopeScalingSection
from tui_trainer.config.token_list import ADD_TOKENS_KEY
from tui_trainer.errors import ConfigError
from tui_trainer.importing.conversion import Conversion, Given
from tui_trainer.importing.rules import Why, is_off, whole
from tui_trainer.models.added_tokens import is_chat_mark
from tui_trainer.models.config_json import ConfigFields
from tui_trainer.models.facts import find_model
from tui_trainer.models.rope import FIELDS, POSITIONS, ROPE_SCALING_KEY, TYPE_KEY, rotary_parameters
from tui_trainer.models.routers import ROUTER_LOSS_KEY
from tui_trainer.terminal.safe_text import one_line

_ROPE_KEYS = ("rope_scaling", "rope_parameters")
OUTPUT, WEIGHT, MODEL_WEIGHT = "output_router_logits", "router_aux_loss_coef", "model"
MEAN_ROWS = "new embedding rows start at the mean of the existing rows"
# Default of LLaMA-Factory (hparams/data_args.py).
_CUTOFF = 2048


def rope_table(conversion: Conversion, given: Given) -> None:
    """Convert a table of rotary positions in the format of any version of transformers."""
    if isinstance(given.value, Mapping):
        _write_rope(conversion, given, given.value)


def write_routers(conversion: Conversion, switch: Any, weight: Any, *sources: Given | None) -> None:
    """Write the weight of the router loss: 0 unless `switch` is true, the model's own if `weight` is None."""
    conversion.write(ROUTER_LOSS_KEY, (MODEL_WEIGHT if weight is None else weight) if switch is True else 0, *sources)


def changed_config(conversion: Conversion, given: Given) -> None:
    """Convert a table that overrides fields of config.json. Fields other than positions and routers are refused."""
    table = given.value if isinstance(given.value, Mapping) else {}
    fields = {key: value for key, value in table.items() if value is not None}
    table_keys = [key for key in _ROPE_KEYS if isinstance(fields.get(key), Mapping)]
    router_names = (OUTPUT, WEIGHT) if OUTPUT in fields else ()
    other_keys = [key for key in fields if key not in (*table_keys, *router_names)]
    if len(table_keys) > 1 or other_keys:
        names = one_line(", ".join(map(str, other_keys or table_keys)), 60)
        settings = f"{ROPE_SCALING_KEY} and {ROUTER_LOSS_KEY}"
        reason = f"config.json cannot be changed, except for {settings}; unsupported: {names}"
        conversion.leave(Why.REFUSED, reason, given)
        return
    for key in table_keys:
        _write_rope(conversion, given, fields[key])
    if router_names:
        write_routers(conversion, fields[OUTPUT], fields.get(WEIGHT), given)


def _write_rope(conversion: Conversion, given: Given, table: Mapping[str, Any]) -> None:
    kind = table.get("rope_type", table.get("type"))
    fields = {key: value for key, value in table.items() if key not in ("type", "rope_type") and value is not None}
    if kind in (None, "default") and not fields:
        conversion.leave(Why.NOT_NEEDED, "this table does not change the rotary embeddings", given)
    elif kind not in FIELDS:
        reason = f"the rope type {one_line(str(kind), 40)} is not one of {', '.join(FIELDS)}"
        conversion.leave(Why.REFUSED, reason, given)
    elif unknown_keys := [key for key in fields if key not in RopeScalingSection.model_fields]:
        conversion.leave(Why.REFUSED, f"unsupported fields: {one_line(', '.join(map(str, unknown_keys)), 60)}", given)
    else:
        conversion.write(TYPE_KEY, kind, given)
        for key, value in fields.items():
            conversion.write(f"{ROPE_SCALING_KEY}.{key}", value, given)


def rope_by_length(conversion: Conversion, given: Given) -> None:
    """Convert a RoPE type of LLaMA-Factory. Its factor is `cutoff_len` / the model's original positions, rounded up.

    If rows fit into the original positions, nothing is scaled. Source: model/model_utils/rope.py."""
    if not isinstance(kind := given.value, str):
        return
    length = whole(conversion.given.get("cutoff_len", _CUTOFF))
    if kind == "dynamic":
        why = "dynamic scaling depends on the longest row seen so far, so a run could not be resumed exactly"
        conversion.leave(Why.REFUSED, f"{why}; nearest: {TYPE_KEY} = yarn", given)
        return
    if kind not in ("linear", "yarn", "llama3"):
        conversion.leave(Why.REFUSED, "the rope type is not one of linear, dynamic, yarn and llama3", given)
        return
    config: Mapping[str, Any] = {}
    with suppress(ConfigError):
        config = find_model(str(conversion.given.get("model_name_or_path") or "")).config
    model_limit = rotary_parameters(config).get("original_max_position_embeddings")
    limit = model_limit or ConfigFields(config).optional(POSITIONS)
    if not limit or length is None:
        why = "the model is not on this machine, so the factor (cutoff_len / max_position_embeddings) is unknown"
        conversion.leave(Why.REFUSED, f"{why}; set {ROPE_SCALING_KEY}", given)
    elif length <= limit:
        reason = f"rows of {length:,} tokens fit into the {limit:,} positions of the model"
        conversion.leave(Why.NOT_NEEDED, reason, given)
    else:
        reason = f"cutoff_len {length:,} / {limit:,} positions of the model, rounded up"
        conversion.write(TYPE_KEY, kind, given)
        conversion.write(f"{ROPE_SCALING_KEY}.factor", math.ceil(length / limit), given, reason=reason)
        if kind != "linear":
            conversion.write(f"{ROPE_SCALING_KEY}.original_max_position_embeddings", limit, given)
        if kind == "llama3":
            conversion.write(f"{ROPE_SCALING_KEY}.low_freq_factor", 1, given)
            conversion.write(f"{ROPE_SCALING_KEY}.high_freq_factor", 4, given)


def convert_tokens(conversion: Conversion, *given: Given | None, special: str = "") -> None:
    """Convert keys with new tokens, as lists or texts with commas. `special` names the keys for special tokens."""
    write_tokens(conversion, {key.name: key.value for key in given if key and not is_off(key.value)}, special)


def write_tokens(conversion: Conversion, given: Mapping[str, Any], special: str = "") -> None:
    """Write new tokens to `model.add_tokens`. `given` has the tokens of each key of the file."""
    tokens: list[str] = []
    for name, value in given.items():
        texts = list(names_in(value)) if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) and text.strip() for text in texts):
            conversion.leave(Why.DOES_NOT_FIT, f"{ADD_TOKENS_KEY} must be texts", name)
            return
        if name in special.split() and (words := [text for text in texts if not is_chat_mark(text)]):
            reason = f"special tokens must look like <|name|>, <start_of_turn> or [INST], and {one_line(words[0], 40)}"
            conversion.leave(Why.REFUSED, f"{reason} does not; set {ADD_TOKENS_KEY} for ordinary tokens", name)
            return
        tokens += texts
    if given:
        chat_marks = [text for text in tokens if is_chat_mark(text)]
        note = f"; tokens like {one_line(chat_marks[0], 40)} are special tokens" if chat_marks else ""
        reason = f"{MEAN_ROWS}; with LoRA adapters, only the new rows of the embedding are trained{note}"
        conversion.write(ADD_TOKENS_KEY, list(dict.fromkeys(tokens)), *given, reason=reason)
