"""What the model would get, in a box on the Config screen: rows of a batch one by one, and numbers about all rows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tui_trainer.errors import InputError
from tui_trainer.safe_text import one_line
from tui_trainer.ui.background import GivenUp
from tui_trainer.ui.dialogs import Dialog
from tui_trainer.ui.glyphs import Glyphs, bar
from tui_trainer.ui.spans import Line, Role, paragraph, wrapped

if TYPE_CHECKING:
    from tui_trainer.config.load import LoadedConfig
    from tui_trainer.launching.preview import Preview
    from tui_trainer.ui.workbench import Workbench

PREVIEW: Final = "preview"
_SAMPLES = 16
_MOST_CHARACTERS = 20_000
_BAR_CELLS = 30
_ROLES: Final[dict[str, Role]] = {
    "head": "bold", "text": "text", "trained": "good", "special": "accent", "note": "dim",
}  # fmt: skip


class PreviewDialog(Dialog):
    """Made in the background; closing it gives the work up."""

    heading = "Preview: what the model gets"

    def __init__(self, bench: "Workbench", loaded: "LoadedConfig") -> None:
        super().__init__()
        self._bench, self._loaded = bench, loaded
        self._preview: Preview | None = None
        self._refusals: tuple[str, ...] = ()
        self._far: tuple[str, float, float | None, str] = ("starting", 0.0, None, "")
        """What is done, how much of it, of how much, in which unit."""
        self._is_closed = False
        self._sample = 0
        self._shows_numbers = False
        self._drawn: tuple[object, list[Line]] = (None, [])

    def on_mount(self) -> None:
        """Prepare the data where that was not done, lay out the batches, and spell the samples."""
        self._bench.background.do(PREVIEW, self._make, self._made)

    def _make(self) -> "Preview | tuple[str, ...]":
        from tui_trainer.launching.preview import make_preview

        try:
            return make_preview(self._loaded, _SAMPLES, self._hear, gpu=self._bench.chosen_gpu)
        except InputError as error:
            return tuple(one_line(str(problem)) for problem in error.problems)

    def by_clock(self) -> object:
        return self._far

    def _hear(self, what: str, done: float, total: float | None, unit: str) -> None:
        self._far = (what, done, total, unit)
        if self._is_closed:
            raise GivenUp

    def _made(self, result: "Preview | tuple[str, ...]") -> None:
        if self._is_closed:
            return
        if isinstance(result, tuple):
            self._refusals = result
        else:
            self._preview = result
            plan = self._bench.plan
            if plan is not None and not plan.train_rows.exact:
                # The data is prepared now: the plan and the checks can be exact.
                self._bench.config_changed()
        self._show_from_top()

    # ---------------------------------------------------------------- drawing

    @property
    def keys(self) -> Sequence[tuple[str, str]]:  # type: ignore[override]
        if self._preview is None:
            return (("escape", "close" if self._refusals else "give up"),)
        if self._shows_numbers:
            return (("a", "samples"), ("up down", "scroll"), ("escape", "close"))
        return (("n", "next"), ("p", "previous"), ("a", "all rows"), ("up down", "scroll"), ("escape", "close"))

    def lines(self, width: int) -> list[Line]:
        """All lines of what is looked at; the same ones again while nothing changed."""
        if self._preview is None:
            return self._waiting(width, self.glyphs)
        state = (self._sample, self._shows_numbers, width, self.glyphs.ascii)
        if self._drawn[0] != state:
            draw = self._numbers if self._shows_numbers else self._sample_lines
            self._drawn = state, draw(self._preview, width, self.glyphs)
        return self._drawn[1]

    def _show_from_top(self) -> None:
        self.redraw()
        self.query_one("#inside").scroll_home(animate=False)

    def _waiting(self, width: int, glyphs: Glyphs) -> list[Line]:
        if self._refusals:
            return [line for refusal in self._refusals for line in paragraph(refusal, width, "bad")]
        what, done, total, unit = self._far
        if not total:
            return [[(f"{one_line(what)} ...", "dim")]]
        words = f" {one_line(what)}, {done:,.0f} of {total:,.0f} {one_line(unit)}"
        return [[(bar(done / total, _BAR_CELLS, glyphs), "accent"), (words, "dim")]]

    def _sample_lines(self, preview: "Preview", width: int, glyphs: Glyphs) -> list[Line]:
        from tui_trainer.launching.preview_words import ASCII_SIGNS, UNICODE_SIGNS, legend, sample_lines

        signs = ASCII_SIGNS if glyphs.ascii else UNICODE_SIGNS
        sample, count = preview.samples[self._sample], len(preview.samples)
        marked = [*sample_lines(sample, self._sample + 1, count, signs, width, _MOST_CHARACTERS), [], legend(signs)]
        return [[(text, _ROLES[mark]) for text, mark in line] for line in marked]

    def _numbers(self, preview: "Preview", width: int, glyphs: Glyphs) -> list[Line]:
        """Lines of numbers as they are, with their columns; a longer one in several, the later ones indented."""
        from tui_trainer.launching.preview_words import ASCII_SIGNS, UNICODE_SIGNS, summary_lines

        lines: list[Line] = []
        for text in summary_lines(preview, ASCII_SIGNS if glyphs.ascii else UNICODE_SIGNS):
            first, *rest = [text] if len(text) <= width else wrapped(text, width - 2)
            lines += [[(row, "text")] for row in (first, *(f"  {row}" for row in rest))]
        return lines

    # ------------------------------------------------------------------- keys

    def press(self, key: str, character: str | None) -> bool:
        if self._preview is None or character not in ("n", "p", "a"):
            return True
        if character == "a":
            self._shows_numbers = not self._shows_numbers
        elif not self._shows_numbers:
            self._sample = (self._sample + (1 if character == "n" else -1)) % len(self._preview.samples)
        self._show_from_top()
        return True

    def close(self) -> None:
        self._is_closed = True
        super().close()
