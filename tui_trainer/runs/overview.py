"""The list of all runs on this disk, with the status and the result of each.

The overview of a run that has ended, or that no process owns, is saved in `summary.json`. If the journal has grown
since then, it is read again as a whole, which takes half a second for 100,000 steps. For an active run only the new
events are read.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from tui_trainer.errors import FolderError
from tui_trainer.runs import registry, result
from tui_trainer.runs.delete_and_rename import deletion_path, original_path
from tui_trainer.runs.events import MicroBatchReduced
from tui_trainer.runs.folder import MARKER, OUR_NAMES, FolderSize, RunFolder, folder_size, read_fields, read_plain_file
from tui_trainer.runs.labels import RunLabels, labels_of
from tui_trainer.runs.lock import read_lock_owner
from tui_trainer.runs.state import STOPPED_EARLY, FollowedJournal, RunState, Status, means
from tui_trainer.units import MIB

CURVE_POINTS: Final = 24
_SUMMARY_LIMIT_BYTES: Final = MIB
# Version of the summary's content. A summary of another version is computed again.
_SUMMARY_VERSION: Final = 3

# Limits the time for listing a folder that contains many things besides runs.
_MOST_UNLISTED: Final = 1_000
# Synchronized clocks of two machines differ by less than this.
_CLOCK_TOLERANCE_SECONDS: Final = 60.0

_ENDED: Final = ("finished", "stopped", "failed")

RunStatus = Status | Literal["submitted", "interrupted", "half deleted", "no run folder", "unreadable", "gone"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """The result of a run, as the list of runs and a comparison show it.

    `status` is that of `RunState` or one of the following. `submitted`: a Slurm job that has not started.
    `interrupted`: no process owns the run, and its journal has no end. `no run folder`: the run's path holds something
    else. `half deleted`, `unreadable` and `gone` describe the folder.

    Losses are in nats per token. `loss` is `RunState.loss`. `eval_loss` and `scores` come from the last evaluation so
    far or that of the final model. `best` is the best value of `metric` (`evaluation.metric_for_best_model`).
    """

    name: str
    path: Path
    status: RunStatus
    stopped_early: bool = False
    """Whether early stopping ended the run. Its status is `finished`."""
    kept_step: int | None = None
    """Step whose weights the final model has; None if those are the last step's, or if there is no model."""
    task: str = ""
    step: int = 0
    total_steps: int = 0
    loss: float | None = None
    eval_loss: float | None = None
    scores: dict[str, float] = field(default_factory=dict)
    metric: str = "loss"
    best: float | None = None

    @property
    def status_words(self) -> str:
        return STOPPED_EARLY if self.stopped_early else self.status


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOverview(RunResult):
    """A run in the list. `model` is the name of the base model, empty for a model from scratch."""

    ending: str = ""
    """How the run ended: `stopped early at step 40; kept step 30: macro F1 0.810`."""
    alive: bool = False
    has_model: bool = False
    """Whether the folder of a finished run still holds its final model."""
    model: str = ""
    data: str = ""
    """`data.path` of the plan; empty before there is a plan."""
    came_from: str = ""
    """Names of the earlier runs that trained the model, as text; empty if there are none."""
    epoch: float | None = None
    loss_curve: tuple[float, ...] = ()
    """Up to 24 training losses from the first to the last step, for a sparkline."""
    out_of_memory_events: int = 0
    """Number of times that the run reduced its micro-batch because memory ran out."""
    started_at: str = ""
    last_event_at: str = ""
    size_bytes: int | None = None
    freed_bytes: int | None = None
    """Bytes that deleting the run would free. Like the size of the folder, it is None until it was measured."""
    tags: tuple[str, ...] = ()
    note: str = ""
    """Note and `tags` of `RunLabels`. The saved summary does not contain them."""

    @property
    def score(self) -> str:
        """A score as text: `macro F1 0.810`. It is `metric`, or else the first score; empty without scores."""
        score_name = self.metric if self.metric in self.scores else next(iter(self.scores), "")
        return result.metric_words(score_name, self.scores[score_name]) if score_name else ""

    @property
    def is_run(self) -> bool:
        return self.status not in ("half deleted", "no run folder", "unreadable", "gone")

    @property
    def share_done(self) -> float | None:
        """Share of the steps that are done, 0 to 1; None if their number is unknown."""
        return min(self.step / self.total_steps, 1.0) if self.total_steps else None

    def age_seconds(self, now: datetime) -> float | None:
        """Return the seconds since the last event; None if there is no event.

        The value is negative only if the clock of the machine that wrote the journal is over a minute ahead of `now`.
        """
        with suppress(ValueError, TypeError, OverflowError):
            seconds = (now - datetime.fromisoformat(self.last_event_at)).total_seconds()
            return seconds if seconds < -_CLOCK_TOLERANCE_SECONDS else max(seconds, 0.0)
        return None


