"""OpenAPI of the two bodies that a submission may have: routes that read streams have to describe them by hand."""

from typing import Any

from llm4llm.schema.submission import JsonSubmission, Options

_JSON_TEXT = {
    "args": {"type": "string", "contentMediaType": "application/json", "description": "JSON list of the script's own arguments."},
    "environment": {"type": "string", "contentMediaType": "application/json", "description": "JSON object of variables for the script."},
}
_FILE = {"type": "string", "format": "binary"}


def _flat(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without $defs, whose references would point to nowhere inside the document."""
    definitions = schema.pop("$defs", {})

    def put_in(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                return put_in(definitions[value["$ref"].rpartition("/")[2]])
            return {name: put_in(one) for name, one in value.items()}
        return [put_in(one) for one in value] if isinstance(value, list) else value

    flat = put_in(schema)
    assert isinstance(flat, dict)
    return flat


def _multipart() -> dict[str, Any]:
    options = _flat(Options.model_json_schema())["properties"] | _JSON_TEXT
    properties = {
        "script": {**_FILE, "description": "The script, at most 1 MiB; its file name may hold folders."},
        "files": {"type": "array", "items": _FILE, "maxItems": 1000, "description": "More files, by their relative paths."},
        "archive": {**_FILE, "description": "One zip of more files."},
        **options,
    }
    return {"type": "object", "required": ["script"], "additionalProperties": False, "properties": properties}


_EXAMPLE_JSON = {
    "summary": "A script as text",
    "value": {"script": "import torch\nprint(torch.ones(2) + 1)\n", "script_name": "infer.py", "args": ["--size", "tiny"], "budget": "10m"},
}
SUBMISSION: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {"schema": _multipart()},
            "application/json": {"schema": _flat(JsonSubmission.model_json_schema()), "examples": {"script": _EXAMPLE_JSON}},
        },
    }
}
