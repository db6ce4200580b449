"""A run's model in a process of its own, to be tried: on the CPU, where nobody else wants the cores, beside a run that
trains as well. What it draws is of its own generator.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from tui_trainer.data.columns.conversations import Message
from tui_trainer.errors import RunError
from tui_trainer.models.writing import Sampling
from tui_trainer.runs.folder import RunFolder
from tui_trainer.worker.asking import Worker, WorkerFailed


class ModelProcess:
    """Holds the models that it was asked for, until nobody has asked for a while: the next question loads anew."""

    def __init__(self) -> None:
        self._worker = Worker("try_model")

    def ask(self, asked: dict[str, Any], show: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
        """Blocks. `show` gets what is written, piece by piece; what it raises ends the process. Raises RunError."""
        try:
            with self._worker.giving_way():
                answer: dict[str, Any] = self._worker.ask(
                    "try_model", asked, progress=lambda figures: show(figures["piece"])
                )
        except WorkerFailed as error:
            raise RunError(error.reason or f"the process that tries the model {error}") from None
        return answer

    def end(self) -> None:
        """Also in the middle of an answer, and without a wait."""
        self._worker.cancel()

    def close(self) -> None:
        """Wait until it is gone."""
        self._worker.close()


class ChildWriter:
    """What `exporting/generate.py` calls a Writer, in that process."""

    def __init__(self, process: ModelProcess, run: RunFolder, *, base: bool = False) -> None:
        """Load the final model, else the newest checkpoint; with `base` the one that the run began with. Raises
        RunError."""
        self._process, self._asked = process, {"run": str(run.root), "base": base}
        about = process.ask(self._asked)
        self.source, self.continues = str(about["source"]), bool(about["continues"])

    def answer(self, text: str, sampling: Sampling) -> str:
        return str(self._ask(sampling, text=text)["text"])

    def continue_text(self, prompt: str, sampling: Sampling, show: Callable[[str], None]) -> int:
        return int(self._ask(sampling, show, text=prompt)["left_out"])

    def reply(self, messages: Sequence[Message], sampling: Sampling, show: Callable[[str], None]) -> int:
        return int(self._ask(sampling, show, messages=list(messages))["left_out"])

    def _ask(self, sampling: Sampling, show: Callable[[str], None] = lambda _: None, **more: Any) -> dict[str, Any]:
        answer = self._process.ask({**self._asked, "sampling": asdict(sampling), **more}, show)
        # It may have ended in between, and have loaded a newer checkpoint.
        self.source = str(answer["source"])
        return answer
