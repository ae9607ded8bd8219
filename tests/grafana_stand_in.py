"""An HTTP server with the part of Grafana's API that pushes use, as strict about it as Grafana 10 to 12 are.

Paths, methods, status codes, messages and field names follow Grafana's documentation and source; nothing here was
compared with a running Grafana.
"""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN, VIEWER_TOKEN = "glsa_admin", "glsa_viewer"
USER, PASSWORD = "admin", "s3cret"
_UID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_RULE_FIELDS = {"uid", "orgID", "folderUID", "ruleGroup", "title", "condition", "data", "noDataState", "execErrState"}
_STATES = {"Alerting", "NoData", "OK", "Error", "KeepLast"}


class RefusedError(Exception):
    """
    Args:
        code: of HTTP.
        more: fields beside the message, such as Grafana's `status`.
    """

    def __init__(self, code: int, message: str, **more: str) -> None:
        self.code, self.body = code, {"message": message, **more}


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: Any

    @property
    def writes(self) -> bool:
        return self.method != "GET"


@dataclass
class GrafanaStandIn(AbstractContextManager["GrafanaStandIn"]):
    """
    Args:
        path: that it is served under, with a leading slash.
        wrapped_versions: a dashboard's versions come in an object, as since Grafana 11.
    """

    path: str = ""
    wrapped_versions: bool = True
    prometheus_answers: bool = True
    asked: list[Asked] = field(default_factory=list)
    folders: dict[str, dict[str, Any]] = field(default_factory=dict)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    boards: dict[str, dict[str, Any]] = field(default_factory=dict)
    board_folders: dict[str, str] = field(default_factory=dict)
    versions: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    groups: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    before_save: Callable[[str], None] = lambda uid: None

    def __enter__(self) -> GrafanaStandIn:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}{self.path}"

    @property
    def written(self) -> list[str]:
        return [f"{asked.method} {asked.path}" for asked in self.asked if asked.writes]

    def edit_board(self, uid: str) -> None:
        """As somebody does in Grafana's page."""
        self._store(uid, {**self.boards[uid], "refresh": "1m"}, "")

    def answer(self, asked: Asked) -> Any:
        if not asked.path.startswith(f"{self.path}/api/"):
            raise RefusedError(404, "Not found")
        path = unquote(asked.path.removeprefix(f"{self.path}/api"))
        if path == "/health":
            return {"commit": "0", "database": "ok", "version": "11.6.0"}
        self._authorize(asked)
        for pattern, method, act in self._routes():
            if (match := re.fullmatch(pattern, path)) and method == asked.method:
                return act(asked, *match.groups())
        raise RefusedError(404, f"Not found: {asked.method} {path}")

    def _authorize(self, asked: Asked) -> None:
        basic = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        given = asked.headers.get("authorization", "")
        if given not in {f"Bearer {TOKEN}", f"Bearer {VIEWER_TOKEN}", basic}:
            raise RefusedError(401, "Invalid API key")
        if given == f"Bearer {VIEWER_TOKEN}" and asked.writes:
            raise RefusedError(403, "You'll need additional permissions to perform this action.")

    def _routes(self) -> list[tuple[str, str, Callable[..., Any]]]:
        group = r"/v1/provisioning/folder/([^/]+)/rule-groups/([^/]+)"
        return [
            (r"/folders/([^/]+)", "GET", self._get_folder),
            (r"/folders", "POST", self._create_folder),
            (r"/folders/([^/]+)", "PUT", self._update_folder),
            (r"/datasources/name/(.+)", "GET", self._get_source),
            (r"/datasources", "POST", self._create_source),
            (r"/datasources/uid/([^/]+)", "PUT", self._update_source),
            (r"/datasources/uid/([^/]+)/health", "GET", self._source_health),
            (r"/dashboards/uid/([^/]+)", "GET", self._get_board),
            (r"/dashboards/uid/([^/]+)/versions", "GET", self._get_versions),
            (r"/dashboards/db", "POST", self._save_board),
            (group, "GET", self._get_group),
            (group, "PUT", self._put_group),
        ]

    def _get_folder(self, asked: Asked, uid: str) -> Any:
        return _found(self.folders.get(uid), "folder not found")

    def _create_folder(self, asked: Asked) -> Any:
        uid, title = asked.body["uid"], asked.body["title"]
        if not title or not _UID.fullmatch(uid):
            raise RefusedError(400, "folder title cannot be empty")
        if uid in self.folders:
            raise RefusedError(412, "a folder/dashboard with the same uid already exists")
        self.folders[uid] = {"uid": uid, "title": title, "version": 1}
        return self.folders[uid]

    def _update_folder(self, asked: Asked, uid: str) -> Any:
        folder = self._get_folder(asked, uid)
        if asked.body.get("version") != folder["version"] and not asked.body.get("overwrite"):
            raise RefusedError(412, "the folder has been changed by someone else", status="version-mismatch")
        folder.update(title=asked.body["title"], version=folder["version"] + 1)
        return folder

    def _get_source(self, asked: Asked, name: str) -> Any:
        found = next((source for source in self.sources.values() if source["name"] == name), None)
        return _found(found, "Data source not found")

    def _create_source(self, asked: Asked) -> Any:
        missing = {"name", "type", "access"} - set(asked.body)
        if missing:
            raise RefusedError(400, f"bad request data: {sorted(missing)}")
        if any(source["name"] == asked.body["name"] for source in self.sources.values()):
            raise RefusedError(409, "data source with the same name already exists")
        source = {"id": len(self.sources) + 1, "uid": f"P{len(self.sources) + 1}", "readOnly": False, **asked.body}
        self.sources[source["uid"]] = source
        return {"datasource": source, "id": source["id"], "message": "Datasource added", "name": source["name"]}

    def _update_source(self, asked: Asked, uid: str) -> Any:
        source = _found(self.sources.get(uid), "Data source not found")
        if source["readOnly"]:
            raise RefusedError(403, "Cannot update read-only data source")
        source.update(asked.body)
        return {"datasource": source, "message": "Datasource updated"}

    def _source_health(self, asked: Asked, uid: str) -> Any:
        _found(self.sources.get(uid), "Data source not found")
        if not self.prometheus_answers:
            raise RefusedError(400, "dial tcp: connection refused", status="ERROR")
        return {"status": "OK", "message": "Successfully queried the Prometheus API."}

    def _get_board(self, asked: Asked, uid: str) -> Any:
        board = _found(self.boards.get(uid), "Dashboard not found", status="not-found")
        return {"dashboard": board, "meta": {"folderUid": self.board_folders[uid], "version": board["version"]}}

    def _get_versions(self, asked: Asked, uid: str) -> Any:
        _found(self.boards.get(uid), "Dashboard not found", status="not-found")
        versions = self.versions[uid][::-1]
        return {"continueToken": "", "versions": versions} if self.wrapped_versions else versions

    def _save_board(self, asked: Asked) -> Any:
        board = asked.body["dashboard"]
        uid = board["uid"]
        self.before_save(uid)
        if not board["title"]:
            raise RefusedError(400, "Dashboard title cannot be empty", status="empty-name")
        if not _UID.fullmatch(uid) or len(asked.body["message"]) > 500 or board["id"] is not None:
            raise RefusedError(400, "uid contains illegal characters")
        if asked.body["folderUid"] not in self.folders:
            raise RefusedError(404, "Folder not found")
        stored = self.boards.get(uid)
        if stored is not None and board["version"] != stored["version"] and not asked.body["overwrite"]:
            raise RefusedError(412, "The dashboard has been changed by someone else", status="version-mismatch")
        self._store(uid, board, asked.body["message"])
        self.board_folders[uid] = asked.body["folderUid"]
        return {"status": "success", "uid": uid, "version": self.boards[uid]["version"]}

    def _store(self, uid: str, board: dict[str, Any], message: str) -> None:
        version = self.boards[uid]["version"] + 1 if uid in self.boards else 1
        self.boards[uid] = {**board, "id": 1 + len(self.boards), "version": version}
        self.versions.setdefault(uid, []).append({"version": version, "message": message, "createdBy": "admin"})

    def _get_group(self, asked: Asked, folder: str, name: str) -> Any:
        return _found(self.groups.get((folder, name)), "rule group not found")

    def _put_group(self, asked: Asked, folder: str, name: str) -> Any:
        group, provenance = copy.deepcopy(asked.body), "" if "x-disable-provenance" in asked.headers else "api"
        if folder not in self.folders:
            raise RefusedError(400, "invalid alert rule: folder does not exist")
        if group["interval"] <= 0 or group["interval"] % 10:
            raise RefusedError(400, "interval should be positive and a multiple of 10 seconds")
        if len({rule["title"] for rule in group["rules"]}) != len(group["rules"]):
            raise RefusedError(
                400, "a conflicting alert rule is found: rule title under the same folder should be unique"
            )
        stored = self.groups.get((folder, name), {"rules": []})
        if any(rule.get("provenance") == "file" for rule in stored["rules"]):
            raise RefusedError(500, f"cannot update with provided provenance '{provenance}', needs 'file'")
        for number, rule in enumerate(group["rules"]):
            self._check_rule(rule)
            rule.update(id=number + 1, updated="2026-01-01T00:00:00Z", isPaused=False)
            rule.update({"provenance": provenance} if provenance else {})
        self.groups[folder, name] = group
        return group

    def _check_rule(self, rule: dict[str, Any]) -> None:
        missing = {*_RULE_FIELDS, "for"} - set(rule)
        if missing or not _UID.fullmatch(rule["uid"]) or not re.fullmatch(r"\d+[smh]", rule["for"]):
            raise RefusedError(400, f"invalid alert rule: {sorted(missing)}")
        if not {rule["noDataState"], rule["execErrState"]} <= _STATES:
            raise RefusedError(400, "invalid alert rule: unknown state")
        if rule["condition"] not in {query["refId"] for query in rule["data"]}:
            raise RefusedError(400, "invalid alert rule: condition does not exist")
        for query in rule["data"]:
            if query["datasourceUid"] not in {"__expr__", *self.sources}:
                raise RefusedError(400, f"invalid alert rule: data source {query['datasourceUid']!r} not found")
            if query["datasourceUid"] != "__expr__" and query["relativeTimeRange"]["from"] <= 0:
                raise RefusedError(400, "invalid alert rule: no time range")
            query["model"] = {"intervalMs": 1000, "maxDataPoints": 43200, **query["model"]}


def _found(value: Any, message: str, **more: str) -> Any:
    if value is None:
        raise RefusedError(404, message, **more)
    return value


def _handler(grafana: GrafanaStandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # head and body in one packet

        def _serve(self) -> None:
            raw = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, urlsplit(self.path).path, headers, json.loads(raw) if raw else None)
            grafana.asked.append(asked)
            try:
                status, answer = 200, grafana.answer(asked)
            except RefusedError as refused:
                status, answer = refused.code, refused.body
            except KeyError as missing:
                status, answer = 400, {"message": f"bad request data: {missing}"}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=UTF-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 - http.server's names

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
