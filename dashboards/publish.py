"""Brings folder, data source, dashboards and alert rules of a Grafana server to what the code says.

Nothing is written that is as it should be. Each version of a dashboard carries a message with the fingerprint of its
content. If the latest carries ours, nothing changed; an older one of ours is replaced; any other means that somebody
edited the dashboard in Grafana, and it is left alone until `overwrite` is asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from grafana_client.api import GrafanaApi
from grafana_client.client import GrafanaClientError

from dashboards.alerts import RULE_GROUP, RUNBOOK
from dashboards.grafana_address import without_credentials
from dashboards.grafana_errors import PushError, answer_of, not_grafana, or_none
from dashboards.rules import grafana_rule_group

FOLDER_UID = "kvpulse"
_MESSAGE = "kvpulse "


class Action(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Change:
    kind: str
    name: str
    action: Action
    note: str = ""


@dataclass(frozen=True, slots=True)
class DataSource:
    """
    Args:
        name: of the Prometheus data source in Grafana; Ray's dashboard refers to it by name too.
        url: of the Prometheus as Grafana reaches it; None takes an existing data source as it is.
    """

    name: str
    url: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """
    Args:
        boards: dashboards as exported, with `uid` and `title`.
        editable_rules: may alert rules be changed in Grafana; else it shows them as provisioned.
    """

    folder: str
    source: DataSource
    boards: tuple[Mapping[str, Any], ...]
    runbook: str = RUNBOOK
    editable_rules: bool = False


@dataclass(frozen=True, slots=True)
class Publisher:
    """
    Args:
        overwrite: replaces what was edited in Grafana.
        dry_run: reads and decides, and writes nothing.
    """

    grafana: GrafanaApi
    overwrite: bool = False
    dry_run: bool = False

    def push(self, plan: Plan) -> Iterator[Change]:
        """One change after the other, as they are made.

        Raises:
            PushError: nothing further is possible. What is refused alone is a change with that action.
        """
        self._check_server()
        yield self._folder(plan.folder)
        change, source_uid = self._data_source(plan.source)
        yield change
        for board in plan.boards:
            yield self._dashboard(board)
        yield self._alert_rules(grafana_rule_group(FOLDER_UID, source_uid, plan.runbook), plan.editable_rules)

    def _check_server(self) -> None:
        answer = self.grafana.client.GET("/health")
        if not isinstance(answer, dict) or "database" not in answer:
            raise PushError(not_grafana(self.grafana.client.url.removesuffix("/api")))

    def _folder(self, title: str) -> Change:
        found = or_none(lambda: self.grafana.folder.get_folder(FOLDER_UID))
        if found is None:
            if not self.dry_run:
                self.grafana.folder.create_folder(title, uid=FOLDER_UID)
            return Change("folder", title, Action.CREATED)
        if found["title"] == title:
            return Change("folder", title, Action.UNCHANGED)
        if not self.dry_run:
            self.grafana.folder.update_folder(FOLDER_UID, title=title, version=found.get("version"))
        return Change("folder", title, Action.UPDATED)

    def _data_source(self, source: DataSource) -> tuple[Change, str]:
        """
        Returns:
            Also its uid, which the alert rules need; empty in a dry run that would create it.
        """
        found = or_none(lambda: self.grafana.datasource.get_datasource_by_name(source.name))
        if found is None:
            uid = self._create_data_source(source)
            return Change("data source", source.name, Action.CREATED, self._health(uid)), uid
        uid = str(found["uid"])
        if found["type"] != "prometheus":
            raise PushError(
                f"the data source {source.name!r} is a {found['type']}, no Prometheus: choose another --prometheus-name"
            )
        if source.url is None or _same_url(found["url"], source.url):
            return Change("data source", source.name, Action.UNCHANGED, self._health(uid)), uid
        if not self.overwrite:
            raise PushError(
                f"the data source {source.name!r} asks {without_credentials(found['url'])}, not "
                f"{without_credentials(source.url)}: push with --overwrite to "
                "change that, or choose another --prometheus-name"
            )
        if not self.dry_run:
            self.grafana.datasource.update_datasource_by_uid(uid, {**found, "url": source.url})
        return Change("data source", source.name, Action.UPDATED, self._health(uid)), uid

    def _create_data_source(self, source: DataSource) -> str:
        if source.url is None:
            raise PushError(
                f"there is no data source {source.name!r}: say where Prometheus is (--prometheus-url), or choose one "
                "that exists (--prometheus-name)"
            )
        if self.dry_run:
            return ""
        # Grafana derives the window of rates from the interval, which is that of Ray's Prometheus configuration.
        options = {"httpMethod": "POST", "timeInterval": "10s"}
        wanted = {"name": source.name, "type": "prometheus", "access": "proxy", "url": source.url, "jsonData": options}
        return str(self.grafana.datasource.create_datasource(wanted)["datasource"]["uid"])

    def _health(self, uid: str) -> str:
        """Why Grafana cannot ask the data source now; empty if it can."""
        if not uid:
            return ""
        try:
            answer = self.grafana.datasource.health(uid)
        except GrafanaClientError as error:
            return f"Grafana cannot ask it: {answer_of(error)}"
        return "" if answer["status"] == "OK" else f"Grafana cannot ask it: {answer['message']}"

    def _dashboard(self, board: Mapping[str, Any]) -> Change:
        title, message = board["title"], _MESSAGE + _fingerprint(board)
        found = or_none(lambda: self.grafana.dashboard.get_dashboard(board["uid"]))
        if found is None:
            return self._save(board, 0, message, Action.CREATED)
        version = found["dashboard"]["version"]
        latest = self._message_of(board["uid"], version)
        if latest == message and found["meta"]["folderUid"] == FOLDER_UID:
            return Change("dashboard", title, Action.UNCHANGED)
        if not latest.startswith(_MESSAGE) and not self.overwrite:
            return Change("dashboard", title, Action.REFUSED, "edited in Grafana; --overwrite replaces it")
        return self._save(board, version, message, Action.UPDATED)

    def _message_of(self, uid: str, version: int) -> str:
        answer = self.grafana.dashboard_versions.get_dashboard_versions_by_uid(uid)
        versions = answer["versions"] if isinstance(answer, dict) else answer  # since Grafana 11; before
        return next((str(one.get("message", "")) for one in versions if one["version"] == version), "")

    def _save(self, board: Mapping[str, Any], version: int, message: str, action: Action) -> Change:
        """`version` is the one this was decided on: Grafana does not replace a later one."""
        content = {**board, "id": None, "version": version}
        command = {"dashboard": content, "folderUid": FOLDER_UID, "message": message, "overwrite": self.overwrite}
        try:
            if not self.dry_run:
                self.grafana.dashboard.update_dashboard(command)
        except GrafanaClientError as error:
            if error.status_code != 412:
                raise
            note = f"changed in Grafana meanwhile ({answer_of(error)}); look there, then push again"
            return Change("dashboard", board["title"], Action.REFUSED, note)
        return Change("dashboard", board["title"], action)

    def _alert_rules(self, group: Mapping[str, Any], editable: bool) -> Change:
        """The group is replaced as a whole: rules that the code no longer has go."""
        api, name = self.grafana.alertingprovisioning, f"{len(group['rules'])} rules"
        found = or_none(lambda: api.get_rule_group(FOLDER_UID, RULE_GROUP))
        if found is not None and _contains(found, group):
            return Change("alerts", name, Action.UNCHANGED)
        if found is not None and not self.overwrite and not all(rule.get("provenance") for rule in found["rules"]):
            return Change(
                "alerts", name, Action.REFUSED, "they differ and may have been edited in Grafana; --overwrite"
            )
        if not self.dry_run:
            api.update_rule_group(FOLDER_UID, RULE_GROUP, group, disable_provenance=editable)
        return Change("alerts", name, Action.CREATED if found is None else Action.UPDATED)


def _fingerprint(board: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(board, sort_keys=True).encode()).hexdigest()[:16]


def _contains(found: Any, wanted: Any) -> bool:
    """Whether `found` says all that is wanted; Grafana adds defaults of its own."""
    if isinstance(wanted, Mapping):
        return isinstance(found, Mapping) and all(_contains(found.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(_contains, found, wanted))
    return bool(found == wanted)


def _same_url(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")
