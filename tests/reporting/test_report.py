"""Reports: every fact comes from the journal and the plan, and hostile text stays text."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.runs.journals import end, held_out, read_all, run_of, start, step_done, steps
from tests.trained_runs import stopping_after
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.errors import EXIT_BAD_INPUT, EXIT_DONE, EXIT_FAILED, EXIT_STOPPED
from tui_trainer.launching import run_lifecycle as frame
from tui_trainer.launching.open_run import load_config, open_new, reopen_run
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.reporting.curves import MOST_POINTS
from tui_trainer.reporting.facts import facts_of, to_json
from tui_trainer.reporting.page import nice_ticks, to_html, to_markdown, write_report
from tui_trainer.runs import events as e
from tui_trainer.training.session import Session
from tui_trainer.units import format_bytes, format_seconds

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'`]](http://evil.example)|\x1b[2J\u202e"


class Page(HTMLParser):
    """The elements of a page; each has to be closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.texts, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def readings(*seconds, watts=None):
    gpus = [] if watts is None else [e.GpuReading(index=0, power_watts=watts, memory_used_bytes=2**30)]
    return [
        e.GaugesRead(at=f"2026-11-20T13:{at // 60:02d}:{at % 60:02d}.000Z", process_memory_bytes=2**30, gpus=gpus)
        for at in seconds
    ]


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A run that was stopped at step 5, resumed and finished, and its report of the stop."""
    folder = tmp_path_factory.mktemp("real")
    text = folder / "text.txt"
    text.write_text("".join(f"{n} plus one is {n + 1}.\n" for n in range(100)))
    settings = {
        "data.path": text, "data.max_length": 16, "data.eval_fraction": 0.2, "training.max_steps": 8,
        "training.effective_batch_size": 4, "evaluation.eval_steps": 4, "checkpoint.save_steps": 4,
        "logging.sample_steps": 4, "model.scratch.hidden_size": 16, "model.scratch.num_hidden_layers": 1,
        "output.runs_dir": folder / "runs", "output.name": "real",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUI_TRAINER_HOME", str(folder / "home"))
        run = open_new(load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items()))))
        with patch.context() as stopping:
            stopping.setattr(Session, "take_step", stopping_after(5))
            assert execute_run(run).exit_code == EXIT_STOPPED
        stopped = (run.folder.root / "report.md").read_text()
        assert execute_run(reopen_run(run.folder)).exit_code == EXIT_DONE
    return run.folder, stopped


def section(report, name):
    """Return the text of one section of report.md."""
    return report.split(f"## {name}\n")[1].split("\n## ")[0]


def test_a_resumed_run_has_a_report_of_all_its_starts(real):
    folder, stopped = real
    assert stopped.startswith("# real: stopped") and "The run stopped at step 5 of 8." in stopped
    assert "tui-trainer resume real" in stopped.replace("\\", "")
    report = (folder.root / "report.md").read_text()
    assert report.startswith("# real: finished")
    page = (folder.root / "report.html").read_text()
    assert "resumed after" not in stopped and page.count("resumed after <b>5</b>") >= 4
    assert '<path class="level" d="M311.5 10V200"/>' in page, "at 5 of 8 steps"
    rows = [row.split(" | ") for row in section(report, "Problems and resumes").splitlines() if row.startswith("| 20")]
    assert [(row[1], row[2], row[4]) for row in rows] == [("new", "5", "stopped |"), ("5", "8", "done |")]


def test_figures_are_those_of_journal_and_model_card(real):
    folder, _ = real
    report, card = (folder.root / "report.md").read_text(), (folder.model / "README.md").read_text()
    events = read_all(folder.journal)
    last, data = (
        [x for x in events if isinstance(x, e.EvalDone)][-1],
        next(x for x in events if isinstance(x, e.DataPrepared)),
    )
    assert f"| held-out loss | {last.loss:.4f} |" in report and f"| training rows | {data.rows:,} |" in report
    # The same facts in both: losses, baselines, and how it was trained.
    plain, card = report.replace("\\", ""), card.replace("\\", "")
    rows = [
        line for line in card.split("## Loss")[1].split("## Versions")[0].splitlines() if re.match(r"\| [a-z]", line)
    ]
    assert len(rows) == 15
    for row in rows:
        assert row in plain or row.replace("| ", "| loss: ", 1) in plain, row
    asked = section(plain, "Settings")
    assert "| training.max_steps | 8 | 0 |" in asked and "output.name" not in asked and "training.seed" not in asked
    again = section(plain, "Reproduce this run")
    assert f"--no-ui {folder.config} --set output.name=real-again" in again and "max_steps = 8" in again
    assert "| torch | " in again


def test_the_json_report_has_the_same_facts_as_numbers(real, monkeypatch, capsys):
    folder, _ = real
    monkeypatch.setenv("TUI_TRAINER_HOME", str(folder.root.parent.parent / "home"))
    before = {path.name: path.stat().st_mtime_ns for path in folder.root.iterdir()}
    assert main(["report", "real", "--json"]) == EXIT_DONE
    found = json.loads(capsys.readouterr().out)
    assert {path.name: path.stat().st_mtime_ns for path in folder.root.iterdir()} == before, "it writes nothing"
    report, facts = (folder.root / "report.md").read_text().replace("\\", ""), facts_of(folder)
    assert (found["run"], found["status"], found["step"], found["ended"]["reason"]) == ("real", "finished", 8, "done")
    for done in found["evaluations"]:
        assert f"| {done['loss']:.4f} |" in section(report, "Evaluations")
    assert [(one["from_step"], one["last_step"], one["ending"]) for one in found["starts"]] == [
        (None, 5, "stopped"),
        (5, 8, "done"),
    ]
    asked = {one["key"]: (one["value"], one["default"]) for one in found["settings"]}
    assert asked["training.max_steps"] == (8, 0) and "output.name" not in asked
    costs = found["costs"]
    assert f"| steps | {format_seconds(costs['step_seconds'])} |" in section(report, "Costs")
    assert f"| peak memory | {format_bytes(costs['peak_memory_bytes'])} |" in section(report, "Costs")
    assert costs["seconds"] == sum(one["seconds"] for one in found["starts"]) and costs["gpu_hours"] is None
    assert [chart["title"] for chart in found["charts"]] == [chart.title for chart in facts.charts]
    assert found["charts"][0]["curves"][0]["points"][-1] == list(facts.charts[0].curves[0].points[-1])
    assert found["plan"]["total_steps"]["value"] == 8 and found["data"]["rows"] == facts.state.data.rows
    assert found["model"]["baseline_losses"] == facts.state.baselines.losses and "torch" in found["versions"]
    assert found["samples"][-1]["text"] == facts.state.samples[-1].text and "max_steps = 8" in found["config"]
    assert main(["report", "real", "--json", "--out", "/nowhere"]) == 2


def test_the_page_has_every_section_and_loads_nothing(real):
    folder, _ = real
    text = (folder.root / "report.html").read_text()
    page = Page(text)
    assert page.open == [] and page.tags.count("svg") >= 4 and page.tags.count("h2") >= 9
    assert not {"script", "link", "img", "iframe", "a", "object"} & set(page.tags)
    assert not {"src", "href", "srcset", "onload", "onclick"} & set(page.attributes)
    assert "url(" not in text and "@import" not in text and "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text
    assert {path.stat().st_mode & 0o777 for path in folder.root.glob("report.*")} == {0o600}


def test_hostile_text_stays_text(tmp_path):
    told = [
        e.DataPrepared(
            from_cache=False,
            rows=1,
            eval_rows=1,
            tokens=1,
            eval_tokens=1,
            documents=1,
            eval_documents=1,
            vocabulary=1,
            seconds=1.0,
            notes=[HOSTILE],
        ),
        e.BaselinesMeasured(losses={HOSTILE: 1.0}, eval_tokens=1, unit="token", scores={f"f1 of {HOSTILE}": 0.1}),
        e.TextSampled(step=2, prompt=HOSTILE, text=f"```\n# no heading\n````\n{HOSTILE}"),
        e.RunProblem(step=2, kind=HOSTILE, message=HOSTILE),
        held_out(2, 1.25, **{"f1": 0.5, HOSTILE: 0.5}),
    ]
    begun = replace(start(), versions={HOSTILE: HOSTILE})
    folder = run_of(tmp_path, "a", begun, *steps(1, 2), *told, e.RunFailed(step=2, message=HOSTILE))
    folder.plan.write_text(json.dumps({"config": {"task": {"type": HOSTILE}, "data": {"path": HOSTILE}}}))
    folder.config.write_text(f"# {HOSTILE}\n```\n# heading\n")
    export = folder.root / "export" / "<b>x"
    export.mkdir(parents=True)
    (export / "certificate.json").write_text(json.dumps({"format": HOSTILE, "faults": [HOSTILE], "trained": HOSTILE}))
    write_report(folder)
    html, markdown = ((folder.root / f"report.{kind}").read_text() for kind in ("html", "md"))
    told = to_json(facts_of(folder))
    assert json.loads(told)["problems"][0]["message"] == HOSTILE and "\x1b" not in told and "\u202e" not in told
    page = Page(html)
    assert not {"script", "img", "b<x", "a"} & set(page.tags) and "onerror" not in page.attributes
    assert "".join(page.texts).count("<script>alert(1)</script>") >= 12
    assert "\x1b" not in html + markdown and "\u202e" not in html + markdown
    outside, fence = [], ""
    for line in markdown.splitlines():
        if re.fullmatch("`{3,}", line) and line == (fence or line):
            fence = "" if fence else line
        elif not fence:
            outside.append(line)
    assert fence == "" and not any(line.startswith("# ") for line in outside[1:])
    assert not re.search(r"(?<!\\)[<`\]]", "\n".join(outside))
    assert {line.count("|") - line.count("\\|") for line in outside if line.startswith("| a")} <= {3, 4}


def test_an_interrupted_run_is_reported_up_to_its_last_step(tmp_path, capsys):
    run_of(tmp_path, "a", start(), *steps(1, 40), e.RunProblem(step=3, kind="save failed", message="disk full"))
    assert main(["report", "a", "--out", str(tmp_path / "new" / "place")]) == 0
    report = (tmp_path / "new" / "place" / "report.md").read_text()
    assert capsys.readouterr().out.splitlines()[1].endswith("place/report.html")
    assert report.startswith("# a: interrupted") and "without an error message" in report and "disk full" in report
    assert "| 2026-11-20 13:45:00 | new | 40 |" in report and "cannot be read" not in report


def test_unreadable_lines_of_the_journal_are_reported(tmp_path):
    folder = run_of(tmp_path, "a", start(), *steps(1, 3))
    with folder.journal.open("ab") as journal:
        journal.write(b'{"event": "Step\n')
    assert "Skipped 1 unreadable line of the journal." in section(to_markdown(facts_of(folder)), "Problems and resumes")


def test_a_run_without_a_step_has_a_report(tmp_path, subtests):
    failed = e.RunFailed(message="no memory", log_path="logs/error.txt")
    for name, events in {"empty": (), "started": (start(),), "failed": (start(), failed)}.items():
        with subtests.test(name):
            folder = run_of(tmp_path, name, *events)
            write_report(folder)
            assert json.loads(to_json(facts_of(folder)))["doctor"] is None
            html = (folder.root / "report.html").read_text()
            assert "<svg" not in html and Page(html).open == []
            assert ("The run failed: no memory. The traceback is in logs/error.txt." in html) == (name == "failed")


def test_a_plan_of_another_version_is_reported_and_its_config_used(tmp_path):
    folder = run_of(tmp_path, "a", start(), *steps(1, 2), end(2))
    folder.plan.write_text(json.dumps({"plan_version": 99, "config": {"training": {"learning_rate": 0.5}}}))
    report = to_markdown(facts_of(folder)).replace("\\", "")
    assert "was written by another version" in report and "| training.learning_rate | 0.5 | auto |" in report


@pytest.mark.full
def test_a_report_that_cannot_be_written_is_a_problem_of_a_finished_run(tiny_run):
    folder, outcome = tiny_run("blocked", before=lambda run: (run.folder.root / "report.html").mkdir())
    assert outcome.exit_code == EXIT_DONE and folder.model.is_dir()
    *_, finished, problem = read_all(folder.journal)
    assert isinstance(finished, e.RunFinished)
    assert problem.kind == "no report" and "could not be written" in problem.message
    assert "tui-trainer report blocked" in problem.hint


@pytest.mark.full
def test_only_a_run_that_fails_after_its_data_was_read_has_a_report(tiny_run, sheep, monkeypatch):
    folder, outcome = tiny_run("refused", before=lambda _: sheep.unlink())
    assert outcome.exit_code == EXIT_BAD_INPUT and not list(folder.root.glob("report.*"))
    monkeypatch.setattr(frame.prepare, "exact_plan", lambda *_, **__: 1 / 0)
    sheep.write_text("Back again.\n" * 40)
    folder, outcome = tiny_run("failed")
    assert outcome.exit_code == EXIT_FAILED and not folder.plan.exists()
    assert "The run failed: ZeroDivisionError" in (folder.root / "report.md").read_text()


@pytest.mark.full
def test_a_failed_run_has_a_report(tiny_run, monkeypatch):
    monkeypatch.setattr(Session, "take_step", lambda *_: 1 / 0)
    folder, outcome = tiny_run("broken")
    assert outcome.exit_code == EXIT_FAILED
    assert "The run failed: ZeroDivisionError" in (folder.root / "report.html").read_text()


def test_a_report_without_a_writable_folder_or_a_run_is_refused(tmp_path, capsys):
    run_of(tmp_path, "a", start(), *steps(1, 2))
    (tmp_path / "file").write_text("")
    assert main(["report", "a", "--out", str(tmp_path / "file")]) == 2
    assert main(["report", "nothing"]) == 2
    assert "could not write the report" in capsys.readouterr().err


def test_a_long_sample_is_cut_except_in_json(tmp_path):
    text = "".join(f"\nline {n}" for n in range(200))
    told = e.TextSampled(step=2, prompt="It says", text=text)
    facts = facts_of(run_of(tmp_path, "a", start(), *steps(1, 2), told))
    report = section(to_markdown(facts), "Samples")
    assert "It says\u00b7\nline 0" in report and "line 28\n" in report and "line 29\n" not in report
    assert "and 171 more lines" in report and json.loads(to_json(facts))["samples"][0]["text"] == text


def test_energy_is_power_over_time_without_the_gaps(tmp_path):
    # 10 s at 300 W; ten minutes in which nobody read; 5 s at 300 W.
    folder = run_of(tmp_path, "a", start(), *readings(0, 5, 10, watts=300.0), *readings(610, 615, watts=300.0))
    facts = facts_of(folder)
    assert facts.state.gauge_summary.energy_joules == pytest.approx(15 * 300)
    assert "0.00125 kWh, 300 W on average" in to_markdown(facts)
    assert facts_of(run_of(tmp_path, "b", start(), *readings(0, 5))).state.gauge_summary.energy_joules is None


def test_repeated_steps_are_drawn_once(tmp_path):
    again = replace(step_done(6, 1.0), forward_seconds=9.0)
    folder = run_of(tmp_path, "a", start(), *steps(1, 10), start(resumed=5), again)
    charts = {chart.title: chart for chart in facts_of(folder).charts}
    parts = {curve.name: curve.points for curve in charts["Step time, ms"].curves}
    assert parts["forward"] == [*((float(step), 100.0) for step in range(1, 6)), (6.0, 9000.0)]
    assert charts["Step time, ms"].stacked and len(parts["data"]) == 6


def test_resumes_after_an_earlier_checkpoint_are_not_drawn(tmp_path):
    again = (*steps(1, 10), start(resumed=8), *steps(9, 12), start(resumed=12), start(resumed=8), *steps(9, 20))
    charts = facts_of(run_of(tmp_path, "a", start(), *again)).charts
    assert {chart.resumed_at for chart in charts} == {(8,)}


def test_gauges_are_drawn_over_a_unit_that_fits(tmp_path):
    for seconds, unit, last in ((100, "second", 100), (700, "minute", 700 / 60), (43_200, "hour", 12)):
        times = (f"{at // 3600:02d}:{at // 60 % 60:02d}:{at % 60:02d}" for at in range(0, seconds + 1, 20))
        read = [replace(readings(0)[0], at=f"2026-11-20T{time}.000Z") for time in times]
        charts = facts_of(run_of(tmp_path, unit, start(), *read)).charts
        [memory] = [chart for chart in charts if "Memory" in chart.title]
        assert memory.x_unit == unit and memory.curves[0].points[-1][0] == pytest.approx(last, rel=0.01)


def test_long_runs_are_thinned(tmp_path):
    folder = run_of(tmp_path, "a", start(), *steps(1, 2000), *(held_out(n, 2.0) for n in range(1, 2000, 3)), end(2000))
    facts = facts_of(folder)
    assert all(len(curve.points) <= MOST_POINTS for chart in facts.charts for curve in chart.curves)
    rates = next(chart for chart in facts.charts if chart.title == "Learning rate").curves[0]
    assert rates.points[-1][0] == 2000 and len(rates.points) == MOST_POINTS
    assert "20 of 667 evaluations" in to_html(facts)


def test_losses_that_are_not_finite_are_not_drawn(tmp_path):
    bad = replace(step_done(3), loss_sum=float("nan"), grad_norm=float("inf"))
    facts = facts_of(run_of(tmp_path, "a", start(), *steps(1, 2), bad, end(3, eval_loss=float("nan"))))
    html = to_html(facts)
    assert json.loads(to_json(facts), parse_constant=pytest.fail)["model"]["eval_loss"] == "NaN"
    assert "nan," not in html and ",nan" not in html and "inf" not in html.split("<svg", 1)[1].split("</svg>")[0]
    assert html.count("<svg") == 4


def test_axes_have_few_round_numbers():
    for low, high in ((0, 1), (2.9, 2.9), (0, 0), (-3, 1e-9), (1e-7, 3e-7), (0, 99_999), (1e9, 1e9 + 1)):
        ticks = nice_ticks(low, high)
        rounding = 1e-6 * (ticks[-1] - ticks[0])
        assert 2 <= len(ticks) <= 7 and ticks[0] <= low + rounding and ticks[-1] >= high - rounding, (low, high)


def test_exports_are_listed_with_their_certificates(tmp_path):
    folder = run_of(tmp_path, "a", start(), *steps(1, 2), end(2))
    for name, good in (("merged", True), ("onnx", False)):
        place = folder.root / "export" / name
        place.mkdir(parents=True)
        measured = {"loss": 1.25, "bytes": 2**20, "seconds_per_row": 0.002}
        told = {"format": name, "is_good": good, "faults": [] if good else ["no tokenizer"], "trained": measured}
        (place / "certificate.json").write_text(json.dumps(told | {"exported": measured if good else None}))
    (folder.root / "export" / "torn").mkdir()
    (folder.root / "export" / "torn" / "certificate.json").write_text("{")
    report = section(to_markdown(facts_of(folder)), "Exports")
    assert "1.2500 → 1.2500 | 1.0 MiB → 1.0 MiB | 2 → 2 | matches the trained model" in report
    assert "1.2500 → -- | 1.0 MiB → --" in report and "no tokenizer" in report and "torn" not in report
