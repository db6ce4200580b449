"""Find and load the model of a run: its folder, its plan and settings, its weights and its tokenizer."""

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
from tui_trainer.models.heads import CLASSIFYING_HEADS, Head, auto_class
from tui_trainer.models.rope import set_positions
from tui_trainer.models.towers import has_towers
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.plan_file import (
    DamagedPlanError,
    changed_base,
    changed_reference,
    read_plan_file,
    with_own_commit,
)
from tui_trainer.runs.events import RunFinished
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import last_events
from tui_trainer.runs.state import apply_events
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
from tui_trainer.tuning.freeze_layers import METHOD as SOME_LAYERS
from tui_trainer.units import GIB

_NO_CHECKPOINT = "the checkpoints are gone as well, so the model cannot be written again"


def weights_folder_of(run: RunFolder) -> Path:
    """Return the folder of the final model, or else of the newest checkpoint. Raises FolderError without either."""
    if run.model.is_dir():
        return final_model(run)
    checkpoint = newest_whole(run.checkpoints, lambda damage: None)
    if checkpoint is None:
        if finish_of(run):
            return final_model(run)
        hint = f"train it with `tui-trainer resume {shell_word(run.name)}`"
        raise FolderError("this run has no model and no checkpoint yet", where=run.name, hint=hint)
    return _final_checkpoint(run, checkpoint)[0] if finish_of(run) else checkpoint.path


def _final_checkpoint(run: RunFolder, newest_checkpoint: CheckpointFolder) -> tuple[Path, str]:
    """Return (folder, description) of the checkpoint that has the weights of a finished run's final model."""
    newest_folder = newest_checkpoint.path
    best_saved_step = best_step(newest_folder) if plan_of(run).config.evaluation.early_stopping_patience else 0
    if best_saved_step in (0, newest_checkpoint.step):
        return newest_folder, f"{newest_folder.name} (last step)"
    best_folder = newest_folder.with_name(f"step-{best_saved_step}")
    if damage := damage_of(best_folder, best_saved_step):
        reason = f"{best_folder.name} with the best evaluation is damaged: {damage}"
        return newest_folder, f"{newest_folder.name} (last step), because {reason}"
    return best_folder, f"{best_folder.name} (best evaluation)"


def final_model(run: RunFolder) -> Path:
    """Return the folder of the final model. Raises FolderError if it is missing or has changed since the run."""
    finish = finish_of(run)
    if not run.model.is_dir():
        if finish is None:
            hint = f"resume it with `tui-trainer resume {shell_word(run.name)}`"
            raise FolderError("this run has no final model yet", where=run.name, hint=hint)
        message = f"the folder `{run.model.name}` of this run is gone"
        raise FolderError(message, where=run.name, hint=_rewriting_hint(run))
    if not any(run.model.glob("*.safetensors")):
        message = f"the folder `{run.model.name}` of this run contains no weights"
        raise FolderError(message, where=run.name, hint=_replacing_hint(run))
    if finish and (names := _changed_files(run, finish)):
        message = f"the folder `{run.model.name}` has changed since the run wrote it: {one_line(', '.join(names), 200)}"
        raise FolderError(message, where=run.name, hint=f"restore the original files, or {_replacing_hint(run)}")
    return run.model


def finish_of(run: RunFolder) -> RunFinished | None:
    """Return the event of a finished run; None for an unfinished run. Raises FolderError for an unreadable journal."""
    try:
        finish = apply_events(last_events(run.journal)).finished
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FolderError(f"the journal of this run cannot be read: {system_reason(error)}", where=run.name) from None
    return finish if finish and finish.reason != "stopped" else None


def _changed_files(run: RunFolder, finished: RunFinished) -> list[str]:
    """Return the names of model files that differ from what the run wrote. Raises FolderError."""
    if not finished.model_files:
        return []
    try:
        fingerprints = file_fingerprints(run.model)
    except (ConfigError, OSError) as error:
        message = f"the folder `{run.model.name}` of this run cannot be read: {error}"
        raise FolderError(message, where=run.name) from None
    return [name for name, fingerprint in finished.model_files.items() if fingerprints.get(name) != fingerprint]


