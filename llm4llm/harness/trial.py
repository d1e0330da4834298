"""Patches tried on the live models: the same results, the time they save in place, and everything as before afterwards."""

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from llm4llm.harness.agreement import Agreement, Finding
from llm4llm.harness.arms import Arms, arms, difference, portrait
from llm4llm.harness.evidence import Evidence, Jitter, Leaf, observe
from llm4llm.harness.nested import same_tensor
from llm4llm.harness.replay import settled_heap, timed
from llm4llm.harness.site_check import SiteComparison, compare_sites
from llm4llm.harness.wording import counted
from llm4llm.harness.workload import DriverEntry, RootEntry, Workload

CLEAR_PAIRS = 8
MAX_CHECKED = 6  # driver calls (and second examples of them) whose results are compared
CHECK_NAMES = ("applies", "runs", "exceptions", "structure", "sites", "tokens", "logits", "outputs", "state")


# Two unpatched runs by driver call and example: the same for every trial, since each one ends with the check that they still repeat.
_unpatched: "weakref.WeakKeyDictionary[DriverEntry, dict[int, tuple[Evidence, Evidence]]]" = weakref.WeakKeyDictionary()


@dataclass
class _Reference:
    """Unpatched evidence of one recorded example of a driver call."""

    driver: DriverEntry
    example: int
    once: Evidence
    again: Evidence
    shaken: Evidence

    @property
    def deterministic(self) -> bool:
        return _same(self.once, self.again)


@dataclass
class _Checks:
    """Findings of all driver calls, one check per name: the first failure speaks, else the first detail."""

    found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, passed: bool, detail: str, excused: bool = False) -> None:
        known = self.found.get(name)
        # a failure speaks before an excuse, an excuse before plain agreement
        if known is None or (known["passed"] and (not passed or (excused and not known["excused"]))):
            self.found[name] = {"name": name, "passed": passed, "detail": detail, "excused": excused}

    @property
    def passed(self) -> bool:
        return all(check["passed"] for check in self.found.values())

    def listed(self) -> list[dict[str, Any]]:
        ranks = {name: rank for rank, name in enumerate(CHECK_NAMES)}
        return sorted(self.found.values(), key=lambda check: ranks.get(check["name"], len(ranks)))


def trial(workload: Workload, payload: dict[str, Any]) -> dict[str, Any]:
    """{"checks", "sites", "baseline_ms", "patched_ms", "restored", "method"} of patches on top of others.

    Payload: {"patches": [schema.Patch with "file"], "base": the same (on in both arms), "pairs", "min_pairs", "clear_above",
    "time_limit_s"}. Results are
    compared with the model without any patch. Pairs are timed only if all checks passed and every new patch ran. No patch is left on the
    models.
    """
    new, base = payload["patches"], payload.get("base", [])
    touched = {patch["root"] for patch in (*new, *base)}
    roots = [root for root in workload.roots if root.id in touched]
    drivers = workload.replayable()
    checks, result = _Checks(), _Result()
    references = _references(drivers, touched, _jitters(new, base))
    before = {root.id: portrait(root.module) for root in roots}
    stage = "applies"
    try:
        with arms(roots, base, new) as variants:
            stage = "runs"
            _check(variants, references, checks)
            _check_exceptions(variants, checks)
            if checks.passed:
                result.sites = _counted(variants, drivers)
                if _all_ran(result.sites, new):
                    _measure(variants, drivers, payload, result)
    except Exception as error:
        checks.add(stage, False, f"{type(error).__name__}: {error}")
    restored = _restored(roots, before, references, checks)
    return {
        "checks": checks.listed(),
        "sites": result.sites,
        "baseline_ms": result.baseline_ms,
        "patched_ms": result.patched_ms,
        "restored": restored,
        "method": result.method,
    }


@dataclass
class _Result:
    sites: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    baseline_ms: list[float] = field(default_factory=list)
    patched_ms: list[float] = field(default_factory=list)
    method: str = ""


def _weight(driver: DriverEntry) -> int:
    return max(1, driver.count)


def _script_ms(driver: DriverEntry) -> float:
    return _weight(driver) * (sum(driver.wall_ms) / len(driver.wall_ms) if driver.wall_ms else 0.0)


def _jitters(new: Sequence[dict[str, Any]], base: Sequence[dict[str, Any]]) -> dict[str, frozenset[str]]:
    """The patched paths of each root."""
    found: dict[str, set[str]] = {}
    for patch in (*new, *base):
        found.setdefault(patch["root"], set()).update(patch["paths"])
    return {root: frozenset(paths) for root, paths in found.items()}


