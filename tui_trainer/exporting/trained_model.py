"""A finished run's model, to be exported or tried: where its files are, what it learnt, and how it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tui_trainer.errors import FolderError
from tui_trainer.exporting.weights import adapter_base, source_words
from tui_trainer.models.facts import find_model
from tui_trainer.models.heads import CLASSIFYING, Head, auto_class
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.runs.folder import RunFolder
from tui_trainer.tasks import find_task
from tui_trainer.tasks.contract import Task
from tui_trainer.units import GIB

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedModel:
    """`folder` holds the whole model, or an adapter; `base` is then the folder of the model that it is for."""

    run: RunFolder
    plan: Plan
    folder: Path
    head: Head
    base: Path | None

    @classmethod
    def of(cls, run: RunFolder) -> TrainedModel:
        """Raises FolderError for a run that has no final model, or whose plan another version wrote."""
        if not run.model.is_dir():
            hint = f"`tui-trainer resume {run.name}` goes on with it"
            raise FolderError("this run has no final model yet", where=run.name, hint=hint)
        try:
            plan = read_plan_file(run.plan.read_bytes())
        except (OSError, ValueError) as error:
            raise FolderError(f"the plan of this run cannot be read: {error}", where=run.name) from None
        if not any(run.model.glob("*.safetensors")):
            raise FolderError("there are no weights in its folder `model`", where=run.name)
        source_words(run.model)
        head: Head = getattr(find_task(plan.config.task.type), "head", "causal_lm")
        name = adapter_base(run.model)
        base = find_model(name, plan.config.model.revision, head=head).folder if name else None
        if name and base is None:
            hint = f"`tui-trainer download {name}` fetches it"
            raise FolderError(f"the adapter is for {name}, which is not on this disk", where=run.name, hint=hint)
        return cls(run=run, plan=plan, folder=run.model, head=head, base=base)

    @property
    def task(self) -> Task:
        return find_task(self.plan.config.task.type)

    @property
    def weight_bytes(self) -> int:
        """Of the files of the whole model, without an adapter."""
        return sum(path.stat().st_size for path in (self.base or self.folder).glob("*.safetensors"))

    @property
    def compared_dtype(self) -> str:
        """In which it is compared with an export: fp32, unless that would take more than 16 GiB of memory."""
        return "float32" if self.weight_bytes < 4 * GIB else "auto"

    def load(self, *, dtype: torch.dtype | str = "auto", merge: bool = False) -> Any:
        """The model on the CPU, with its adapter, or with `merge` as one with it. A classifier's config tells its
        labels."""
        from transformers import AutoConfig

        build = auto_class(self.head)
        more = {"dtype": dtype, "trust_remote_code": self.plan.config.model.trust_remote_code, "local_files_only": True}
        if self.base is None:
            return build.from_pretrained(self.folder, **more).eval()
        from peft import PeftModel

        if self.head in CLASSIFYING:
            more |= {"config": AutoConfig.from_pretrained(self.folder), "ignore_mismatched_sizes": True}
        model = PeftModel.from_pretrained(build.from_pretrained(self.base, **more), self.folder)
        return (model.merge_and_unload(safe_merge=True) if merge else model).eval()

    def save_beside_weights(self, folder: Path) -> None:
        """The tokenizer and its chat template."""
        from transformers import AutoTokenizer

        AutoTokenizer.from_pretrained(self.folder).save_pretrained(folder)
