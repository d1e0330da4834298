import pytest

from llm4llm.errors import BadArguments
from llm4llm.sandbox import may_be_given, names_a_secret, scrubbed, with_given, without_secrets


def test_only_permitted_names_pass() -> None:
    kept = {
        "PATH": "/bin", "HOME": "/home/u", "LANG": "C", "LC_ALL": "C", "TZ": "UTC",
        "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "2",
        "HF_HOME": "/hf", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRITON_CACHE_DIR": "/t", "PYTHONHASHSEED": "0",
        "PYTHONPATH": "/p",
    }  # fmt: skip
    dropped = {
        "OPENAI_API_KEY": "x", "HF_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "x", "DB_PASSWORD": "x", "CUDA_LICENSE_KEY": "x",
        "TORCH_AUTH": "x",
        "LLM4LLM_HOME": "/h", "MY_OWN": "1", "PYTHONINSPECT": "1", "PYTHONSTARTUP": "/s", "SSH_AUTH_SOCK": "/s", "GITHUB_PAT": "x",
    }  # fmt: skip
    assert scrubbed({**kept, **dropped}) == kept


def test_a_proxy_passes_unless_it_carries_a_password() -> None:
    assert scrubbed({"https_proxy": "http://proxy:3128", "HTTP_PROXY": "http://user:word@proxy:3128"}) == {
        "https_proxy": "http://proxy:3128"
    }


@pytest.mark.parametrize("name", ["api_key", "Token", "X_SECRET_Y", "PGPASSWORD", "GOOGLE_APPLICATION_CREDENTIALS"])
def test_names_of_secrets(name: str) -> None:
    assert names_a_secret(name)


def test_the_owner_may_give_anything() -> None:
    result = with_given({"PATH": "/bin"}, ("OPENAI_API_KEY", "MODE=a=b", "EMPTY="), {"OPENAI_API_KEY": "made-up"})
    assert result == {"PATH": "/bin", "OPENAI_API_KEY": "made-up", "MODE": "a=b", "EMPTY": ""}
    assert without_secrets(result) == {"PATH": "/bin", "MODE": "a=b", "EMPTY": ""}


@pytest.mark.parametrize("item", ["", "=x", "9LIVES=1", "a b", "NOT_SET_HERE"])
def test_what_names_no_variable_is_refused(item: str) -> None:
    with pytest.raises(BadArguments, match="--env"):
        with_given({}, (item,), {})


def test_variables_of_the_dynamic_linker_are_the_owners_alone() -> None:
    assert scrubbed({"LD_LIBRARY_PATH": "/opt/lib"}) == {"LD_LIBRARY_PATH": "/opt/lib"}
    assert not any(map(may_be_given, ("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "GCONV_PATH", "LOCPATH", "GLIBC_TUNABLES")))
    assert may_be_given("OMP_NUM_THREADS")
