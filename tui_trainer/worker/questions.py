"""What a worker can be asked, by name, and which function answers it.

`function(question, report) -> answer`: question and answer are JSON, and `report(**figures)` tells the asking program
how far it is. Its module is imported by the worker alone, when the question is asked.
"""

from collections.abc import Callable
from typing import Final

Report = Callable[..., None]
MODULE: Final = "tui_trainer.worker"
QUESTIONS: Final = {
    "count_model": "tui_trainer.models.counting:answer",
    "rope_types": "tui_trainer.models.rope:answer",
    "count_trained": "tui_trainer.tuning.some_layers:answer",
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
# Of models without their weights: asked again and again while somebody plans, and of one process, as each loads torch.
OF_SHAPES: Final = ("count_model", "count_trained", "find_adapted", "find_routers", "dry_run", "rope_types")
