# make audit: train a small private model and audit it. make test: the whole suite. make check: format, lint, types,
# documentation, fast tests. make check test: both, and each test once. make docs: the documentation as a site,
# out/site/index.html.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# what only tests need: an audit of numbers loads none of it
TESTED := $(VENV)/.installed-for-tests
AUDIT_OUT := out/audit
# a process per core, a thread per process: two threads each are several times slower; bytecode is kept, or each of the
# hundred processes that the tests start compiles every module again
TESTS := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal

# a broken link or an unresolved reference fails the build
SITE := OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -E -c docs -d out/doctrees . out/site

.PHONY: audit test check docs clean
.DELETE_ON_ERROR:

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "dpaudit needs Python >= 3.11, and '$(PYTHON)' is not installed: apt-get install python3 python3-venv" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "dpaudit needs Python >= 3.11, and '$(PYTHON)' is $$($(PYTHON) -V 2>&1): name a newer one with make PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "dpaudit needs Python's venv module: apt-get install python3-venv" >&2; exit 2; }
	@echo "Setting up $(VENV) (a minute or two; most of it is torch)"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,rigorous]' -c constraints.txt
	@touch $@

$(TESTED): $(STAMP)
	@echo "Adding what only the tests need (a minute or two, under a gigabyte)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,rigorous,cluster,text,sign,docs]' -c constraints.txt
	@touch $@

audit: $(STAMP)
	@mkdir -p out
	@$(BIN)/dpaudit train examples/digits-gaussian.toml --out out/digits-gaussian.pt --seed 1
	@$(BIN)/dpaudit run out/digits-gaussian.pt --out $(AUDIT_OUT) --seed 1

test: $(TESTED)
	@$(TESTS)

check: $(TESTED)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/basedpyright --threads 2 --pythonpath $(BIN)/python
	@$(if $(filter test,$(MAKECMDGOALS)),,$(SITE)) # as a test does
	@$(if $(filter test,$(MAKECMDGOALS)),,$(TESTS) -q -m "not slow and not papers")

docs: $(TESTED)
	@$(SITE)
	@echo "out/site/index.html"

clean:
	rm -rf $(VENV) out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
