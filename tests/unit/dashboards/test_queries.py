"""PromQL says what is meant, and what would be meaningless cannot be written."""

from __future__ import annotations

import pytest

from app import metrics
from dashboards.queries import PromQL, ratio

ALL = PromQL(window="5m")
CHOSEN = PromQL(window="1m", selection=(("application", "$application"), ("path", "$path"), ("engines", "$engines")))


def test_names_are_those_of_rays_metrics_ports() -> None:
    assert ALL.gauge(metrics.KV_USAGE) == "ray_kvpulse_kv_usage_ratio"
    assert ALL.rate(metrics.REQUESTS) == "sum(rate(ray_kvpulse_requests_total[5m]))"


def test_a_quantile_keeps_the_bounds_of_the_buckets_apart() -> None:
    assert ALL.quantile(0.95, metrics.TTFT, "path") == (
        "histogram_quantile(0.95, sum by (path, le) (rate(ray_gen_ai_server_time_to_first_token_seconds_bucket[5m])))"
    )


def test_a_choice_reaches_the_metrics_that_have_its_label() -> None:
    assert CHOSEN.gauge(metrics.KV_BLOCKS) == ('ray_kvpulse_kv_blocks{application=~"$application",engines=~"$engines"}')
    assert CHOSEN.rate(metrics.REQUESTS, "outcome") == (
        'sum by (outcome) (rate(ray_kvpulse_requests_total{application=~"$application",path=~"$path"}[1m]))'
    )


def test_what_the_controller_reports_is_chosen_by_application_as_well() -> None:
    assert CHOSEN.gauge(metrics.DESIRED_REPLICAS) == (
        'ray_kvpulse_desired_replicas{application=~"$application",engines=~"$engines"}'
    )


def test_a_part_that_was_never_counted_is_zero_of_its_whole() -> None:
    assert ratio("sum by (x) (a)", "sum by (x) (b)") == ("(sum by (x) (a) or 0 * (sum by (x) (b))) / (sum by (x) (b))")


def test_ratios_are_averaged_never_summed() -> None:
    with pytest.raises(ValueError, match="averaged, never summed"):
        ALL.total(metrics.KV_USAGE, "engines")
    assert ALL.mean(metrics.KV_USAGE, "engines") == "avg by (engines) (ray_kvpulse_kv_usage_ratio)"


@pytest.mark.parametrize(
    "write",
    [
        lambda: ALL.rate(metrics.KV_USAGE),
        lambda: ALL.mean(metrics.REQUESTS),
        lambda: ALL.quantile(0.5, metrics.REQUESTS),
        lambda: ALL.gauge(metrics.TTFT),
    ],
)
def test_a_metric_of_another_kind_is_refused(write: object) -> None:
    with pytest.raises(ValueError, match=r"is a (counter|gauge|histogram), not a"):
        write()  # type: ignore[operator]  # a lambda, as parametrized


@pytest.mark.parametrize(
    "write",
    [
        lambda: ALL.rate(metrics.REQUESTS, "engines"),
        lambda: ALL.rate(metrics.REQUESTS, engines="hot"),
        lambda: ALL.rate_except(metrics.REQUESTS, "reason", ("queue_full",)),
        lambda: ALL.quantile(0.5, metrics.TTFT, "outcome"),
    ],
)
def test_a_label_that_the_metric_does_not_have_is_refused(write: object) -> None:
    with pytest.raises(ValueError, match="has no label"):
        write()  # type: ignore[operator]  # a lambda, as parametrized
