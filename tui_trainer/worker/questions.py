"""The questions that a worker answers, by name, each with the function that answers it.

The function has the form `function(input, report) -> answer`. Input and answer are JSON; `report(**figures)` sends
progress to the asking program. Only the worker imports the function's module, when the question is asked.
"""

from collections.abc import Callable
from typing import Final

Report = Callable[..., None]
MODULE: Final = "tui_trainer.worker"
QUESTIONS: Final = {
    "count_model": "tui_trainer.models.counting:answer",
    "rope_types": "tui_trainer.models.rope:answer",
    "count_trained": "tui_trainer.tuning.freeze_layers:answer",
    "find_adapted": "tui_trainer.planning.adapter_targets_child:answer",
    "find_routers": "tui_trainer.models.routers:answer",
    "dry_run": "tui_trainer.planning.memory.dry_run_child:answer",
    "try_machine": "tui_trainer.measure.trial:try_parts",
    "rehearse": "tui_trainer.measure.sessions:rehearse",
    "try_micro_batches": "tui_trainer.measure.sessions:try_sizes",
    "take_steps": "tui_trainer.measure.sessions:take_steps",
    "time_start": "tui_trainer.measure.starting:time_start",
    "merge_base": "tui_trainer.launching.merged_base:write_base",
    "run_model": "tui_trainer.measure.inference:measure",
    "write_format": "tui_trainer.measure.inference:write",
    "try_model": "tui_trainer.exporting.generate:try_model",
    "compare_export": "tui_trainer.exporting.measured:measure",
}
# Questions about models without weights. Planning asks them often, so all share one process that has loaded torch.
OF_SHAPES: Final = ("count_model", "count_trained", "find_adapted", "find_routers", "dry_run", "rope_types")
