"""State that all pages share: the machine, the config being edited, its plan and its checks, and the run.

Slow work happens in `Background`, and its results arrive here, in the event loop. `app` draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from tui_trainer.errors import InputError, Problem
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.gauges import HIDDEN_PERIOD_SECONDS, VISIBLE_PERIOD_SECONDS, Gauges, GaugeSampler
from tui_trainer.hardware.probe import memory_available_now
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.keymap import name_keys_for_commands
from tui_trainer.ui.own_processes import Exports, Gains, Measurement, SingleProcessCommand, Tool
from tui_trainer.ui.spans import Glyphs, Role
from tui_trainer.ui.widgets.gauge import TRAIL_MINUTES, GaugeTrail
from tui_trainer.units import quantity
from tui_trainer.worker.asking import end_workers, shapes_worker

if TYPE_CHECKING:
    from textual.notifications import SeverityLevel

    from tui_trainer.advice.checklist import Finding
    from tui_trainer.config.changes import Edits
    from tui_trainer.config.document import ConfigDocument
    from tui_trainer.config.load import LoadedConfig, Request
    from tui_trainer.config.toml_files import Profile
    from tui_trainer.launching.drafts import Draft
    from tui_trainer.launching.open_run import OpenRun
    from tui_trainer.measure.config_process import ConfigProcess
    from tui_trainer.planning.plan import Plan
    from tui_trainer.runs import controls
    from tui_trainer.runs.folder import RunFolder
    from tui_trainer.ui.background import Background
    from tui_trainer.ui.dialogs import Answer, Dialog, Row
    from tui_trainer.ui.keymap import Action, Keymap
    from tui_trainer.ui.preferences import Preferences
    from tui_trainer.ui.terminal import TerminalGuard
    from tui_trainer.ui.watch import CurrentRun, WatchedRun


class ExitReason(Enum):
    QUIT = "requested"
    TRAINING_ON = "requested, training continues"
    LOST = "connection lost"
    TERMINATED = "terminated"


class Application(Protocol):
    """Interface that the workbench needs from the Textual app: drawing, and asking the user."""

    keymap: Keymap
    preferences: Preferences

    @property
    def takes_text(self) -> bool: ...
    @property
    def offered_actions(self) -> list[Action]: ...
    def refusal(self, action: Action) -> str: ...
    def perform_action(self, action_id: str) -> None: ...
    def draw(self) -> None: ...
    def show_page(self, number: int) -> None: ...
    def show_setting(self, key: str) -> None: ...
    def show_all_settings(self) -> None: ...
    def show_toast(self, text: str, severity: SeverityLevel, page: int) -> None: ...
    def poll_soon(self) -> None: ...
    def open(self, dialog: Dialog) -> None: ...
    def ask(self, heading: str, rows: Sequence[Row], answers: Sequence[Answer]) -> None: ...
    def close_question(self, heading: str) -> bool: ...
    def open_next(self, dialog: Dialog) -> None: ...
    def leave(self, how: ExitReason = ExitReason.QUIT) -> None: ...
    def key_of(self, action_id: str) -> str: ...
    def find_living_runs(self, *, offers: bool = True) -> None: ...
    def offer_draft(self, draft: Draft) -> None: ...
    def checked(self, findings: list[Finding]) -> None: ...
    def run_changed(self) -> None: ...


_NOTICE_SECONDS = 6
_NAMED_CELLS = 60
# A message has room for two lines of at least 60 cells each, which must also name the key that undoes the change.
_PATCH_CHARACTERS = 90
CONFIG_PAGE, TRAIN_PAGE = 1, 3
_NEWS_SECONDS, _MOST_NEWS, _NEWS_CHARACTERS = 10.0, 3, 160
# The pages that show gauges. On other pages, gauges are read less often, only for their history.
_GAUGE_PAGES = (0, TRAIN_PAGE)
# After this time without a key, the user counts as away and the screens are updated less often. The time is longer
# while something runs, because a user may watch it without pressing keys.
UNATTENDED_SECONDS, UNATTENDED_WATCH_SECONDS = 60.0, 300.0
TRYING = "try"
# Lanes of the background for slow work: counting a model's parameters, reading all data, loading weights.
FITTING, PLANNING, _DRAFT = "fitting", "planning", "draft"
OPENING, DETACHING = "opening a run", "detaching a run"
_DRAFT_SECONDS = 1.0


def fitting_words(plain: LoadedConfig) -> str:
    """Return what has to be done before planning, such as `counting the parameters of org/model ...`."""
    model, data = plain.config.model.model_name_or_path, plain.config.data.path
    if model and shapes_worker.is_asked:
        return f"counting the parameters of {one_line(model, _NAMED_CELLS)} ..."
    return f"reading {' and '.join(one_line(name, _NAMED_CELLS) for name in (model, data) if name)} ..."


def _lane_of(folder: RunFolder) -> str:
    """Return the lane for reading a run. Each run has its own lane, because its disk may not respond."""
    return f"run {folder.root}"


def fit_config(plain: LoadedConfig) -> tuple[LoadedConfig, list[Problem]]:
    """Return the config with presets that fit the model and the data, and the problems of its settings and its name."""
    from tui_trainer.launching.fitted_presets import with_columns_found
    from tui_trainer.launching.open_run import fit_presets, name_problems
    from tui_trainer.planning.conflicts import setting_problems

    loaded = with_columns_found(fit_presets(plain))
    return loaded, [*setting_problems(loaded), *name_problems(loaded)]


class Workbench:
    """State of the screens. Plans and checks are computed in the background; those for an older config are dropped."""

    def __init__(
        self, make_request: Callable[[], Request] | None, hardware: Hardware, glyphs: Glyphs, *, gpu: GpuChoice = None
    ) -> None:
        """Create the state. `make_request` is called after the first screen is shown; None means the defaults."""
        self.hardware, self.chosen_gpu, self.is_view = hardware, gpu, False
        self.document: ConfigDocument | None = None
        self.plan: Plan | None = None
        self.plan_problems: tuple[Problem, ...] = ()
        self.findings: list[Finding] = []
        self.old_edits: Edits = {}
        """Unsaved edits of an earlier session that the user has neither restored nor discarded yet."""
        self.draft: Draft | None = None
        """Draft with `old_edits`; None once it was offered to the user, on Config."""
        self.has_no_runs = False
        """Whether the index of runs is empty; False until it was read."""
        self.living_runs: Sequence[RunFolder] = []
        """Active runs on this machine when a page was last opened, the newest last."""
        self.start_wanted = False
        """Whether the user pressed the key to start before there was a plan."""
        self.is_attaching = False
        """Whether the journal of a run is being read to show that run."""
        self._has_looked_for_a_draft = False
        self._planned_revision = self._checked_revision = self._noted_revision = -1
        self._followed: LoadedConfig | None = None
        """Config that `_tell_what_followed` compared last."""
        self.glyphs = glyphs
        self.guard: TerminalGuard | None = None
        self.current_page = self._notice_seconds = 0
        self.notice: tuple[str, Role] | None = None
        self.unseen_pages, self._news_at = set[int](), 0.0
        """Pages on which something happened while another one was shown."""
        self.run: WatchedRun | None = None
        self.local_run: CurrentRun | None = None
        """The newest run that this process trains or has trained."""
        self.exports = Exports(self)
        self.rehearsals: Measurement[ConfigProcess] = Measurement(self, "a rehearsal", "RehearsalProcess")
        self.tunings: Measurement[ConfigProcess] = Measurement(self, "tune", "TuneProcess")
        self.sizes: Measurement[ConfigProcess] = Measurement(self, "tune --effective", "SizesProcess")
        self.switches: Measurement[ConfigProcess] = Measurement(self, "bench train", "SwitchesProcess")
        self.gain_measurements = Gains(self, "the measurement", "GainProcess")
        self.tools: dict[str, Tool] = {}
        """Commands about runs, models and this program. The key is the command's description."""
        self.exit_reason: ExitReason | None = None
        self.opened_run: OpenRun | InputError | None = None
        """Result of opening a run, until the screens have handled it."""
        self.detached_pid: int | Exception | None = None
        """Result of detaching a run until the screens have handled it: the id of the new process, or an error."""
        self.leave_when_over = self._stop_pending = False
        self._make_request = make_request
        self._sampler = GaugeSampler()
        self.last_input_at = monotonic()
        """Time of the last key press or other use of the terminal, on the monotonic clock in seconds."""
        self._questions: list[Callable[[], None]] = []
        self.trail = GaugeTrail(parts=60, seconds=60.0 * TRAIL_MINUTES)
        self.app: Application
        self.background: Background

    def begin(self) -> None:
        self._sampler.start()
        self.background.run_work("document", self._open_document, self._opened)
        self.app.find_living_runs()

    def ask_when_free(self, question: Callable[[], None]) -> None:
        """Ask a question as soon as no other dialog is open and the user does not type."""
        self._questions.append(question)
        self._ask()

    def _ask(self) -> None:
        """Ask the next question. Edits of an earlier session are offered on Config, where their effect is visible."""
        if self.app.takes_text or self._is_waited_for:
            return
        if self._questions:
            self._questions.pop(0)()
        elif self.draft and self.current_page == CONFIG_PAGE:
            draft, self.draft = self.draft, None
            self.app.offer_draft(draft)

    def end(self) -> None:
        """Stop all work for the screens, which have closed."""
        from tui_trainer.launching.drafts import leave_drafts

        self.background.finish(_DRAFT, _DRAFT_SECONDS)
        leave_drafts()
        self.background.end()
        self._sampler.stop()
        for command in self.commands:
            command.end()
        if not self.is_training_here:
            # A run that is being prepared may still use the workers.
            end_workers()

    def _open_document(self) -> ConfigDocument:
        from tui_trainer.config.document import ConfigDocument
        from tui_trainer.config.load import Request

        return ConfigDocument(self._make_request() if self._make_request else Request(), self._choose_hardware)

    def _opened(self, document: ConfigDocument) -> None:
        from tui_trainer.launching.drafts import draft_for

        self.document = document
        self.config_changed()
        self.background.run_work("draft of before", partial(draft_for, document.request), self._found_draft, _DRAFT)

    def _found_draft(self, draft: Draft | None) -> None:
        self.old_edits, self.draft = draft.edits if draft else {}, draft
        self._has_looked_for_a_draft = True
        self._keep_draft()
        self._ask()
        if self.draft and self.current_page != CONFIG_PAGE:
            self._notify(CONFIG_PAGE, "unsaved edits of an earlier session can be restored on Config", "information")

    def _keep_draft(self) -> None:
        """Save unsaved edits, so that they survive a lost connection. Edits of an earlier session are kept as well."""
        from tui_trainer.launching.drafts import draft_writer

        if self.document is not None and self._has_looked_for_a_draft:
            write = draft_writer(self.document, below=self.old_edits)
            self.background.run_work(_DRAFT, write, self._report_problem, _DRAFT)

    @property
    def commands(self) -> tuple[SingleProcessCommand[Any], ...]:
        """All commands that run in processes of their own."""
        measurements = self.gain_measurements, self.rehearsals, self.tunings, self.sizes, self.switches
        return self.exports, *measurements, *self.tools.values()

    def other_running_measurement(self, command: SingleProcessCommand[Any]) -> SingleProcessCommand[Any] | None:
        """Return a running measurement other than `command`; None if there is none. Two would distort each other."""
        others = (other for other in self.commands if other.is_measurement and other is not command)
        return next((other for other in others if other.running_process), None)

    @property
    def is_unattended(self) -> bool:
        """Whether the user has pressed no key for a minute, or for five minutes while something is running."""
        is_watched = self.run_is_alive or any(command.running_process for command in self.commands)
        return monotonic() - self.last_input_at > (UNATTENDED_WATCH_SECONDS if is_watched else UNATTENDED_SECONDS)

    def set_gauge_interval(self) -> None:
        """Read gauges often while a page shows them, and seldom otherwise."""
        is_seen = self.current_page in _GAUGE_PAGES and not self.is_unattended
        self._sampler.set_period(VISIBLE_PERIOD_SECONDS if is_seen else HIDDEN_PERIOD_SECONDS)

    def tick(self) -> bool:
        """Poll the run and all commands. Return whether the notice has changed."""
        old_notice = self.notice
        self.poll_run()
        self._ask()
        for command in self.commands:
            command.poll()
        if gauges := self.gauges:
            self.trail.add_reading(gauges, monotonic())
        self._notice_seconds -= 1
        if self.notice and self._notice_seconds <= 0 and self.notice[1] != "bad" and not self._is_waited_for:
            self.notice = None
        if self._stop_pending and self.run_is_alive and not self.background.is_busy("ask to stop"):
            self.ask_run("stop")
        if self.leave_when_over and not self.run_is_alive:
            self.app.leave()
        return self.notice != old_notice

    @property
    def _is_waited_for(self) -> bool:
        """Whether the notice must stay because it announces unfinished work: planning, opening or detaching a run."""
        return self.start_wanted or self.background.is_busy(OPENING) or self.background.is_busy(DETACHING)

    @property
    def start_words(self) -> str:
        """Reason why a requested start has to wait; empty if no start was requested."""
        if self.background.is_busy(OPENING):
            return "opening the run ..."
        if not self.start_wanted:
            return ""
        if self.is_planning:
            return f"planning: {self.fitting_text}" if self.fitting_text else "planning ..."
        return "checking the settings ..."

    @property
    def background_run_words(self) -> str:
        """Message about the newest active run that Train does not show, with the key that shows it; empty if none."""
        shown = {run.folder for run in (self.run, self.local_run) if run}
        names = [one_line(folder.name, 40) for folder in self.living_runs if folder not in shown][-1:]
        key = self.app.key_of("app.go_runs")
        return "".join(f"{name} is training in the background ({key} shows it)" for name in names)

    @property
    def active_run_words(self) -> str:
        """Message that a run is already active, with the keys that stop it, detach it or prepare the next run."""
        stop, detach, new = map(self.app.key_of, ("train.stop", "train.detach", "app.new"))
        return f"a run is already active: on Train, {stop} stops it, {detach} detaches it; {new} prepares the next run"

    def take_refusals(self) -> tuple[Problem, ...]:
        """Return the problems of a run that was refused before it had a folder, and remove the run from the screens."""
        run = self.local_run
        if run is None or run is not self.run or run.alive or not run.refusals or run.folder.root.exists():
            return ()
        self.local_run = None
        self.show_run(None)
        return run.refusals

    @property
    def gauges(self) -> Gauges | None:
        """The machine's newest gauges; None if there are none, or if they are outdated."""
        return None if self._sampler.stale else self._sampler.latest

    @property
    def sparks(self) -> dict[str, list[float]]:
        """Shares of each gauge in the last minutes, the oldest first, by the name of its curve."""
        return self.trail.sparks(monotonic())

    def show_notice(self, text: str, role: Role = "text") -> None:
        """Show a message above the keys until the next key. Messages other than errors disappear after some seconds."""
        self.notice = (one_line(name_keys_for_commands(text)), role)
        self._notice_seconds = _NOTICE_SECONDS

    def report_end(self, page: int, text: str, role: Role) -> None:
        """Report the end of a command of `page`: on that page by a message, elsewhere by a toast and a marked tab."""
        if page == self.current_page:
            self.show_notice(text, role)
        else:
            self._notify(page, text, "error" if role == "bad" else "information")

    def _notify(self, page: int, text: str, severity: SeverityLevel) -> None:
        if page != self.current_page:
            self.unseen_pages.add(page)
        self.app.show_toast(one_line(name_keys_for_commands(text), _NEWS_CHARACTERS), severity, page)

    def go(self, page: int) -> None:
        self.current_page = page
        self.unseen_pages.discard(page)
        self.set_gauge_interval()
        self.app.show_page(page)
        self.app.find_living_runs(offers=False)
        self._ask()

    @property
    def has_unsaved_edits(self) -> bool:
        return self.document is not None and self.document.is_unsaved

    @property
    def run_is_alive(self) -> bool:
        return self.run is not None and self.run.alive

    @property
    def is_training_here(self) -> bool:
        """Whether this process trains an active run."""
        return self.run_is_alive and self.run is not None and self.run.is_trained_here

    def poll_run(self) -> None:
        """Read the run's new events in the background, because its disk may be slow, and then draw the screens."""
        if (run := self.run) is None or self.background.is_busy(lane := _lane_of(run.folder)):
            return

        def draw_news(_: None) -> None:
            if run is self.run and run.apply_new_events():
                self._show_news(run)
                self.app.draw()

        self.background.run_work(lane, run.read_new_events, draw_news, lane)

    def _show_news(self, run: WatchedRun) -> None:
        """Show news of the run as toasts while another page is shown, and mark the tab until Train is opened."""
        news, run.news = run.news, []
        if run.has_gone:
            from tui_trainer.runs.wording import interrupted_words

            run.has_gone = False
            self._notify(TRAIN_PAGE, interrupted_words(run.state, self.app.key_of("train.pause")), "error")
        if self.current_page == TRAIN_PAGE or not news:
            return
        self.unseen_pages.add(TRAIN_PAGE)
        # A run may evaluate once a second, so ordinary news is limited to one toast per interval.
        is_due = run.state.finished is not None or monotonic() - self._news_at > _NEWS_SECONDS
        toasts = [item for item in news if item[1] != "information" or (is_due and item is news[-1])]
        for text, severity in toasts[-_MOST_NEWS:]:
            self._news_at = monotonic()
            self._notify(TRAIN_PAGE, text, severity)

    def show_run(self, run: WatchedRun | None) -> None:
        """Show a run on the Train page, or no run."""
        self.run, self._stop_pending = run, False
        self.unseen_pages.discard(TRAIN_PAGE)
        if run is not None:
            run.news, run.has_gone = [], False
            self._sampler.folder = run.folder.root
        self.poll_run()
        self.app.run_changed()

    def show_on_train(self, run: WatchedRun) -> None:
        self.show_run(run)
        if self.app.takes_text:
            # An open dialog or field would stay on the old page.
            self.show_notice(f"{one_line(run.folder.name)} is on the Train screen")
        else:
            self.go(TRAIN_PAGE)

    def attach_to(
        self, folder: RunFolder, *, go: bool = True, words: str = "", then: Callable[[], object] = lambda: None
    ) -> None:
        """Read a run's journal in the background. Then show the run, with `go` on Train, and the message `words`."""
        from tui_trainer.ui.watch import WatchedRun

        run = WatchedRun(folder)

        def show(_: bool) -> None:
            self.is_attaching, self.notice = False, None
            if words:
                self.show_notice(words, "good")
            if not self.is_training_here:
                (self.show_on_train if go else self.show_run)(run)
                then()
            elif go:
                self.show_notice("a run is active in this process: the Train screen keeps showing it", "warn")
            self.app.draw()

        self.is_attaching = True
        self.show_notice(f"reading {folder.name} ...", "dim")
        self.background.run_work("a run", run.poll, show, _lane_of(folder))

    def ask_run(self, action: controls.ControlAction) -> None:
        """Send a request to the run in the background. A stop request that fails is sent again at each tick."""
        if (run := self.run) is None or not run.alive:
            return
        self._stop_pending |= action == "stop"

        def report(problem: str) -> None:
            if run is self.run and action == "stop":
                self._stop_pending = bool(problem)
            is_leaving = self.leave_when_over and action == "stop"
            text = "saving and stopping the run; the screens close afterwards" if is_leaving else f"requested: {action}"
            self.show_notice(problem or text, "bad" if problem else "warn" if is_leaving else "dim")
            self.app.poll_soon()
            self.app.draw()

        self.show_notice(f"requesting: {action} ...", "dim")
        # A request may wait for a lock or for Slurm. Each action has its own lane, so a stop waits for no other one.
        lane = f"ask to {action}"
        self.background.run_work(lane, partial(run.ask, action), report, lane)

    @property
    def memory_free_bytes(self) -> int:
        """Available memory of the machine at this moment, in bytes."""
        return memory_available_now()

    @property
    def is_planning(self) -> bool:
        return self.document is None or self._planned_revision != self.document.revision

    @property
    def is_checking(self) -> bool:
        """Whether `findings` belong to an older version of the config."""
        return self.document is None or self._checked_revision != self.document.revision

    def _choose_hardware(self, requested: str) -> tuple[Profile | None, str]:
        from tui_trainer.planning.hardware_match import choose_hardware_profile

        return choose_hardware_profile(requested, self.hardware, self.chosen_gpu)

    @property
    def fitting_text(self) -> str:
        """Text about fitting presets, for which the plan has to wait; empty if no presets are being fitted."""
        loaded_config = self.document.unfitted if self.document else None
        return fitting_words(loaded_config) if loaded_config and self.background.is_busy("fit") else ""

    def note_change(self, sentence: str = "", role: Role = "text") -> None:
        """Show a message about an edit. If the config has changed, plan again and save the draft."""
        if sentence:
            self.show_notice(sentence, role)
        if self.document is not None and self.document.revision != self._noted_revision:
            if self.run_is_alive and not sentence:
                self.show_notice("the change applies to the next run: the active run keeps its settings", "dim")
            self.config_changed()
        self.app.draw()

    def config_changed(self) -> None:
        """Plan and check the newest config in the background."""
        document = self.document
        if document is None:
            return
        self._noted_revision = document.revision
        self._planned_revision = self._checked_revision = -1
        self._keep_draft()
        if document.unfitted is None:
            self._planned(document.config_problems)
            self._checked([])
        else:
            self._compute("fit", partial(fit_config, document.unfitted), self._fitted, FITTING)

    def _report_problem(self, problem: Problem | None) -> None:
        if problem:
            self.show_notice(str(problem), "warn")
            self.app.draw()

    def _fitted(self, result: tuple[LoadedConfig, list[Problem]]) -> None:
        """Store a config whose presets fit the model and the data, and make a plan for it."""
        document, gpu = self.document, self.chosen_gpu
        assert document is not None, "its presets were fitted"
        document.set_fitted(*result)
        self._noted_revision = document.revision
        self._tell_what_followed()
        loaded_config = result[0]
        if document.config_problems:
            self._planned(document.config_problems)
            self._checked([])
            return

        def make_plan() -> Plan | tuple[Problem, ...]:
            from tui_trainer.launching.prepare import estimated_plan

            try:
                return estimated_plan(loaded_config, gpu=gpu)
            except InputError as error:
                return error.problems

        self._compute("plan", make_plan, self._planned)
        self.app.draw()

    def _tell_what_followed(self) -> None:
        """Report a recipe or a task that changed because the user chose another model or other data."""
        from tui_trainer.launching.fitted_presets import change_words

        old_config, new_config = self._followed, self.document.loaded if self.document else None
        if new_config is None or new_config is old_config:
            return
        self._followed = new_config
        if old_config is not None and (message := change_words(old_config, new_config)):
            undo_key = self.app.key_of("config.undo")
            self.show_notice(f"{self.notice[0]}; {message}" if self.notice else f"{message}; {undo_key} to undo")

    def _compute(self, name: str, work: Callable[[], Any], answer: Callable[[Any], None], lane: str = PLANNING) -> None:
        """Run `work` in the background and pass its result to `answer`, unless the config changes meanwhile."""
        document = self.document
        assert document is not None
        revision = document.revision
        self.background.run_work(
            name, work, lambda result: answer(result) if document.revision == revision else None, lane
        )

    def machine_changed(self) -> None:
        """Plan and check again after another GPU was chosen or the machine was read again."""
        if self.document is not None:
            self.document.update_hardware_profile()
            self.config_changed()

    def _planned(self, result: Plan | tuple[Problem, ...]) -> None:
        document = self.document
        assert document is not None, "a plan was made from a document"
        self._planned_revision = document.revision
        if self.plan is not None and not isinstance(result, tuple):
            from tui_trainer.planning.summary import moved_words

            if (message := moved_words(self.plan, result)) and self.notice is None:
                self.show_notice(message)
        self.plan, self.plan_problems = (None, result) if isinstance(result, tuple) else (result, ())
        document.set_plan_problems(self.plan_problems)
        self._check(document)
        self._start_if_wanted()

    def _start_if_wanted(self) -> None:
        if self.start_wanted and not self.app.takes_text:
            self.notice = None  # the notice explained why the start had to wait
            self.app.draw()
            self.app.perform_action("app.start")
        self.app.draw()

    def _check(self, document: ConfigDocument) -> None:
        loaded_config, plan, hardware, gpu = document.loaded, self.plan, self.hardware, self.chosen_gpu
        if loaded_config is None:
            return

        def check() -> list[Finding]:
            from tui_trainer.advice.checklist import run_checks
            from tui_trainer.advice.gather import gather

            return run_checks(gather(loaded_config, hardware=hardware, plan=plan, gpu=gpu))

        self._compute("checks", check, self._checked)

    def _checked(self, findings: list[Finding]) -> None:
        assert self.document is not None, "it was checked"
        self.findings, self._checked_revision = findings, self.document.revision
        self.app.checked(findings)
        self._start_if_wanted()

    def checks_mark(self) -> tuple[str, Role]:
        """Return the mark on the Checklist tab, such as `1 fail 2 warn` or `ok`, and its role; empty without checks."""
        if not self.findings:
            return "", "dim"
        fail_count = sum(finding.status in ("fail", "error") for finding in self.findings)
        warn_count = sum(finding.status == "warn" for finding in self.findings)
        marks = [f"{fail_count} fail"] * bool(fail_count) + [f"{warn_count} warn"] * bool(warn_count)
        return " ".join(marks) or "ok", "bad" if fail_count else "warn" if warn_count else "good"

    def apply(self, patch: Mapping[str, Any], label: str) -> bool:
        """Change settings as one undoable step, and show the changes or the first problem. Return whether it worked."""
        if self.document is None:
            return False
        if problems := self.document.patch(patch, label):
            self.show_notice(str(problems[0]), "bad")
        else:
            self.note_change(f"applied {self.patch_words(patch)}; {self.app.key_of('config.undo')} to undo", "good")
        return not problems

    def patch_words(self, patch: Mapping[str, Any]) -> str:
        """Return the changed settings with their new values, or their count if that is too long for a message."""
        from tui_trainer.config.changes import settings_words

        if len(changes_text := one_line(settings_words(patch))) <= _PATCH_CHARACTERS:
            return changes_text
        return f"{quantity(len(patch), 'setting')} ({self.app.key_of('config.changed_only')} on Config lists them)"
