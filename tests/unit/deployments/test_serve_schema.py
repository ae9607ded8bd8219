from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments import serve_schema

ROOT = Path(__file__).parents[3]
SHIPPED = [ROOT / "serve_config.yaml", *sorted((ROOT / "deployments" / "examples").glob("*.yaml"))]
DOCUMENT = yaml.safe_load((ROOT / "serve_config.yaml").read_text())


def problems(*steps: str | int, **added: Any) -> list[str]:
    """What is wrong with the shipped file after `added` went into the mapping at `steps`."""
    document = copy.deepcopy(DOCUMENT)
    place = document
    for step in steps:
        place = place[step]
    place.update(added)
    return [str(problem) for problem in serve_schema.refuse_unknown_keys(document)]


def with_a_range(**added: Any) -> list[str]:
    """What is wrong when the hot engines are a range and `added` stands in their deployment."""
    document = copy.deepcopy(DOCUMENT)
    application = document["applications"][0]
    application["args"]["paths"]["hot"]["replicas"] = {"min": 1, "max": 3}
    application["deployments"][0].update(added)
    return [str(problem) for problem in serve_schema.refuse_unknown_keys(document)]


HOT_ENGINE = ("applications", 0, "deployments", 0)
ARGUMENTS = ("applications", 0, "args")


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_every_shipped_file_is_free_of_problems(file):
    assert serve_schema.refuse_unknown_keys(yaml.safe_load(file.read_text())) == []


@pytest.mark.parametrize(
    ("steps", "key", "path", "hint"),
    [
        ((), "http_option", "http_option", "http_options"),
        (("http_options",), "prot", "http_options.prot", "port"),
        (("applications", 0), "import_pth", "applications[0].import_pth", "import_path"),
        (
            HOT_ENGINE,
            "max_ongoing_requets",
            "applications[0].deployments[0].max_ongoing_requets",
            "max_ongoing_requests",
        ),
        (ARGUMENTS, "modle", "applications[0].args.modle", "model"),
        ((*ARGUMENTS, "paths", "hot"), "shares", "applications[0].args.paths.hot.shares", "share"),
    ],
)
def test_an_unknown_key_is_reported_with_its_path_and_the_nearest_one(steps, key, path, hint):
    assert problems(*steps, **{key: 1}) == [f"{path}: unknown key; did you mean {hint!r}?"]


@pytest.mark.parametrize(
    ("option", "value", "path", "hint"),
    [
        ("ray_actor_options", {"num_cpu": 1}, "ray_actor_options.num_cpu", "num_cpus"),
        ("autoscaling_config", {"min_replica": 1}, "autoscaling_config.min_replica", "min_replicas"),
        (
            "autoscaling_config",
            {"policy": {"policy_kwarg": {}}},
            "autoscaling_config.policy.policy_kwarg",
            "policy_kwargs",
        ),
        ("request_router_config", {"max_backof_s": 1}, "request_router_config.max_backof_s", "max_backoff_s"),
    ],
)
def test_unknown_keys_inside_rays_nested_settings_are_reported(option, value, path, hint):
    assert problems(*HOT_ENGINE, **{option: value}) == [
        f"applications[0].deployments[0].{path}: unknown key; did you mean {hint!r}?"
    ]


def test_an_unknown_engine_option_is_reported_beside_other_faults():
    found = problems(*ARGUMENTS, "paths", "hot", share=2, engine={"max_num_seq": 3})
    assert found == [
        "applications[0].args.paths.hot.share: Input should be less than or equal to 1 (got 2)",
        "applications[0].args.paths.hot.engine: max_num_seq: vLLM has no such engine argument; "
        "did you mean 'max_num_seqs'?",
    ]


def test_a_wrong_value_is_reported_once_however_many_types_it_may_have():
    assert problems(*ARGUMENTS, "paths", "hot", engine={"block_size": -1}) == [
        "applications[0].args.paths.hot.engine.block_size: "
        "Input should be 'auto'; or Input should be greater than or equal to 1 (got -1)"
    ]


def test_wrong_values_of_rays_own_settings_are_reported():
    (found,) = problems("http_options", port="abc")
    assert found.startswith("http_options.port: Input should be a valid integer")


def test_a_missing_value_is_reported_at_its_place():
    assert problems(*ARGUMENTS, paths={}) == [
        "applications[0].args.paths.hot: Field required",
        "applications[0].args.paths.cold: Field required",
    ]


def test_a_deployment_that_the_application_does_not_have_is_reported():
    assert problems(*HOT_ENGINE, name="HotEngin") == [
        "applications[0].deployments[0].name: the application has no deployment 'HotEngin'; did you mean 'HotEngine'?"
    ]


def test_a_fixed_number_of_replicas_cannot_stand_beside_autoscaling():
    assert problems(*HOT_ENGINE, num_replicas=2, autoscaling_config={"max_replicas": 3}) == [
        "applications[0].deployments[0].num_replicas: cannot stand beside autoscaling_config; remove one of them"
    ]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere:Router", "'nowhere:Router' does not import: No module named 'nowhere'"),
        (
            "deployments.request_router:PrefixCacheAwareRoute",
            "has no 'PrefixCacheAwareRoute'; did you mean 'PrefixCacheAwareRouter'?",
        ),
    ],
)
def test_a_class_path_that_does_not_import_is_reported(target, message):
    (found,) = problems(*HOT_ENGINE, request_router_config={"request_router_class": target})
    assert found.startswith("applications[0].deployments[0].request_router_config.request_router_class: ")
    assert found.endswith(message)


def test_a_file_without_our_application_is_reported():
    assert problems("applications", 0, import_path="other.app:build") == [
        "applications: none has import_path: deployments.application:build_app"
    ]


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_what_is_no_mapping_is_reported(document):
    (found,) = serve_schema.refuse_unknown_keys(document)
    assert "not a mapping" in found.message


def test_the_deployment_names_are_those_of_the_application():
    from deployments.application import BOARD_DEPLOYMENT, DEPLOYMENT_NAMES

    assert set(serve_schema.DEPLOYMENT_NAMES) == {"Ingress", BOARD_DEPLOYMENT, *DEPLOYMENT_NAMES.values()}


def test_a_range_of_replicas_needs_nothing_else():
    assert with_a_range() == []


def test_what_would_replace_the_autoscaling_policy_of_a_range_is_reported():
    where = "applications[0].deployments[0]"
    assert with_a_range(num_replicas=2) == [
        f"{where}.num_replicas: would be ignored: a path's `replicas` is a range; say numbers in args"
    ]
    assert with_a_range(autoscaling_config={"max_replicas": 3}) == [
        f"{where}.autoscaling_config: replaces the policy of args.scaling; name one in it, or remove it"
    ]
    policy = {"policy_function": "deployments.autoscaling:CacheAwareScalingPolicy"}
    assert with_a_range(autoscaling_config={"max_replicas": 3, "policy": policy}) == []
