# make demo: FedAvg, FedGE and FedGELA on real digits.    make test: tests, lint and types.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-federation bench lint types unit clean

demo: $(VENV)/.demo
	@rm -rf runs/demo
	$(BIN)/fedgela compare configs/demo.toml --out runs/demo --seeds 0,1,2

test: lint types unit

# other frameworks are measured too where they are installed: $(BIN)/pip install --editable ".[bench]"
bench: $(VENV)/.demo
	@mkdir -p runs
	$(BIN)/fedgela bench --out runs/bench.json

# all of a federation, with the faults of server and sites as real processes that `make test` has no time for
test-federation: $(VENV)/.dev
	$(BIN)/python -m pytest tests/flower -m ""

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n auto --dist worksteal
	@echo "the GPU kernels, in Triton's interpreter:"
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -n auto tests/training/test_kernels.py

# torch first and by itself: its range takes the CPU build where one is at hand
$(VENV)/.demo: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedgela needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "torch>=2.11,<2.14"
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/pip install --quiet --editable ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