def _references(drivers: Sequence[DriverEntry], touched: set[str], jitters: dict[str, frozenset[str]]) -> list[_Reference]:
    """Unpatched evidence, the most expensive driver calls first; both recorded examples of each while there is room."""
    mine = sorted((driver for driver in drivers if driver.root.id in touched), key=lambda driver: -_script_ms(driver))
    wanted = [(driver, 0) for driver in mine] + [(driver, 1) for driver in mine if len(driver.examples) > 1]
    references = []
    for driver, example in wanted[:MAX_CHECKED]:
        known = _unpatched.setdefault(driver, {})
        if example not in known:
            known[example] = (observe(driver, example), observe(driver, example))
        shaken = observe(driver, example, Jitter(jitters[driver.root.id]))
        references.append(_Reference(driver, example, *known[example], shaken))
    return references


def _check(variants: Arms, references: Sequence[_Reference], checks: _Checks) -> None:
    variants.full()
    for reference in references:
        driver = reference.driver
        try:
            observe(driver, reference.example)  # compiles kernels, fills caches that patches keep
            patched = observe(driver, reference.example)
        except Exception as error:
            checks.add("runs", False, f"{driver.id} ({driver.method}) raised {type(error).__name__} with the patches on: {error}")
            continue
        checks.add("runs", True, "every driver call ran to its end")
        findings = Agreement(reference.once, reference.again, reference.shaken, patched).findings()
        said = f"{driver.id} ({driver.method})"
        if any(finding.excused or finding.amplified for finding in findings):
            sites = compare_sites(driver, reference.example, {site["path"] for site in variants.sites()})
            checks.add("sites", sites.passed, f"{said}: {sites.detail}")
            findings = [_settled(finding, sites) for finding in findings]
        for finding in findings:
            checks.add(finding.name, finding.passed, f"{said}: {finding.detail}", finding.excused)
    variants.off()


def _settled(finding: Finding, sites: SiteComparison) -> Finding:
    """A difference that rounding noise makes as well is excused if every site agrees with the original on the same inputs."""
    if not (finding.amplified and sites.passed):
        return finding
    text = f"{finding.detail}; the model amplifies rounding noise of the patched modules as far, and all sites agree on the same inputs"
    return replace(finding, passed=True, excused=True, amplified=False, detail=text)


def _check_exceptions(variants: Arms, checks: _Checks) -> None:
    raised = next((site for site in variants.sites() if site["disabled"]), None)
    if raised is not None:
        checks.add("exceptions", False, f"{raised['patch']} at {raised['path'] or 'the root'}: {raised['disabled']}")


def _counted(variants: Arms, drivers: Sequence[DriverEntry]) -> dict[str, list[dict[str, Any]]]:
    """Counters by candidate over one pass: every driver call ran once and counts as often as the script called it."""
    sites: dict[tuple[str, str], dict[str, Any]] = {}
    variants.full()
    for driver in drivers:
        variants.reset_counters()
        timed(driver)
        for found in variants.sites():
            site = sites.setdefault(
                (found["patch"], found["path"]), {"path": found["path"], "hits": 0, "fallbacks": 0, "fallback_reasons": {}}
            )
            times = _weight(driver)
            site["hits"] += found["hits"] * times
            site["fallbacks"] += found["fallbacks"] * times
            for reason, count in found["fallback_reasons"].items():
                site["fallback_reasons"][reason] = site["fallback_reasons"].get(reason, 0) + count * times
    variants.off()
    by_candidate: dict[str, list[dict[str, Any]]] = {}
    for (candidate, _), site in sites.items():
        by_candidate.setdefault(candidate, []).append(site)
    return by_candidate


def _all_ran(sites: dict[str, list[dict[str, Any]]], patches: Sequence[dict[str, Any]]) -> bool:
    return all(sum(site["hits"] for site in sites.get(patch["candidate"], [])) for patch in patches)


