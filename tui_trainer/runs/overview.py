"""All runs of this disk at a glance.

The overview of a run that no process owns, or that has ended, is kept beside its journal, in `summary.json`. It is made
anew from the whole journal, at half a second for 100,000 steps, if it is missing or belongs to a shorter journal. Of a
run that goes on, only what is new is read. `measure` walks through a folder for its size: call it in its own thread.
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
from tui_trainer.runs import registry
from tui_trainer.runs.at_rest import named_root, remains_of
from tui_trainer.runs.events import MicroBatchReduced
from tui_trainer.runs.folder import (
    MARKER,
    OUR_NAMES,
    FolderSize,
    RunFolder,
    folder_size,
    read_fields,
    read_plain_file,
)
from tui_trainer.runs.labels import RunLabels, labels_of
from tui_trainer.runs.lock import owner
from tui_trainer.runs.result import (
    best_evaluation,
    ending_words,
    held_out_loss,
    kept_step,
    metric_value,
    metric_words,
    newest_scores,
)
from tui_trainer.runs.state import STOPPED_EARLY, FollowedJournal, RunState, Status, means
from tui_trainer.units import MIB

CURVE_POINTS: Final = 24
_SUMMARY_LIMIT_BYTES: Final = MIB
# Of what is read from a journal into a summary: a summary of another number is made anew.
_SUMMARY_VERSION: Final = 3

# A folder for runs with more in it is something else as well.
_MOST_UNLISTED: Final = 1_000
# Clocks of machines that are kept in time differ by less.
_CLOCK_TOLERANCE_SECONDS: Final = 60.0

_ENDED: Final = ("finished", "stopped", "failed")

RunStatus = Status | Literal["submitted", "interrupted", "half deleted", "no run folder", "unreadable", "gone"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """What came of a run: the part that the list of runs and a comparison have in common.

    `status` is one of RunState's, or else: `submitted`: a job of Slurm that has not started; `interrupted`: no process
    owns the run, and it has not recorded how it ended; `half deleted`; `no run folder`: something else is in its place;
    `unreadable`; `gone`.

    Losses are in nats per token. `loss` is that of `RunState.loss`. `eval_loss` is the final or the last held-out loss,
    and `scores` belong to it. `best` is the value of `metric` (`evaluation.metric_for_best_model`) at the best
    evaluation.
    """

    name: str
    path: Path
    status: RunStatus
    stopped_early: bool = False
    """Whether early stopping ended the run. Its status is `finished`."""
    kept_step: int | None = None
    """The earlier step whose weights the model has; None if it has the last weights, or there is no model."""
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
    """One run of the list. `model` is the name of the base model, empty for a model from scratch."""

    ending: str = ""
    """How the run ended, in a sentence: `stopped early at step 40; kept step 30: macro F1 0.810`."""
    alive: bool = False
    has_model: bool = False
    """Whether the folder of a finished run still holds its final model."""
    model: str = ""
    data: str = ""
    """`data.path` as it was planned; empty before."""
    came_from: str = ""
    """The chain of runs that trained its model before, in words; empty if there was none."""
    epoch: float | None = None
    loss_curve: tuple[float, ...] = ()
    """Up to 24 training losses from the first to the last step, for a sparkline."""
    out_of_memory_events: int = 0
    """How often the run made its passes smaller because memory ran out."""
    started_at: str = ""
    last_event_at: str = ""
    size_bytes: int | None = None
    freed_bytes: int | None = None
    """Bytes that deleting the run frees. Both sizes are None until they were measured."""
    tags: tuple[str, ...] = ()
    note: str = ""
    """Tags and note as in `RunLabels`. No summary keeps them."""

    @property
    def score(self) -> str:
        """`macro F1 0.810`: what the best evaluation goes by, else the first score; empty where there is none."""
        name = self.metric if self.metric in self.scores else next(iter(self.scores), "")
        return metric_words(name, self.scores[name]) if name else ""

    @property
    def is_run(self) -> bool:
        return self.status not in ("half deleted", "no run folder", "unreadable", "gone")

    @property
    def share_done(self) -> float | None:
        """Steps done of all steps, 0 to 1."""
        return min(self.step / self.total_steps, 1.0) if self.total_steps else None

    def age_seconds(self, now: datetime) -> float | None:
        """Return the seconds since the last event; None if there is none.

        They are negative only if the clock of the machine that wrote the journal is more than a minute ahead of `now`.
        """
        with suppress(ValueError, TypeError, OverflowError):
            seconds = (now - datetime.fromisoformat(self.last_event_at)).total_seconds()
            return seconds if seconds < -_CLOCK_TOLERANCE_SECONDS else max(seconds, 0.0)
        return None


_SUMMARIES: Final = TypeAdapter(tuple[tuple[int, int, int], RunOverview])
"""`summary.json`: version, bytes of the journal and of the plan that it was made from, and the overview of a run that
has ended, or that no process owns."""


class Overviews:
    """The list of runs, to be read again and again: a run that has not changed costs a few `stat`s."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[object, RunOverview]] = {}
        self._followed: dict[Path, FollowedJournal] = {}
        self._sizes: dict[Path, FolderSize] = {}
        self._labels: dict[Path, tuple[object, RunLabels]] = {}

    def read(self, runs_dirs: Iterable[Path] = ()) -> list[RunOverview]:
        """Every run of the index, the newest first; also those that are gone.

        A run in one of `runs_dirs` that the index does not know, as one that was copied there, stands where its start
        belongs; folders there that are no runs come last.
        """
        roots = registry.listed_roots()
        found = [one for root in reversed(roots) for one in self._of_root(root)]
        others = [one for root in _unlisted(roots, runs_dirs) for one in self._of_root(root)]
        for one in sorted((one for one in others if one.is_run), key=lambda one: one.started_at):
            older = (place for place, other in enumerate(found) if "" < other.started_at < one.started_at)
            found.insert(next(older, len(found)), one)
        found += [one for one in others if not one.is_run]
        listed = {one.path for one in found}
        for cache in (self._read, self._followed, self._sizes, self._labels):
            for path in set(cache) - listed:
                cache.pop(path, None)
        return [
            replace(one, size_bytes=size.bytes, freed_bytes=size.freed_bytes)
            if (size := self._sizes.get(one.path))
            else one
            for one in found
        ]

    def measure(self, path: Path) -> FolderSize:
        """Walks through the folder; `read` shows the size from then on. May be called in another thread."""
        size = self._sizes[path] = folder_size(path)
        return size

    def _of_root(self, root: Path) -> Iterator[RunOverview]:
        remains = remains_of(root)
        half_deleted = os.path.lexists(remains)
        if half_deleted:
            yield RunOverview(name=root.name, path=remains, status="half deleted")
        if not (half_deleted and not os.path.lexists(root)):
            yield self._of_folder(RunFolder(root))

    def _of_folder(self, folder: RunFolder) -> RunOverview:
        # The owner first: a run that ends between the two reads is then shown as finished, not as interrupted.
        alive, journal = _has_owner(folder.lock), _signature(folder.journal)
        known = self._read.get(folder.root)
        if journal is None or known is None or known[0] != (alive, journal) or not known[1].is_run:
            followed = self._followed.pop(folder.root, None)
            if alive and journal is not None:
                followed = self._followed[folder.root] = followed or FollowedJournal(folder)
            known = self._read[folder.root] = (alive, journal), _overview(folder, alive, followed)
        labels = self._labels_of(folder)
        # Its journal does not tell when its model goes.
        has_model = known[1].status == "finished" and folder.model.is_dir()
        return replace(known[1], has_model=has_model, tags=labels.tags, note=labels.note)

    def _labels_of(self, folder: RunFolder) -> RunLabels:
        written = _signature(folder.labels)
        known = self._labels.get(folder.root)
        if known is None or known[0] != written:
            known = self._labels[folder.root] = written, labels_of(folder) if written else RunLabels()
        return known[1]


