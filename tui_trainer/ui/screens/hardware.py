"""The Hardware screen: the machine, the GPU that a run would use, and problems. Each section fits any width."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import monotonic, time
from typing import Any, cast

from rich.cells import cell_len
from textual.app import ComposeResult

from tui_trainer.errors import ConfigError
from tui_trainer.files.local_paths import absolute_path
from tui_trainer.hardware import describe
from tui_trainer.hardware.diagnosis import GpuChoice, HardwareProblem, MachineDiagnosis, diagnose
from tui_trainer.hardware.facts import Gpu, Hardware, Place
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.hardware.probe import probe_again
from tui_trainer.hardware.processes import ProcessReader, ProcessSnapshot
from tui_trainer.hardware.storage import read_place
from tui_trainer.measure.trial import Trial, kept_trial, trial_problems, trial_rows, try_machine
from tui_trainer.planning.hardware_match import choose_hardware_profile
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui import spans
from tui_trainer.ui.keymap import Action
from tui_trainer.ui.own_processes import RUN_TRAINING_REFUSAL
from tui_trainer.ui.page import NOTHING_TO_DO, ListPage, bindings
from tui_trainer.ui.spans import Glyphs, Line, Role, Span, bar, fit, pad, title_rule, width_of
from tui_trainer.ui.widgets.gauge import TRAIL_MINUTES, GaugeBar, card_gauges, gauges_of
from tui_trainer.ui.widgets.pane import Area, KeyedPane, Scroller
from tui_trainer.ui.workbench import Workbench
from tui_trainer.units import GIB, format_bytes, quantity

LABEL = 11
_BAR = 10
_GAP = 2
# If gauges for the cores would take more lines than this, each core is drawn as one character.
_MOST_CORE_LINES = 8
# Number of lines that the facts in the same column as the processes take.
_FACTS_LINES, _FEWEST_PROCESSES, _MOST_PROCESSES = 31, 4, 40
_PROCESSES_EVERY_SECONDS, _SHARE_OF_A_CORE = 10.0, 0.002
_TWO_COLUMNS, _ANY_WIDTH = 120, 80
_EXAMPLE = "trains an example here in about a minute; needs no network and no GPU"
_WELCOME = {
    "app.new": "trains a model of your choice on your own data; you see the plan first",
    "app.help": "shows the keys and the guides",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareScene:
    """Data of the screen for a column of `width` cells. Each `..._section` method returns one section, or no lines."""

    diagnosis: MachineDiagnosis
    hardware: Hardware
    gauges: Gauges | None
    profile: tuple[str, str]
    """Name of the hardware profile, and the reason for its choice."""
    wide: bool
    """Whether there are two columns, so that some facts of the GPU have their own section in the other one."""
    width: int
    glyphs: Glyphs
    trial: Trial | None = None
    """Result of the newest benchmarks; None if they have not been run."""
    try_key: str = "m"
    processes: tuple[tuple[str, str, str], ...] = ()
    """The busiest processes, each as the texts of its CPU use, memory and command."""
    welcome: tuple[tuple[str, str], ...] = ()
    """Keys and their descriptions for a user without any run."""

    def titled(self, title: str, lines: list[Line]) -> list[Line]:
        return [title_rule(title, self.width, self.glyphs), *lines] if lines else []

    def hanging(self, start: Line, text: str, role: Role = "text") -> list[Line]:
        return spans.hanging(start, spans.paragraph(text, self.width - width_of(start), role))

    def row(self, label: str, text: str, role: Role = "text") -> list[Line]:
        return spans.labelled(label, text, LABEL, self.width, role)

    def rows(self, title: str, rows: list[describe.Row]) -> list[Line]:
        return self.titled(title, [line for label, text in rows for line in self.row(label, text)])

    def welcome_section(self) -> list[Line]:
        lines = [line for key, text in self.welcome for line in self.hanging([(f"  {pad(key, 3)}", "key")], text)]
        return self.titled("start here", lines)

    def device_section(self) -> list[Line]:
        rows = describe.device_rows(self.diagnosis, self.hardware, self.profile)
        roles: list[Role] = ["bold", "text", "text"]
        lines = [line for row, role in zip(rows, roles, strict=True) for line in self.row(*row, role)]
        if not self.diagnosis.problems:
            lines.append([(pad("problems", LABEL), "dim"), (f"{self.glyphs.good} ", "good"), ("none found", "text")])
        return self.titled("training", lines)

    def problems_section(self) -> list[Line]:
        return self.titled(f"problems: {len(self.diagnosis.problems)}", self._problem_lines(self.diagnosis.problems))

    def trial_section(self) -> list[Line]:
        """Return the results of the benchmarks and the problems found, or the key that runs the benchmarks."""
        if self.trial is None:
            start: Line = [(pad("not run", LABEL), "dim"), (f"{self.try_key} ", "key")]
            hint = "tests speed, disks and libraries in a few seconds"
            return self.titled("benchmarks", self.hanging(start, hint, "dim"))
        rows, problems = trial_rows(self.trial, self.hardware), trial_problems(self.trial)
        lines = [line for label, text in rows for line in self.row(label, one_line(text))]
        return self.titled("benchmarks: measured here", [*lines, *self._problem_lines(problems)])

    def _problem_lines(self, problems: Sequence[HardwareProblem]) -> list[Line]:
        glyphs, lines = self.glyphs, list[Line]()
        signs = {"bad": glyphs.bad, "warn": glyphs.warn, "info": glyphs.dot}
        for problem in problems:
            role: Role = "dim" if problem.severity == "info" else problem.severity
            lines += self.hanging([(pad(signs[problem.severity], 3), role)], problem.sentence)
            if problem.remedy:
                lines += self.hanging([(f"   {glyphs.arrow} ", "dim")], problem.remedy, "accent")
        return lines

    def gpu_table(self) -> list[Line]:
        """Return one line for each GPU. A column that does not fit is left out for all GPUs."""
        gpus, chosen_gpu = self.hardware.gpus, self.diagnosis.gpu
        if not gpus:
            return []
        names = [describe.short_name(gpu) for gpu in gpus]
        name_width, index_digits = max(map(cell_len, names)), len(str(len(gpus)))
        room_cells = self.width - 3 - index_digits - name_width
        # The load in `hardware` may be old, so only the load from gauges is shown.
        gauges = {gauge.index: gauge for gauge in (self.gauges.gpus if self.gauges else ())}
        lines: list[Line] = []
        for gpu, name in zip(gpus, names, strict=True):
            is_used = chosen_gpu is not None and gpu.index == chosen_gpu.index
            line: Line = [(f"{self.glyphs.pointer if is_used else ' '} ", "accent")]
            line.append((f"{gpu.index:>{index_digits}} {pad(name, name_width)}", "bold" if is_used else "text"))
            if problem := gpu.problem or ("" if gpu.visible else "hidden by CUDA_VISIBLE_DEVICES"):
                lines += self.hanging([*line, ("  ", "text")], one_line(problem), "bad" if gpu.problem else "dim")
            else:
                gauge = gauges.get(gpu.index, Gpu(index=gpu.index, memory_bytes=gpu.memory_bytes))
                lines.append([*line, *_columns(gauge, self.glyphs, room_cells)])
        return self.titled(f"{quantity(len(gpus), 'GPU')}: load and memory in use", lines)

    def card_section(self) -> list[Line]:
        """Return the facts of the GPU that a run would use; on a wide screen without those in their own section."""
        rows, gpu = describe.gpu_rows(self.diagnosis, self.hardware), self.diagnosis.gpu
        choice_note = "chosen by you" if self.diagnosis.gpu_is_chosen else "chosen automatically"
        if self.wide and gpu:
            rows = rows[: len(rows) - len(describe.process_rows(gpu))]
        if self.wide and gpu and gpu.card:
            rows = [row for row in rows if row[0] != "peak"]
        return self.rows(f"GPU {gpu.index}, {choice_note}" if gpu else "NVIDIA driver", rows)

    def peak_section(self) -> list[Line]:
        """Return the peak rates from the GPU's data sheet as bars, the fastest first."""
        card = self.diagnosis.gpu.card if self.diagnosis.gpu else None
        if card is None or not self.wide:
            return []
        teraflops_by_type = card.teraflops.known()
        lines: list[Line] = []
        for name, teraflops in sorted(teraflops_by_type.items(), key=lambda pair: -pair[1]):
            rate_text = f"  {teraflops:>6,.4g} {'TOP/s' if name == 'int8' else 'TFLOP/s'}"
            share_of_fastest = bar(teraflops / max(teraflops_by_type.values()), 2 * _BAR, self.glyphs)
            lines.append([(pad(name, LABEL), "dim"), (share_of_fastest, "accent"), (rate_text, "text")])
        lines += self.row("memory", f"{card.gigabytes_per_second:,.0f} GB/s")
        return self.titled(f"{card.title}: peak rates, dense", [*lines, *self.row("source", card.source)])

    def trail_title(self) -> list[Line]:
        gpu, period_note = self.diagnosis.gpu, f"the last {TRAIL_MINUTES} minutes, {self.glyphs.target} target"
        return [title_rule(f"GPU {gpu.index}: {period_note}", self.width, self.glyphs)] if gpu else []

    def users_section(self) -> list[Line]:
        """Return the processes on each GPU, or with one column only on GPUs that `card_section` does not show."""
        if not self.wide:
            rows = describe.other_process_rows(self.hardware, self.diagnosis.gpu)
            return self.rows("processes on the other GPUs", rows)
        rows = [(f"GPU {gpu.index}" if label else "", text)
                for gpu in self.hardware.gpus for label, text in describe.process_rows(gpu)]  # fmt: skip
        return self.rows("GPU processes", rows)

    def cores_section(self) -> list[Line]:
        """Return a small gauge for each core, or one character for each core if gauges would take many lines."""
        # Shares are rounded, so that the lines change only if the change is visible.
        shares = [round(20 * (share or 0)) / 20 for share in self.gauges.core_shares] if self.gauges else []
        if not shares or self.hardware.gpus:
            return []
        lines = self._in_columns([
            [(f"{core:>3} ", "dim"), (bar(share, _BAR, self.glyphs), "accent"), (f" {100 * share:>3.0f} %  ", "text")]
            for core, share in enumerate(shares)
        ])  # fmt: skip
        if self.wide and len(lines) <= _MOST_CORE_LINES:
            return self.titled("cores", lines)
        signs = spans.sparkline(shares, min(self.width - LABEL, len(shares)), self.glyphs, low=0.0, high=1.0)
        return self.row("cores", signs, "chart_raw")

    def _in_columns(self, cells: Sequence[Line]) -> list[Line]:
        """Return cells of equal width in as many columns as fit. Each column is filled from top to bottom."""
        row_count = -(-len(cells) // max((self.width + _GAP) // width_of(cells[0]), 1)) if cells else 0
        return [[span for cell in cells[row::row_count] for span in cell] for row in range(row_count)]

    def processes_section(self) -> list[Line]:
        if not self.wide or self.hardware.gpus:
            return []
        rows = [fit([(f"{cpu:>6} {memory:>10}  ", "text"), (command, "dim")], self.width, self.glyphs.ellipsis)
                for cpu, memory, command in self.processes]  # fmt: skip
        return self.titled("busiest processes: CPU, memory", rows or [[("looking ...", "dim")]])

    def disk_section(self) -> list[Line]:
        folders = self.hardware.places
        label_width = max((len(folder.label) for folder in folders), default=0) + 2
        room_width = max((len(describe.room_words(folder)) for folder in folders), default=0) + 2
        lines: list[Line] = []
        for folder in folders:
            line: Line = [(pad(folder.label, label_width), "dim")]
            line.append((pad(describe.room_words(folder), room_width), "bad" if folder.writable is False else "text"))
            path = describe.place_path(folder)
            if width_of(line) + cell_len(path) <= self.width:
                lines.append([*line, (path, "dim")])
            else:
                lines += [line, *self.hanging([(" " * label_width, "text")], path, "dim")]
        disks = self.gauges.disk_rates[: None if self.wide else 1] if self.gauges and not self.hardware.gpus else ()
        for disk in disks:
            rate_text = f"reads {format_bytes(round(disk.read))}/s, writes {format_bytes(round(disk.write))}/s"
            lines.append([(pad(disk.name, label_width), "dim"), (rate_text, "text")])
        return self.titled("disk", lines) if folders else []

    def libraries_section(self) -> list[Line]:
        versions, missing_names = describe.library_words(self.hardware)
        name_width = max((cell_len(name) for name, _ in versions), default=0) + 1
        cell_width = name_width + max((cell_len(version) for _, version in versions), default=0) + _GAP
        cells: list[Line] = [[(pad(name, name_width), "dim"), (version, "text")] for name, version in versions]
        lines = self._in_columns([fit(cell, cell_width) for cell in cells])
        if missing_names:
            lines += self.row("missing", ", ".join(missing_names), "dim")
        return self.titled("libraries", lines)


def _columns(gauge: Gpu, glyphs: Glyphs, room: int) -> Line:
    """Return load, memory, temperature and power of a GPU as far as they fit, with the same widths for all GPUs."""

    def cell(value: float | None, width: int, decimals: int = 0) -> str:
        return f"{'--' if value is None else f'{value:.{decimals}f}':>{width}}"

    used_gib, total_gib = ((size and size / GIB) for size in (gauge.memory_used_bytes, gauge.memory_bytes))
    load_share = gauge.utilisation_share
    columns: list[tuple[int, Span]] = [
        (7, (f"  {cell(load_share and 100 * load_share, 3)} %", "text")),
        (62, (f"  {bar(load_share, _BAR, glyphs)}", "accent")),
        (27, (f"  {cell(used_gib, 5, 1)} of {cell(total_gib, 5, 1)} GiB", "text")),
        (34, (f"  {cell(gauge.temperature_celsius, 3)} C", "text")),
        (50, (f"  {cell(gauge.power_watts, 4)} of {cell(gauge.power_limit_watts, 4)} W", "text")),
    ]
    return [span for least_room, span in columns if room >= least_room]


class HardwareSection(KeyedPane):
    """A section of the page. It is computed again when the machine's state changes, and hidden if it has no lines."""

    def __init__(self, part: Callable[[HardwareScene], list[Line]], *, is_live: bool = False, **options: Any) -> None:
        super().__init__(self._part_lines, **options)
        self._part, self.is_live = part, is_live
        self._drawn: tuple[HardwareScene | None, list[Line]] = (None, [])

    def _part_lines(self, width: int, _: int = 0) -> list[Line]:
        machine = cast("HardwarePage", self.screen).machine(width, self.is_live)
        if machine != self._drawn[0]:
            self._drawn = machine, self._part(machine)
        return self._drawn[1]

    def redraw(self) -> None:
        self.display = bool(self._part_lines(self.size.width or _ANY_WIDTH))
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
        self._reader, self._processes, self._next_look = ProcessReader(), tuple[tuple[str, str, str], ...](), 0.0
        self._bars = {name: GaugeBar(id=name) for name in ("busy", "memory", "gpu-busy", "gpu-memory")}
        scene, section = HardwareScene, HardwareSection
        left = Area(
            section(scene.welcome_section), section(scene.device_section), section(scene.problems_section),
            section(scene.gpu_table, is_live=True), section(scene.card_section),
            section(lambda now: now.rows("processor", describe.processor_rows(now.hardware)), id="processor"),
            self._bars["busy"], self._bars["memory"], section(scene.cores_section, is_live=True), classes="column left",
        )  # fmt: skip
        trail = Area(section(scene.trail_title), self._bars["gpu-busy"], self._bars["gpu-memory"], id="trail")
        parts = map(section, (scene.peak_section, scene.users_section, scene.processes_section))
        right = Area(
            section(scene.trial_section), section(scene.disk_section, is_live=True), section(scene.libraries_section),
            section(lambda now: now.rows("system", describe.system_rows(now.hardware) if now.wide else [])),
            classes="column",
        )  # fmt: skip
        others = Area(Area(trail, *parts, classes="column middle"), right, id="others")
        self._scroller = Scroller(Area(left, others, id="columns"))

    def body(self) -> ComposeResult:
        yield self._scroller

    def machine(self, width: int, is_live: bool) -> HardwareScene:
        """Return the data for a section of `width` cells. Only a live section gets the gauges."""
        is_new, document = self.bench.has_no_runs and self.bench.run is None, self.bench.document
        is_example = document is None or document.is_default
        welcome = {"app.start": _EXAMPLE if is_example else "starts a run with these settings"} | _WELCOME
        return HardwareScene(
            diagnosis=self._diagnosis, hardware=self.bench.hardware, gauges=self.bench.gauges if is_live else None,
            profile=self._profile, wide=self.size.width >= _TWO_COLUMNS, width=width, glyphs=self.bench.glyphs,
            trial=self._trial, try_key=self.bench.app.key_of("hardware.try_out"),
            processes=self._processes[: max(self.size.height - _FACTS_LINES, _FEWEST_PROCESSES)],
            welcome=tuple((self.bench.app.key_of(name), text) for name, text in welcome.items()) if is_new else (),
        )  # fmt: skip

    def redraw(self) -> None:
        self._look_at_runs_folder()
        self._show_gauges()
        super().redraw()

    def tick(self) -> None:
        self._show_gauges()
        for part in self.query(HardwareSection):
            if part.is_live:
                part.redraw()
        has_room = self.size.width >= _TWO_COLUMNS and not self.bench.hardware.gpus
        if has_room and not self.bench.is_unattended and monotonic() >= self._next_look:
            self._next_look = inf
            self.bench.background.run_work("busiest processes", self._reader.look, self._found_processes, "processes")

    def _found_processes(self, look: ProcessSnapshot) -> None:
        from tui_trainer.ui.processes import cells, sort_processes

        self._next_look = monotonic()
        # The CPU use of a process is known only from the second reading on.
        if any(process.cores is not None for process in look.processes):
            self._next_look += max(_PROCESSES_EVERY_SECONDS, look.cpu_seconds / _SHARE_OF_A_CORE)
            rows = [cells(process, time()) for process in sort_processes(look.processes, "cpu")[:_MOST_PROCESSES]]
            self._processes = tuple((row["cpu"], row["memory"], row["command"]) for row in rows)
            self.redraw()

    def _show_gauges(self) -> None:
        gauges, sparks, gpu = self.bench.gauges or Gauges(), self.bench.sparks, self._diagnosis.gpu
        busy_gauge, memory_gauge, _ = gauges_of(gauges, 0)  # disks have a section of their own
        gauges_by_name = {"busy": busy_gauge, "memory": memory_gauge}
        if gpu_gauges := [card for card in gauges.gpus if gpu is not None and card.index == gpu.index]:
            gauges_by_name |= zip(("gpu-busy", "gpu-memory"), card_gauges(gpu_gauges[0]), strict=True)
        for name, gauge in gauges_by_name.items():
            # The bar changes only if a change is visible.
            share = None if gauge.share is None else round(gauge.share, 3)
            label = pad(name.removeprefix("gpu-"), LABEL)
            self._bars[name].show(replace(gauge, share=share, label=label), sparks.get(gauge.curve_name, ()))

    def refusal(self, action: Action) -> str:
        if action.name == "try_out":
            reason = "the benchmarks are running" if self._is_trying else ""
            return RUN_TRAINING_REFUSAL if self.bench.run_is_alive else reason
        can_do = len(self.bench.hardware.gpus) > 1 if action.name == "next_gpu" else self._scroller.is_overflowing
        return "" if can_do or action.name in ("look_again", "processes", "download", "install") else NOTHING_TO_DO

    def move(self, lines: int) -> None:
        self._scroller.scroll_lines(lines)

    @property
    def page_lines(self) -> int:
        # One line must stay visible.
        return self._scroller.scrolled.size.height - 1

    def _diagnose(self) -> None:
        bench = self.bench
        self._diagnosis = diagnose(bench.hardware, bench.chosen_gpu)
        # Styles need no update before the page is shown.
        self.set_class(self._diagnosis.gpu is None, "-no-card", update=self.is_attached)
        self.set_class(not bench.hardware.gpus, "-no-gpu", update=self.is_attached)
        try:
            profile, reason = choose_hardware_profile("auto", bench.hardware, bench.chosen_gpu)
        except ConfigError as error:  # one of the user's own profiles; the Config screen shows the error too
            profile, reason = None, one_line(str(error))
        self._profile = (profile.name if profile else "none"), reason
        self._trial = kept_trial(bench.hardware, bench.chosen_gpu)

    def action_next_gpu(self) -> None:
        """Choose the next GPU for runs. After the last GPU, the choice is automatic again."""
        choices: list[GpuChoice] = [None, *(gpu.index for gpu in self.bench.hardware.gpus if gpu.visible)]
        position = choices.index(self.bench.chosen_gpu) if self.bench.chosen_gpu in choices else 0
        self.bench.chosen_gpu = choices[(position + 1) % len(choices)]
        self._diagnose()
        self.bench.machine_changed()
        gpu = self._diagnosis.gpu
        self.bench.show_notice(f"GPU {gpu.index}: {self._diagnosis.gpu_reason}" if gpu else "no usable GPU")

    def action_processes(self) -> None:
        from tui_trainer.ui.processes import ProcessesDialog

        self.bench.app.open(ProcessesDialog(self.bench))

    def action_download(self) -> None:
        from tui_trainer.ui.commands import offer_download

        offer_download(self.bench)

    def action_install(self) -> None:
        from tui_trainer.ui.commands import offer_install

        offer_install(self.bench)

    def action_try_out(self) -> None:
        """Run the benchmarks in a child process."""
        hardware, gpu_choice = self.bench.hardware, self.bench.chosen_gpu
        self._is_trying = True
        self.bench.show_notice("running benchmarks of precisions, attention, speed and disks ...", "dim")

        def show_trial(trial: Trial) -> None:
            self._is_trying = False
            if gpu_choice == self.bench.chosen_gpu:
                self._trial = trial
            count = len(trial["problems"])
            message = f"benchmarks: {quantity(count, 'problem') if count else 'no problems'} found"
            self.bench.show_notice(message, "warn" if count else "good")
            self.bench.app.draw()

        # In a thread of its own, so that planning does not wait for it.
        self.bench.background.run_work("trial", lambda: try_machine(hardware, gpu_choice), show_trial, "trial")

    def action_look_again(self) -> None:
        """Read the machine's hardware again, in the background because a driver may hang."""
        self.bench.show_notice("looking ...", "dim")
        self.bench.background.run_work("hardware", probe_again, self._looked)

    def _looked(self, hardware: Hardware) -> None:
        self.bench.hardware, self._runs_folder = hardware, Path()
        chosen_gpu = self.bench.chosen_gpu
        if chosen_gpu != "none" and all(gpu.index != chosen_gpu for gpu in hardware.gpus):
            self.bench.chosen_gpu = None
        self._diagnose()
        self.bench.machine_changed()
        self.bench.show_notice("refreshed: memory, disks, GPUs and their processes", "good")
        self.bench.app.draw()

    def _look_at_runs_folder(self) -> None:
        """Read the free space of the folder for runs if the folder has changed, and show it."""
        loaded_config = self.bench.document.loaded if self.bench.document else None
        path = absolute_path(loaded_config.config.output.runs_dir) if loaded_config else self._runs_folder

        def update(runs: Place) -> None:
            folders = tuple(runs if folder.label == runs.label else folder for folder in self.bench.hardware.places)
            self.bench.hardware = replace(self.bench.hardware, places=folders)
            self._diagnose()
            self.bench.app.draw()

        if path != self._runs_folder:
            self._runs_folder = path
            if ("runs", str(path)) not in [(folder.label, folder.path) for folder in self.bench.hardware.places]:
                self.bench.background.run_work("runs folder", lambda: read_place("runs", path), update)
