"""A config that is being edited: presets below, the user's own values above, every change undoable.

It opens whatever is asked for, also a file with mistakes: they are `problems`, and `loaded` is there as soon as every
value fits its setting. Nothing is written here: `save.py` writes a file, `launching/drafts.py` what is not saved yet.

An edit waits for nothing. What needs a look at the model and the data comes later: which presets suit them, and what
contradicts them. Whoever has looked hands it to `take_fitted`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tui_trainer.config.changes import PRESET, Change, Edits, Patch, RecipePreview, Step, same, with_changes
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
    """One config on the table. `revision` grows with every change; `problems` are `own_problems` and the plan's.

    `plain` is what was written on top of the presets; `loaded` has those presets changed that do not suit the rest.
    """

    def __init__(self, request: Request, choose_hardware: HardwareChoice) -> None:
        self.request = request
        self.file, self.revision = request.config_file, 0
        self._choose_hardware = choose_hardware
        self.plain: LoadedConfig | None
        self.loaded: LoadedConfig | None = None
        self._fitted: dict[str, Layer] = {}
        self._fitted_of: LoadedConfig | None = None
        self._found: dict[tuple[str, Any], Presets] = {}
        self._saved: dict[str, Any] = {}
        self.own_problems: tuple[Problem, ...] = ()
        self._read()

    def _read(self) -> None:
        problems: list[Problem] = []
        self.digest = file_digest(self.file) if self.file else None
        layers = self._written_layers = user_layers(self.request, problems)
        self._base = {key: layer for layer in layers for key in layer.values}
        self._file_problems = tuple(problems)
        self._done, self._undone = list[Step](), list[Step]()
        self._become({})
        self._saved = self.own_values()

    # What there is

    @property
    def recipe_name(self) -> str:
        return self._presets.recipe_name

    @property
    def is_default(self) -> bool:
        """Whether it is the recipe that needs nothing from anybody, as it is."""
        return self.recipe_name == DEFAULT_RECIPE and not self.changes()

    @property
    def is_unsaved(self) -> bool:
        """Something was edited since the last save, or since it was opened."""
        return bool(self.unsaved())

    def value(self, key: str) -> Any:
        """The value as it was written; paths are not made whole. It may be wrong: see `problems`."""
        return self._own[key] if key in self._own else self.preset_value(key)

    def preset_value(self, key: str) -> Any:
        """What recipe, hardware profile and defaults give, fitted to the rest; the recipe itself is one as well."""
        if key == "profile":
            return self._presets.recipe_name
        return self._fitted[key].values[key] if key in self._fitted else self._presets.value(key)

    def is_changed(self, key: str) -> bool:
        """Differs from what the presets give."""
        return not same(self.value(key), self.preset_value(key))

    def is_edited(self, key: str) -> bool:
        """Differs from what was saved or opened last."""
        return key in self.unsaved()

    def changes(self) -> tuple[Change, ...]:
        """Every setting that differs from the presets (`old`)."""
        return tuple(
            Change(key=key, old=self.preset_value(key), new=self.value(key))
            for key in all_settings()
            if self.is_changed(key)
        )

    def own_values(self) -> dict[str, Any]:
        """What the user wrote, in file, command line or here, in the order of declaration."""
        return dict(self._own)

    def unsaved(self) -> dict[str, Any]:
        """Own values that are not saved; PRESET for one that was saved and is none any more."""
        gone = {key: PRESET for key in self._saved if key not in self._own}
        return gone | {key: value for key, value in self._own.items() if not same(value, self._saved.get(key, PRESET))}

    def where(self, key: str) -> str:
        """Where the value comes from: `recipe quickstart`, `my.toml`, `edited here`, `default`."""
        layer = self._fitted.get(key) or self._layers.get(key)
        return layer.where if layer else "default"

    def problems_of(self, key: str) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.key == key)

    def note_problems(self, problems: tuple[Problem, ...]) -> None:
        """What planning found wrong; it stands until the next change. What is wrong with files names a file and no
        setting: it stands beside the path, in the same words."""
        found = [one for one in problems if one not in self.own_problems]
        of_files = (one if one.key else Problem(key="data.path", message=str(one)) for one in found)
        self.problems = (*self.own_problems, *of_files)

    def take_fitted(self, fitted: LoadedConfig, problems: Sequence[Problem] = ()) -> None:
        """What was made of `plain`, as it is made without a screen, and what was found wrong with it."""
        assert self.plain is not None, "nothing else is fitted"
        found = _layers_between(self.plain, fitted)
        self.revision += found != self._fitted
        self.loaded, self._fitted, self._fitted_of = fitted, found, self.plain
        self.own_problems = self.problems = (*self._written_problems, *problems)

    # Changes

    def set(self, key: str, value: Any) -> Problem | None:
        """One value. A Problem when it does not fit its setting; then nothing has changed."""
        return next(iter(self.patch({key: value}, "")), None)

    def patch(self, values: Mapping[str, Any], label: str) -> tuple[Problem, ...]:
        """Several values as one step that is undone at once; PRESET resets one. All problems, and then no change."""
        fit: dict[str, Any] = {}
        problems: list[Problem] = []
        for key, value in values.items():
            fit[key] = value if value is PRESET else _fitting(key, value, self._choose_hardware, problems)
        if problems:
            return tuple(problems)
        edits = self._placed(self._edits, fit)
        if edits != self._edits:
            words = label or ", ".join(self._label(key, value) for key, value in fit.items())
            self._done.append(Step(label=words, before=self._edits, after=edits))
            self._undone.clear()
            self._become(edits)
        return ()

    def reset(self, key: str) -> None:
        """Back to what the presets give."""
        self.patch({key: PRESET}, "")

    def reset_all(self) -> None:
        """Back to the recipe and the hardware profile in force, without any value of the user's own."""
        kept = ("profile", "hardware_profile")
        self.patch({key: PRESET for key in self.own_values() if key not in kept}, "the reset of all settings")

    def choose_recipe(self, name: str, *, keep_own: bool = True) -> Problem | None:
        """Start from another recipe; the user's own values stay or go, in the same step."""
        old, gone = self.recipe_name, {} if keep_own else dict.fromkeys(self.own_values(), PRESET)
        return next(iter(self.patch({**gone, "profile": name}, f"recipe {old or 'none'} -> {name}")), None)

    def with_recipe(self, name: str, *, keep_own: bool = True) -> LoadedConfig | None:
        """As `plain`, with another recipe below the user's own values, or instead of them; None where a value fits no
        setting. It changes nothing. Raises ConfigError when there is no such recipe."""
        own = {key: value for key, value in self._own.items() if keep_own and key != "profile"}
        presets = self._presets_for({**own, "profile": name})
        if presets.problems:
            raise ConfigError(presets.problems)
        return self._plain_of(presets, {**presets.layers, **{key: self._layer(key) for key in own}}, [])

    def preview_recipe(self, name: str, *, keep_own: bool = True, fit: Fit = lambda plain: plain) -> RecipePreview:
        """What `choose_recipe` would do, as `fit` makes it suit the rest. Raises ConfigError when there is no such
        recipe."""
        plain = self.with_recipe(name, keep_own=keep_own)
        own = {key: value for key, value in self._own.items() if keep_own and key != "profile"}
        presets = self._presets_for({**own, "profile": name})
        keys = [key for key in all_settings() if key != "profile"]
        changed_presets = _layers_between(plain, fit(plain)) if plain else {}
        fitted = {key: layer.values[key] for key, layer in changed_presets.items()}
        new = {key: presets.value(key) for key in keys} | fitted | own
        changed = [key for key in keys if not same(self.value(key), new[key])]
        stays = [key for key in own if not same(own[key], presets.value(key))]
        return RecipePreview(
            changes=tuple(Change(key=key, old=self.value(key), new=new[key]) for key in changed),
            stays=tuple(Change(key=key, old=own[key], new=presets.value(key)) for key in stays),
        )

    @property
    def can_undo(self) -> bool:
        return bool(self._done)

    @property
    def can_redo(self) -> bool:
        return bool(self._undone)

    def undo(self) -> str:
        """What was undone, as a sentence; empty when there was nothing."""
        if not self._done:
            return ""
        self._undone.append(step := self._done.pop())
        self._become(step.before)
        return f"undid {step.label}"

    def redo(self) -> str:
        """What was done again, as a sentence; empty when there was nothing."""
        if not self._undone:
            return ""
        self._done.append(step := self._undone.pop())
        self._become(step.after)
        return f"redid {step.label}"

    def take(
        self,
        text: str,
        label: str = "the text from the editor",
        without: Collection[str] = (),
        also: Patch | None = None,
    ) -> None:
        """The user's own values become those of a TOML text but for those `without`, with those of `also`, in one step.

        Raises ConfigError; then nothing changed.
        """
        problems: list[Problem] = []
        values = flatten(parse_toml(text, label), label, problems)
        kept = {key: value for key, value in values.items() if key not in without} | dict(also or {})
        fit = {key: _fitting(key, value, self._choose_hardware, problems) for key, value in kept.items()}
        if problems:
            raise ConfigError(problems)
        gone = dict.fromkeys(self.own_values(), PRESET)
        self.patch(gone | fit, label)

    def restore(self, edits: Edits) -> int:
        """Unsaved edits of an earlier session, in one step; those that fit nothing any more are left out."""
        problems: list[Problem] = []
        known = {key: value for key, value in edits.items() if key in all_settings()}
        for key in [key for key, value in known.items() if value is not PRESET]:
            before = len(problems)
            _fitting(key, known[key], self._choose_hardware, problems)
            if len(problems) > before:
                del known[key]
        self.patch(known, f"{len(known)} restored edits")
        return len(known)

    # Files

    def reload(self) -> None:
        """The file as it is now, with the unsaved edits on top of it. The way back to before is gone."""
        edits = self.unsaved()
        self._found.clear()
        self._read()
        self._become(self._placed({}, edits))

    def machine_changed(self) -> None:
        """The hardware profile may be another one now; edits and history stay."""
        self._found.clear()
        self._become(self._edits)

    def mark_saved(self, path: Path, digest: str, own_values: Mapping[str, Any] | None = None) -> None:
        """What there is now stands in this file, or these `own_values` of a moment before."""
        self.file, self.digest = path, digest
        self._saved = self.own_values() if own_values is None else dict(own_values)
        self._become(self._edits)

    def _written(self, key: str) -> Any:
        if key in self._edits:
            return self._edits[key]
        return self._base[key].values[key] if key in self._base else PRESET

    def _placed(self, edits: Edits, values: Mapping[str, Any]) -> dict[str, Any]:
        """The edits with these on top. What the file says anyway is no edit, what the presets give no own value."""
        own = {key: value for key, value in {**self._own, **values}.items() if value is not PRESET}
        presets, placed = self._presets_for(own), dict(edits)
        for key, value in values.items():
            base = self._base[key].values[key] if key in self._base else PRESET
            preset = self.preset_value(key) if key in self._fitted else presets.value(key)
            given = self._default_recipe(own) if key == "profile" else preset
            new = PRESET if same(value, given) and not same(value, base) else value
            placed.pop(key, None)
            if not same(new, base):
                placed[key] = new
        return placed

    def _label(self, key: str, value: Any) -> str:
        setting = all_settings()[key]
        preset = self._default_recipe(self._own) if key == "profile" else self.preset_value(key)
        old, new = self.value(key), preset if value is PRESET else value
        return f"{setting.name} {display_text(setting, old)} -> {display_text(setting, new)}"

    def _become(self, edits: Edits) -> None:
        """Everything that follows from the edits is made anew: presets, layers, config, problems."""
        self._edits = edits
        self._own = {key: value for key in all_settings() if (value := self._written(key)) is not PRESET}
        self._presets = self._presets_for(self._own)
        name = {"profile": self.recipe_name} if self.recipe_name else {}
        named = Layer(origin=Origin.DEFAULT, where="default", values=name)
        own = {key: self._layer(key) for key in self._own}
        self._layers = {**dict.fromkeys(name, named), **self._presets.layers, **own}
        problems = [*self._file_problems, *self._presets.problems]
        self.plain = self._plain_of(self._presets, self._layers, problems)
        self.loaded = self._with_what_stands(self.plain) if self.plain else None
        self.own_problems = self.problems = self._written_problems = tuple(problems)
        self.revision += 1

    def _plain_of(self, presets: Presets, layers: dict[str, Layer], problems: list[Problem]) -> LoadedConfig | None:
        """None where a value fits no setting."""
        config = validate({key: layer.values[key] for key, layer in layers.items()}, layers, problems)
        return presets.under(config, layers).noting(self._written_layers) if config else None

    def _with_what_stands(self, plain: LoadedConfig) -> LoadedConfig:
        """Until it is fitted anew, with what was made of the same presets before: nothing moves to and fro."""
        before = self._fitted_of.layers if self._fitted_of else {}
        stands = {key: layer for key, layer in self._fitted.items() if before.get(key) == plain.layers.get(key)}
        self._fitted = stands
        config = with_changes(plain.config, {key: layer.values[key] for key, layer in stands.items()})
        columns = self.loaded.columns if self.loaded else {}
        return replace(plain, config=config, layers={**plain.layers, **stands}, columns=columns)

    def _default_recipe(self, own: Mapping[str, Any]) -> str:
        """As in `load()`: naming a model starts from another recipe, and a file that names none wants none."""
        return default_recipe(self.request, [Layer(origin=Origin.EDITED, where=EDITED_HERE, values=dict(own))])

    def _presets_for(self, own: Mapping[str, Any]) -> Presets:
        """Profiles are files: each pair of them is read once."""
        requested = own.get("profile")
        name = requested if isinstance(requested, str) else self._default_recipe(own)
        asked = (name, repr(own.get("hardware_profile")))
        if asked not in self._found:
            self._found[asked] = find_presets(name, own, self._choose_hardware)
        return self._found[asked]

    def _layer(self, key: str) -> Layer:
        value = self._own[key]
        if key not in self._edits:
            return self._base[key]
        if self.file and same(value, self._saved.get(key, PRESET)):
            return Layer(origin=Origin.FILE, where=str(self.file), values={key: value})
        return Layer(origin=Origin.EDITED, where=EDITED_HERE, values={key: value})


def _layers_between(plain: LoadedConfig, fitted: LoadedConfig) -> dict[str, Layer]:
    """Of the presets that were changed to suit the rest."""
    return {key: layer for key, layer in fitted.layers.items() if plain.layers.get(key) is not layer}


def _fitting(key: str, value: Any, choose_hardware: HardwareChoice, problems: list[Problem]) -> Any:
    """The value as its setting keeps it (3 as 3.0). What does not fit, or names no profile, is added to `problems`."""
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
