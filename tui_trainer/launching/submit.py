"""Runs as Slurm jobs: their folder, their batch script, and the submission.

The last line of the script is an `exec`, so that the program (or `srun`, which forwards signals to its tasks) has the
pid of the batch shell. With `--signal=B:` Slurm signals that pid and no other process. Without `B:` each process of a
step may get the signal, and by default SIGUSR1 ends a process. The program saves, stops and requests the requeue itself
(`runs/slurm.py`), because only the program can tell whether it made progress.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.save import to_toml
from tui_trainer.errors import ConfigError, FolderError, Problem, RunError
from tui_trainer.launching.command_process import program
from tui_trainer.launching.open_run import free_name, name_problems, start_problems
from tui_trainer.runs import registry, slurm
from tui_trainer.runs.folder import RunFolder
from tui_trainer.terminal.safe_text import one_line

# From the manual of sbatch: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and
# days-hours:minutes:seconds.
_TIME: Final = re.compile(
    r"(?:(?P<days>\d{1,5})-(?P<hours>\d{1,5}(?::\d{1,2}){0,2})|(?P<short>\d{1,7}(?::\d{1,2}){0,2}))"
)
_PLAIN: Final = re.compile(r"[\w./%+=:,@-]+")
# Time for the current step and a checkpoint; Slurm may signal up to a minute earlier.
_SAVING_SECONDS: Final = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """Resources that a Slurm job requests. Zero and "" leave the choice to the cluster."""

    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_node: int = 0
    time: str = ""
    partition: str = ""
    options: tuple[str, ...] = ()

    def problems(self) -> list[Problem]:
        """Return the problems of values that cannot be written into a batch script."""
        problems = []
        if self.time and limit_seconds(self.time) is None:
            message = f"--time {one_line(self.time, 40)!r} is not a Slurm time"
            hint = "use a form such as 90 (minutes), 8:00:00 or 2-12 (days-hours)"
            problems.append(Problem(message=message, hint=hint))
        for option in (*self.options, f"--partition={self.partition}"):
            if not re.fullmatch(r"-[-A-Za-z]\S*(?:[ =].*)?", option) or not option.isprintable():
                hint = "use a form such as --sbatch=--account=physics"
                problems.append(Problem(message=f"{one_line(option, 60)!r} is not an option of sbatch", hint=hint))
        return problems


def limit_seconds(time: str) -> int | None:
    """Return the seconds of a time limit in sbatch's form, such as `1-12:00:00`; 0 for no limit, None if invalid."""
    match = _TIME.fullmatch(time)
    if match is None:
        return None
    if match["short"]:
        numbers = [int(part) for part in match["short"].split(":")]
        hours, minutes, seconds = (0, *numbers, 0)[:3] if len(numbers) < 3 else numbers
        return hours * 3600 + minutes * 60 + seconds
    hours, minutes, seconds = (*(int(part) for part in match["hours"].split(":")), 0, 0)[:3]
    return int(match["days"]) * 86_400 + hours * 3600 + minutes * 60 + seconds


def script_text(root: Path, resources: Resources) -> str:
    limit = limit_seconds(resources.time) if resources.time else None
    # Slurm replaces what begins with %.
    log_pattern = str(root / "logs" / "job-").replace("%", "%%") + "%j.txt"
    options = [
        f"--job-name={root.name}",
        f"--nodes={resources.nodes}",
        "--ntasks-per-node=1",
        *([f"--gpus-per-node={resources.gpus_per_node}"] if resources.gpus_per_node else []),
        *([f"--cpus-per-task={resources.cpus_per_node}"] if resources.cpus_per_node else []),
        *([f"--time={resources.time}"] if resources.time else []),
        *([f"--partition={resources.partition}"] if resources.partition else []),
        f"--output={log_pattern if _PLAIN.fullmatch(log_pattern) else _quoted(log_pattern)}",
        "--open-mode=append",
        "--requeue",
        *([] if limit == 0 else [f"--signal=B:USR1@{min(_SAVING_SECONDS, (limit or 4 * _SAVING_SECONDS) // 4)}"]),
        *resources.options,
    ]
    command = program("resume", str(root), "--no-ui")
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options)]
    if resources.nodes > 1:
        # Since Slurm 22.05, srun does not inherit the cores of sbatch.
        lines += ["export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"] if resources.cpus_per_node else []
        command = ["srun", "--kill-on-bad-exit=1", f"--nodes={resources.nodes}", "--ntasks-per-node=1", *command]
    return "\n".join([*lines, f"exec {shlex.join(command)}", ""])


def _quoted(text: str) -> str:
    """Quote an option for sbatch. A `#` begins a comment there, in older versions even within quotes."""
    return '"' + re.sub(r'["\\#]', r"\\\g<0>", text) + '"'


def planned_root(loaded: LoadedConfig) -> Path:
    """Return the folder that the run would have. Raises ConfigError if the run's name or path is not possible."""
    if problems := [*name_problems(loaded), *start_problems(loaded)]:
        raise ConfigError(problems)
    root = Path(loaded.config.output.runs_dir).expanduser().resolve() / free_name(loaded)
    if not str(root).isprintable():
        message = f"{one_line(str(root), 200)} has a line break or a control character, which batch scripts cannot have"
        raise ConfigError(message, hint="set output.runs_dir to another folder")
    return root


def make_folder(loaded: LoadedConfig, root: Path, script: str) -> RunFolder:
    """Create the folder of a run that a Slurm job will start. Raises InputError."""
    folder = RunFolder.create(root.parent, root.name)
    try:
        folder.write_file(folder.config, to_toml(loaded).encode())
        folder.write_file(folder.script, script.encode())
    except BaseException:
        folder.discard()
        raise
    registry.add_to_index(folder.root)
    return folder


def submit_run(folder: RunFolder) -> str:
    """Submit a run as a Slurm job, and return the id of the job.

    If Slurm refuses the job, deletes the run folder and raises RunError. Raises RunError if the id cannot be saved."""
    try:
        job = slurm.submit(folder.script)
    except RunError:
        folder.discard()
        registry.remove_from_index(folder.root)
        raise
    try:
        slurm.remember_job(folder, job)
    except FolderError as error:
        raise RunError(f"job {job} is queued, but `stop` cannot find it: {error}; use `scancel {job}`") from error
    return job