def _unlisted(listed: Iterable[Path], runs_dirs: Iterable[Path]) -> list[Path]:
    """The folders directly in `runs_dirs` that are not listed, each once, by name; hidden ones are nobody's run."""
    known, found = set(listed), list[Path]()
    for runs_dir in runs_dirs:
        with suppress(OSError, RuntimeError):
            place = runs_dir.expanduser().resolve()
            entries = islice(os.scandir(place), _MOST_UNLISTED)
            # Most are listed, and need no look at the disk.
            roots = {named_root(place / entry.name) for entry in entries if entry.is_dir()} - known
            for root in sorted(roots, key=lambda root: (root.is_symlink(), root.name)):
                if not root.name.startswith(".") and known.isdisjoint((root, root.resolve())):
                    known.add(root)
                    found.append(root)
    return found


def overview(folder: RunFolder, followed: FollowedJournal | None = None) -> RunOverview:
    """Return the overview of one run. With `followed`, which is read to the end, no summary is used in its place."""
    return _overview(folder, _has_owner(folder.lock), followed)


def _overview(folder: RunFolder, alive: bool, followed: FollowedJournal | None) -> RunOverview:
    about = RunOverview(name=folder.name, path=folder.root, status="interrupted", alive=alive)
    journal = _signature(folder.journal)
    if journal is None:
        return replace(about, status=_without_journal(folder.root, alive))
    plan = _signature(folder.plan)
    made_from = _SUMMARY_VERSION, journal[0], plan[0] if plan else 0
    known = _summary(folder, made_from, alive)
    if known and followed is None:
        return replace(known, name=about.name, path=about.path, alive=alive)
    is_shared, followed = followed is not None, followed or FollowedJournal(folder)
    state = followed.read_new()
    if followed.reader.failing:
        # Who handed the journal in shows what was read of it.
        return replace(_of_state(about, state, {}) if is_shared else about, status="unreadable")
    found = _of_state(about, state, read_fields(folder.plan))
    # The sizes were taken before the files were read: if the run went on in between, the summary is made once more.
    if not known and (not alive or found.status in _ENDED):
        with suppress(FolderError):  # another user's folder or a read-only disk: the journal is read the next time
            folder.write_file(folder.summary, _SUMMARIES.dump_json((made_from, found), indent=1))
    return found