def rewriting_words(run: RunFolder) -> str:
    """Return a sentence about how a finished run's missing final model is written again; '' if it is not missing.
    Raises FolderError if there is no checkpoint."""
    finish = finish_of(run)
    if run.model.exists() or finish is None:
        return ""
    try:
        newest_checkpoint = newest_whole(run.checkpoints, lambda damage: None)
    except CheckpointError as error:
        raise FolderError(str(error), where=run.name) from None
    if newest_checkpoint is None:
        raise FolderError(f"the folder `{run.model.name}` of this run is gone", where=run.name, hint=_NO_CHECKPOINT)
    beginning = f"the run is finished, but its folder `{run.model.name}` is gone. The model is written again from"
    if newest_checkpoint.step < finish.step:
        again_words = f"after training steps {newest_checkpoint.step + 1} to {finish.step} again"
        return f"{beginning} {newest_checkpoint.path.name}, the latest intact checkpoint, {again_words}"
    return f"{beginning} {_final_checkpoint(run, newest_checkpoint)[1]}"


def _rewriting_hint(run: RunFolder) -> str:
    advice = f"`tui-trainer resume {shell_word(run.name)}` writes the model again from the checkpoints"
    return advice if steps_saved(run.checkpoints) else _NO_CHECKPOINT


def _replacing_hint(run: RunFolder) -> str:
    advice = _rewriting_hint(run)
    return advice if advice == _NO_CHECKPOINT else f"move {one_line(str(run.model), 300)} elsewhere, then {advice}"


