"""A run as a job of Slurm: its folder, its batch script, and the submission.

The last line of the script is an `exec`, so that the program (or `srun`) has the pid of the batch shell: with
`--signal=B:` Slurm signals that pid and nothing else, whichever way it tracks processes. Without `B:` each process of a
step may get the signal, and by default SIGUSR1 ends a process. `srun` forwards it to its tasks. The program saves,
stops and asks for the requeue itself (`runs/slurm.py`): only it knows whether it has come any further.
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

# Of the manual of sbatch: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and
# days-hours:minutes:seconds.
_TIME: Final = re.compile(
    r"(?:(?P<days>\d{1,5})-(?P<hours>\d{1,5}(?::\d{1,2}){0,2})|(?P<short>\d{1,7}(?::\d{1,2}){0,2}))"
)
_PLAIN: Final = re.compile(r"[\w./%+=:,@-]+")
# For the step under way and a checkpoint; Slurm signals up to a minute earlier.
_SAVING_SECONDS: Final = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """What a job asks for. Zero and "" leave it to the cluster."""

    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_node: int = 0
    time: str = ""
    partition: str = ""
    options: tuple[str, ...] = ()

    def problems(self) -> list[Problem]:
        """What cannot be written into a script."""
        found = []
        if self.time and limit_seconds(self.time) is None:
            message = f"--time {one_line(self.time, 40)!r} is not a Slurm time"
            hint = "use a form such as 90 (minutes), 8:00:00 or 2-12 (days-hours)"
            found.append(Problem(message=message, hint=hint))
        for option in (*self.options, f"--partition={self.partition}"):
            if not re.fullmatch(r"-[-A-Za-z]\S*(?:[ =].*)?", option) or not option.isprintable():
                hint = "use a form such as --sbatch=--account=physics"
                found.append(Problem(message=f"{one_line(option, 60)!r} is not an option of sbatch", hint=hint))
        return found


def limit_seconds(time: str) -> int | None:
    """Of a time as sbatch takes it; None for another form. 0: no limit."""
    found = _TIME.fullmatch(time)
    if found is None:
        return None
    if found["short"]:
        parts = [int(part) for part in found["short"].split(":")]
        hours, minutes, seconds = (0, *parts, 0)[:3] if len(parts) < 3 else parts
        return hours * 3600 + minutes * 60 + seconds
    hours, minutes, seconds = (*(int(part) for part in found["hours"].split(":")), 0, 0)[:3]
    return int(found["days"]) * 86_400 + hours * 3600 + minutes * 60 + seconds


def script_text(root: Path, resources: Resources) -> str:
    limit = limit_seconds(resources.time) if resources.time else None
    # A pattern: what begins with % is replaced.
    output = str(root / "logs" / "job-").replace("%", "%%") + "%j.txt"
    options = [
        f"--job-name={root.name}",
        f"--nodes={resources.nodes}",
        "--ntasks-per-node=1",
        *([f"--gpus-per-node={resources.gpus_per_node}"] if resources.gpus_per_node else []),
        *([f"--cpus-per-task={resources.cpus_per_node}"] if resources.cpus_per_node else []),
        *([f"--time={resources.time}"] if resources.time else []),
        *([f"--partition={resources.partition}"] if resources.partition else []),
        f"--output={output if _PLAIN.fullmatch(output) else _quoted(output)}",
        "--open-mode=append",
        "--requeue",
        *([] if limit == 0 else [f"--signal=B:USR1@{min(_SAVING_SECONDS, (limit or 4 * _SAVING_SECONDS) // 4)}"]),
        *resources.options,
    ]
    train = program("resume", str(root), "--no-ui")
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in options)]
    if resources.nodes > 1:
        # Since 22.05 srun does not take the cores of sbatch over.
        lines += ["export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"] if resources.cpus_per_node else []
        train = ["srun", "--kill-on-bad-exit=1", f"--nodes={resources.nodes}", "--ntasks-per-node=1", *train]
    return "\n".join([*lines, f"exec {shlex.join(train)}", ""])


def _quoted(text: str) -> str:
    """As sbatch reads an option: a # begins a comment, in older versions within quotes as well."""
    return '"' + re.sub(r'["\\#]', r"\\\g<0>", text) + '"'


def planned_root(loaded: LoadedConfig) -> Path:
    """Where the folder of the run would be. Raises ConfigError for a name that cannot be, and for a path that no script
    can hold."""
    if problems := [*name_problems(loaded), *start_problems(loaded)]:
        raise ConfigError(problems)
    root = Path(loaded.config.output.runs_dir).expanduser().resolve() / free_name(loaded)
    if not str(root).isprintable():
        message = f"{one_line(str(root), 200)} has a line break or a control character, which batch scripts cannot have"
        raise ConfigError(message, hint="set output.runs_dir to another folder")
    return root


def make_folder(loaded: LoadedConfig, root: Path, script: str) -> RunFolder:
    """The folder of a run that a job will begin with. Raises InputError."""
    folder = RunFolder.create(root.parent, root.name)
    try:
        folder.write_file(folder.config, to_toml(loaded).encode())
        folder.write_file(folder.script, script.encode())
    except BaseException:
        folder.discard()
        raise
    registry.remember(folder.root)
    return folder


def hand_over(folder: RunFolder) -> str:
    """Submit a run; the number of its job. Raises RunError where Slurm refuses it, and then its folder is gone, and
    where the number cannot be written down."""
    try:
        job = slurm.submit(folder.script)
    except RunError:
        folder.discard()
        registry.forget(folder.root)
        raise
    try:
        slurm.remember_job(folder, job)
    except FolderError as error:
        raise RunError(f"job {job} is queued, but `stop` cannot find it: {error}; use `scancel {job}`") from error
    return job
