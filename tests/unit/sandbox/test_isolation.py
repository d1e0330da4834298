import os

import pytest

from llm4llm.sandbox import isolation


@pytest.mark.parametrize(
    ("root", "permitted", "found"),
    [
        (True, {"--user", "--net", "--ipc"}, ("--net", "--ipc")),
        (True, {"--net"}, ("--net",)),
        (False, {"--user", "--net", "--ipc"}, ("--user", "--map-current-user", "--net", "--ipc")),
        (False, {"--user", "--net"}, ("--user", "--map-current-user", "--net")),
        (False, {"--net"}, ()),
    ],
)
def test_the_network_is_cut_off_and_shared_memory_where_that_is_permitted(
    monkeypatch: pytest.MonkeyPatch, root: bool, permitted: set[str], found: tuple[str, ...]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr(isolation, "_works", lambda prefix: {"--user", "--net", "--ipc"} & set(prefix) <= permitted)
    assert isolation._network()[0] == (("unshare", *found, "--") if found else ())
