# `make demo` runs the main job on a fresh machine, `make test` the tests; both set everything up first.
PYTHON ?= python3
TORCH ?= torch==2.13.0
.PHONY: setup demo test test-gpu chaos check format clean
setup: .venv/.ready
.venv/.ready: pyproject.toml hatch_build.py
	$(PYTHON) -m venv .venv && .venv/bin/pip install -q --upgrade pip && .venv/bin/pip install -q "$(TORCH)" && .venv/bin/pip install -q -e '.[dev]' && touch $@
demo: setup
	.venv/bin/llm4llm optimize examples/mamba_generate.py --out llm4llm-out/demo
test: setup
	.venv/bin/pytest
test-gpu: setup
	.venv/bin/pytest -m gpu tests/gpu
chaos: setup
	.venv/bin/python tests/chaos/chaos_run.py
check: setup
	.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy && .venv/bin/lint-imports
format: setup
	.venv/bin/ruff check --fix . && .venv/bin/ruff format .
clean:
	rm -rf .venv llm4llm-out dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
