# SPDX-License-Identifier: MIT
"""The manifests in README and docs are what Kubernetes takes, and what they set is what `rota run` reads."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from rota.cli._options import OPTIONS, RunOptions, variable

ROOT = Path(__file__).parents[2]
#: The oldest and the newest Kubernetes that they are held to. The schema of 1.28 wants `onPodConditions` beside `onExitCodes`, which its
#: server did not.
VERSIONS = ("1.29", kubernetes_validate.latest_version())
#: What `--planned auto` reads.
OF_THE_PLAN = {"ROTA_PLANNED", "ROTA_PLANNED_FILE", "ROTA_JOB_NAME", "ROTA_POD_NAME"}


def _manifests() -> list[Any]:
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            where = f"{page.name}:{text.count(chr(10), 0, match.start()) + 1}"
            found += [pytest.param(part, id=where) for part in yaml.safe_load_all(match[1])]
    return found


def _pod(manifest: dict[str, Any]) -> dict[str, Any]:
    spec = manifest["spec"]
    return (spec["jobTemplate"]["spec"] if manifest["kind"] == "CronJob" else spec)["template"]["spec"]


MANIFESTS = _manifests()


def test_there_are_manifests() -> None:
    assert len(MANIFESTS) >= 4


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_manifest_in_the_docs_is_one_that_kubernetes_takes(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)
    wrong = copy.deepcopy(manifest)
    _pod(wrong)["containers"][0]["comand"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_what_a_manifest_sets_is_what_the_command_reads(manifest: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = _pod(manifest)["containers"]
    given = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    assert given.keys() <= {variable(option) for option in OPTIONS} | OF_THE_PLAN
    assert given["ROTA_URL"] == ""  # from a secret
    given["ROTA_URL"] = "postgresql://app@db.example/app"
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ROTA_JOB_NAME", "by-hand")
    options = RunOptions(container["command"][2:])
    assert options.kind == ("s" if manifest["kind"] == "CronJob" else "l")
    if manifest["kind"] == "CronJob":
        assert options.schedule().tz == manifest["spec"].get("timeZone", "UTC")
    # the command has its grace before Kubernetes kills the container
    assert options.grace < _pod(manifest).get("terminationGracePeriodSeconds", 30)


def test_the_exit_codes_that_no_retry_mends_are_rotas() -> None:
    from rota.cli import _codes

    (manifest,) = [
        part.values[0] for part in MANIFESTS if part.values[0]["spec"].get("jobTemplate", {}).get("spec", {}).get("podFailurePolicy")
    ]
    ((rule,),) = [manifest["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]]
    assert rule["onExitCodes"]["values"] == [_codes.MARK_AHEAD, _codes.CANNOT_RUN, _codes.NOT_FOUND]  # without 2, which is many a command's
