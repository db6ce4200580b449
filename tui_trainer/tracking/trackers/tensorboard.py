"""TensorBoard: event files in the run folder; `tensorboard --logdir runs` shows all runs of a folder."""

from collections.abc import Sequence
from typing import Any

from tui_trainer.terminal.safe_text import one_line
from tui_trainer.tracking.contract import Metrics, TrackedRun


class TensorBoardTracker:
    name = "tensorboard"
    _writer: Any = None

    def begin(self, run: TrackedRun) -> str:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        lines = (f"    {key} = {one_line(str(value))}" for key, value in run.params.items())
        params = text_pb("params", "\n".join(lines))
        self._writer = EventFileWriter(str(run.folder))
        if run.is_resumed:
            # Makes TensorBoard ignore later steps in older files of this folder.
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=0.0, step=run.from_step + 1, session_log=start))
        self._writer.add_event(Event(summary=params, step=run.from_step))
        self._writer.flush()
        return ""

    def log(self, rows: Sequence[Metrics]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for row in rows:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
            self._writer.add_event(Event(wall_time=row.seconds, step=row.step, summary=Summary(value=values)))
        self._writer.flush()

    def end(self, status: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._writer.add_event(Event(summary=text_pb("status", status)))
        self._writer.close()


TRACKER = TensorBoardTracker
