"""The variables that a child may see: an allow-list, and never anything named like a secret."""

import re
from collections.abc import Mapping
from pathlib import Path

from llm4llm.errors import BadArguments

_PERMITTED = re.compile(
    r"""
    PATH | HOME | LANG | LANGUAGE | LC_\w+ | TZ | TMPDIR | TEMP | TMP | USER | LOGNAME | SHELL | PWD
    | TERM | COLUMNS | LINES | NO_COLOR | FORCE_COLOR
    | LD_LIBRARY_PATH | VIRTUAL_ENV | CONDA_PREFIX | CONDA_DEFAULT_ENV | XDG_(CACHE|CONFIG|DATA)_HOME | CC | CXX
    | (SSL|REQUESTS|CURL)_\w+
    | (CUDA|CUBLAS|CUDNN|NVIDIA|NCCL)_\w+
    | (OMP|KMP|GOMP|MKL|OPENBLAS|NUMEXPR)_\w+
    | (TORCH|TORCHINDUCTOR|PYTORCH|ATEN|TRITON|HF|TRANSFORMERS|TOKENIZERS)_\w+
    | PYTHON(PATH|HASHSEED|UNBUFFERED|IOENCODING|UTF8|DONTWRITEBYTECODE|WARNINGS|NOUSERSITE|PYCACHEPREFIX|SAFEPATH|OPTIMIZE|FAULTHANDLER)
    """,
    re.VERBOSE,
)
# the dynamic linker takes code from where they say, before a program's own first line: nobody but the machine's owner may set them
_LOADER = re.compile(r"LD_\w+")
_PROXY = re.compile(r"(https?|no|all|ftp)_proxy", re.IGNORECASE)
# TOKENIZERS_PARALLELISM is no secret
_SECRET = re.compile(r"KEY|TOKEN(?!IZER)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|COOKIE|_AUTH|^AUTH|_PAT$", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def names_a_secret(name: str) -> bool:
    """True for variables named like keys, tokens, secrets and passwords."""
    return bool(_SECRET.search(name))


def may_be_given(name: str) -> bool:
    """True for variables that somebody else's script may be given: harmless by name, and nothing named like a secret."""
    if names_a_secret(name) or _LOADER.fullmatch(name):
        return False
    return (_PERMITTED.fullmatch(name) or _PROXY.fullmatch(name)) is not None


def own_caches(folder: Path) -> dict[str, str]:
    """Variables that send temporary files and what compilers keep into a folder, for children that may not write elsewhere."""
    places = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", "CUDA_CACHE_PATH": "cuda"}
    return {"TMPDIR": str(folder), **{name: str(folder / place) for name, place in places.items()}}


def scrubbed(source: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that any child may see."""
    return {name: value for name, value in source.items() if _permitted(name, value)}


def with_given(environment: Mapping[str, str], given: tuple[str, ...], source: Mapping[str, str]) -> dict[str, str]:
    """An environment plus what its owner names: NAME copies from `source`, NAME=VALUE sets. BadArguments for anything else."""
    result = dict(environment)
    for item in given:
        name, equals, value = item.partition("=")
        if not _NAME.match(name):
            raise BadArguments(f"--env {item!r} names no variable", "write --env NAME or --env NAME=VALUE")
        if not equals and name not in source:
            raise BadArguments(f"--env {name}: there is no such variable here", f"set it first or write --env {name}=VALUE")
        result[name] = value if equals else source[name]
    return result


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """An owner's environment for code that is not the owner's: everything except what is named like a secret."""
    return {name: value for name, value in environment.items() if not names_a_secret(name)}


def _permitted(name: str, value: str) -> bool:
    if names_a_secret(name):
        return False
    if _PROXY.fullmatch(name):
        return "@" not in value  # user:password@proxy
    return _PERMITTED.fullmatch(name) is not None
