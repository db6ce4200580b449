"""Import a config of another tool: read, detect, convert, report, and check the result by reading it back."""

import json
import math
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tui_trainer.config.changes import is_same_value
from tui_trainer.config.editing import toml_text
from tui_trainer.config.load import flatten, validate
from tui_trainer.config.save import table_lines
from tui_trainer.config.sections import MODEL_KEY, SCHEMA_VERSION
from tui_trainer.config.toml_files import find_profile, parse_toml
from tui_trainer.errors import ConfigError, Problem, name_hint, system_reason
from tui_trainer.files.local_paths import path_exists
from tui_trainer.importing.conversion import Conversion, Importer, LeftOut, Rewrite
from tui_trainer.importing.detection import detect, find_importer, flatten_keys, refuse_no_training, refuse_toml
from tui_trainer.importing.groups import drop_sharding, keep_adapter, per_device_note, stored_as
from tui_trainer.importing.reading import read_foreign
from tui_trainer.importing.rules import REFUSALS, To, Why, is_empty
from tui_trainer.methods.tuning_methods import METHOD_KEY
from tui_trainer.models.chat_rendering import TEMPLATE_KEY
from tui_trainer.planning.batch_cut import EFFECTIVE_BATCH_KEY
from tui_trainer.terminal.safe_text import one_line