_SUMMARIES: Final = TypeAdapter(tuple[tuple[int, int, int], RunOverview])
"""Content of `summary.json`: (version, bytes of the journal, bytes of the plan) at that time, and the overview."""


class Overviews:
    """Cached reader of the overviews of all runs. An unchanged run costs only a few `stat` calls."""

    def __init__(self) -> None:
        self._overviews: dict[Path, tuple[object, RunOverview]] = {}
        self._followed: dict[Path, FollowedJournal] = {}
        self._sizes: dict[Path, FolderSize] = {}
        self._labels: dict[Path, tuple[object, RunLabels]] = {}

    def read(self, runs_dirs: Iterable[Path] = ()) -> list[RunOverview]:
        """Return all runs of the index, newest first, including those that no longer exist.

        Runs in `runs_dirs` that the index lacks, such as copied runs, are added and sorted by their start. Folders in
        `runs_dirs` that are not runs come last.
        """
        roots = registry.listed_roots()
        runs = [run for root in reversed(roots) for run in self._of_root(root)]
        unlisted_runs = [run for root in _unlisted(roots, runs_dirs) for run in self._of_root(root)]
        for run in sorted((run for run in unlisted_runs if run.is_run), key=lambda run: run.started_at):
            older_indices = (index for index, other in enumerate(runs) if "" < other.started_at < run.started_at)
            runs.insert(next(older_indices, len(runs)), run)
        runs += [run for run in unlisted_runs if not run.is_run]
        paths = {run.path for run in runs}
        for cache in (self._overviews, self._followed, self._sizes, self._labels):
            for path in set(cache) - paths:
                cache.pop(path, None)
        return [
            replace(run, size_bytes=size.bytes, freed_bytes=size.freed_bytes)
            if (size := self._sizes.get(run.path))
            else run
            for run in runs
        ]

    def measure(self, path: Path) -> FolderSize:
        """Measure a run's folder, which is slow: call it in another thread. `read` then includes the size."""
        size = self._sizes[path] = folder_size(path)
        return size

    def _of_root(self, root: Path) -> Iterator[RunOverview]:
        deletion_root = deletion_path(root)
        is_half_deleted = os.path.lexists(deletion_root)
        if is_half_deleted:
            yield RunOverview(name=root.name, path=deletion_root, status="half deleted")
        if not (is_half_deleted and not os.path.lexists(root)):
            yield self._of_folder(RunFolder(root))

    def _of_folder(self, folder: RunFolder) -> RunOverview:
        # The owner is read first, so that a run that ends in between is shown as finished, not as interrupted.
        is_alive, signature = _has_owner(folder.lock), _signature(folder.journal)
        entry = self._overviews.get(folder.root)
        if signature is None or entry is None or entry[0] != (is_alive, signature) or not entry[1].is_run:
            journal = self._followed.pop(folder.root, None)
            if is_alive and signature is not None:
                journal = self._followed[folder.root] = journal or FollowedJournal(folder)
            entry = self._overviews[folder.root] = (is_alive, signature), _overview(folder, is_alive, journal)
        labels = self._labels_of(folder)
        # This is not cached, because the journal does not record the deletion of the model.
        has_model = entry[1].status == "finished" and folder.model.is_dir()
        return replace(entry[1], has_model=has_model, tags=labels.tags, note=labels.note)

    def _labels_of(self, folder: RunFolder) -> RunLabels:
        signature = _signature(folder.labels)
        cached_entry = self._labels.get(folder.root)
        if cached_entry is None or cached_entry[0] != signature:
            cached_entry = self._labels[folder.root] = signature, labels_of(folder) if signature else RunLabels()
        return cached_entry[1]


def _unlisted(listed_roots: Iterable[Path], runs_dirs: Iterable[Path]) -> list[Path]:
    """Return the folders directly in `runs_dirs` that are not in `listed_roots`, sorted, without hidden folders."""
    excluded_roots, unlisted_roots = set(listed_roots), list[Path]()
    for runs_dir in runs_dirs:
        with suppress(OSError, RuntimeError):
            parent = runs_dir.expanduser().resolve()
            entries = islice(os.scandir(parent), _MOST_UNLISTED)
            # Most folders are listed. Removing them first avoids `resolve`, which reads the disk.
            roots = {original_path(parent / entry.name) for entry in entries if entry.is_dir()} - excluded_roots
            for root in sorted(roots, key=lambda root: (root.is_symlink(), root.name)):
                if not root.name.startswith(".") and excluded_roots.isdisjoint((root, root.resolve())):
                    excluded_roots.add(root)
                    unlisted_roots.append(root)
    return unlisted_roots


