"""Stand-ins for the heavy imports of SGLang that its cache code never uses.

SGLang's cache modules import, through its package, GPU kernels, model libraries and servers. None of them runs
when a prefix cache is driven, so any of `STUBBED` that is not installed becomes an empty module whose attributes
exist and do nothing. The cache code itself is imported from the unpacked wheel as it was published.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_NAMES = """
    IPython PIL accelerate aiter anthropic av blobfile cloudpickle compressed_tensors cuda cuda_python cutlass
    datasets decord decord2 deep_ep deep_gemm deepseek_recipe diskcache distro easydict flash_attn flash_mla
    flashinfer gguf granian grpc httpx huggingface_hub humming_kernels interegular ipywidgets jinja2 jsonschema
    kernels llguidance lmcache markupsafe matplotlib mistral_common modelscope mooncake mori nixl numba nvidia
    openai openai_harmony opentelemetry outlines pandas partial_json_parser peft py_spy pycountry pynvml quack ray
    referencing requests_toolbelt safetensors scipy sentencepiece sgl_kernel sgl_kernel_npu smg_grpc_servicer
    soundfile tiktoken tilelang timm tml_renderers tokenizers torch_memory_saver torch_npu torchao torchaudio
    torchcodec torchvision transformers uvicorn_worker uvloop vllm watchfiles websockets xgrammar yaml zstandard
    """
STUBBED = frozenset(_NAMES.split())


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


class _InertMeta(type):
    """Class-level access on a stub: any attribute, item or union is the stub again."""

    def __getattr__(cls, name: str) -> Any:
        if _is_dunder(name):
            raise AttributeError(name)
        return Inert

    def __getitem__(cls, item: object) -> Any:
        return cls

    def __or__(cls, other: object) -> Any:
        return cls

    __ror__ = __or__

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __setitem__(cls, item: object, value: object) -> None:
        pass

    def __len__(cls) -> int:
        return 0

    def __contains__(cls, item: object) -> bool:
        return False


class Inert(metaclass=_InertMeta):
    """Something to import, subclass, annotate with, decorate with or call, that does nothing."""

    def __init__(self, *args: object, **options: object) -> None:
        pass

    def __init_subclass__(cls, **options: object) -> None:
        pass

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()

    def __call__(self, *args: Any, **options: object) -> Any:
        used_as_decorator = len(args) == 1 and not options and callable(args[0])
        return args[0] if used_as_decorator else Inert()

    def __getattr__(self, name: str) -> Any:
        if _is_dunder(name):
            raise AttributeError(name)
        return Inert()

    def __getitem__(self, item: object) -> "Inert":
        return Inert()

    def __setitem__(self, item: object, value: object) -> None:
        pass

    def __or__(self, other: object) -> "Inert":
        return self

    __ror__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return False

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return ()


class _InertModule(types.ModuleType):
    """A module that has every name: functions are inert objects, classes the inert class."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__version__ = "999.0.0"  # newer than any minimum that is asked for
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if _is_dunder(name):
            raise AttributeError(name)
        return Inert() if name[:1].islower() else Inert


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stubs; asked last, so whatever is installed is used as it is."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _InertModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def make_sglang_importable(wheel: Path) -> None:
    """Let `import sglang.srt...` find the unpacked wheel, with stubs for what is missing.

    `sglang/__init__.py` starts the whole front end, so the package is registered without running it.
    """
    if "sglang" in sys.modules:
        return
    package = wheel / "sglang"
    if not package.is_dir():
        raise FileNotFoundError(f"no unpacked sglang wheel in {wheel}: run benchmarks/run.sh once")
    importlib.import_module("tvm_ffi")  # probes for optional packages itself, and must not find stubs
    missing = frozenset(name for name in STUBBED if importlib.util.find_spec(name) is None)
    sys.meta_path.append(_Finder(missing))
    module: Any = types.ModuleType("sglang")
    module.__path__ = [str(package)]
    module.__version__ = "peer"
    module.__spec__ = importlib.machinery.ModuleSpec("sglang", None, is_package=True)
    module.__spec__.submodule_search_locations = [str(package)]
    sys.modules["sglang"] = module
