"""1 Hardware: what this machine has, which card would be used, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable

from tui_trainer.hardware.diagnosis import Diagnosis, GpuChoice, diagnose
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.probe import probe_again
from tui_trainer.planning.hardware_match import choose_hardware_profile
from tui_trainer.ui.actions import Action
from tui_trainer.ui.page import Page, bindings
from tui_trainer.ui.screens.hardware_view import draw_hardware, live_lines, most_scroll
from tui_trainer.ui.spans import Line
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import Workbench


class HardwarePage(Page):
    place = "hardware"
    BINDINGS = bindings("hardware")

    def __init__(self, bench: Workbench) -> None:
        super().__init__(bench)
        self._top = 0
        self._body_size = (80, 22)
        self._furthest: tuple[object, int] = (None, 0)
        self._diagnosis: Diagnosis = diagnose(bench.hardware, bench.chosen_gpu)
        self._profile = self._match()

    def body(self) -> Iterable[Pane]:
        yield Pane(self.draw)

    def draw(self, width: int, height: int) -> list[Line]:
        self._body_size = (width, height)
        self._top = min(self._top, self._most())
        bench = self.bench
        return draw_hardware(
            self._diagnosis,
            bench.hardware,
            bench.gauges,
            profile=self._profile,
            scroll=self._top,
            width=width,
            height=height,
            glyphs=bench.glyphs,
        )

    def available(self, action: Action) -> bool:
        if action.name == "next_gpu":
            return len(self.bench.hardware.gpus) > 1
        if action.name in ("up", "down", "page_up", "page_down", "first", "last"):
            return self._most() > 0
        return True

    def _match(self) -> tuple[str, str]:
        bench = self.bench
        profile, why = choose_hardware_profile("auto", bench.hardware, bench.chosen_gpu)
        return (profile.name if profile else "none"), why

    def by_clock(self, width: int) -> object:
        bench = self.bench
        return live_lines(self._diagnosis, bench.hardware, bench.gauges, width=width, glyphs=bench.glyphs)

    def _most(self) -> int:
        """Asked for by each key that scrolls, so it is computed once for a machine and a size."""
        width, height = self._body_size
        hardware = self.bench.hardware
        asked = (self._body_size, self._diagnosis, hardware, self._profile)
        if self._furthest[0] != asked:
            most = most_scroll(
                self._diagnosis,
                hardware,
                profile=self._profile,
                width=width,
                height=height,
                glyphs=self.bench.glyphs,
            )
            self._furthest = (asked, most)
        return self._furthest[1]

    def _scroll(self, lines: int) -> None:
        self._top = min(max(self._top + lines, 0), self._most())

    def action_up(self) -> None:
        self._scroll(-1)

    def action_down(self) -> None:
        self._scroll(1)

    def action_page_up(self) -> None:
        self._scroll(2 - self._body_size[1])

    def action_page_down(self) -> None:
        self._scroll(self._body_size[1] - 2)

    def action_first(self) -> None:
        self._top = 0

    def action_last(self) -> None:
        self._top = self._most()

    def action_next_gpu(self) -> None:
        """The cards one after the other, then no choice again: the freest."""
        indices: list[GpuChoice] = [None, *(gpu.index for gpu in self.bench.hardware.gpus if gpu.visible)]
        here = indices.index(self.bench.chosen_gpu) if self.bench.chosen_gpu in indices else 0
        self.bench.chosen_gpu = indices[(here + 1) % len(indices)]
        self._renew()
        gpu = self._diagnosis.gpu
        self.bench.tell(f"GPU {gpu.index}: {self._diagnosis.gpu_reason}" if gpu else "no GPU can be used")

    def action_look_again(self) -> None:
        """Read the machine anew; a driver that hangs does not hold the keys."""
        self.bench.tell("looking ...", "dim")
        self.bench.background.do("hardware", probe_again, self._looked)

    def _looked(self, hardware: Hardware) -> None:
        self.bench.hardware = hardware
        chosen = self.bench.chosen_gpu
        if chosen != "none" and all(gpu.index != chosen for gpu in hardware.gpus):
            self.bench.chosen_gpu = None
        self._renew()
        self.bench.tell("read anew: memory, disks, cards and their processes", "good")
        self.bench.app.draw()

    def _renew(self) -> None:
        self._diagnosis = diagnose(self.bench.hardware, self.bench.chosen_gpu)
        self._profile = self._match()
        self.bench.machine_changed()
