"""Contents of a small bundle, without torch."""

from typing import Any

from llm4llm.kit import sha256_bytes
from llm4llm.schema.acceptance import Acceptance, Check, Patch, Site, Trialled
from llm4llm.schema.capture import Root
from llm4llm.schema.environment import Environment
from llm4llm.schema.measurement import Paired
from llm4llm.schema.reason import Reason
from llm4llm.schema.verdict import Passed
from llm4llm.stages.bundle.contents import Contents

CANDIDATE = b'"""Doubles the scale in one pass."""\n\n\ndef forward(module, state, x):\n    return 2 * x * module.weight\n'
DOMAIN: dict[str, Any] = {
    "schema_version": 1,
    "effects": False,
    "alternatives": [
        {
            "positional": 1,
            "keywords": ["cache"],
            "ambient": {"training": False, "grad": False, "inference": False, "autocast": {"cpu": None}},
            "slots": [
                [
                    "0",
                    {
                        "kind": "tensor",
                        "dtype": "float32",
                        "device": "cpu",
                        "here": True,
                        "sizes": [[2, 2], [1, 9]],
                        "layouts": ["contiguous"],
                    },
                ],
                ["cache", {"kind": "object", "class": "cache.Cache", "attributes": {"keys": {"kind": "tensor", "filled": False}}}],
            ],
            "equal": [],
            "calls": 2,
        }
    ],
}
TIMING = Paired(baseline_ms=(2.0, 2.2, 2.1), patched_ms=(1.0, 1.1, 1.0), method="test", ci95=(1.9, 2.1), speedup=2.0)


def contents(**more: Any) -> Contents:
    digest = sha256_bytes(CANDIDATE)
    patch = Patch(
        candidate="cand_1",
        candidate_sha256=digest,
        task="task_1",
        root="r0",
        module_class="Scale",
        phase="forward",
        family="f" * 64,
        paths=("layers.0", "layers.1"),
        config={"block": 8},
        proven_domain=more.pop("domain", DOMAIN),
    )
    site = Site(path="layers.0", hits=4, fallbacks=1, fallback_reasons={"shape": 1})
    check = Check(name="outputs", passed=True, detail="equal")
    trial = Trialled(
        patches=("cand_1",),
        checks=(check,),
        sites={"cand_1": (site,)},
        timing=TIMING,
        decision="keep",
        reason=Reason(code="gain", text="2x"),
    )
    acceptance = Acceptance(
        trials=(trial,),
        kept=(patch,),
        together=trial,
        fresh_process=trial,
        decision="accepted",
        reason=Reason(code="accepted", text="one patch"),
    )
    environment = Environment(python="3.11.9", platform="Linux x86_64", cpu="a processor", cpu_threads=2, torch="2.13.0+cpu", target="cpu")
    root = Root(
        id="r0",
        module_class="Stack",
        fingerprint="a" * 64,
        parameters=10,
        parameter_bytes=40,
        devices=("cpu",),
        dtypes=("float32",),
        training=False,
    )
    verdict = Passed(
        reason="right and faster", timing=TIMING, speedup=2.0, ci95=(1.9, 2.1), proven_domain=DOMAIN, config={"block": 8}, language="torch"
    )
    facts: dict[str, Any] = {
        "acceptance": acceptance,
        "environment": environment,
        "roots": (root,),
        "candidates": {digest: CANDIDATE},
        "verdicts": {"cand_1": verdict},
        "origin": {"job": "job_1", "script": "run.py"},
    }
    return Contents(**{**facts, **more})
