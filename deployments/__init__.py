"""Adapters between KVPulse's decisions and Ray Serve and vLLM: the only place that imports either.

Serve's proxy and controller read these settings from their environment, and inherit it from the process that starts
Ray. The YAML's class paths make `serve run` import this package before Ray starts, so `serve run serve_config.yaml`
alone gets them; a cluster started by `ray start` needs them in that environment (docs/operations in README.md).
What the user has already set wins.
"""

import os

_RAY_DEFAULTS = {
    # HAProxy in front: clients reach the ingress replicas without Serve's Python proxy in between.
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # How long a stopping ingress stays open for load balancers that have not noticed; its answers are drained anyway.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "3",
    "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
    # Five seconds by default: too little on a machine whose cores are all busy loading engines.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
    # Two threads are enough on small machines; HAProxy is never the bottleneck here.
    "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, os.cpu_count() or 1)),
    # Ray starts workers at niceness 15; engines and ingress are the machine's main job, not background work.
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}

for _name, _value in _RAY_DEFAULTS.items():
    os.environ.setdefault(_name, _value)
