"""The policy with contexts as Serve makes them: what it reads, what it returns, and that it never raises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest
from ray.serve._private.common import (
    ONGOING_REQUESTS_KEY,
    QUEUED_REQUESTS_KEY,
    RUNNING_REQUESTS_KEY,
)

from app.config.scaling import ScalingConfig
from app.config.schema import AppConfig
from app.state.scaling_inputs import EngineStats, IngressStats
from deployments.autoscaling import CacheAwareScalingPolicy, autoscaling_config, replica_options
from deployments.effective import effective_config
from deployments.scaling_book import ScalingBook, reports
from deployments.scaling_report import DecisionPublisher, DecisionRecord, Turn, last_decisions
from tests.autoscaling_rig import APP, BUSY, NOW_S, RULES, FakeStore, Rig, context, offering
from tests.fakes import TINY_LLAMA_CONFIG


def test_what_the_ingress_is_offered_sets_the_replicas_of_the_engines() -> None:
    rig = Rig()
    desired = [rig.tick(seconds) for seconds in range(5)]
    assert desired == [1, 1, 3, 3, 3]  # once the first average stands: 2,000 tokens/s at 75 % of 1,000


def test_the_ingress_keeps_its_replicas() -> None:
    rig = Rig()
    assert rig.ingress(context("Ingress", offering(1e6), running=2, target=2))[0] == 2


def test_between_two_decisions_nothing_is_read() -> None:
    rig = Rig()
    rig.tick(0)
    decided = len(rig.metrics.recorded)
    for tenth in range(1, 10):
        rig.tick(tenth / 10)
    assert len(rig.metrics.recorded) == decided


def test_the_bounds_are_serves() -> None:
    rig = Rig()
    for seconds in range(4):
        desired = rig.tick(seconds, context("HotEngine", BUSY, most=2, now_s=NOW_S + seconds))
    assert desired == 2
    assert rig.metrics.recorded[-1][0].reason == "bounds"


def test_a_dry_run_publishes_what_it_would_do_and_keeps_the_target() -> None:
    rig = Rig(dry_run=True)
    assert [rig.tick(seconds) for seconds in range(6)] == [1] * 6
    assert rig.store.written.wait(10)
    assert [changed for decision, changed in rig.metrics.recorded if decision.path == "hot"].count(True) == 1
    assert rig.metrics.recorded[-1][0].desired_replicas == 3


def test_old_reports_hold_the_target() -> None:
    rig = Rig()
    old = context("HotEngine", BUSY, running=3, target=3, age_s=60)
    assert [rig.tick(seconds, old) for seconds in (0, 1)] == [3, 3]
    assert rig.metrics.recorded[-1][0].reason == "stale_hold"


def test_an_error_holds_the_target_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken(app: str) -> ScalingBook:
        raise RuntimeError("no book")

    policy = CacheAwareScalingPolicy({}, broken)
    assert [policy(context("HotEngine", target=2))[0] for _ in range(5)] == [2] * 5
    assert len([record for record in caplog.records if "autoscaling policy failed" in record.message]) == 1


def test_reports_are_averaged_and_as_old_as_the_last_one() -> None:
    [report] = reports(context("HotEngine", BUSY, age_s=3.0), EngineStats, NOW_S)
    assert report.stats == BUSY
    assert report.age_s == pytest.approx(3.0)


def test_what_serve_counts_itself_makes_no_old_report_young() -> None:
    told = context("HotEngine", BUSY, age_s=30.0)
    own = context("HotEngine", values={RUNNING_REQUESTS_KEY: 1.0}, age_s=0.0)
    assert told.raw_metrics is not None and own.raw_metrics is not None
    told.raw_metrics[RUNNING_REQUESTS_KEY] = own.raw_metrics[RUNNING_REQUESTS_KEY]
    [report] = reports(told, EngineStats, NOW_S)
    assert report.age_s == pytest.approx(30.0)


@pytest.mark.parametrize("kind", [EngineStats, IngressStats])
def test_no_figure_of_ours_has_the_name_of_one_of_serves(kind: type[EngineStats | IngressStats]) -> None:
    """Serve would count it as its own ongoing requests."""
    serves = {RUNNING_REQUESTS_KEY, ONGOING_REQUESTS_KEY, QUEUED_REQUESTS_KEY}
    assert not serves & set(kind.__struct_fields__)


def test_half_a_report_is_none_and_serves_own_counts_are_no_report() -> None:
    assert list(reports(context("HotEngine", values={"running_requests": 3.0}), EngineStats, NOW_S)) == []
    found = list(reports(context("HotEngine", values={**msgspec.to_builtins(BUSY), "more": 1.0}), EngineStats, NOW_S))
    assert [report.stats for report in found] == [BUSY]


def test_the_youngest_policy_brings_the_settings() -> None:
    """A redeploy makes new policies while old ones may still be asked once."""
    rig = Rig()
    old = rig.hot
    rig.hot = CacheAwareScalingPolicy({"rules": {**RULES, "dry_run": True}}, lambda app: rig.book)
    rig.tick(0)
    old(context("HotEngine", BUSY, now_s=NOW_S + 0.1))
    assert [rig.tick(seconds) for seconds in range(1, 6)] == [1] * 5


def test_a_change_is_logged_in_one_line_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with caplog.at_level("INFO", "ray.serve"):
        for seconds in range(6):
            rig.tick(seconds, context("HotEngine", BUSY, target=1 if seconds < 2 else 3, now_s=NOW_S + seconds))
    lines = [record.message for record in caplog.records if record.message.startswith("Scaling")]
    assert len(lines) == 1
    assert lines[0].startswith("Scaling hot engines from 1 to 3: demand {")


def test_a_hold_is_told_when_it_begins_and_once_while_it_comes_and_goes(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with caplog.at_level("INFO", "ray.serve"):
        for seconds in range(40):
            age_s = 60.0 if seconds % 10 > 5 else 1.0
            rig.tick(seconds, context("HotEngine", BUSY, now_s=NOW_S + seconds, age_s=age_s), tokens_per_s=100)
    lines = [record.message for record in caplog.records if record.message.startswith("Scaling")]
    assert len(lines) == 1
    assert lines[0].startswith("Scaling hot engines held at 1: stale_hold {")
    assert [decision.reason for decision, counts in rig.metrics.recorded if counts] == ["stale_hold"]


def test_the_first_decision_waits_until_every_deployment_has_been_asked() -> None:
    """Else the first path that is asked could take what the other one holds."""
    rig = Rig()
    rig.tick(0)
    assert rig.metrics.recorded == []
    rig.tick(1)
    assert [decision.path for decision, _ in rig.metrics.recorded] == ["hot"]


def test_a_path_whose_number_has_been_fixed_has_no_last_decision_any_more() -> None:
    rig = Rig()
    for seconds in range(3):
        rig.book.desired(context("ColdEngine", BUSY, now_s=NOW_S + seconds))
        rig.tick(seconds)
    settings = {"rules": RULES, "fixed_replicas": {"cold": 1}}
    rig.hot = CacheAwareScalingPolicy(settings, lambda app: rig.book)
    rig.ingress = CacheAwareScalingPolicy(settings, lambda app: rig.book)
    for seconds in range(3, 12):
        rig.tick(seconds)
    while set(last_decisions(APP, rig.store)) != {"hot"}:
        assert rig.store.written.wait(10)
        rig.store.written.clear()


def test_the_last_decisions_can_be_read_by_others() -> None:
    rig = Rig()
    assert last_decisions(APP, rig.store) == {}
    rig.tick(0)
    rig.tick(1)
    assert rig.store.written.wait(10)
    rig.store.written.clear()
    rig.tick(2)
    assert rig.store.written.wait(10)
    record: DecisionRecord = last_decisions(APP, rig.store)["hot"]
    assert (record.desired_replicas, record.current_replicas, record.reason) == (3, 1, "demand")
    assert (record.decided_at_s, record.changed) == (NOW_S + 2, Turn(NOW_S + 2, record.reason))
    assert record.inputs["demand_tokens_per_s"] == pytest.approx(2000, rel=0.02)
    assert set(last_decisions(APP, rig.store)) == {"hot"}


def test_a_store_that_fails_does_not_end_the_publisher() -> None:
    class Failing(FakeStore):
        def replace(self, key: bytes, value: bytes) -> None:
            self.written.set()
            if len(self.values) == 0:
                self.values[b"failed"] = b""
                raise OSError("the store is gone")
            super().replace(key, value)

    store = Failing()
    publisher = DecisionPublisher(APP, store)
    publisher.publish({})
    assert store.written.wait(10)
    store.written.clear()
    publisher.publish({})
    assert store.written.wait(10)


def test_the_policy_travels_to_the_controller_by_value_and_shares_the_book_there() -> None:
    config = autoscaling_config({"rules": RULES}, 1, 4)
    policies = [cloudpickle.loads(config.policy.get_serialized_policy_def())() for _ in range(2)]
    assert policies[0]._book_of is policies[1]._book_of
    assert config.upscale_delay_s == config.downscale_delay_s == 0
    assert config.metrics_interval_s < config.look_back_period_s < ScalingConfig().stale_after_s


def config_of(hot_replicas: Any) -> AppConfig:
    traffic = {"mean_prompt_tokens": 100, "mean_output_tokens": 10, "target_concurrency": 2}
    paths = {name: {"share": 0.5, "traffic": traffic} for name in ("hot", "cold")}
    paths["hot"]["replicas"] = hot_replicas
    hardware = {"kind": "cpu", "cores": 4, "kv_cache_gib": 1}
    return AppConfig.model_validate({"paths": paths, "hardware": hardware})


def test_a_range_is_all_that_the_file_needs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_LLAMA_CONFIG))

    def deployments_of(replicas: Any) -> list[dict[str, Any]]:
        effective = effective_config(config_of(replicas), str(tmp_path))
        config: AppConfig = effective.config
        paths = [replica_options(effective, path.replicas) for path in (config.paths.hot, config.paths.cold)]
        return [*paths, replica_options(effective, config.ingress.replicas, reports=True)]

    hot, cold, ingress = deployments_of({"min": 1, "max": 3})
    assert cold == {"num_replicas": 1}
    assert hot["autoscaling_config"].max_replicas == 3
    assert ingress["autoscaling_config"].min_replicas == ingress["autoscaling_config"].max_replicas == 1
    settings = hot["autoscaling_config"].policy.policy_kwargs["settings"]
    assert settings["fixed_replicas"] == {"cold": 1}
    assert settings["full_at"] == {"hot": 2, "cold": 2}
    assert settings["devices"] is None  # cores are not divided
    CacheAwareScalingPolicy(settings)
    assert deployments_of(2) == [{"num_replicas": 2}, {"num_replicas": 1}, {"num_replicas": 1}]
