"""Write the manifest of a classifier: how a program without this package turns its logits into labels."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from tui_trainer.data.columns.labels import MULTI_LABEL
from tui_trainer.errors import ConfigError
from tui_trainer.files.hub_layout import published_name
from tui_trainer.models.catalogue import find_catalogue_entry
from tui_trainer.models.facts import find_model
from tui_trainer.models.heads import CALIBRATION
from tui_trainer.planning.plan import Plan
from tui_trainer.tasks import find_task
from tui_trainer.tasks.parts.calibration import BINS, LEAST_ROWS
from tui_trainer.tasks.parts.thresholds import thresholds_of
from tui_trainer.terminal.safe_text import one_line

MANIFEST_FILE = "manifest.json"
_PROBABILITIES = {
    "single_label_classification": "softmax of the logits of a row; the label is the most likely one",
    MULTI_LABEL: "sigmoid of each logit; a label is predicted if its probability is above its threshold",
    "regression": "none: the logit is the predicted number",
    "": "softmax of the logits of each token; the label of a word is that of its first token",
}


def write_manifest(folder: Path, plan: Plan, model_config: Any) -> None:
    """Write the manifest into the folder of a classifier. Do nothing for other models. `model_config` is the
    transformers config of the model."""
    head = find_task(plan.config.task.type).head
    if not head.endswith("classification"):
        return
    fields: dict[str, Any] = model_config.to_dict()
    problem_type = "" if head == "token_classification" else fields.get("problem_type") or ""
    calibration = fields.get(CALIBRATION) or {}
    labels = list((fields.get("id2label") or {}).values())
    result: dict[str, Any] = {
        "task": plan.config.task.type,
        "problem_type": problem_type or "token classification",
        "labels_in_order_of_logits": labels if problem_type != "regression" else [],
        "max_length_in_tokens": plan.config.data.max_length,
        "probabilities": _PROBABILITIES[problem_type],
        "base_model": published_name(first_model(plan)),
        "base_model_license": _license_of(plan),
    }
    if problem_type == MULTI_LABEL:
        result["thresholds"] = dict(zip(labels, thresholds_of(calibration, labels), strict=True))
        result["thresholds_from"] = _origin_of_thresholds(calibration)
    if calibration:
        result["temperature"] = calibration["temperature"]
        result["temperature_is_applied"] = "already: the weights of the last layer are divided by it"
        result |= {name: value for name, value in calibration.items() if "calibration_error" in name}
        result["calibration_error_is"] = f"in {BINS} bins of {calibration['rows']} held-out rows (arXiv:1706.04599)"
    (folder / MANIFEST_FILE).write_text(json.dumps(result, indent=1, ensure_ascii=False), encoding="utf-8")


def _origin_of_thresholds(calibration: Mapping[str, Any]) -> str:
    if not calibration:
        return "0.5 for each label: none was chosen on held-out rows"
    words = f"largest F1 of each label on {calibration['rows']} held-out rows"
    if common_names := calibration["labels_with_common_threshold"]:
        words += f"; one threshold for labels with fewer than {LEAST_ROWS} rows: {', '.join(common_names)}"
    return words


def first_model(plan: Plan) -> str:
    """Return the model from which the first run of a chain of runs started; empty for random weights."""
    if not plan.ancestors:
        return plan.config.model.model_name_or_path
    ancestor = plan.ancestors[0]
    return "" if ancestor.method else ancestor.name


def _license_of(plan: Plan) -> str:
    """Return the licence in the card of the base model on this disk, or in the catalogue; `unknown` without either."""
    name = "" if plan.config.is_from_scratch else first_model(plan)
    if not name:
        return "none: the model was trained from scratch"
    entry, license_name = find_catalogue_entry(name), None
    with suppress(ConfigError, OSError, IndexError, yaml.YAMLError, AttributeError):
        folder = find_model(name, plan.config.model.revision, head=find_task(plan.config.task.type).head).folder
        card = (folder / "README.md").read_text("utf-8", errors="replace") if folder else ""
        fields = yaml.safe_load(card.split("---\n")[1])
        license_name = fields.get("license_name") or fields.get("license")
    return one_line(str(license_name or (entry.license if entry else "") or "unknown: see the model's page"), 80)
