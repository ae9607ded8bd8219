from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from commands.main import main
from tests.fakes import TINY_LLAMA_CONFIG

ROOT = Path(__file__).parents[3]


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Run `kvpulse check` on the shipped file, served with a tiny model on a CPU, after a change to it."""
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(TINY_LLAMA_CONFIG))

    def run(*options: str, change=lambda document: None) -> Result:
        document = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
        arguments = document["applications"][0]["args"]
        arguments["model"]["source"] = str(tmp_path / "model")
        arguments["hardware"] = {"kind": "cpu", "cores": 4, "kv_cache_gib": 1}
        change(document)
        file = tmp_path / "config.yaml"
        file.write_text(yaml.safe_dump(document, sort_keys=False))
        return CliRunner().invoke(main, ["check", str(file), *options])

    return run


def test_a_sound_file_is_shown_with_every_value_and_its_reason(check):
    result = check()
    assert result.exit_code == 0
    assert "block_size" in result.output
    assert "min(32, 2 ** floor(log2(892 / 4))) = 32" in result.output
    assert re.search(r"watermarks.kv_usage_ratio.refuse_long\W+0.9 ", result.output)
    assert "This configuration can be served." in result.output


def test_json_holds_hardware_model_paths_resources_and_advice(check):
    result = check("--json")
    assert result.exit_code == 0
    found = json.loads(result.output)
    assert found["errors"] == []
    assert found["hardware"]["cores"] == 4
    assert found["model"]["max_context_tokens"] == 4096
    options = {option["name"]: option for option in found["paths"]["hot"]["options"]}
    assert options["max_num_seqs"] == {"name": "max_num_seqs", "value": 64, "reason": "short answers (mean 127 tokens)"}
    assert found["resources"]["cold"]["ray_actor_options"] == {"num_cpus": 0.1}
    assert found["admission"]["queues"]["deadline_s"] == 60.0
    assert found["advice"] == []


def test_a_warning_is_printed_and_does_not_fail_the_check(check):
    def no_cache(document):
        document["applications"][0]["args"]["paths"]["hot"]["engine"] = {"enable_prefix_caching": False}

    result = check(change=no_cache)
    assert result.exit_code == 0
    assert "warning no_prefix_cache" in result.output


def test_every_fault_is_printed_on_a_line_of_its_own_and_the_exit_code_is_1(check):
    def break_it(document):
        document["proxy_locaton"] = "HeadOnly"
        document["http_options"]["prot"] = 1

    result = check(change=break_it)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "http_options.prot: unknown key; did you mean 'port'?",
        "proxy_locaton: unknown key; did you mean 'proxy_location'?",
    ]


def test_watermarks_that_do_not_rise_are_refused_with_their_place(check):
    def lower(document):
        marks = {"alert": 0.9, "refuse_long": 0.85, "compress": 0.95, "leave_below": 0.05}
        document["applications"][0]["args"]["admission"] = {"watermarks": {"kv_usage_ratio": marks}}

    result = check(change=lower)
    assert result.exit_code == 1
    assert "admission.watermarks.kv_usage_ratio: alert (0.9), refuse_long (0.85)" in result.stderr


@pytest.mark.parametrize("options", [{"host": "0.0.0.0"}, {}, {"host": "192.0.2.1"}])  # noqa: S104 - an address to refuse
def test_a_port_open_to_the_network_without_keys_is_refused(check, options):
    result = check("--json", change=lambda document: document.update(http_options=options))
    assert result.exit_code == 1
    (error,) = json.loads(result.output)["errors"]
    assert error.endswith("[no_keys]")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_no_keys(check, host):
    assert check(change=lambda document: document.update(http_options={"host": host})).exit_code == 0


def test_a_missing_file_is_one_line():
    result = CliRunner().invoke(main, ["check", "nowhere.yaml"])
    assert result.exit_code == 1
    assert result.stderr == "nowhere.yaml: No such file or directory; name a Serve config file\n"


def test_a_syntax_error_is_one_line_with_its_place(tmp_path):
    (tmp_path / "broken.yaml").write_text("applications:\n  - [1\n")
    result = CliRunner().invoke(main, ["check", str(tmp_path / "broken.yaml")])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"{tmp_path}/broken.yaml:3:1: not valid YAML")


def test_help_imports_neither_ray_nor_pydantic():
    code = (
        "import sys; from click.testing import CliRunner; from commands.main import main\n"
        "assert 'check' in CliRunner().invoke(main, ['--help']).output\n"
        "print([name for name in ('ray', 'vllm', 'torch', 'pydantic') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)  # noqa: S603 - the command is our own
    assert ran.stdout.strip() == "[]"
