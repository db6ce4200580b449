"""A finished run's model, to be exported or tried: where its files are, what it learnt, and how it is loaded."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.config.sections import Config
from tui_trainer.errors import CheckpointError, ConfigError, FolderError, system_reason
from tui_trainer.models.added_tokens import resize_for_adapter
from tui_trainer.models.config_json import CONFIG_FILE, read_config, read_json
from tui_trainer.models.facts import ADAPTER_FILE, find_model
from tui_trainer.models.files import shards
from tui_trainer.models.files.fingerprint import file_fingerprints
from tui_trainer.models.heads import CLASSIFYING, Head, auto_class
from tui_trainer.models.rope import set_positions
from tui_trainer.models.towers import has_towers
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.plan_file import DamagedPlanError, changed_base, read_plan_file, with_own_commit
from tui_trainer.runs.events import RunFinished
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import last_events
from tui_trainer.runs.state import fold
from tui_trainer.tasks import find_task
from tui_trainer.tasks.parts.task import Task
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.training.checkpoint_folder import (
    CheckpointFolder,
    best_step,
    damage_of,
    kept_plan,
    newest_whole,
    steps_saved,
)
from tui_trainer.tuning.some_layers import METHOD as SOME_LAYERS
from tui_trainer.units import GIB

_NOTHING_LEFT = "the checkpoints are gone as well, so the model cannot be written again"


def weights_of(run: RunFolder) -> Path:
    """The folder to load a model from: the final one, else the newest checkpoint. Raises FolderError without any."""
    if run.model.is_dir():
        return final_model(run)
    checkpoint = newest_whole(run.checkpoints, lambda damage: None)
    if checkpoint is None:
        if finish_of(run):
            return final_model(run)
        hint = f"train it with `tui-trainer resume {shell_word(run.name)}`"
        raise FolderError("this run has no model and no checkpoint yet", where=run.name, hint=hint)
    return _as_the_final(run, checkpoint)[0] if finish_of(run) else checkpoint.path


def _as_the_final(run: RunFolder, newest: CheckpointFolder) -> tuple[Path, str]:
    """The checkpoint whose weights the final model of a finished run has, and what it is, in words. Raises
    FolderError."""
    best = best_step(newest.path) if plan_of(run).config.evaluation.early_stopping_patience else 0
    if best in (0, newest.step):
        return newest.path, f"{newest.path.name} (last step)"
    folder = newest.path.with_name(f"step-{best}")
    if damage := damage_of(folder, best):
        words = f"{newest.path.name} (last step), because {folder.name} with the best evaluation is damaged: {damage}"
        return newest.path, words
    return folder, f"{folder.name} (best evaluation)"


def final_model(run: RunFolder) -> Path:
    """The folder of the final model, as the run wrote it. Raises FolderError where it is not there, or was changed."""
    finished = finish_of(run)
    if not run.model.is_dir():
        if finished is None:
            hint = f"resume it with `tui-trainer resume {shell_word(run.name)}`"
            raise FolderError("this run has no final model yet", where=run.name, hint=hint)
        raise FolderError(
            f"the folder `{run.model.name}` of this run is gone", where=run.name, hint=_written_again(run)
        )
    if not any(run.model.glob("*.safetensors")):
        message = f"the folder `{run.model.name}` of this run contains no weights"
        raise FolderError(message, where=run.name, hint=_moved_away(run))
    if finished and (changed := _changed_files(run, finished)):
        message = (
            f"the folder `{run.model.name}` has changed since the run wrote it: {one_line(', '.join(changed), 200)}"
        )
        raise FolderError(message, where=run.name, hint=f"restore the original files, or {_moved_away(run)}")
    return run.model


def finish_of(run: RunFolder) -> RunFinished | None:
    """How the run came to its end; None where it did not. Raises FolderError for a journal that cannot be read."""
    try:
        finished = fold(last_events(run.journal)).finished
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FolderError(f"the journal of this run cannot be read: {system_reason(error)}", where=run.name) from None
    return finished if finished and finished.reason != "stopped" else None


def _changed_files(run: RunFolder, finished: RunFinished) -> list[str]:
    """Of those that the run has noted when it wrote them."""
    if not finished.model_files:
        return []
    try:
        found = file_fingerprints(run.model)
    except (ConfigError, OSError) as error:
        raise FolderError(
            f"the folder `{run.model.name}` of this run cannot be read: {error}", where=run.name
        ) from None
    return [name for name, wanted in finished.model_files.items() if found.get(name) != wanted]


def model_again(run: RunFolder) -> str:
    """From which checkpoint the final model of a finished run can be written again, in a sentence; empty where it is
    there. Raises FolderError where nothing is left to write it from."""
    finished = finish_of(run)
    if run.model.exists() or finished is None:
        return ""
    try:
        newest = newest_whole(run.checkpoints, lambda damage: None)
    except CheckpointError as error:
        raise FolderError(str(error), where=run.name) from None
    if newest is None:
        raise FolderError(f"the folder `{run.model.name}` of this run is gone", where=run.name, hint=_NOTHING_LEFT)
    words = f"the run is finished, but its folder `{run.model.name}` is gone. The model is written again from"
    if newest.step < finished.step:
        again = f"after training steps {newest.step + 1} to {finished.step} again"
        return f"{words} {newest.path.name}, the latest intact checkpoint, {again}"
    return f"{words} {_as_the_final(run, newest)[1]}"


def _written_again(run: RunFolder) -> str:
    again = f"`tui-trainer resume {shell_word(run.name)}` writes the model again from the checkpoints"
    return again if steps_saved(run.checkpoints) else _NOTHING_LEFT


def _moved_away(run: RunFolder) -> str:
    again = _written_again(run)
    return again if again == _NOTHING_LEFT else f"move {one_line(str(run.model), 300)} to another place: {again}"


def adapter_base(source: Path) -> str:
    """The model that the adapter in this folder is for, as peft wrote it down; empty where there is no adapter."""
    try:
        told = json.loads((source / "adapter_config.json").read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        return ""
    return one_line(told, 300) if isinstance(told, str) else ""


def source_words(source: Path) -> str:
    """`model`, or `model, an adapter on /models/llama`. Raises FolderError for an adapter whose model is gone."""
    base = adapter_base(source)
    if base and Path(base).is_absolute() and not Path(base).is_dir():
        hint = f"put the model back there, or write its new path into {source / 'adapter_config.json'}"
        raise FolderError(f"the base model of this adapter no longer exists: {base}", where=source.name, hint=hint)
    return f"{source.name}, an adapter on {base}" if base else source.name


def plan_of(run: RunFolder, notes: list[str] | None = None) -> Plan:
    """What the run followed, by the copy in its newest checkpoint where plan.json is damaged or gone. What of its
    settings is not used any more is reported in `notes`. Raises FolderError."""
    notes = [] if notes is None else notes
    try:
        try:
            plan = read_plan_file(run.plan.read_bytes(), notes, finished=True)
        except (FileNotFoundError, DamagedPlanError):
            name, content = kept_plan(run.checkpoints) or ("", None)
            if content is None:
                raise
            plan = read_plan_file(content, notes, finished=True)
            notes.append(f"plan.json is damaged or missing; its copy in {name} is used")
    except (OSError, ValueError, CheckpointError) as error:
        raise FolderError(f"the plan of this run cannot be read: {error}", where=run.name) from None
    return with_own_commit(plan)


def refuse_changed_base(plan: Plan, base: Path) -> None:
    """Raises FolderError where the model in `base` is not the one that an adapter of this run was trained on."""
    if problem := changed_base(plan, base):
        raise FolderError(problem)


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedModel:
    """`folder` holds the whole model, or an adapter; `base` is then the folder of the model that it is for.

    `config` are the settings of the run. Where the model that it began with is not at the place that they name, they
    name that of the adapter, or the trained model itself: it has the same tokens.
    """

    run: RunFolder
    plan: Plan
    config: Config
    folder: Path
    head: Head
    base: Path | None
    notes: tuple[str, ...] = ()
    """What of the settings of the run this version does not use any more."""

    @classmethod
    def of(cls, run: RunFolder, *, unfinished: bool = False) -> "TrainedModel":
        """The final model, or with `unfinished` the newest checkpoint where there is none.

        Raises FolderError for a run that has none, or whose plan another version wrote.
        """
        folder = weights_of(run) if unfinished else final_model(run)
        notes = list[str]()
        plan = plan_of(run, notes)
        head = find_task(plan.config.task.type).head
        base = base_of(folder, head, plan.config.model.revision)
        if base:
            refuse_changed_base(plan, base)
        config = _with_model_here(plan.config, base or folder, head)
        return cls(run=run, plan=plan, config=config, folder=folder, head=head, base=base, notes=tuple(notes))

    @property
    def task(self) -> Task:
        return find_task(self.config.task.type)

    def base_model(self) -> tuple[Path | None, str]:
        """The same as `began_with`, or why it cannot stand beside the trained one."""
        folder, reason = self.began_with()
        if folder and self.head in CLASSIFYING and labels_of(self, folder) != labels_of(self, self.folder):
            return None, "the base model has no head for these labels"
        return folder, reason

    def began_with(self) -> tuple[Path | None, str]:
        """The folder of the model that training began with, or why it is not there: a sentence, empty for a run from
        scratch."""
        config = self.plan.config
        name = config.model.model_name_or_path
        if config.model.init == "scratch" or not name:
            return None, ""
        try:
            facts = find_model(name, config.model.revision, head=self.head)
            if self.config.model.add_tokens:
                return None, "the base model has no embeddings for the added tokens"
            if facts.adapter:
                return None, "training began with an adapter, which cannot be evaluated for comparison"
            folder = self.base or facts.folder
            if folder and not self.base and (problem := changed_base(self.plan, folder)):
                return None, str(problem)
        except ConfigError:
            folder = None
        if folder is None:
            return None, f"the base model {name} is not on this disk"
        return folder, ""

    @property
    def has_towers(self) -> bool:
        return has_towers(read_config(self.base or self.folder).get("model_type"))

    @property
    def writes(self) -> bool:
        """Whether it writes texts; else it gives labels or numbers."""
        return self.head not in CLASSIFYING

    @property
    def weight_bytes(self) -> int:
        """Of the files of the whole model, without an adapter."""
        return sum(path.stat().st_size for path in (self.base or self.folder).glob("*.safetensors"))

    @property
    def loaded_bytes(self) -> int:
        """Of all files that it is loaded from: an adapter and its model, or layers that train and those that do not."""
        partial = shards.files_of(self.folder, SOME_LAYERS.weights_file)
        folders = {self.folder, self.base, self.began_with()[0] if partial else None} - {None}
        return sum(path.stat().st_size for folder in folders if folder for path in folder.glob("*.safetensors"))

    @property
    def compared_dtype(self) -> str:
        """In which it is compared with an export: fp32, unless that would take more than 16 GiB of memory."""
        return "float32" if self.weight_bytes < 4 * GIB else "auto"

    def load(self, *, dtype: "torch.dtype | str" = "auto", merge: bool = False) -> Any:
        """The model on the CPU, with its adapter, or with `merge` as one with it."""
        model = load_model(self, self.folder, self.base, dtype=dtype, merge=merge)
        if self.writes:
            # An adapter comes with the settings of its base model, and so does what an earlier version saved.
            self.task.set_generation(self.config, model, load_tokenizer(self))
        return model


def _with_model_here(config: Config, folder: Path, head: Head) -> Config:
    name, revision = config.model.model_name_or_path, config.model.revision
    with suppress(ConfigError):
        if not name or find_model(name, revision, head=head).folder:
            return config
    model = config.model.model_copy(update={"model_name_or_path": str(folder)})
    return config.model_copy(update={"model": model})


def config_in(trained: TrainedModel, folder: Path) -> Any:
    """The config.json of a folder. Raises FolderError."""
    from transformers import AutoConfig

    trusted = trained.config.model.trust_remote_code
    with reading(folder):
        return AutoConfig.from_pretrained(folder, trust_remote_code=trusted, local_files_only=True)


def labels_of(trained: TrainedModel, folder: Path) -> list[str]:
    """What the classifier in a folder tells apart, in the order of its logits."""
    return [str(name) for name in (config_in(trained, folder).id2label or {}).values()]


def base_of(folder: Path, head: Head, revision: str = "main") -> Path | None:
    """The folder of the model that the adapter in `folder` is for; None for a whole model. Raises FolderError where it
    is not on this disk."""
    source_words(folder)
    name = adapter_base(folder)
    base = find_model(name, revision, head=head).folder if name else None
    if name and base is None:
        hint = f"download it with `tui-trainer download {name}`"
        raise FolderError(f"the base model of this adapter is not on this disk: {name}", where=folder.name, hint=hint)
    return base


def load_model(
    trained: TrainedModel,
    folder: Path,
    base: Path | None,
    *,
    dtype: "torch.dtype | str" = "auto",
    merge: bool = False,
) -> Any:
    """What `folder` holds of the kind of `trained`, on the CPU: a whole model, or one with its adapter, or with `merge`
    as one with it. A classifier's config tells its labels."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    trusted = trained.config.model.trust_remote_code
    build = auto_class(trained.head, config_in(trained, base or folder).model_type)
    more = {"dtype": dtype, "trust_remote_code": trusted, "local_files_only": True}
    if base is None and shards.files_of(folder, SOME_LAYERS.weights_file):
        return _with_trained_layers(trained, folder, build, more)
    if base is None:
        with reading(folder):
            return build.from_pretrained(folder, **more).eval()
    from peft import PeftModel

    own = read_json(folder / CONFIG_FILE) or {}
    if trained.head in CLASSIFYING:
        more |= {"ignore_mismatched_sizes": True}
    with reading(base):
        more["config"] = _as_stored(config_in(trained, folder if trained.head in CLASSIFYING else base), base)
        set_positions(more["config"], own)
        model = build.from_pretrained(base, **more)
        resize_for_adapter(model, read_json(folder / ADAPTER_FILE) or {}, own)
    with reading(folder), warnings.catch_warnings():
        # peft asks transformers by names that it has renamed
        warnings.simplefilter("ignore", FutureWarning)
        model = PeftModel.from_pretrained(model, folder)
    return (model.merge_and_unload(safe_merge=True) if merge else model).eval()