_PATH_WIDTH, _VALUE_WIDTH, _KEY_WIDTH, _TARGET_WIDTH = 200, 60, 60, 400
_COMMENT_WIDTH = 110
_NOT_IN_FILE = "not in the file"
_METHOD_QUESTION = "the file does not choose between all weights and an adapter; set tuning.method = full or lora"
_DATA_QUESTION = "the file does not name the training data; set data.path"
_DATA_KEYS = ("dataset", "train_dataset", "datasets", "pretraining_dataset")
# A file with fewer settings and without a model is only part of a config, whose rest is in another file.
_WHOLE_CONFIG_KEYS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """Result of an import. `reason` says why `importer` was chosen."""

    path: Path
    importer: Importer
    reason: str
    rewrites: tuple[Rewrite, ...]
    left_out: tuple[LeftOut, ...]
    template: str = ""
    """Text of the chat template that is written next to the config; empty if there is none."""

    @property
    def values(self) -> dict[str, Any]:
        return {rewrite.key: rewrite.value for rewrite in self.rewrites}

    @property
    def needs_method(self) -> bool:
        """Whether the file is a whole config, such as a dump of arguments, without a choice of trained weights."""
        is_whole = "profile" not in self.values and len(self.rewrites) >= _WHOLE_CONFIG_KEYS
        return is_whole and METHOD_KEY not in self.values

    @property
    def questions(self) -> list[str]:
        """Sentences about settings that the file does not contain and the user must add."""
        data_is_elsewhere = any(left.key in _DATA_KEYS and left.why is Why.NOT_SUPPORTED for left in self.left_out)
        asks_data = data_is_elsewhere and "data.path" not in self.values
        dtype = stored_as(str(self.values.get(MODEL_KEY, "")))
        weights_question = f"{MODEL_KEY}: the weights are stored as {dtype}, which cannot be trained; "
        weights_question += "use the 16-bit version of the model (tuning.method = qlora loads it in 4 bits)"
        questions = {_METHOD_QUESTION: self.needs_method, _DATA_QUESTION: asks_data, weights_question: bool(dtype)}
        return [text for text, is_asked in questions.items() if is_asked]

    @property
    def toml(self) -> str:
        """Text of the converted config, with the source of each value. The keys that were left out are at the end."""
        texts: dict[str, str] = {}
        for rewrite in self.rewrites:
            reason = "" if rewrite.sources else f": {rewrite.reason}"
            texts[rewrite.key] = f"{toml_text(rewrite.value)}  # {_sources(rewrite)}{reason}"
        lines = [f"# {one_line(str(self.path), _PATH_WIDTH)}, read as {self.importer.name}"]
        lines += [f"schema_version = {SCHEMA_VERSION}", *table_lines(texts)]
        for question in self.questions:
            lines += ["", *_wrapped(question, _COMMENT_WIDTH, "# ")]
        if self.left_out:
            rows = (row for left in self.left_out for row in _wrapped(_left_out_line(left), _COMMENT_WIDTH, "#   "))
            lines += ["", "# Not imported:", *rows]
        return "\n".join(lines) + "\n"

    def report_lines(self, width: int) -> list[str]:
        """Return the report, wrapped to lines of at most `width` characters unless a single word is longer."""
        return [row for line in self.report for row in _wrapped(line, width)]

    @property
    def report(self) -> list[str]:
        """Lines of the report: what was detected, each converted setting, and what was left out."""
        lines = [f"{one_line(str(self.path))}: {self.importer.title} ({self.importer.name}): {self.reason}"]
        lines += [*map(_rewrite_line, self.rewrites), *self.questions]
        if self.left_out:
            lines += ["not imported:", *(f"  {_left_out_line(left_out)}" for left_out in self.left_out)]
        return lines

    def as_values(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        rewrites = [
            {"from": json_value(rewrite.sources), "key": rewrite.key, "value": rewrite.value, "reason": rewrite.reason}
            | {"line": _rewrite_line(rewrite)}
            for rewrite in self.rewrites
        ]
        left_out = [
            {"key": left.key, "value": json_value(left.value), "why": str(left.why), "reason": left.reason}
            for left in self.left_out
        ]
        kind = {"kind": self.importer.name, "reason": self.reason}
        return {**kind, "rewrites": rewrites, "left_out": left_out, "toml": self.toml}

    def next_command(self, out: str) -> str:
        """Return the command that uses the converted config, with placeholders for values that it lacks."""
        words = ["tui-trainer", "plan", shlex.quote(one_line(out))]
        if "profile" not in self.values:
            if not self.values.get(MODEL_KEY) and self.values.get("model.init") != "scratch":
                words.append("--model FOLDER")
            if not self.values.get("data.path"):
                words.append("--data FILE")
        if self.needs_method:
            words.append(f"--set {METHOD_KEY}=METHOD")
        return " ".join(words)

    def refuse_other_runs(self) -> None:
        """Raise ConfigError if keys that could change the run were not understood, or if no setting was converted."""
        where = str(self.path)
        if refused_keys := [left for left in self.left_out if left.why in REFUSALS]:
            names = shlex.quote(",".join(dict.fromkeys(left.key for left in refused_keys)))
            hint = f"--without {one_line(names, _TARGET_WIDTH)} imports the rest, but the result is a different run"
            messages = (f"{_given(left)} {left.why}: {left.reason}" for left in refused_keys)
            *problems, last_problem = (Problem(message=line, where=where) for line in messages)
            raise ConfigError([*problems, replace(last_problem, hint=hint)])
        if not self.rewrites:
            left_out = "; ".join(map(_left_out_line, self.left_out))
            raise ConfigError(f"contains no setting that can be imported: {left_out}", where=where)


def import_file(
    path: Path,
    kind: str = "",
    devices: int | None = None,
    excluded_keys: Sequence[str] = (),
    config_path: Path | None = None,
) -> Imported:
    """Convert a YAML or JSON file of another tool. `kind` is the importer, by default the detected one. `devices` is
    the number of devices of the run. The keys `excluded_keys` are ignored. `config_path` is the path of the config to
    be written.

    Raises ConfigError for an unreadable file or an unclear tool, and for `devices` without a batch size per device."""
    raw = read_foreign(path)
    refuse_no_training(raw, str(path))
    if path.suffix.lower() == ".toml":
        refuse_toml(raw, str(path))
    importer, reason = (find_importer(kind), "as requested") if kind else detect(raw, str(path))
    given = flatten_keys(importer, raw)
    for name in excluded_keys:
        if name not in given:
            message = f"the file has no key {one_line(name, _KEY_WIDTH)!r}"
            raise ConfigError(message, hint=name_hint(name, given), where="--without")
    used_values = {name: value for name, value in given.items() if name not in excluded_keys}
    conversion = Conversion(
        importer, used_values, path.parent, devices, config_path and config_path.with_suffix(".jinja").absolute()
    )
    drop_sharding(conversion)
    keep_adapter(conversion)
    rewrites = [*conversion.rewrites, *_defaults(conversion, importer)]
    ignored = [LeftOut(key=name, value=given[name], why=Why.AS_ASKED, reason="--without") for name in excluded_keys]
    imported = Imported(
        path=path,
        importer=importer,
        reason=reason,
        rewrites=tuple(_packed(rewrite, {other.key: other.value for other in rewrites}) for rewrite in rewrites),
        left_out=(*ignored, *conversion.left_out),
        template=conversion.chat_template_text,
    )
    if devices and not any(rewrite.per_device for rewrite in imported.rewrites):
        raise ConfigError("has no per-device batch size that --processes could multiply", where=str(path))
    _check(imported)
    return imported


def _defaults(conversion: Conversion, importer: Importer) -> Iterator[Rewrite]:
    """Yield the tool's defaults for settings that the file does not contain, if the file is a whole config."""
    values = conversion.values
    if MODEL_KEY not in values and len(values) < _WHOLE_CONFIG_KEYS:
        return
    left_out = (left for left in conversion.left_out if left.why is Why.DOES_NOT_FIT or not is_empty(left.value))
    used_settings = {*values, *(rule.key for left in left_out if isinstance(rule := importer.rule(left.key), To))}
    method = values.get(METHOD_KEY)
    for key, value in importer.defaults.items():
        is_of_other_method = (
            key.startswith("tuning.") and (method not in ("lora", "qlora") or conversion.continues_adapter)
        ) or (key.startswith("quantization.") and method != "qlora")
        if key in used_settings or is_of_other_method:
            continue
        reason = f"the default of {importer.name}"
        if key == EFFECTIVE_BATCH_KEY:
            value, reason = value * (conversion.devices or 1), f"{reason}; {per_device_note(conversion.devices)}"
        yield Rewrite(sources={}, key=key, value=value, reason=reason, per_device=key == EFFECTIVE_BATCH_KEY)


def _packed(rewrite: Rewrite, values: Mapping[str, Any]) -> Rewrite:
    """Add a note to the batch size of packed data, which counts documents here and packed rows in the other tool."""
    if rewrite.key != EFFECTIVE_BATCH_KEY or values.get("data.packing") is not True:
        return rewrite
    note = "the batch size is a number of documents here, but a number of packed rows in the other tool"
    if length := values.get("data.max_length"):
        tokens = f"{rewrite.value * length:,}"
        note += f"; for {tokens} tokens per step, divide {tokens} by the tokens per document (see the plan)"
    return replace(rewrite, reason="; ".join(filter(None, (rewrite.reason, note))))


def write_config(imported: Imported, path: Path, *, force: bool = False) -> None:
    """Write the converted config and its chat template. Raises ConfigError if a file exists, unless `force` is set."""
    text_by_path = {path: imported.toml}
    if imported.template:
        text_by_path = {Path(imported.values[TEMPLATE_KEY]): imported.template, **text_by_path}
    if existing_paths := [target for target in text_by_path if path_exists(str(target)) and not force]:
        raise ConfigError("already exists", where=str(existing_paths[0]), hint="use --force to overwrite the file")
    for target, text in text_by_path.items():
        try:
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot be written: {system_reason(error)}", where=str(target)) from None


def json_value(value: Any) -> Any:
    """Return the value with dates, infinity and bytes as texts, because JSON does not have them."""
    if isinstance(value, dict):
        return {str(key): json_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [json_value(inner) for inner in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _check(imported: Imported) -> None:
    """Raise ConfigError unless our loader reads the same values from the converted config."""
    problems: list[Problem] = []
    where = "the imported config"
    values_read = flatten(parse_toml(imported.toml, where), where, problems)
    validate(values_read, {}, problems)
    if profile := values_read.get("profile"):
        find_profile(profile, "recipes")
    for key, value in imported.values.items():
        if key not in values_read or not is_same_value(values_read[key], value):
            problems.append(Problem(message=f"{_shown(value)} could not be written unchanged", where=where, key=key))
    if problems:
        raise ConfigError(problems)


def _wrapped(line: str, width: int, start: str = "") -> list[str]:
    prefix = start or " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line.strip(),
        width,
        initial_indent=prefix,
        subsequent_indent=f"{prefix}    ",
        # Long paths and values are not wrapped, because users copy them.
        break_long_words=False,
        break_on_hyphens=False,
    )


def _sources(rewrite: Rewrite) -> str:
    """Return the sources of a setting as text: `lora_r: 16`, `micro_batch_size 2 x gradient_accumulation_steps 8`."""
    mark, comma = (" ", " x ") if rewrite.is_product else (": ", ", ")
    text = comma.join(f"{_key(name)}{mark}{_shown(value)}" for name, value in rewrite.sources.items())
    return text or _NOT_IN_FILE


def _rewrite_line(rewrite: Rewrite) -> str:
    """Return the report's line for a setting: `lora_r: 16 -> tuning.r = 16`, and the reason if there is one."""
    reason = f" ({rewrite.reason})" if rewrite.reason else ""
    value = one_line(toml_text(rewrite.value), _TARGET_WIDTH)
    return f"{_sources(rewrite)} -> {rewrite.key} = {value}{reason}"


def _left_out_line(left: LeftOut) -> str:
    """Return the report's line for a key that was left out: `report_to: none (not needed: ...)`."""
    return f"{_given(left)} ({left.why}: {left.reason})"


def _given(left: LeftOut) -> str:
    return f"{_key(left.key)}: {_shown(left.value)}"


def _key(name: str) -> str:
    return one_line(name, _KEY_WIDTH)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) and value else json.dumps(json_value(value), ensure_ascii=False)
    return one_line(text, _VALUE_WIDTH)
