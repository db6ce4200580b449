"""1 Hardware: what this machine has, which card would be used, and what is wrong."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import cast

from textual.app import ComposeResult

from tui_trainer.hardware.diagnosis import GpuChoice, diagnose
from tui_trainer.hardware.facts import Hardware, Place
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.hardware.places import read_place
from tui_trainer.hardware.probe import probe_again
from tui_trainer.launching.trial import Trial, kept_trial, try_machine
from tui_trainer.local_paths import from_the_root
from tui_trainer.planning.hardware_match import choose_hardware_profile
from tui_trainer.ui.actions import Action
from tui_trainer.ui.page import NOTHING_TO_DO, ListPage, bindings
from tui_trainer.ui.processes import BESIDE_A_RUN
from tui_trainer.ui.screens import hardware_view as view
from tui_trainer.ui.screens.gauges_view import card_gauges, gauges_of
from tui_trainer.ui.screens.hardware_view import LABEL, Machine, Section
from tui_trainer.ui.spans import Line, pad
from tui_trainer.ui.theme import role_styles
from tui_trainer.ui.widgets.gauge import GaugeBar
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.widgets.scroller import Scroller
from tui_trainer.ui.widgets.section import Area
from tui_trainer.ui.workbench import Workbench

_TWO_COLUMNS = 120
_ANY_WIDTH = 80


class Part(Pane):
    """One part of the page: a function of the machine, computed when that has changed. Away while it has no lines."""

    def __init__(self, part: Callable[[Machine], Section], *, is_live: bool = False, id: str | None = None) -> None:
        super().__init__(self._part_lines, id=id)
        self._part, self.is_live = part, is_live
        self._made: tuple[Machine | None, Section] = (None, [])
        self._shown: object = None

    def _part_lines(self, width: int, _: int = 0) -> list[Line]:
        machine = cast("HardwarePage", self.screen).machine(width, self.is_live)
        if machine != self._made[0]:
            self._made = machine, self._part(machine)
        return self._made[1]

    def redraw(self) -> None:
        wanted = self._part_lines(self.size.width or _ANY_WIDTH), self.size, role_styles(self.app)
        if wanted != self._shown:
            self._shown = wanted
            self.set_class(not wanted[0], "-empty")
            super().redraw()


class HardwarePage(ListPage):
    place = "hardware"
    BINDINGS = bindings("hardware")
    HORIZONTAL_BREAKPOINTS = [(0, "-one"), (_TWO_COLUMNS, "-two"), (180, "-three")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-dense"), (30, "-airy"), (42, "-tall")]  # noqa: RUF012

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self._is_trying = False
        self._diagnose()
        self._runs_folder = Path()
        self._bars = {name: GaugeBar(id=name) for name in ("busy", "memory", "gpu-busy", "gpu-memory")}
        self._trail = Area(Part(view.trail_title), self._bars["gpu-busy"], self._bars["gpu-memory"], id="trail")
        self._cards = Part(view.gpu_table, is_live=True)
        self._scroller = Scroller(Area(*self._columns(), id="columns"))

    def _columns(self) -> ComposeResult:
        yield Area(
            Part(view.device_section), Part(view.problems_section), self._cards,
            Part(view.card_section), Part(view.processor_section, id="processor"),
            self._bars["busy"], self._bars["memory"], classes="column left",
        )  # fmt: skip
        middle = Area(self._trail, Part(view.peak_section), Part(view.users_section), classes="column middle")
        facts = (view.trial_section, view.disk_section, view.libraries_section, view.system_section)
        yield Area(middle, Area(*map(Part, facts), classes="column"), id="others")

    def body(self) -> ComposeResult:
        yield self._scroller

    def machine(self, width: int, is_live: bool) -> Machine:
        """What a section of so many cells draws; only those that are live get the gauges."""
        return Machine(
            diagnosis=self._diagnosis,
            hardware=self.bench.hardware,
            gauges=self.bench.gauges if is_live else None,
            profile=self._profile,
            wide=self.size.width >= _TWO_COLUMNS,
            width=width,
            glyphs=self.bench.glyphs,
            trial=self._trial,
            try_key=self.bench.app.key_of("hardware.try_out"),
        )

    def redraw(self) -> None:
        self._look_at_runs_folder()
        self._show_gauges()
        super().redraw()

    def tick(self) -> None:
        # What is below a dialog stands still.
        if self.app.screen is self:
            self._show_gauges()
            self._cards.redraw()

    def _show_gauges(self) -> None:
        gauges, sparks, gpu = self.bench.gauges or Gauges(), self.bench.sparks, self._diagnosis.gpu
        self._trail.set_class(gpu is None, "-empty")
        self.set_class(not self.bench.hardware.gpus, "-no-gpu")
        shown = dict(zip(("busy", "memory"), gauges_of(gauges, 0), strict=False))
        if cards := [card for card in gauges.gpus if gpu is not None and card.index == gpu.index]:
            shown |= zip(("gpu-busy", "gpu-memory"), card_gauges(cards[0]), strict=True)
        for name, gauge in shown.items():
            # A change too small to be seen is none.
            share = None if gauge.share is None else round(gauge.share, 3)
            label = pad(name.removeprefix("gpu-"), LABEL)
            self._bars[name].show(replace(gauge, share=share, label=label), sparks.get(gauge.spark, ()))

    def refusal(self, action: Action) -> str:
        can = len(self.bench.hardware.gpus) > 1 if action.name == "next_gpu" else self._scroller.is_overflowing
        if action.name == "try_out":
            if self.bench.run_is_alive:
                return BESIDE_A_RUN
            return "it is being tried" if self._is_trying else ""
        return "" if can or action.name == "look_again" else NOTHING_TO_DO

    def move(self, lines: int) -> None:
        self._scroller.scroll_lines(lines)

    @property
    def page_lines(self) -> int:
        # A line stays on the screen.
        return self._scroller.scrolled.size.height - 1

    def _diagnose(self) -> None:
        bench = self.bench
        self._diagnosis = diagnose(bench.hardware, bench.chosen_gpu)
        profile, why = choose_hardware_profile("auto", bench.hardware, bench.chosen_gpu)
        self._profile = (profile.name if profile else "none"), why
        self._trial = kept_trial(bench.hardware, bench.chosen_gpu)

    def action_next_gpu(self) -> None:
        """The cards one after the other, then no choice again: the freest."""
        indices: list[GpuChoice] = [None, *(gpu.index for gpu in self.bench.hardware.gpus if gpu.visible)]
        here = indices.index(self.bench.chosen_gpu) if self.bench.chosen_gpu in indices else 0
        self.bench.chosen_gpu = indices[(here + 1) % len(indices)]
        self._diagnose()
        self.bench.machine_changed()
        gpu = self._diagnosis.gpu
        self.bench.tell(f"GPU {gpu.index}: {self._diagnosis.gpu_reason}" if gpu else "no GPU can be used")

    def action_try_out(self) -> None:
        """What the machine really does: in a child process, while the screens go on."""
        hardware, chosen = self.bench.hardware, self.bench.chosen_gpu
        self._is_trying = True
        self.bench.tell("trying precisions, attention, rates and disks ...", "dim")

        def try_out() -> None:
            trial = try_machine(hardware, chosen)
            with suppress(RuntimeError):  # the screens are gone
                self.app.call_from_thread(self._tried, trial)

        # A thread of its own: the plan of the config does not wait for it.
        Thread(target=try_out, name="trial", daemon=True).start()

    def _tried(self, trial: Trial) -> None:
        self._is_trying, self._trial = False, trial
        count = len(trial["problems"])
        self.bench.tell(f"tried: {count} problems" if count else "tried: nothing is wrong", "warn" if count else "good")
        self.bench.app.draw()

    def action_look_again(self) -> None:
        """Read the machine anew; a driver that hangs does not hold the keys."""
        self.bench.tell("looking ...", "dim")
        self.bench.background.do("hardware", probe_again, self._looked)

    def _looked(self, hardware: Hardware) -> None:
        self.bench.hardware, self._runs_folder = hardware, Path()
        chosen = self.bench.chosen_gpu
        if chosen != "none" and all(gpu.index != chosen for gpu in hardware.gpus):
            self.bench.chosen_gpu = None
        self._diagnose()
        self.bench.machine_changed()
        self.bench.tell("read anew: memory, disks, cards and their processes", "good")
        self.bench.app.draw()

    def _look_at_runs_folder(self) -> None:
        """The room where the runs of the config go, once that is known and when it is changed."""
        loaded = self.bench.document.loaded if self.bench.document else None
        folder = from_the_root(loaded.config.output.runs_dir) if loaded else self._runs_folder
        if folder != self._runs_folder:
            self._runs_folder = folder
            if ("runs", str(folder)) not in [(place.label, place.path) for place in self.bench.hardware.places]:
                self.bench.background.do("runs folder", lambda: read_place("runs", folder), self._found_room)

    def _found_room(self, runs: Place) -> None:
        hardware = self.bench.hardware
        places = tuple(runs if place.label == runs.label else place for place in hardware.places)
        self.bench.hardware = replace(hardware, places=places)
        self._diagnose()
        self.bench.app.draw()
