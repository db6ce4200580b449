"""Weights & Biases: data goes to its server if the user is logged in and it responds, else to the run folder."""

import os
from collections.abc import Sequence
from contextlib import suppress
from netrc import NetrcParseError, netrc
from typing import Any
from urllib.parse import urlsplit

from tui_trainer.tracking.contract import Metrics, TrackedRun

_TIMEOUT_SECONDS = 20
_PROJECT = "tui-trainer"
_STEP = "step"


class WandbTracker:
    name = "wandb"
    _run: Any = None

    def begin(self, run: TrackedRun) -> str:
        import wandb

        run.folder.mkdir(parents=True, exist_ok=True)
        mode = os.environ.get("WANDB_MODE") or ("online" if _has_login() else "offline")
        try:
            self._run = self._begin(wandb, run, mode)
        except wandb.errors.Error:
            if mode == "offline":
                raise
            self._run, mode = self._begin(wandb, run, "offline"), "offline"
        # A resumed run sends steps again, which wandb's own step counter would refuse.
        self._run.define_metric("*", step_metric=_STEP)
        if mode != "offline":
            return ""
        sync_command = f"wandb sync {run.folder}/wandb/offline-*"
        return f"wandb data stays on this machine; to upload it later, log in, go online and run {sync_command}"

    def _begin(self, wandb: Any, run: TrackedRun, mode: str) -> Any:
        # wandb would measure the system metrics of this process, not those of the training process.
        settings = wandb.Settings(
            silent=True, console="off", init_timeout=_TIMEOUT_SECONDS, x_disable_stats=True, disable_git=True
        )
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=run.name,
            id=run.run_id,
            resume="allow",
            dir=str(run.folder),
            config=run.params,
            mode=mode,
            settings=settings,
        )

    def log(self, rows: Sequence[Metrics]) -> None:
        for row in rows:
            self._run.log({**row.values, _STEP: row.step})

    def end(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status in ("finished", "stopped") else 1)


def _has_login() -> bool:
    """Return whether there are credentials, from `wandb login` or the environment. The network is not used."""
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "")).hostname or "api.wandb.ai"
    with suppress(OSError, NetrcParseError):
        return bool(os.environ.get("WANDB_API_KEY") or netrc(os.environ.get("NETRC")).authenticators(host))
    return False


TRACKER = WandbTracker
