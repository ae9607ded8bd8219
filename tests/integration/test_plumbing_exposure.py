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
    return [(ip, port) for ip, port in listening(process) if _get(f"http://127.0.0.1:{port}/v1/models") is not None]


def _get(url: str, **headers: str) -> httpx.Response | None:
    try:
        return httpx.get(url, headers=headers, timeout=10)
    except (httpx.TransportError, httpx.InvalidURL):
        return None


@pytest.mark.parametrize("path", ENGINES)
def test_an_engine_listens_on_loopback_and_refuses_who_has_no_token(plumbing_cluster: Cluster, path: str) -> None:
    for replica in plumbing_cluster.replica_processes(ENGINES[path]):
        private = [(ip, port) for ip, port in http_ports(replica) if _refuses(port)]
        assert [ip for ip, _ in private] == ["127.0.0.1"], http_ports(replica)


def _refuses(port: int) -> bool:
    url = f"http://127.0.0.1:{port}"
    routes = ("/v1/models", "/health", "/metrics", "/docs", "/v1/chat/completions")
    answers = [_get(url + route, authorization="Bearer guess") for route in routes]
    return [answer.status_code for answer in answers if answer is not None] == [401] * len(routes)


def test_an_engine_core_speaks_no_http(plumbing_cluster: Cluster) -> None:
    for path in ENGINES:
        for core in plumbing_cluster.engine_processes(path):
            assert http_ports(core) == []


def test_the_public_port_is_on_loopback(plumbing: Stack) -> None:
    proxies = plumbing.processes("haproxy -db")
    assert proxies
    for proxy in proxies:
        assert [ip for ip, port in listening(proxy) if port == plumbing.port] == ["127.0.0.1"]


def test_other_machines_are_refused_on_the_ingress_own_port(plumbing_cluster: Cluster) -> None:
    """Serve opens that port on every interface; without keys the ingress answers this machine only."""
    address = _network_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    for ingress in plumbing_cluster.replica_processes("Ingress"):
        direct = [port for ip, port in http_ports(ingress) if ip not in ("127.0.0.1", "::1")]
        assert direct, "Serve has stopped opening the replicas' ports: tell so in README.md"
        for port in direct:
            answer = _get(f"http://{address}:{port}/v1/models")
            assert answer is not None
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "keys_required"


def _network_address() -> str | None:
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                return address.address
    return None
