"""What the command palette finds: what can be done here, and everything that has a name elsewhere."""

from abc import abstractmethod
from asyncio import Event, wait_for
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.markup import escape

from tui_trainer.errors import ConfigError
from tui_trainer.lines.guides import guides, sections
from tui_trainer.runs.folder import RunFolder
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.keymap import PLACES, TITLES, Action, key_sign

if TYPE_CHECKING:
    from tui_trainer.config.toml_files import Profile

_LEAST_SCORE = 1e-6
# What is done here comes before what has as good a name elsewhere.
_ELSEWHERE = 0.9
# They need something chosen by eye on their screen.
_MOVES = ("up", "down", "page_up", "page_down", "first", "last", "clear", "cancel", "older", "newer")
_DISK_SECONDS = 0.3
_READING = "runs for the palette"


class Command(NamedTuple):
    name: str
    help: str
    do: Callable[[], object]
    text: str = ""
    """Further words by which it is found."""


class Commands(Provider):
    """Fuzzy search in the names of commands; behind those whose names match, those whose help has the words."""

    app: Any
    weight: ClassVar[float] = _ELSEWHERE

    @abstractmethod
    def offered(self) -> Iterable[Command]: ...

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, help, do, text in self.offered():
            # Letters far from each other are found by chance in a sentence.
            score = matcher.match(name) or _LEAST_SCORE * (query.casefold() in f"{help} {text}".casefold())
            if score > 0:
                yield Hit(self.weight * score, matcher.highlight(name), do, help=escape(help))


class Discovered(Commands):
    """All of them are shown before anything is typed."""

    async def discover(self) -> Hits:
        for name, help, do, _ in self.offered():
            yield DiscoveryHit(name, do, help=escape(help))


class ActionCommands(Discovered):
    """What can be done now, on this screen and everywhere: see `TrainerApp.offered_actions` and `carry_out`."""

    weight = 1.0

    def offered(self) -> Iterable[Command]:
        # The actions of the footer first: to move is nothing that is looked for here.
        for action in sorted(self.app.offered_actions, key=lambda one: one.footer or 100):
            yield _command(self.app, action, partial(self.app.carry_out, action.id))


def _command(app: Any, action: Action, do: Callable[[], object]) -> Command:
    keys = " ".join(key_sign(key, ascii_only=app.has_class("-ascii")) for key in action.keys)
    return Command(f"{TITLES[action.place]}: {action.label}", f"{keys or 'no key'}: {action.help}", do)


class ElsewhereCommands(Commands):
    """What the other screens do; they are gone to first."""

    def offered(self) -> Iterable[Command]:
        here = self.app.page.place
        for place in (place for place in PLACES[1:] if place != here):
            for action in self.app.keymap.of(place):
                if action.name not in _MOVES:
                    do = partial(self.app.do_on, place, partial(self.app.carry_out, action.id))
                    yield _command(self.app, action, do)


class SettingCommands(Commands):
    def offered(self) -> Iterable[Command]:
        if self.app.bench.document is None:
            return
        from tui_trainer.config.explain import groups

        for _, _, settings in groups():
            for one in settings:
                yield Command(f"Setting: {one.key}", one.help, partial(self.app.show_setting, one.key))


class RecipeCommands(Commands):
    @cached_property
    def _recipes(self) -> "dict[str, Profile]":
        from tui_trainer.config.toml_files import all_profiles

        # One that cannot be read is named by the list of recipes.
        with suppress(ConfigError):
            return all_profiles("recipes")
        return {}

    def offered(self) -> Iterable[Command]:
        for name, recipe in self._recipes.items() if self.app.bench.document else ():
            yield Command(f"Recipe: {name}", one_line(recipe.summary), partial(self.app.show_recipe, name))


class RunCommands(Commands):
    """Runs by their names. A disk may be slow: the list is read behind the screens, once for each palette."""

    async def startup(self) -> None:
        # Nothing is waited for here: what begins is waited for when the palette closes.
        from tui_trainer.runs.registry import known_runs

        self._found: list[RunFolder] = []
        self._is_read = Event()
        self.app.bench.background.do(_READING, known_runs, self._take, _READING)

    def _take(self, runs: list[RunFolder]) -> None:
        self._found = runs
        self._is_read.set()

    async def search(self, query: str) -> Hits:
        # Textual shows the last finds of all once every search has ended.
        with suppress(TimeoutError):
            await wait_for(self._is_read.wait(), _DISK_SECONDS)
        async for hit in super().search(query):
            yield hit

    def offered(self) -> Iterable[Command]:
        for folder in reversed(self._found):
            do = partial(self.app.bench.attach_to, folder)
            yield Command(f"Run: {one_line(folder.name)}", one_line(str(folder.root.parent)), do)


class GuideSearch(Commands):
    """Every section of every guide, found by its title, and by the words in it."""

    def offered(self) -> Iterable[Command]:
        for name, title in guides().items():
            for one in sections(name):
                subject = title.partition(":")[0]
                shown = f"{subject}: {one.title}" if one.title else subject
                yield Command(f"Guide: {shown}", title, partial(self.app.read_guide, one), one.text)


class GuideCommands(GuideSearch, Discovered):
    """The same for a palette of guides only, which lists them."""


class ThemeCommands(Commands):
    def offered(self) -> Iterable[Command]:
        for name, theme in self.app.available_themes.items():
            about = "the terminal's own colours" if theme.ansi else "dark" if theme.dark else "light"
            yield Command(f"Theme: {name}", about, partial(setattr, self.app, "theme", name))