def overview(folder: RunFolder, followed_journal: FollowedJournal | None = None) -> RunOverview:
    """Return the overview of one run. A given `followed_journal` is read to its end; else a valid summary is used."""
    return _overview(folder, _has_owner(folder.lock), followed_journal)


def _overview(folder: RunFolder, alive: bool, followed_journal: FollowedJournal | None) -> RunOverview:
    empty_overview = RunOverview(name=folder.name, path=folder.root, status="interrupted", alive=alive)
    journal_signature = _signature(folder.journal)
    if journal_signature is None:
        return replace(empty_overview, status=_status_without_journal(folder.root, alive))
    plan_signature = _signature(folder.plan)
    source = _SUMMARY_VERSION, journal_signature[0], plan_signature[0] if plan_signature else 0
    saved_run = _read_summary(folder, source, alive)
    if saved_run and followed_journal is None:
        return replace(saved_run, name=empty_overview.name, path=empty_overview.path, alive=alive)
    is_shared, followed_journal = followed_journal is not None, followed_journal or FollowedJournal(folder)
    state = followed_journal.read_new()
    if followed_journal.reader.failure_reason:
        # A caller that passed `followed_journal` also shows the events that were read before the failure.
        return replace(_of_state(empty_overview, state, {}) if is_shared else empty_overview, status="unreadable")
    run = _of_state(empty_overview, state, read_fields(folder.plan))
    # `source` has sizes from before the reading, so a file that grew in between makes the summary invalid.
    if not saved_run and (not alive or run.status in _ENDED):
        with suppress(FolderError):  # without a summary (another user's folder) the journal is read again next time
            folder.write_file(folder.summary, _SUMMARIES.dump_json((source, run), indent=1))
    return run


def _read_summary(folder: RunFolder, source: tuple[int, int, int], alive: bool) -> RunOverview | None:
    """Return the saved overview; None if it is missing or outdated: its version or file sizes differ from `source`."""
    with suppress(OSError, ValueError):
        saved_source, run = _SUMMARIES.validate_json(read_plain_file(folder.summary, _SUMMARY_LIMIT_BYTES))
        return run if saved_source == source and (not alive or run.status in _ENDED) else None
    return None


def _of_state(unread: RunOverview, state: RunState, plan: dict[str, Any]) -> RunOverview:
    metric, data_path = "loss", ""
    with suppress(LookupError, TypeError):
        metric = str(plan["config"]["evaluation"]["metric_for_best_model"])
        data_path = str(plan["config"]["data"]["path"])
    # The state has only the last problems. plan.json counts the earlier reductions.
    recorded_reductions = sum(isinstance(problem, MicroBatchReduced) for problem in state.problems)
    planned_reductions = plan.get("out_of_memory_events")
    best_eval = result.best_evaluation(state)
    has_ended = state.finished is not None or state.failed is not None
    return replace(
        unread,
        status=state.status if has_ended or unread.alive else "interrupted",
        stopped_early=state.stopped_early,
        ending=result.ending_words(state),
        kept_step=result.kept_step(state),
        task=state.task,
        model=state.plan.base_model if state.plan else "",
        data=data_path,
        came_from=state.plan.came_from if state.plan else "",
        step=state.step,
        total_steps=state.total_steps,
        epoch=state.last_step.epoch if state.last_step else None,
        loss=state.loss,
        loss_curve=tuple(loss for _, loss in means(state.steps, state.losses, CURVE_POINTS)),
        eval_loss=result.held_out_loss(state),
        scores=result.newest_scores(state),
        metric=metric,
        best=result.metric_value(best_eval, metric) if best_eval else None,
        out_of_memory_events=max(recorded_reductions, planned_reductions if type(planned_reductions) is int else 0),
        started_at=state.started_at,
        last_event_at=state.last_event_at,
    )


def _status_without_journal(root: Path, alive: bool) -> RunStatus:
    try:
        names = {entry.name for entry in root.iterdir()}
    except FileNotFoundError:
        return "gone"
    except NotADirectoryError:
        return "no run folder"
    except OSError:
        return "unreadable"
    if "config.toml" in names:
        return "preparing" if alive else "submitted" if "job.json" in names else "interrupted"
    return "half deleted" if MARKER in names or names & OUR_NAMES else "no run folder"


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def _has_owner(lock: Path) -> bool:
    # A released lock is empty and need not be read.
    signature = _signature(lock)
    return signature is not None and signature[0] > 0 and read_lock_owner(lock) is not None