def _as_stored(config: Any, base: Path) -> Any:
    """With as many tokens as the files of the base model have rows for."""
    stored = read_config(base).get("vocab_size")
    if stored and config.vocab_size != stored:
        config.vocab_size = stored
    return config


def _with_trained_layers(trained: TrainedModel, folder: Path, build: Any, more: dict[str, Any]) -> Any:
    """A checkpoint of a run with frozen layers: the model that it began with, and in it the weights that train."""
    from safetensors.torch import load_file

    began, reason = trained.began_with()
    if began is None:
        raise FolderError(f"the checkpoint contains only the trained layers, and {reason}", where=folder.name)
    with reading(began):
        model = build.from_pretrained(began, config=config_in(trained, folder), ignore_mismatched_sizes=True, **more)
    with reading(folder):
        for path in shards.files_of(folder, SOME_LAYERS.weights_file):
            model.load_state_dict(load_file(path), strict=False)
    return model.eval()


def load_tokenizer(trained: TrainedModel) -> "PreTrainedTokenizerBase":
    """Return the tokenizer that was saved with the model; one of an earlier version gets its length here."""
    tokenizer = tokenizer_in(trained, trained.folder)
    trained.task.set_length(trained.config, tokenizer)
    return tokenizer


def tokenizer_in(trained: TrainedModel, folder: Path) -> "PreTrainedTokenizerBase":
    """The one that lies in a folder. Raises FolderError where none can be read there."""
    from transformers import AutoTokenizer

    trusted = trained.config.model.trust_remote_code
    with reading(folder):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trusted, local_files_only=True
        )
    return tokenizer


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
        reason = one_line(f"{type(error).__name__}: {error}", 200)
        raise FolderError(f"cannot be loaded: {reason}", where=one_line(str(folder))) from error
