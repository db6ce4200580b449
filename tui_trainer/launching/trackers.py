"""The process that feeds the trackers of a run, started beside it. What it has to say becomes a line in the journal.

Nothing of a tracker runs here: this process only waits for lines, in a thread that ends with them.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from threading import Thread

from tui_trainer.config.fields import names_in
from tui_trainer.config.sections import Config
from tui_trainer.runs.events import RunProblem
from tui_trainer.runs.folder import RunFolder, open_log
from tui_trainer.runs.journal import JournalWriter

_MODULE = "tui_trainer.tracking.reader"
_LOG_NAME = "tracking.txt"
_LINE_LIMIT = 10_000


def start_trackers(config: Config, folder: RunFolder, journal: JournalWriter) -> None:
    """Start it where the config names trackers. That it cannot be started is a problem and ends nothing."""
    names = list(dict.fromkeys(names_in(config.logging.report_to)))
    if not names:
        return
    command = [sys.executable, "-P", "-m", _MODULE, str(folder.root), *names]
    # The card is the run's: a library that looks for one finds none.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    try:
        with open_log(folder.logs / _LOG_NAME) as log:
            reader = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        Thread(target=_pass_on, args=(reader, journal), name="tui-trainer-trackers", daemon=True).start()
    except (OSError, RuntimeError) as error:
        hint = f"`tui-trainer track {folder.name}` hands the run over later"
        journal.append(RunProblem(kind="tracker", message=f"no tracker could be started: {error}", hint=hint))


def _pass_on(reader: subprocess.Popen[bytes], journal: JournalWriter) -> None:
    with reader:
        assert reader.stdout is not None
        while line := reader.stdout.readline(_LINE_LIMIT):
            with suppress(ValueError, LookupError, TypeError):
                said = json.loads(line)
                journal.catch_up()
                journal.append_beside(RunProblem(kind="tracker", message=str(said["message"]), hint=str(said["hint"])))
