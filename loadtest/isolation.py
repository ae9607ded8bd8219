"""What lets several `serve run` share a machine: by default Ray and HAProxy take the same files and ports."""

from __future__ import annotations

import socket
from pathlib import Path

_DIRECT_PORTS = 100


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def isolated_ray(folder: Path, place: int = 0) -> dict[str, str]:
    """Environment variables of one `serve run`.

    Args:
        folder: gets its files. A short name: Unix sockets below it have at most 107 characters.
        place: among those started together, which do not see each other's ports before replicas run.
    """
    first_direct_port = _free_block(20_000 + 4_000 * place)
    return {
        "RAY_TMPDIR": str(folder),
        "RAY_ADDRESS": "local",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(free_port()),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port()),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(free_port()),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first_direct_port),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(first_direct_port + _DIRECT_PORTS),
    }


def _free_block(lowest: int) -> int:
    """The first of `_DIRECT_PORTS` ports below the range from which the system takes ports by itself."""
    for first in range(lowest, 32_000, _DIRECT_PORTS):
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", first))  # noqa: S104 - Ray binds them so
            except OSError:
                continue
            return first
    raise OSError("no free block of ports below 32000")
