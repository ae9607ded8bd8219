"""What listens where, and that nothing of ours answers without the ingress's checks."""

from __future__ import annotations

import socket

import httpx
import psutil
import pytest

from tests.integration.cluster import ENGINES, Cluster
from tests.integration.stack import Stack


def listening(process: psutil.Process) -> list[tuple[str, int]]:
    """(address, port) of each TCP port on which the process listens."""
    return [(c.laddr.ip, c.laddr.port) for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]


def http_ports(process: psutil.Process) -> list[tuple[str, int]]:
    """Those ports that speak HTTP; Ray's own in the same process speak gRPC."""
    return [(ip, port) for ip, port in listening(process) if speaks_http(port)]


def speaks_http(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=2) as probe:
        probe.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        try:
            return probe.recv(64).startswith(b"HTTP/1.")
        except OSError:
            return False


@pytest.mark.parametrize("path", ENGINES)
def test_an_engine_listens_on_loopback_and_refuses_who_has_no_token(plumbing_cluster: Cluster, path: str) -> None:
    for replica in plumbing_cluster.replica_processes(ENGINES[path]):
        ((address, port),) = http_ports(replica)
        assert address == "127.0.0.1"
        for route in ("/v1/models", "/health", "/metrics", "/docs", "/v1/chat/completions"):
            for headers in ({}, {"authorization": "Bearer guess"}):
                answer = httpx.get(f"http://127.0.0.1:{port}{route}", headers=headers, timeout=60)
                assert (answer.status_code, answer.content) == (401, b"")


def test_an_engine_core_listens_on_loopback(plumbing_cluster: Cluster) -> None:
    for path in ENGINES:
        for core in plumbing_cluster.engine_processes(path):
            assert {address for address, _ in listening(core)} <= {"127.0.0.1"}


def test_the_public_port_is_on_loopback(plumbing: Stack) -> None:
    proxies = plumbing.processes("haproxy -db")
    assert proxies
    for proxy in proxies:
        assert [ip for ip, port in listening(proxy) if port == plumbing.port] == ["127.0.0.1"]


def test_an_ingress_own_port_is_on_loopback(plumbing_cluster: Cluster) -> None:
    for ingress in plumbing_cluster.replica_processes("Ingress"):
        assert {address for address, _ in http_ports(ingress)} == {"127.0.0.1"}
