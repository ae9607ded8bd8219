"""A Prometheus that scrapes what Ray's service discovery names, with its files in a folder of its own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import httpx
import yaml

from loadtest.isolation import free_port
from tests.integration.cluster import eventually

BINARY = shutil.which("prometheus")


class Prometheus:
    """Runs until it is closed.

    Args:
        targets: a file_sd file.
        rules: a rule file's text.
    """

    def __init__(self, targets: Path, rules: str = "groups: []") -> None:
        assert BINARY is not None
        self._folder = Path(tempfile.mkdtemp(prefix="kvp-prom-"))
        config = self._folder / "prometheus.yml"
        scrape = {"job_name": "ray", "file_sd_configs": [{"files": [str(targets)]}]}
        (self._folder / "rules.yaml").write_text(rules)
        document = {
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s"},
            "scrape_configs": [scrape],
            "rule_files": ["rules.yaml"],
        }
        config.write_text(yaml.safe_dump(document))
        port = free_port()
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - Debian's own
                [
                    BINARY,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        eventually(self._ready, "Prometheus is ready", 60)

    def close(self) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait(timeout=30)
        shutil.rmtree(self._folder, ignore_errors=True)

    def query(self, expression: str) -> list[Any]:
        """The series of an instant vector: labels and value."""
        response = self._client.get("/api/v1/query", params={"query": expression})
        assert response.status_code == 200, response.text
        return list(response.json()["data"]["result"])

    def alerts(self) -> list[Any]:
        """Those that are pending or firing."""
        return list(self._client.get("/api/v1/alerts").json()["data"]["alerts"])

    def value(self, expression: str) -> float | None:
        """Of the only series; None: there is none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def _ready(self) -> bool:
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            return self._client.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False