def _summary(folder: RunFolder, made_from: tuple[int, int, int], alive: bool) -> RunOverview | None:
    """Return the overview that was kept, or None if there is none that was made from these files as they are now."""
    with suppress(OSError, ValueError):
        was_made_from, run = _SUMMARIES.validate_json(read_plain_file(folder.summary, _SUMMARY_LIMIT_BYTES))
        return run if was_made_from == made_from and (not alive or run.status in _ENDED) else None
    return None


def _of_state(about: RunOverview, state: RunState, plan: dict[str, Any]) -> RunOverview:
    metric, data = "loss", ""
    with suppress(LookupError, TypeError):
        metric = str(plan["config"]["evaluation"]["metric_for_best_model"])
        data = str(plan["config"]["data"]["path"])
    # The state has only the last problems: the plan has counted them.
    reductions = sum(isinstance(problem, MicroBatchReduced) for problem in state.problems)
    counted = plan.get("out_of_memory_events")
    best = best_evaluation(state)
    ended = state.finished is not None or state.failed is not None
    return replace(
        about,
        status=state.status if ended or about.alive else "interrupted",
        stopped_early=state.stopped_early,
        ending=ending_words(state),
        kept_step=kept_step(state),
        task=state.task,
        model=state.plan.base_model if state.plan else "",
        data=data,
        came_from=state.plan.came_from if state.plan else "",
        step=state.step,
        total_steps=state.total_steps,
        epoch=state.last_step.epoch if state.last_step else None,
        loss=state.loss,
        loss_curve=tuple(loss for _, loss in means(state.steps, state.losses, CURVE_POINTS)),
        eval_loss=held_out_loss(state),
        scores=newest_scores(state),
        metric=metric,
        best=metric_value(best, metric) if best else None,
        out_of_memory_events=max(reductions, counted if type(counted) is int else 0),
        started_at=state.started_at,
        last_event_at=state.last_event_at,
    )


def _without_journal(root: Path, alive: bool) -> RunStatus:
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
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def _has_owner(lock: Path) -> bool:
    """A lock that was let go is empty: it need not be read."""
    found = _signature(lock)
    return found is not None and found[0] > 0 and owner(lock) is not None
