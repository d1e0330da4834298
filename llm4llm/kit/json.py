"""One text for equal values: sorted keys, no spaces, no NaN."""

import json
from typing import Any


def canonical_json(value: Any) -> str:
    """JSON text that is equal for equal values; ValueError for NaN and infinities, TypeError for what JSON can't hold."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
