"""A proven domain in words, for people."""

from typing import Any


def domain_in_words(domain: dict[str, Any]) -> list[str]:
    """One line per alternative: what a call must look like for the patch to take it."""
    lines = [_alternative(one) for one in domain.get("alternatives", ())]
    return [f"{line}; anything else runs the original" for line in lines]


def _alternative(facts: dict[str, Any]) -> str:
    ambient = facts["ambient"]
    modes = ["training mode" if ambient["training"] else "eval mode", "inference_mode" if ambient["inference"] else "no inference_mode"]
    modes += [f"autocast on {device} to {dtype}" for device, dtype in ambient["autocast"].items() if dtype is not None]
    arguments = [f"{_name(path)} {words}" for path, fact in facts["slots"] if (words := _fact(fact))]
    text = f"no gradients needed, {', '.join(modes)}; " + ", ".join(arguments)
    for group in facts["equal"]:
        text += "; equal sizes: " + " = ".join(f"{_name(path)}[{axis}]" for path, axis in group)
    return text


def _name(path: str) -> str:
    return f"argument {path}" if path[:1].isdigit() else path


def _fact(fact: dict[str, Any]) -> str:
    kind = fact["kind"]
    if kind == "tensor":
        sizes = " x ".join(str(low) if low == high else f"{low}..{high}" for low, high in fact["sizes"]) or "scalar"
        layouts = "" if fact["layouts"] == ["contiguous"] else f", strides {' or '.join(fact['layouts'])}"
        return f"a {fact['dtype']} tensor on {fact['device']} of {sizes}{layouts}"
    if kind == "int":
        low, high = fact["range"]
        return f"= {low}" if low == high else f"from {low} to {high}"
    if kind in ("value", "text"):
        return f"= {fact['value']}"
    if kind == "object":
        return f"a {fact['class'].rpartition('.')[2]} ({_state(fact)})"
    if kind in ("sequence", "dict"):
        return ""  # its items have entries of their own
    return f"is {fact.get('name') or fact.get('class')}"


def _state(fact: Any) -> str:
    """ "filled", "empty" or "without tensors": whether any tensor that the module can see in an object holds elements."""
    filled = _tensors(fact)
    return "without tensors" if not filled else "filled" if any(filled) else "empty"


def _tensors(fact: Any) -> list[bool]:
    if isinstance(fact, dict):
        own = [bool(fact["filled"])] if fact.get("kind") == "tensor" else []
        return own + [found for item in fact.values() for found in _tensors(item)]
    return [found for item in fact for found in _tensors(item)] if isinstance(fact, list) else []
