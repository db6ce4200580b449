"""MLflow: data goes to the server in MLFLOW_TRACKING_URI, or else to a database next to the runs."""

import os
from collections.abc import Sequence
from typing import Any

from tui_trainer.tracking.contract import Metrics, TrackedRun

_EXPERIMENT = "tui-trainer"
_TAG = "tui-trainer.run_id"
# Limits of MLflow's REST API: metrics and params per request, characters per param.
_MOST_METRICS, _MOST_PARAMS, _MOST_LETTERS = 1000, 100, 6000
_STATUS = {"finished": "FINISHED", "stopped": "KILLED"}


class MlflowTracker:
    name = "mlflow"
    _client: Any = None
    _run_id = ""

    def begin(self, run: TrackedRun) -> str:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        runs_dir = run.folder.parent.parent.parent
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{runs_dir}/mlflow.db"
        self._client = client = MlflowClient(tracking_uri=uri)
        experiment_name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _EXPERIMENT)
        experiment = client.get_experiment_by_name(experiment_name)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(experiment_name)
        runs = client.search_runs([experiment_id], filter_string=f"tags.`{_TAG}` = '{run.run_id}'")
        if runs:
            self._run_id = runs[0].info.run_id
            client.update_run(self._run_id, status="RUNNING")
            return ""
        tags = {_TAG: run.run_id, "mlflow.source.name": "tui-trainer"}
        self._run_id = client.create_run(experiment_id, run_name=run.name, tags=tags).info.run_id
        params = [Param(key, str(value)[:_MOST_LETTERS]) for key, value in run.params.items()]
        for start in range(0, len(params), _MOST_PARAMS):
            client.log_batch(self._run_id, params=params[start : start + _MOST_PARAMS])
        hint = f"; view the runs with mlflow ui --backend-store-uri {uri}" if uri.startswith("sqlite") else ""
        return f"mlflow writes to {uri}{hint}" if hint else ""

    def log(self, rows: Sequence[Metrics]) -> None:
        from mlflow.entities import Metric

        items = [(name, value, int(1000 * row.seconds), row.step) for row in rows for name, value in row.values.items()]
        metrics = [Metric(*item) for item in items]
        for start in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + _MOST_METRICS])

    def end(self, status: str) -> None:
        self._client.set_tag(self._run_id, "status", status)
        self._client.set_terminated(self._run_id, _STATUS.get(status, "FAILED"))


TRACKER = MlflowTracker