def adapter_base(source: Path) -> str:
    """Return the base model that adapter_config.json names; empty if the folder has no adapter."""
    try:
        base = json.loads((source / "adapter_config.json").read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        return ""
    return one_line(base, 300) if isinstance(base, str) else ""


def source_words(source: Path) -> str:
    """Return `model`, or for an adapter `model, an adapter on /models/llama`. Raises FolderError without that base."""
    base = adapter_base(source)
    if base and Path(base).is_absolute() and not Path(base).is_dir():
        hint = f"put the model back there, or write its new path into {source / 'adapter_config.json'}"
        raise FolderError(f"the base model of this adapter no longer exists: {base}", where=source.name, hint=hint)
    return f"{source.name}, an adapter on {base}" if base else source.name


def plan_of(run: RunFolder, notes: list[str] | None = None) -> Plan:
    """Return the plan of a run. If plan.json is damaged or missing, read the copy in its newest checkpoint.

    Settings that this version no longer uses are added to `notes`. Raises FolderError."""
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
    """Raise FolderError if `base` is not the model on which the adapter of this plan was trained."""
    if problem := changed_base(plan, base):
        raise FolderError(problem)


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedModel:
    """Model of a run. `folder` has the whole model, or an adapter whose base model is in `base`.

    `config` has the settings of the run. If the model in them is not on this disk, `config` names the adapter's base
    model or the trained model instead, which has the same tokens."""

    run: RunFolder
    plan: Plan
    config: Config
    folder: Path
    head: Head
    base: Path | None
    notes: tuple[str, ...] = ()
    """Sentences about settings of the run that this version no longer uses."""

    @classmethod
    def of(cls, run: RunFolder, *, unfinished: bool = False) -> "TrainedModel":
        """Return the final model of a run, or with `unfinished` the newest checkpoint if there is no final model.

        Raises FolderError if there is no model, or its plan cannot be read."""
        folder = weights_folder_of(run) if unfinished else final_model(run)
        notes = list[str]()
        plan = plan_of(run, notes)
        head = find_task(plan.config.task.type).head
        base = base_of(folder, head, plan.config.model.revision)
        if base:
            refuse_changed_base(plan, base)
        config = _with_model_on_disk(plan.config, base or folder, head)
        return cls(run=run, plan=plan, config=config, folder=folder, head=head, base=base, notes=tuple(notes))

    @property
    def task(self) -> Task:
        return find_task(self.config.task.type)

    def base_model(self) -> tuple[Path | None, str]:
        """Return (folder of the model with which training began, ''), or (None, why it cannot be compared)."""
        folder, reason = self.starting_model()
        if folder and self.head in CLASSIFYING_HEADS and labels_of(self, folder) != labels_of(self, self.folder):
            return None, "the base model has no head for the labels of this run"
        return folder, reason

    def starting_model(self) -> tuple[Path | None, str]:
        """Return (folder of the model with which training began, ''), or (None, why it cannot be used). For a run from
        scratch the reason is empty."""
        config = self.plan.config
        name = config.model.model_name_or_path
        if config.model.init == "scratch" or not name:
            return None, ""
        try:
            facts = find_model(name, config.model.revision, head=self.head)
            if self.config.model.add_tokens:
                return None, "the base model has no embeddings for the added tokens"
            if facts.adapter:
                problem = changed_base(self.plan)
                return (None, str(problem)) if problem else (facts.adapter.folder, "")
            folder = self.base or facts.folder
            if folder and not self.base and (problem := changed_base(self.plan, folder)):
                return None, str(problem)
        except ConfigError:
            folder = None
        if folder is None:
            return None, f"the base model {name} is not on this disk"
        return folder, ""

    def reference_model(self) -> tuple[Path | None, str]:
        """Return (folder of the model that a loss with a reference compares with, ''), or (None, why not)."""
        name = self.plan.config.task.reference
        if not name:
            return self.base_model()
        try:
            if problem := changed_reference(self.plan):
                return None, str(problem)
            facts = find_model(name, "main", head=self.head)
        except ConfigError:
            return None, f"the reference model {name} is not on this disk"
        return (facts.adapter.folder if facts.adapter else facts.folder), ""

    @property
    def has_towers(self) -> bool:
        return has_towers(read_config(self.base or self.folder).get("model_type"))

    @property
    def generates_text(self) -> bool:
        """Whether the model generates text, rather than labels or numbers."""
        return self.head not in CLASSIFYING_HEADS

    @property
    def weight_bytes(self) -> int:
        """Size of the weight files of the whole model, without those of an adapter, in bytes."""
        return sum(path.stat().st_size for path in (self.base or self.folder).glob("*.safetensors"))

    @property
    def loaded_bytes(self) -> int:
        """Size of all weight files that are loaded, including those of an adapter or of frozen layers, in bytes."""
        layer_files = shards.files_of(self.folder, SOME_LAYERS.weights_file)
        folders = {self.folder, self.base, self.starting_model()[0] if layer_files else None} - {None}
        return sum(path.stat().st_size for folder in folders if folder for path in folder.glob("*.safetensors"))

    @property
    def compared_dtype(self) -> str:
        """Dtype for comparing the model with an export: fp32, unless the weight files have 4 GiB or more."""
        return "float32" if self.weight_bytes < 4 * GIB else "auto"

    def load(self, *, dtype: "torch.dtype | str" = "auto", merge: bool = False) -> Any:
        """Load the model on the CPU with its adapter, if any. `merge` merges the adapter into the weights."""
        model = load_model(self, self.folder, self.base, dtype=dtype, merge=merge)
        if self.generates_text:
            # Adapters, and models saved by earlier versions, have only the generation settings of the base model.
            self.task.set_generation(self.config, model, load_tokenizer(self))
        return model


def _with_model_on_disk(config: Config, folder: Path, head: Head) -> Config:
    name, revision = config.model.model_name_or_path, config.model.revision
    with suppress(ConfigError):
        if not name or find_model(name, revision, head=head).folder:
            return config
    model = config.model.model_copy(update={"model_name_or_path": str(folder)})
    return config.model_copy(update={"model": model})


def config_in(trained: TrainedModel, folder: Path) -> Any:
    """Return the transformers config in a model folder. Raises FolderError."""
    from transformers import AutoConfig

    trusts_code = trained.config.model.trust_remote_code
    with reading(folder):
        return AutoConfig.from_pretrained(folder, trust_remote_code=trusts_code, local_files_only=True)


def labels_of(trained: TrainedModel, folder: Path) -> list[str]:
    """Return the labels of the classifier in a folder, in the order of its logits. Raises FolderError."""
    return [str(name) for name in (config_in(trained, folder).id2label or {}).values()]


def base_of(folder: Path, head: Head, revision: str = "main") -> Path | None:
    """Return the folder of an adapter's base model; None for a whole model. Raises FolderError if it is missing."""
    source_words(folder)
    name = adapter_base(folder)
    base = find_model(name, revision, head=head).folder if name else None
    if name and base is None:
        hint = f"download it with `tui-trainer download {name}`"
        raise FolderError(f"the base model of this adapter is not on this disk: {name}", where=folder.name, hint=hint)
    return base


def load_model(
    trained: TrainedModel, folder: Path, base: Path | None, *, dtype: "torch.dtype | str" = "auto", merge: bool = False
) -> Any:
    """Load the model in `folder` on the CPU, for the task of `trained`. If it is an adapter, `base` has the base model.

    `merge` merges the adapter into the weights, as does an adapter without `base`, whose base model is searched. A
    classifier's labels come from the config.json of `folder`. Raises FolderError for a model that cannot be read."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if base is None and (base := base_of(folder, trained.head, trained.config.model.revision)):
        merge = True
    trusts_code = trained.config.model.trust_remote_code
    model_class = auto_class(trained.head, config_in(trained, base or folder).model_type)
    options = {"dtype": dtype, "trust_remote_code": trusts_code, "local_files_only": True}
    if base is None and shards.files_of(folder, SOME_LAYERS.weights_file):
        return _with_trained_layers(trained, folder, model_class, options)
    if base is None:
        with reading(folder):
            return model_class.from_pretrained(folder, **options).eval()
    from peft import PeftModel

    adapter_config = read_json(folder / CONFIG_FILE) or {}
    if trained.head in CLASSIFYING_HEADS:
        options |= {"ignore_mismatched_sizes": True}
    with reading(base):
        config = config_in(trained, folder if trained.head in CLASSIFYING_HEADS else base)
        if stored_size := read_config(base).get("vocab_size"):
            config.vocab_size = stored_size  # so that the weights in the base model's files fit
        options["config"] = config
        set_positions(options["config"], adapter_config)
        model = model_class.from_pretrained(base, **options)
        resize_for_adapter(model, read_json(folder / ADAPTER_FILE) or {}, adapter_config)
    with reading(folder), warnings.catch_warnings():
        # peft uses names that transformers has renamed.
        warnings.simplefilter("ignore", FutureWarning)
        model = PeftModel.from_pretrained(model, folder)
    return (model.merge_and_unload(safe_merge=True) if merge else model).eval()


def _with_trained_layers(trained: TrainedModel, folder: Path, model_class: Any, options: dict[str, Any]) -> Any:
    """Load a checkpoint of a run with frozen layers: the model with which training began, and the trained weights."""
    from safetensors.torch import load_file

    base, reason = trained.starting_model()
    if base and adapter_base(base):
        base, reason = None, "training began with an adapter"
    if base is None:
        raise FolderError(f"the checkpoint contains only the trained layers, and {reason}", where=folder.name)
    with reading(base):
        config = config_in(trained, folder)
        model = model_class.from_pretrained(base, config=config, ignore_mismatched_sizes=True, **options)
    with reading(folder):
        for path in shards.files_of(folder, SOME_LAYERS.weights_file):
            model.load_state_dict(load_file(path), strict=False)
    return model.eval()


def load_tokenizer(trained: TrainedModel) -> "PreTrainedTokenizerBase":
    """Load the tokenizer saved with the model, and set its length, which earlier versions did not save."""
    tokenizer = tokenizer_in(trained, trained.folder)
    trained.task.set_length(trained.config, tokenizer)
    return tokenizer


def tokenizer_in(trained: TrainedModel, folder: Path) -> "PreTrainedTokenizerBase":
    """Load the tokenizer in a folder. Raises FolderError if it cannot be loaded."""
    from transformers import AutoTokenizer

    trusts_code = trained.config.model.trust_remote_code
    with reading(folder):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trusts_code, local_files_only=True
        )
    return tokenizer


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Return a context that raises FolderError if a library cannot load files in `folder`."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
        reason = one_line(f"{type(error).__name__}: {error}", 200)
        raise FolderError(f"cannot be loaded: {reason}", where=one_line(str(folder))) from error
