"""Reading a model's config.json: one question, whatever the architecture calls it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tui_trainer.errors import ConfigError, Problem
from tui_trainer.safe_text import one_line

MODEL_KEY = "model.model_name_or_path"
_LARGEST = 10**9
# Source: `attribute_map` and the names of fields in the configuration files of transformers 5.23 and older.
ALIASES: dict[str, list[str]] = {
    "hidden_size": "hidden_size n_embd n_embed d_model dim".split(),
    "num_hidden_layers": "encoder_layers num_hidden_layers n_layer num_layers n_layers".split(),
    "num_attention_heads": "num_attention_heads n_head num_heads n_heads encoder_attention_heads".split(),
    "num_key_value_heads": "num_key_value_heads num_kv_heads n_head_kv".split(),
    "intermediate_size": "intermediate_size ffn_dim n_inner ffn_hidden_size hidden_dim d_ff encoder_ffn_dim".split(),
    # CANINE's: of code points, each a row in tables that many share.
    "vocab_size": "vocab_size num_hash_buckets".split(),
    "max_position_embeddings": "max_position_embeddings n_positions n_ctx seq_length max_seq_len".split(),
    "attention_dropout": "attention_dropout attn_pdrop attention_probs_dropout_prob dropout_rate".split(),
}


def bad_model(message: str, hint: str = "", where: str = "") -> ConfigError:
    """A mistake in what `model.model_name_or_path` names."""
    return ConfigError(Problem(message=message, hint=hint, where=one_line(where), key=MODEL_KEY))


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """The fields of a config.json. Numbers that cannot be right are ConfigErrors that name the field."""

    values: Mapping[str, Any]

    @property
    def model_type(self) -> str:
        return one_line(str(self.values.get("model_type") or ""), 80)

    def number(self, name: str, default: int | None = None) -> int:
        """A positive whole number; without a default it has to be there."""
        found = self.optional(name)
        if found is not None:
            return found
        if default is None:
            raise bad_model(f"config.json has no {name}", hint="it is damaged, or of a kind that is no decoder")
        return default

    def optional(self, name: str) -> int | None:
        """A positive whole number, or None where it is missing or null."""
        for alias in ALIASES.get(name, [name]):
            value = self.values.get(alias)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < _LARGEST:
                raise bad_model(
                    f"config.json: {alias} is {one_line(repr(value), 40)}, not a positive whole number",
                    hint="the file is damaged: copy it again",
                )
            return value
        return None

    def share(self, name: str) -> float:
        """A number from 0 to below 1; 0 where it is missing."""
        for alias in ALIASES.get(name, [name]):
            value = self.values.get(alias)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1:
                return float(value)
        return 0.0

    def flag(self, name: str, default: bool) -> bool:
        """True or false; the default where it is missing or null."""
        value = self.values.get(name)
        return default if value is None else bool(value)
