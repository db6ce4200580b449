"""Tokens and rotary positions that files of other tools give a model, as settings of [model]."""

import math
from collections.abc import Mapping
from typing import Any

from tui_trainer.config.fields import names_in
from tui_trainer.config.sections import RopeScalingSection
from tui_trainer.config.token_list import TOKENS
from tui_trainer.errors import ConfigError
from tui_trainer.importing.conversion import Conversion, KeyGroup
from tui_trainer.importing.rules import Why, off, whole
from tui_trainer.models.added_tokens import is_chat_mark
from tui_trainer.models.config_json import ConfigFields
from tui_trainer.models.facts import find_model
from tui_trainer.models.rope import FIELDS, KEY, POSITIONS, TYPE_KEY, own_parameters
from tui_trainer.models.routers import ROUTERS
from tui_trainer.terminal.safe_text import one_line

_NAMED = ("rope_scaling", "rope_parameters")
OUTPUT, WEIGHT, OWN = "output_router_logits", "router_aux_loss_coef", "model"
_MEAN = "new embedding rows start at the mean of the existing ones"


def rope_table(name: str) -> KeyGroup:
    """A table in the words of transformers, of any of its versions."""

    def read(done: Conversion) -> None:
        if (found := done.first(name)) and isinstance(found[1], Mapping):
            _write_rope(done, name, found[1])

    return KeyGroup((name,), read)


def write_routers(done: Conversion, on: Any, weight: Any, *names: str) -> None:
    """Write the weight of the loss of routers: that of the model's config.json where only `on` is said."""
    done.write(ROUTERS, (OWN if weight is None else weight) if on is True else 0, *names)


def changed_config(*names: str) -> KeyGroup:
    """Return the group of tables whose fields are written over those of config.json: of these the positions and the
    routers have settings here."""

    def read(done: Conversion) -> None:
        if not (found := done.first(*names)):
            return
        name, table = found
        fields = {key: value for key, value in table.items() if value is not None} if isinstance(table, Mapping) else {}
        inner = [key for key in _NAMED if isinstance(fields.get(key), Mapping)]
        routers = (OUTPUT, WEIGHT) if OUTPUT in fields else ()
        others = [key for key in fields if key not in (*inner, *routers)]
        if len(inner) > 1 or others:
            shown, settings = one_line(", ".join(map(str, others or inner)), 60), f"{KEY} and {ROUTERS}"
            done.leave(Why.REFUSED, f"config.json cannot be changed, except for {settings}; unsupported: {shown}", name)
            return
        if inner:
            _write_rope(done, name, fields[inner[0]])
        if routers:
            write_routers(done, fields[OUTPUT], fields.get(WEIGHT), name)

    return KeyGroup(names, read)


def _write_rope(done: Conversion, name: str, told: Mapping[str, Any]) -> None:
    kind = told.get("rope_type", told.get("type"))
    fields = {key: value for key, value in told.items() if key not in ("type", "rope_type") and value is not None}
    if kind in (None, "default") and not fields:
        done.leave(Why.NOT_NEEDED, "it does not change the positions of the model", name)
    elif kind not in FIELDS:
        done.leave(Why.REFUSED, f"the rope type {one_line(str(kind), 40)} is not one of {', '.join(FIELDS)}", name)
    elif strange := [key for key in fields if key not in RopeScalingSection.model_fields]:
        done.leave(Why.REFUSED, f"unsupported fields: {one_line(', '.join(map(str, strange)), 60)}", name)
    else:
        done.write(TYPE_KEY, kind, name)
        for key, value in fields.items():
            done.write(f"{KEY}.{key}", value, name)


def rope_by_length(done: Conversion) -> None:
    """LLaMA-Factory names the type alone: the factor is what `cutoff_len` needs, as a whole number, of the positions
    that the model was pretrained with; rows that fit into these have none (model/model_utils/rope.py)."""
    found = done.first("rope_scaling")
    if not found or not isinstance(found[1], str):
        return
    name, kind, model = found[0], found[1], str(done.given.get("model_name_or_path") or "")
    length = whole(done.given.get("cutoff_len", _CUTOFF))
    if kind not in ("linear", "dynamic", "yarn", "llama3"):
        done.leave(Why.REFUSED, "the rope type is not one of linear, dynamic, yarn and llama3", name)
        return
    if kind == "dynamic":
        why = "dynamic scaling depends on the longest row seen so far, so a run could not be resumed exactly"
        done.leave(Why.REFUSED, f"{why}; nearest: {TYPE_KEY} = yarn", name)
        return
    try:
        config = find_model(model).config
    except ConfigError:
        config = {}
    before = own_parameters(config).get("original_max_position_embeddings") or ConfigFields(config).optional(POSITIONS)
    if not before or length is None:
        why = "the factor is cutoff_len / the positions of the model, but the model is not on this machine"
        done.leave(Why.REFUSED, f"{why}; set {KEY} yourself", name)
    elif length <= before:
        done.leave(Why.NOT_NEEDED, f"rows of {length:,} tokens fit into the {before:,} positions of the model", name)
    else:
        factor = math.ceil(length / before)
        reason = f"cutoff_len {length:,} / {before:,} positions of the model, rounded up"
        done.write(TYPE_KEY, kind, name)
        done.write(f"{KEY}.factor", factor, name, reason=reason)
        if kind != "linear":
            done.write(f"{KEY}.original_max_position_embeddings", before, name)
        if kind == "llama3":
            done.write(f"{KEY}.low_freq_factor", 1, name)
            done.write(f"{KEY}.high_freq_factor", 4, name)


# Of LLaMA-Factory, where a file does not say it (hparams/data_args.py).
_CUTOFF = 2048


def tokens(*ordinary: str, special: tuple[str, ...] = ()) -> KeyGroup:
    """Lists of new tokens, or texts with commas; `special` names those that are special tokens there."""

    def read(done: Conversion) -> None:
        given = (done.first(name) for name in (*ordinary, *special))
        write_tokens(done, dict(one for one in given if one and not off(one[1])), special)

    return KeyGroup((*ordinary, *special), read)


def write_tokens(done: Conversion, given: Mapping[str, Any], special: tuple[str, ...] = ()) -> None:
    """`given`: lists of new tokens by the key of the file that has them."""
    found: list[str] = []
    for name, value in given.items():
        words = list(names_in(value)) if isinstance(value, str) else value
        if not isinstance(words, list) or not all(isinstance(word, str) and word.strip() for word in words):
            done.leave(Why.DOES_NOT_FIT, f"{TOKENS} must be texts", name)
            return
        if name in special and (other := [word for word in words if not is_chat_mark(word)]):
            why = "special tokens must look like <|name|>, <start_of_turn> or [INST]"
            done.leave(
                Why.REFUSED, f"{why}, and {one_line(other[0], 40)} does not; set {TOKENS} for ordinary tokens", name
            )
            return
        found += words
    if given:
        marks = [word for word in found if is_chat_mark(word)]
        is_special = f"; tokens like {one_line(marks[0], 40)} are special tokens" if marks else ""
        reason = f"{_MEAN}; with LoRA adapters, only these rows of the embedding are trained{is_special}"
        done.write(TOKENS, list(dict.fromkeys(found)), *given, reason=reason)