def _measure(variants: Arms, drivers: Sequence[DriverEntry], payload: dict[str, Any], result: _Result) -> None:
    """Paired times in ABBA order: the pair after an AB pair is a BA pair, so that drift hits both variants alike."""
    limit_s, most, least = float(payload["time_limit_s"]), int(payload["pairs"]), int(payload["min_pairs"])
    started = time.perf_counter()
    variants.base()
    for driver in drivers:
        timed(driver)  # the base patches' own warm-up
    costs = {driver.id: _pass_seconds(driver) for driver in drivers}
    chosen = _representative(drivers, costs, limit_s / (2 * least))
    result.method = _method(drivers, chosen)
    with settled_heap():
        while len(result.baseline_ms) < most:
            spent = time.perf_counter() - started
            pairs = len(result.baseline_ms)
            each = spent / (pairs + 1)
            if (pairs >= least and spent + each > limit_s) or spent > 3.0 * limit_s or _plain_to_see(result, float(payload["clear_above"])):
                break
            order: tuple[Literal["base", "full"], ...] = ("base", "full") if pairs % 2 == 0 else ("full", "base")
            taken = {name: _pass_ms(variants.switch[name], chosen) for name in order}
            result.baseline_ms.append(taken["base"])
            result.patched_ms.append(taken["full"])
    variants.off()


def _plain_to_see(result: _Result, clear_above: float) -> bool:
    """True once enough pairs agree to a man: all of them beyond `clear_above`, or all of them slower by more than 2 %.

    Were the true median at the bound, eight pairs would all lie beyond it once in 256 jobs; more pairs only narrow the interval.
    """
    ratios = [before / after for before, after in zip(result.baseline_ms, result.patched_ms, strict=True)]
    return len(ratios) >= CLEAR_PAIRS and (min(ratios) > clear_above or max(ratios) < 0.98)


def _pass_seconds(driver: DriverEntry) -> float:
    """Seconds that one repetition takes, copies of inputs included."""
    start = time.perf_counter()
    timed(driver)
    return time.perf_counter() - start


def _pass_ms(switch: Callable[[], None], drivers: Sequence[DriverEntry]) -> float:
    switch()
    return sum(_weight(driver) * timed(driver)[0] for driver in drivers)


def _representative(drivers: Sequence[DriverEntry], costs: dict[str, float], most_s: float) -> list[DriverEntry]:
    """All driver calls, or the weightiest ones that fit into `most_s` seconds (at least one)."""
    chosen: list[DriverEntry] = []
    spent = 0.0
    for driver in sorted(drivers, key=lambda driver: -_weight(driver) * costs[driver.id]):
        if not chosen or spent + costs[driver.id] <= most_s:
            chosen.append(driver)
            spent += costs[driver.id]
    return [driver for driver in drivers if driver in chosen]


def _method(drivers: Sequence[DriverEntry], chosen: Sequence[DriverEntry]) -> str:
    subset = (
        ""
        if len(chosen) == len(drivers)
        else f" ({len(chosen)} representative ones of {len(drivers)}: {', '.join(one.id for one in chosen)})"
    )
    return (
        f"driver calls{subset} replayed whole on the live instance, each repetition with fresh inputs and random state, weighted by their "
        "number of calls in the script; both variants prepared and warmed up before, pairs in ABBA order"
    )


def _restored(roots: Sequence[RootEntry], before: dict[str, Any], references: Sequence[_Reference], checks: _Checks) -> bool:
    """True if the models are as before and repeat their unpatched results bit by bit (where they did so before)."""
    changed = next((found for root in roots if (found := difference(before[root.id], portrait(root.module))) is not None), None)
    if changed is not None:
        checks.add("restored", False, changed)
        return False
    for reference in references:
        if reference.deterministic:
            try:
                same = _same(reference.once, observe(reference.driver, reference.example))
            except Exception as error:
                checks.add("restored", False, f"{reference.driver.id} raised {type(error).__name__} once the patches were off: {error}")
                return False
            if not same:
                checks.add("restored", False, f"{reference.driver.id} gives other bits than before the patches were tried")
                return False
    exact = sum(reference.deterministic for reference in references)
    others = "" if exact == len(references) else " (the others never do, patched or not)"
    checks.add(
        "restored", True, f"dicts, hooks and repr as before; {exact} of {counted(len(references), 'result')} repeated bit by bit{others}"
    )
    return True


def _same(one: Evidence, two: Evidence) -> bool:
    """Bit-wise equality of results and states."""
    return all(
        left.keys() == right.keys() and all(_same_leaf(left[path], right[path]) for path in left)
        for left, right in ((one.result, two.result), (one.state, two.state))
    )


def _same_leaf(one: Leaf, two: Leaf) -> bool:
    if one.is_tensor and two.is_tensor:
        return same_tensor(one.value, two.value)
    return one.kind == two.kind and (one.value is two.value or one.value == two.value)
