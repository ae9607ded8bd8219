"""Brings folder, data source, dashboards and alert rules of a Grafana server to what the code says.

Nothing is written that is as it should be. Each dashboard's version carries a message with the fingerprint of its
content: if the latest version carries ours nothing changed, if it carries an older one of ours it is updated, and if it
carries none somebody edited the dashboard in Grafana, which is theirs until `overwrite` is asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from grafana_client import GrafanaApi

from dashboards.alerts import RULE_GROUP
from dashboards.grafana_errors import PushError, is_missing

FOLDER_UID = "kvpulse"
_MESSAGE = "kvpulse "
_EDITED = "was edited in Grafana since the last push; save your copy of it there, then push with --overwrite"


class Action(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Change:
    kind: str
    name: str
    action: Action


@dataclass(frozen=True, slots=True)
class DataSource:
    """
    Args:
        name: of the Prometheus data source; Ray's dashboard names it too.
        url: of the Prometheus as Grafana reaches it; None takes the data source as it is.
    """

    name: str
    url: str | None

    def wanted(self) -> dict[str, Any]:
        # The interval at which Ray's own Prometheus configuration scrapes; Grafana derives the window of rates from it.
        options = {"httpMethod": "POST", "timeInterval": "10s"}
        return {"name": self.name, "type": "prometheus", "access": "proxy", "url": self.url, "jsonData": options}


@dataclass(frozen=True, slots=True)
class Publisher:
    """Each method changes one thing and says what it did; reading and deciding is all it does in a dry run."""

    grafana: GrafanaApi
    overwrite: bool = False
    dry_run: bool = False

    def folder(self, title: str) -> Change:
        try:
            found = self.grafana.folder.get_folder(FOLDER_UID)
        except Exception as error:
            if not is_missing(error):
                raise
            if not self.dry_run:
                self.grafana.folder.create_folder(title, uid=FOLDER_UID)
            return Change("folder", title, Action.CREATED)
        if found["title"] == title:
            return Change("folder", title, Action.UNCHANGED)
        if not self.dry_run:
            self.grafana.folder.update_folder(FOLDER_UID, title=title, version=found.get("version"))
        return Change("folder", title, Action.UPDATED)

    def data_source(self, source: DataSource) -> tuple[Change, str]:
        """
        Returns:
            Also its uid, which the alert rules need; empty in a dry run that would create it.
        """
        try:
            found = self.grafana.datasource.get_datasource_by_name(source.name)
        except Exception as error:
            if not is_missing(error):
                raise
            return self._new_data_source(source)
        if found["type"] != "prometheus":
            raise PushError(
                f"the data source {source.name!r} is of type {found['type']}, not prometheus; name another with "
                "--prometheus-name"
            )
        if source.url is None or _same_url(found["url"], source.url):
            return Change("data source", source.name, Action.UNCHANGED), found["uid"]
        if not self.overwrite:
            raise PushError(
                f"the data source {source.name!r} asks {found['url']}, not {source.url}; push with --overwrite to "
                "change it, or name another with --prometheus-name"
            )
        if not self.dry_run:
            self.grafana.datasource.update_datasource_by_uid(found["uid"], {**found, "url": source.url})
        return Change("data source", source.name, Action.UPDATED), found["uid"]

    def _new_data_source(self, source: DataSource) -> tuple[Change, str]:
        if source.url is None:
            raise PushError(
                f"there is no data source {source.name!r}; say where Prometheus is with --prometheus-url, or name an "
                "existing one with --prometheus-name"
            )
        change = Change("data source", source.name, Action.CREATED)
        if self.dry_run:
            return change, ""
        return change, self.grafana.datasource.create_datasource(source.wanted())["datasource"]["uid"]

    def dashboard(self, board: Mapping[str, Any]) -> Change:
        """
        Args:
            board: as exported: with `uid` and `title`.
        """
        message = _MESSAGE + fingerprint(board)
        try:
            found = self.grafana.dashboard.get_dashboard(board["uid"])
        except Exception as error:
            if not is_missing(error):
                raise
            self._save(board, 0, message)
            return Change("dashboard", board["title"], Action.CREATED)
        version = found["dashboard"]["version"]
        latest = self._message_of(board["uid"], version)
        if latest == message and found["meta"].get("folderUid") == FOLDER_UID:
            return Change("dashboard", board["title"], Action.UNCHANGED)
        if not latest.startswith(_MESSAGE) and not self.overwrite:
            raise PushError(f"the dashboard {board['title']!r} {_EDITED}")
        self._save(board, version, message)
        return Change("dashboard", board["title"], Action.UPDATED)

    def _message_of(self, uid: str, version: int) -> str:
        answer = self.grafana.dashboard_versions.get_dashboard_versions_by_uid(uid)
        versions = answer["versions"] if isinstance(answer, dict) else answer  # since Grafana 11, and before
        return next((one.get("message", "") for one in versions if one["version"] == version), "")

    def _save(self, board: Mapping[str, Any], version: int, message: str) -> None:
        """`version` is the one this was decided on: Grafana refuses to replace a later one."""
        if self.dry_run:
            return
        content = {**board, "id": None, "version": version}
        self.grafana.dashboard.update_dashboard(
            {"dashboard": content, "folderUid": FOLDER_UID, "message": message, "overwrite": self.overwrite}
        )

    def alert_rules(self, group: Mapping[str, Any], editable: bool) -> Change:
        """The group is replaced as a whole: rules that the code has no more go.

        Args:
            group: from `grafana_rule_group`.
            editable: may they be changed in Grafana; else it shows them as provisioned.
        """
        api, name = self.grafana.alertingprovisioning, f"{len(group['rules'])} rules"
        try:
            found = api.get_rule_group(FOLDER_UID, RULE_GROUP)
        except Exception as error:
            if not is_missing(error):
                raise
            action = Action.CREATED
        else:
            if _contains(found, group):
                return Change("alerts", name, Action.UNCHANGED)
            if not self.overwrite and any(not rule.get("provenance") for rule in found["rules"]):
                raise PushError(f"the alert group {RULE_GROUP!r} may be edited in Grafana and differs; use --overwrite")
            action = Action.UPDATED
        if not self.dry_run:
            api.update_rule_group(FOLDER_UID, RULE_GROUP, group, disable_provenance=editable)
        return Change("alerts", name, action)

    def health(self, data_source_uid: str) -> str | None:
        """Why Grafana cannot ask the data source; None if it can."""
        try:
            answer = self.grafana.datasource.health(data_source_uid)
        except Exception as error:
            return str(error)
        return None if answer.get("status") == "OK" else answer.get("message", "no reason given")


def fingerprint(board: Mapping[str, Any]) -> str:
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


def steps(
    publisher: Publisher,
    folder: str,
    source: DataSource,
    boards: list[dict[str, Any]],
    rule_group: Any,
    editable_rules: bool,
) -> Iterator[Change]:
    raise NotImplementedError
