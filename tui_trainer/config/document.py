"""A config that is being edited: the user's values on top of presets, with undo and redo.

A file with mistakes opens too. The mistakes become `problems`, and `loaded` is available once every value is valid for
its setting. `save.py` writes the file, and `launching/drafts.py` writes edits that are not saved yet.

An edit returns at once. `set_fitted` receives what takes longer to compute: the presets that suit the model and the
data, and settings that contradict these."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tui_trainer.config.changes import (
    PRESET,
    Change,
    Edits,
    Patch,
    RecipePreview,
    UndoStep,
    is_same_value,
    with_changes,
)
from tui_trainer.config.editing import display_text
from tui_trainer.config.load import (
    DEFAULT_RECIPE,
    HardwareChoice,
    Layer,
    LoadedConfig,
    Origin,
    Presets,
    Request,
    all_settings,
    default_recipe,
    find_presets,
    flatten,
    user_layers,
    validate,
    value_of,
)
from tui_trainer.config.toml_files import file_digest, parse_toml
from tui_trainer.errors import ConfigError, Problem

Fit = Callable[[LoadedConfig], LoadedConfig]
EDITED_HERE = "edited here"


class ConfigDocument:
    """The edited config. `revision` increases with every change. `problems` has `config_problems` and those of plans.

    `unfitted` has the user's values on top of the unchanged presets. In `loaded`, presets that do not suit the rest of
    the config are replaced."""

    def __init__(self, request: Request, choose_hardware: HardwareChoice) -> None:
        self.request = request
        self.file, self.revision = request.config_file, 0
        self._choose_hardware = choose_hardware
        self.unfitted: LoadedConfig | None
        self.loaded: LoadedConfig | None = None
        self._fitted_layers: dict[str, Layer] = {}
        self._fit_source: LoadedConfig | None = None
        self._presets_cache: dict[tuple[str, Any], Presets] = {}
        self._saved: dict[str, Any] = {}
        self.config_problems: tuple[Problem, ...] = ()
        self._read()

    def _read(self) -> None:
        problems: list[Problem] = []
        self.digest = file_digest(self.file) if self.file else None
        layers = self._written_layers = user_layers(self.request, problems)
        self._base_layers = {key: layer for layer in layers for key in layer.values}
        self._file_problems = tuple(problems)
        self._undo_steps, self._redo_steps = list[UndoStep](), list[UndoStep]()
        self._apply({})
        self._saved = self.user_values()

    @property
    def recipe_name(self) -> str:
        return self._presets.recipe_name

    @property
    def is_default(self) -> bool:
        """Whether the config is the unchanged default recipe."""
        return self.recipe_name == DEFAULT_RECIPE and not self.changes()

    @property
    def is_unsaved(self) -> bool:
        """Whether there are edits since the last save or since the opening."""
        return bool(self.unsaved_values())

    def value(self, key: str) -> Any:
        """Return a setting's value as it was written, with relative paths. It may be invalid (see `problems`)."""
        return self._user_values[key] if key in self._user_values else self.preset_value(key)

    def preset_value(self, key: str) -> Any:
        """Return the value that a setting has without the user's value; for the setting `profile` the recipe's name."""
        if key == "profile":
            return self._presets.recipe_name
        return self._fitted_layers[key].values[key] if key in self._fitted_layers else self._presets.value(key)

    def is_changed(self, key: str) -> bool:
        """Return whether a setting's value differs from its preset."""
        return not is_same_value(self.value(key), self.preset_value(key))

    def is_edited(self, key: str) -> bool:
        """Return whether a setting's value differs from the value that was last saved or opened."""
        return key in self.unsaved_values()

    def changes(self) -> tuple[Change, ...]:
        """Return all settings that differ from their preset. `Change.old` is the preset."""
        changed_keys = filter(self.is_changed, all_settings())
        return tuple(Change(key=key, old=self.preset_value(key), new=self.value(key)) for key in changed_keys)

    def user_values(self) -> dict[str, Any]:
        """Return the user's values from config file, command line and edits, in the order of declaration."""
        return dict(self._user_values)

    def unsaved_values(self) -> dict[str, Any]:
        """Return the user's values that are not saved. A saved value that was removed is PRESET."""
        keys = [*(key for key in self._saved if key not in self._user_values), *self._user_values]
        values = {key: self._user_values.get(key, PRESET) for key in keys}
        return {key: value for key, value in values.items() if not is_same_value(value, self._saved.get(key, PRESET))}

    def where(self, key: str) -> str:
        """Return the source of the value: `recipe quickstart`, `my.toml`, `edited here`, `default`."""
        layer = self._fitted_layers.get(key) or self._layers.get(key)
        return layer.where if layer else "default"

    def problems_of(self, key: str) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.key == key)

    def set_plan_problems(self, problems: tuple[Problem, ...]) -> None:
        """Set the problems that planning found, until the next change. One without a setting is put at `data.path`."""
        new_problems = [problem for problem in problems if problem not in self.config_problems]
        keyed = (problem if problem.key else Problem(key="data.path", message=str(problem)) for problem in new_problems)
        self.problems = (*self.config_problems, *keyed)

    def set_fitted(self, fitted_config: LoadedConfig, problems: Sequence[Problem] = ()) -> None:
        """Set `loaded` to `fitted_config`, which is `unfitted` with unsuitable presets replaced, and its problems."""
        assert self.unfitted is not None, "nothing else is fitted"
        replaced_presets = _replaced_presets(self.unfitted, fitted_config)
        self.revision += replaced_presets != self._fitted_layers
        self.loaded, self._fitted_layers, self._fit_source = fitted_config, replaced_presets, self.unfitted
        self.config_problems = self.problems = (*self._written_problems, *problems)

    # Changes

    def set(self, key: str, value: Any) -> Problem | None:
        """Set the value of one setting. If the value is invalid, change nothing and return a problem."""
        return next(iter(self.patch({key: value}, "")), None)

    def patch(self, values: Mapping[str, Any], label: str) -> tuple[Problem, ...]:
        """Set several values as one step; PRESET resets a setting. If any is invalid, change nothing."""
        valid_values: dict[str, Any] = {}
        problems: list[Problem] = []
        for key, value in values.items():
            valid_values[key] = value if value is PRESET else _check_value(key, value, self._choose_hardware, problems)
        if problems:
            return tuple(problems)
        edits = self._merge_edits(self._edits, valid_values)
        if edits != self._edits:
            self._undo_steps.append(UndoStep(label=label, before=self._edits, after=edits))
            self._redo_steps.clear()
            self._apply(edits)
        return ()

    def reset(self, key: str) -> None:
        """Reset a setting to its preset."""
        self.patch({key: PRESET}, "")

    def reset_all(self) -> None:
        """Reset all settings except the recipe and the hardware profile."""
        profiles = ("profile", "hardware_profile")
        self.patch({key: PRESET for key in self.user_values() if key not in profiles}, "the reset of all settings")

    def choose_recipe(self, name: str, *, keep_own: bool = True) -> Problem | None:
        """Set the recipe as one step. With `keep_own` False, the step also resets all other settings."""
        resets = {} if keep_own else dict.fromkeys(self.user_values(), PRESET)
        return next(iter(self.patch({**resets, "profile": name}, f"the change to recipe {name}")), None)

    def with_recipe(self, name: str, *, keep_own: bool = True) -> LoadedConfig | None:
        """Return `unfitted` for another recipe, with or without the user's values. The document does not change.

        Returns None if a value is invalid. Raises ConfigError if there is no such recipe."""
        user_values = {key: value for key, value in self._user_values.items() if keep_own and key != "profile"}
        presets = self._presets_for({**user_values, "profile": name})
        if presets.problems:
            raise ConfigError(presets.problems)
        return self._load_from(presets, {**presets.layers, **{key: self._layer(key) for key in user_values}}, [])

    def preview_recipe(self, name: str, *, keep_own: bool = True, fit: Fit = lambda it: it) -> RecipePreview:
        """Return the changes that `choose_recipe` would make. `fit` replaces unsuitable presets. Raises ConfigError."""
        unfitted = self.with_recipe(name, keep_own=keep_own)
        user_values = {key: value for key, value in self._user_values.items() if keep_own and key != "profile"}
        presets = self._presets_for({**user_values, "profile": name})
        keys = [key for key in all_settings() if key != "profile"]
        replaced_presets = _replaced_presets(unfitted, fit(unfitted)) if unfitted else {}
        fitted_values = {key: layer.values[key] for key, layer in replaced_presets.items()}
        new_values = {key: presets.value(key) for key in keys} | fitted_values | user_values
        changed_keys = [key for key in keys if not is_same_value(self.value(key), new_values[key])]
        kept_keys = [key for key in user_values if not is_same_value(user_values[key], presets.value(key))]
        return RecipePreview(
            changes=tuple(Change(key=key, old=self.value(key), new=new_values[key]) for key in changed_keys),
            kept_changes=tuple(Change(key=key, old=user_values[key], new=presets.value(key)) for key in kept_keys),
        )

    @property
    def can_undo(self) -> bool:
        return bool(self._undo_steps)

    @property
    def can_redo(self) -> bool:
        return bool(self._redo_steps)

    def undo(self) -> str:
        """Undo the last step. Returns a message, which is empty if there was no step."""
        if not self._undo_steps:
            return ""
        self._redo_steps.append(step := self._undo_steps.pop())
        return self._go_to(step.before, f"undid {step.label}" if step.label else "", step)

    def redo(self) -> str:
        """Repeat the last undone step. Returns a message, which is empty if there was no such step."""
        if not self._redo_steps:
            return ""
        self._undo_steps.append(step := self._redo_steps.pop())
        return self._go_to(step.after, f"redid {step.label}" if step.label else "", step)

    def replace_values(
        self,
        text: str,
        label: str = "the text from the editor",
        ignored_keys: Collection[str] = (),
        patch: Patch | None = None,
    ) -> None:
        """Replace the user's values by those of a TOML text, ignoring `ignored_keys`, and add `patch`, in one step.

        Raises ConfigError and changes nothing if the text or a value is invalid."""
        problems: list[Problem] = []
        toml_values = flatten(parse_toml(text, label), label, problems)
        edits = {key: value for key, value in toml_values.items() if key not in ignored_keys} | dict(patch or {})
        valid_values = {key: _check_value(key, value, self._choose_hardware, problems) for key, value in edits.items()}
        if problems:
            raise ConfigError(problems)
        resets = dict.fromkeys(self.user_values(), PRESET)
        self.patch(resets | valid_values, label)

    def restore(self, edits: Edits) -> int:
        """Apply the valid edits of an earlier session as one step. Returns how many edits were applied."""
        valid_edits = {}
        for key, value in edits.items():
            problems: list[Problem] = []
            if value is not PRESET:
                _check_value(key, value, self._choose_hardware, problems)
            if key in all_settings() and not problems:
                valid_edits[key] = value
        self.patch(valid_edits, f"{len(valid_edits)} restored edits")
        return len(valid_edits)

    def reload(self) -> None:
        """Read the file again and apply the unsaved edits to it. This clears the undo history."""
        edits = self.unsaved_values()
        self._presets_cache.clear()
        self._read()
        self._apply(self._merge_edits({}, edits))

    def update_hardware_profile(self) -> None:
        """Choose the hardware profile again, without changing the edits and their history."""
        self._presets_cache.clear()
        self._apply(self._edits)

    def mark_saved(self, path: Path, digest: str, user_values: Mapping[str, Any] | None = None) -> None:
        """Record that `path` now contains `user_values`, or by default the present values."""
        self.file, self.digest = path, digest
        self._saved = self.user_values() if user_values is None else dict(user_values)
        self._apply(self._edits)

    def _user_value(self, key: str) -> Any:
        if key in self._edits:
            return self._edits[key]
        return self._base_layers[key].values[key] if key in self._base_layers else PRESET

    def _merge_edits(self, edits: Edits, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the edits with `values` merged in. A value equal to the file's is no edit; a preset becomes PRESET."""
        user_values = {key: value for key, value in {**self._user_values, **values}.items() if value is not PRESET}
        presets, merged_edits = self._presets_for(user_values), dict(edits)
        for key, value in values.items():
            base_value = self._base_layers[key].values[key] if key in self._base_layers else PRESET
            if key == "profile":
                preset_value = self._default_recipe(user_values)
            else:
                preset_value = self.preset_value(key) if key in self._fitted_layers else presets.value(key)
            new_value = PRESET if is_same_value(value, preset_value) and not is_same_value(value, base_value) else value
            merged_edits.pop(key, None)
            if not is_same_value(new_value, base_value):
                merged_edits[key] = new_value
        return merged_edits

    def _go_to(self, edits: Edits, message: str, step: UndoStep) -> str:
        """Set the edits before or after a step. Return `message`, or else the values that settings have now."""
        keys = (key for key in {**step.before, **step.after} if step.before.get(key) != step.after.get(key))
        settings = [all_settings()[key] for key in keys]
        old_texts = [display_text(setting, self.value(setting.key)) for setting in settings]
        self._apply(edits)
        new_texts = [display_text(setting, self.value(setting.key)) for setting in settings]
        return message or ", ".join(
            f"{setting.name} is {new_text} again (was {old_text})"
            for setting, old_text, new_text in zip(settings, old_texts, new_texts, strict=True)
        )

    def _apply(self, edits: Edits) -> None:
        """Set the edits, and compute the document's presets, layers, configs and problems from them."""
        self._edits = edits
        self._user_values = {key: value for key in all_settings() if (value := self._user_value(key)) is not PRESET}
        self._presets = self._presets_for(self._user_values)
        default_values = {"profile": self.recipe_name} if self.recipe_name else {}
        default_layer = Layer(origin=Origin.DEFAULT, where="default", values=default_values)
        layers_of_user = {key: self._layer(key) for key in self._user_values}
        self._layers = {**dict.fromkeys(default_values, default_layer), **self._presets.layers, **layers_of_user}
        problems = [*self._file_problems, *self._presets.problems]
        self.unfitted = self._load_from(self._presets, self._layers, problems)
        self.loaded = self._with_earlier_fit(self.unfitted) if self.unfitted else None
        self.config_problems = self.problems = self._written_problems = tuple(problems)
        self.revision += 1

    def _load_from(self, presets: Presets, layers: dict[str, Layer], problems: list[Problem]) -> LoadedConfig | None:
        """Return the config that the layers give, without fitted presets; None if a value is invalid."""
        config = validate({key: layer.values[key] for key, layer in layers.items()}, layers, problems)
        return presets.loaded(config, layers).with_notes_of(self._written_layers) if config else None

    def _with_earlier_fit(self, unfitted: LoadedConfig) -> LoadedConfig:
        """Return `unfitted` with those replacements of the last `set_fitted` whose presets have not changed since.

        It is shown until the next `set_fitted`, so that values do not change back and forth."""
        old_layers = self._fit_source.layers if self._fit_source else {}
        is_unchanged = {key: old_layers.get(key) == unfitted.layers.get(key) for key in self._fitted_layers}
        layers = {key: layer for key, layer in self._fitted_layers.items() if is_unchanged[key]}
        self._fitted_layers = layers
        config = with_changes(unfitted.config, {key: layer.values[key] for key, layer in layers.items()})
        columns = self.loaded.columns if self.loaded else {}
        return replace(unfitted, config=config, layers={**unfitted.layers, **layers}, columns=columns)

    def _default_recipe(self, user_values: Mapping[str, Any]) -> str:
        return default_recipe(self.request, [Layer(origin=Origin.EDITED, where=EDITED_HERE, values=dict(user_values))])

    def _presets_for(self, user_values: Mapping[str, Any]) -> Presets:
        requested_name = user_values.get("profile")
        name = requested_name if isinstance(requested_name, str) else self._default_recipe(user_values)
        cache_key = (name, repr(user_values.get("hardware_profile")))
        if cache_key not in self._presets_cache:
            self._presets_cache[cache_key] = find_presets(name, user_values, self._choose_hardware)
        return self._presets_cache[cache_key]

    def _layer(self, key: str) -> Layer:
        value = self._user_values[key]
        if key not in self._edits:
            return self._base_layers[key]
        if self.file and is_same_value(value, self._saved.get(key, PRESET)):
            return Layer(origin=Origin.FILE, where=str(self.file), values={key: value})
        return Layer(origin=Origin.EDITED, where=EDITED_HERE, values={key: value})


def _replaced_presets(unfitted: LoadedConfig, fitted_config: LoadedConfig) -> dict[str, Layer]:
    return {key: layer for key, layer in fitted_config.layers.items() if unfitted.layers.get(key) is not layer}


def _check_value(key: str, value: Any, choose_hardware: HardwareChoice, problems: list[Problem]) -> Any:
    """Return the value converted to the type of its setting (3 to 3.0). Adds to `problems` if the value is invalid."""
    if key not in all_settings():
        flatten({key: value}, "", problems)
        return value
    config = validate({key: value}, {}, problems)
    if config is None:
        return value
    if key == "profile":
        problems += find_presets(value, {}, choose_hardware).problems
    elif key == "hardware_profile":
        problems += find_presets("", {key: value}, choose_hardware).problems
    return value_of(config, key)
