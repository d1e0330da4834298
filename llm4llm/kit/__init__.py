"""Small tools without domain words: canonical JSON, hashes, ids, clocks, files, durations, process groups."""

from llm4llm.kit.bell import Bell, first_rung
from llm4llm.kit.bucket import TokenBucket
from llm4llm.kit.clock import Clock, FrozenClock, SystemClock, iso
from llm4llm.kit.duration import format_duration, parse_duration
from llm4llm.kit.files import copy_atomic, install_folder, open_plain, open_untrusted, tail, write_atomic, write_untrusted
from llm4llm.kit.folders import NotPlain, clear_untrusted, fresh_untrusted, remove_untrusted, take_untrusted
from llm4llm.kit.hashing import sha256_bytes, sha256_file, sha256_text
from llm4llm.kit.ids import new_id
from llm4llm.kit.json import canonical_json
from llm4llm.kit.logs import set_up_logs
from llm4llm.kit.processes import (
    Member,
    kill_group,
    members,
    proportional_bytes,
    resident_bytes,
    sessions_of,
    signal_group,
    start_ticks,
    unnamed_bytes,
    with_zombies,
)
from llm4llm.kit.source import MOST_SOURCE_BYTES, Source, SourceRefused, read_source
from llm4llm.kit.traces import set_up_traces, span
from llm4llm.kit.words import counted, printable

__all__ = [
    "MOST_SOURCE_BYTES",
    "Bell",
    "Clock",
    "FrozenClock",
    "Member",
    "NotPlain",
    "Source",
    "SourceRefused",
    "SystemClock",
    "TokenBucket",
    "canonical_json",
    "clear_untrusted",
    "copy_atomic",
    "counted",
    "first_rung",
    "format_duration",
    "fresh_untrusted",
    "install_folder",
    "iso",
    "kill_group",
    "members",
    "new_id",
    "open_plain",
    "open_untrusted",
    "parse_duration",
    "printable",
    "proportional_bytes",
    "read_source",
    "remove_untrusted",
    "resident_bytes",
    "sessions_of",
    "set_up_logs",
    "set_up_traces",
    "sha256_bytes",
    "sha256_file",
    "sha256_text",
    "signal_group",
    "span",
    "start_ticks",
    "tail",
    "take_untrusted",
    "write_atomic",
    "write_untrusted",
    "unnamed_bytes",
    "with_zombies",
]
