"""`kvpulse dashboards push` against the stand-in of a Grafana server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result
from niquests.exceptions import ConnectTimeout, RequestException

from commands.main import main
from dashboards.alerts import ALERTS, RULE_GROUP
from dashboards.catalogue import BOARDS
from dashboards.grafana_errors import PushError, explained
from dashboards.publish import FOLDER_UID
from tests.grafana_stand_in import PASSWORD, TOKEN, USER, VIEWER_TOKEN, GrafanaStandIn

PROMETHEUS = "http://prometheus:9090"
SERVING = BOARDS[0].uid


@pytest.fixture
def grafana() -> Iterator[GrafanaStandIn]:
    with GrafanaStandIn() as stand_in:
        yield stand_in


def push(grafana: GrafanaStandIn | str, *options: str, token: str | None = TOKEN, **environment: str) -> Result:
    url = grafana if isinstance(grafana, str) else grafana.url
    environment |= {"GRAFANA_URL": url} | ({} if token is None else {"GRAFANA_TOKEN": token})
    return CliRunner().invoke(main, ["dashboards", "push", *options], env=environment)


def pushed(grafana: GrafanaStandIn, *options: str) -> GrafanaStandIn:
    outcome = push(grafana, "--prometheus-url", PROMETHEUS, *options)
    assert outcome.exit_code == 0, outcome.output
    grafana.asked.clear()
    return grafana


def test_a_first_push_creates_folder_data_source_dashboards_and_rules(grafana: GrafanaStandIn) -> None:
    outcome = push(grafana, "--prometheus-url", PROMETHEUS)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.output.count("created") == 2 + len(BOARDS) + 1
    assert grafana.folders[FOLDER_UID]["title"] == "KVPulse"
    assert set(grafana.boards) == {board.uid for board in BOARDS}
    assert set(grafana.board_folders.values()) == {FOLDER_UID}
    (source,) = grafana.sources.values()
    assert (source["name"], source["type"], source["url"]) == ("Prometheus", "prometheus", PROMETHEUS)
    rules = grafana.groups[FOLDER_UID, RULE_GROUP]["rules"]
    assert [rule["title"] for rule in rules] == [alert.name for alert in ALERTS]
    assert {query["datasourceUid"] for rule in rules for query in rule["data"]} == {"__expr__", source["uid"]}


@pytest.mark.parametrize("wrapped_versions", [True, False])
def test_a_second_push_writes_nothing_and_says_so(grafana: GrafanaStandIn, wrapped_versions: bool) -> None:
    grafana.wrapped_versions = wrapped_versions
    pushed(grafana)
    outcome = push(grafana, "--prometheus-url", PROMETHEUS)
    assert outcome.exit_code == 0
    assert grafana.written == []
    assert "is up to date\n" in outcome.output
    assert "created" not in outcome.output
    assert "updated" not in outcome.output


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(grafana: GrafanaStandIn) -> None:
    outcome = push(grafana, "--prometheus-url", PROMETHEUS, "--dry-run")
    assert outcome.exit_code == 0, outcome.output
    assert grafana.written == []
    assert outcome.output.count("created") == 2 + len(BOARDS) + 1
    assert "was not changed" in outcome.output


def test_an_older_dashboard_of_ours_is_updated(grafana: GrafanaStandIn) -> None:
    pushed(grafana)
    grafana.versions[SERVING][-1]["message"] = "kvpulse 0123456789abcdef"
    outcome = push(grafana)
    assert outcome.exit_code == 0, outcome.output
    assert grafana.written == ["POST /api/dashboards/db"]
    assert grafana.boards[SERVING]["version"] == 2


def test_a_dashboard_edited_in_grafana_is_left_alone_and_the_others_are_pushed(grafana: GrafanaStandIn) -> None:
    pushed(grafana)
    grafana.edit_board(SERVING)
    outcome = push(grafana, "--folder", "Team")
    assert outcome.exit_code == 1
    assert "refused   dashboard KVPulse: serving  edited in Grafana; --overwrite replaces it" in outcome.output
    assert grafana.boards[SERVING]["refresh"] == "1m"
    assert "unchanged alerts" in outcome.output


def test_overwrite_replaces_what_was_edited_in_grafana(grafana: GrafanaStandIn) -> None:
    pushed(grafana)
    grafana.edit_board(SERVING)
    outcome = push(grafana, "--overwrite")
    assert outcome.exit_code == 0, outcome.output
    assert grafana.boards[SERVING]["refresh"] == "10s"


def test_a_dashboard_saved_by_somebody_else_at_the_same_moment_is_not_overwritten(grafana: GrafanaStandIn) -> None:
    pushed(grafana)
    grafana.versions[SERVING][-1]["message"] = "kvpulse 0123456789abcdef"
    grafana.before_save = grafana.edit_board
    outcome = push(grafana)
    assert outcome.exit_code == 1
    assert "changed in Grafana meanwhile (The dashboard has been changed by someone else)" in outcome.output
    assert grafana.boards[SERVING]["refresh"] == "1m"


def test_a_dashboard_moved_to_another_folder_comes_back(grafana: GrafanaStandIn) -> None:
    pushed(grafana)
    grafana.board_folders[SERVING] = "elsewhere"
    assert push(grafana).exit_code == 0
    assert grafana.board_folders[SERVING] == FOLDER_UID


def test_another_title_renames_the_folder(grafana: GrafanaStandIn) -> None:
    pushed(grafana)
    assert push(grafana, "--folder", "Inference").exit_code == 0
    assert grafana.folders[FOLDER_UID]["title"] == "Inference"
    assert grafana.written == [f"PUT /api/folders/{FOLDER_UID}"]


def test_rules_are_shown_as_provisioned_unless_they_may_be_edited(grafana: GrafanaStandIn) -> None:
    pushed(grafana)
    assert {rule["provenance"] for rule in grafana.groups[FOLDER_UID, RULE_GROUP]["rules"]} == {"api"}
    with GrafanaStandIn() as another:
        assert push(another, "--prometheus-url", PROMETHEUS, "--editable-rules").exit_code == 0
        (put,) = [asked for asked in another.asked if asked.method == "PUT"]
        assert put.headers["x-disable-provenance"] == "true"
        assert not any("provenance" in rule for rule in another.groups[FOLDER_UID, RULE_GROUP]["rules"])


def test_changed_rules_are_replaced_and_dropped_ones_go(grafana: GrafanaStandIn) -> None:
    pushed(grafana)
    rules = grafana.groups[FOLDER_UID, RULE_GROUP]["rules"]
    rules[0]["for"] = "9m"
    rules.append({**rules[1], "uid": "dropped", "title": "Dropped"})
    assert push(grafana).exit_code == 0
    assert grafana.written == [f"PUT /api/v1/provisioning/folder/{FOLDER_UID}/rule-groups/{RULE_GROUP}"]
    assert len(grafana.groups[FOLDER_UID, RULE_GROUP]["rules"]) == len(ALERTS)


def test_editable_rules_that_differ_are_left_alone_without_overwrite(grafana: GrafanaStandIn) -> None:
    pushed(grafana, "--editable-rules")
    grafana.groups[FOLDER_UID, RULE_GROUP]["rules"][0]["for"] = "9m"
    outcome = push(grafana, "--editable-rules")
    assert outcome.exit_code == 1
    assert "may have been edited in Grafana" in outcome.output
    assert push(grafana, "--editable-rules", "--overwrite").exit_code == 0
    assert grafana.groups[FOLDER_UID, RULE_GROUP]["rules"][0]["for"] == f"{ALERTS[0].for_minutes}m"


def test_rules_provisioned_from_a_file_stay_grafanas_words_say_why(grafana: GrafanaStandIn) -> None:
    pushed(grafana)
    for rule in grafana.groups[FOLDER_UID, RULE_GROUP]["rules"]:
        rule.update(provenance="file", title=rule["title"] + " old")
    outcome = push(grafana)
    assert outcome.exit_code == 1
    assert "needs 'file'" in outcome.output


def test_a_user_and_password_do_as_well_as_a_token(grafana: GrafanaStandIn) -> None:
    options = ("--prometheus-url", PROMETHEUS, "--user", USER)
    assert push(grafana, *options, token=None, GRAFANA_PASSWORD=PASSWORD).exit_code == 0
    url = grafana.url.replace("//", f"//{USER}:{PASSWORD}@")
    outcome = push(url, token=None)
    assert outcome.exit_code == 0, outcome.output
    assert PASSWORD not in outcome.output


def test_a_grafana_under_a_path_is_found_there() -> None:
    with GrafanaStandIn(path="/monitoring/grafana") as grafana:
        assert push(grafana, "--prometheus-url", PROMETHEUS).exit_code == 0
        assert push(grafana.url + "/").exit_code == 0


@pytest.mark.parametrize(
    "url", ["grafana:3000", "http://", "ftp://grafana", "http://[", "http://grafana:port", "http://u:hidden@h:0"]
)
def test_an_address_that_is_none_is_said_to_be_none(url: str) -> None:
    outcome = push(url)
    assert_one_line(outcome, "is no address of a Grafana server")
    assert "hidden" not in outcome.output


def test_without_any_credentials_the_command_says_what_to_set(grafana: GrafanaStandIn) -> None:
    outcome = push(grafana, token=None)
    assert outcome.exit_code == 2
    assert "GRAFANA_TOKEN" in outcome.output
    assert grafana.asked == []


def test_a_wrong_token_is_one_clear_line_without_the_token(grafana: GrafanaStandIn) -> None:
    outcome = push(grafana, token="glsa_stolen")
    assert_one_line(outcome, "does not know this token or user (401)")
    assert "glsa_stolen" not in outcome.output


def test_a_viewers_token_is_told_which_permissions_are_missing(grafana: GrafanaStandIn) -> None:
    outcome = push(grafana, "--prometheus-url", PROMETHEUS, token=VIEWER_TOKEN)
    assert_one_line(outcome, "needs the role Admin")


def test_a_server_that_cannot_be_reached_is_one_clear_line() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        outcome = push(f"http://127.0.0.1:{free.getsockname()[1]}")
    assert_one_line(outcome, "cannot be reached: Failed to establish a new connection: [Errno 111] Connection refused")


@pytest.mark.parametrize(("kind", "body"), [("text/html", b"<html>Sign in</html>"), ("application/json", b"[]")])
def test_a_server_that_is_not_grafana_is_named_so(kind: str, body: bytes) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        Thread(target=server.handle_request, daemon=True).start()
        assert_one_line(push(f"http://127.0.0.1:{server.server_port}"), "does not answer as Grafana does")


def test_a_missing_data_source_needs_an_address(grafana: GrafanaStandIn) -> None:
    assert_one_line(push(grafana), "--prometheus-url")


def test_a_data_source_of_another_type_is_not_taken(grafana: GrafanaStandIn) -> None:
    grafana.sources["P9"] = {"uid": "P9", "name": "Prometheus", "type": "loki", "url": "", "readOnly": False}
    assert_one_line(push(grafana, "--prometheus-url", PROMETHEUS), "is a loki, no Prometheus")
    assert grafana.groups == {}


def test_a_data_source_elsewhere_is_changed_only_when_asked(grafana: GrafanaStandIn) -> None:
    pushed(grafana)
    outcome = push(grafana, "--prometheus-url", "http://user:hidden@elsewhere:9090")
    assert_one_line(outcome, f"asks {PROMETHEUS}, not http://elsewhere:9090")
    assert "hidden" not in outcome.output
    assert push(grafana, "--prometheus-url", "http://elsewhere:9090", "--overwrite").exit_code == 0
    assert next(iter(grafana.sources.values()))["url"] == "http://elsewhere:9090"


def test_a_prometheus_that_grafana_cannot_ask_is_said_and_the_push_goes_on(grafana: GrafanaStandIn) -> None:
    grafana.prometheus_answers = False
    outcome = push(grafana, "--prometheus-url", PROMETHEUS)
    assert outcome.exit_code == 0, outcome.output
    assert "Grafana cannot ask it: dial tcp: connection refused" in outcome.output


def test_rays_own_dashboards_are_pushed_but_for_the_one_that_lent_its_uid(
    grafana: GrafanaStandIn, tmp_path: Path
) -> None:
    for name, uid in (("serve", "rayServeDashboard"), ("data", SERVING)):
        board: dict[str, Any] = {"uid": uid, "title": f"Ray {name}", "version": 7, "panels": []}
        (tmp_path / f"{name}_grafana_dashboard.json").write_text(json.dumps(board))
    pushed(grafana, "--ray-dashboards", str(tmp_path))
    assert grafana.boards["rayServeDashboard"]["title"] == "Ray serve"
    assert grafana.boards[SERVING]["title"] == "KVPulse: serving"


@pytest.mark.parametrize("content", [None, "not JSON", "[]", "{}"])
def test_a_folder_without_rays_dashboards_is_said_to_be_one(
    grafana: GrafanaStandIn, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "serve_grafana_dashboard.json").write_text(content)
    outcome = push(grafana, "--prometheus-url", PROMETHEUS, "--ray-dashboards", str(tmp_path))
    assert_one_line(outcome, "no dashboards (*.json) in" if content is None else "is no Grafana dashboard")
    assert grafana.written == []


@pytest.mark.parametrize("error", [RequestException(), RequestException(""), ConnectTimeout()])
def test_an_error_without_words_is_named(error: RequestException) -> None:
    with pytest.raises(PushError, match=f"cannot be reached: {type(error).__name__}"), explained("http://grafana"):
        raise error


def assert_one_line(outcome: Result, text: str) -> None:
    assert outcome.exit_code == 1, outcome.output
    assert text in outcome.output
    assert "Traceback" not in outcome.output
    assert outcome.exception is None or isinstance(outcome.exception, SystemExit)
    assert len(outcome.stderr.strip().splitlines()) == 1
