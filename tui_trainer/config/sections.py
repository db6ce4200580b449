"""Every setting, declared once. A setting exists from the day on which something reads it.

Names are Hugging Face's where they have one. Whether values go together with each other and with the machine is
judged in `planning/conflicts.py`.
"""

from typing import Literal

from tui_trainer.config.data_sections import DataloaderSection, DataSection
from tui_trainer.config.fields import Address, Auto, Deadline, Names, PositiveInt, Section, StepsOrShare, option
from tui_trainer.config.model_sections import ModelSection, QuantizationSection, ScratchSection, TuningSection
from tui_trainer.config.task_section import TaskSection
from tui_trainer.config.training_section import TrainingSection

SCHEMA_VERSION = 1

__all__ = [
    "Config",
    "DataSection",
    "DataloaderSection",
    "DistributedSection",
    "EvaluationSection",
    "ModelSection",
    "QuantizationSection",
    "ScratchSection",
    "TargetsSection",
    "TaskSection",
    "TrainingSection",
    "TuningSection",
]


class EvaluationSection(Section):
    eval_steps: StepsOrShare = option(
        0.1,
        "Evaluate every so many steps; below 1: a share of all steps; 0: only at the end.",
        unit="steps",
        speed="each evaluation reads all held-out rows",
    )
    per_device_eval_batch_size: PositiveInt | Auto = option(
        "auto",
        "Rows in one forward pass of an evaluation; auto: as in training.",
        unit="rows",
        step="x2",
        advanced=True,
    )
    max_eval_rows: int = option(
        0,
        "Evaluate on at most so many held-out rows, evenly spaced; 0: all.",
        low=0,
        unit="rows",
        step="1-2-5",
        advanced=True,
    )
    early_stopping_patience: int = option(
        0, "Stop after so many evaluations in a row without improvement and keep the best weights; 0: off.", low=0
    )
    early_stopping_threshold: float = option(
        0.0, "The metric must get better by more than this to count.", low=0, advanced=True
    )
    metric_for_best_model: str = option(
        "loss", "What early stopping goes by: loss, or a score of the task such as accuracy or f1."
    )
    generate_rows: int = option(
        32,
        "Held-out rows that are answered at each evaluation, where a task scores answers; 0: none.",
        low=0,
        unit="rows",
        speed="an answer takes one pass a token",
        step="x2",
    )


class CheckpointSection(Section):
    save_steps: StepsOrShare = option(
        0.2,
        "Save a checkpoint every so many steps; below 1: a share of all steps; 0: only at the end.",
        unit="steps",
        speed="training waits while a checkpoint is written",
    )
    save_total_limit: int = option(
        2, "Checkpoints kept; an older one goes only when a newer one is safe.", low=1, high=10**6
    )


class LoggingSection(Section):
    logging_steps: int = option(
        10,
        "Write the steps to the journal in groups of so many, and what waits after two seconds.",
        low=1,
        high=10**6,
        unit="steps",
        speed="each group waits once for the device",
        step="1-2-5",
    )
    sample_steps: StepsOrShare = option(
        0.25, "Let the model write a text every so many steps; below 1: a share of all steps; 0: never.", unit="steps"
    )
    report_to: Names = option(
        "",
        "Trackers that get the run's metrics as well: tensorboard, wandb, mlflow, trackio; several with commas.",
        speed="none: a process of its own reads them from the journal",
    )


class TargetsSection(Section):
    deadline: Deadline = option(
        "",
        "Be done by then: a time of day, a day and a time, or a length from the start (3h); empty: no deadline.",
    )
    samples_per_second: float = option(0.0, "Train at least so many rows a second; 0: no target.", low=0, unit="rows/s")
    memory_gib: float = option(
        0.0, "Peak at so much memory at most: of the card, or of the process on a CPU; 0: no target.", low=0, unit="GiB"
    )
    model_size_gib: float = option(
        0.0,
        "Leave a model, or an adapter, of so much on disk at most; 0: no target.",
        low=0,
        unit="GiB",
    )
    loss: float = option(0.0, "Reach this held-out loss or a lower one; 0: no target.", low=0)
    score: float = option(
        0.0, "Reach this value of evaluation.metric_for_best_model or a higher one; 0: no target.", low=0
    )


class DistributedSection(Section):
    processes: PositiveInt | Auto = option(
        "auto",
        "Processes of each node that train one model together, one on each card; auto: as many as there are cards like "
        "the chosen one, and one on a CPU.",
        speed="each computes its share of every step; the gradients are summed once a step",
    )
    nodes: PositiveInt = option(
        1,
        "Machines that train one model together, each with so many processes; in a step of Slurm those that it has.",
        speed="what is summed goes over the network between them",
    )
    rendezvous: Address = option(
        "",
        "Where the nodes meet: HOST:PORT of the first one; empty: its name and a free port.",
        advanced=True,
    )
    strategy: Literal["auto", "ddp", "fsdp", "hsdp", "tp", "deepspeed-2", "deepspeed-3"] = option(
        "auto",
        "ddp: a copy each; fsdp: a part; hsdp: a part of its node's copy; tp: a part of each layer; deepspeed-2, -3: "
        "ZeRO; auto: ddp, else fsdp or hsdp.",
        memory="fsdp, hsdp, tp, -3 split weights and state; deepspeed-2 the state",
    )
    cpu_offload: bool = option(
        False,
        "Weights, gradients and optimizer state stay in the machine's memory, and the CPU updates them: with fsdp, "
        "hsdp or DeepSpeed, on one card as well.",
        memory="a card has only what computes",
        speed="all weights go to the card in each pass, gradients come back",
        advanced=True,
    )

    @property
    def shares_rows(self) -> bool:
        """Whether each process learns from rows of its own: parts of a layer compute the same ones."""
        return self.strategy != "tp"


class OutputSection(Section):
    runs_dir: str = option("./runs", "The folder that holds the run folders.", completes="folder")
    name: str = option("", "Name of the run folder; empty: RECIPE-DATE-TIME.")


class Config(Section):
    """All that is asked for. Values that the user wrote always win over profiles, profiles over defaults."""

    schema_version: Literal[1] = option(1, "Version of this file format.", advanced=True)
    profile: str = option(
        "", "The recipe this starts from: a name from `tui-trainer profiles`, or a file.", completes="recipe"
    )
    hardware_profile: str = option(
        "auto", 'The hardware profile: "auto" (the one that matches), a name, or "none".', completes="hardware profile"
    )
    task: TaskSection = TaskSection()
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    tuning: TuningSection = TuningSection()
    quantization: QuantizationSection = QuantizationSection()
    training: TrainingSection = TrainingSection()
    dataloader: DataloaderSection = DataloaderSection()
    evaluation: EvaluationSection = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    logging: LoggingSection = LoggingSection()
    distributed: DistributedSection = DistributedSection()
    targets: TargetsSection = TargetsSection()
    output: OutputSection = OutputSection()
