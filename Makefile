# `make` lists the targets. demo, test, test-torch and test-jax set everything up from a bare Python >= 3.10 with pip:
# demo and test create $(VENV) and install there, test-torch does so in $(TORCH_VENV), with PyTorch, test-jax in
# $(JAX_VENV), with JAX, and docs in $(DOCS_VENV), with MkDocs. No GPU is needed.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH_VENV ?= .venv-torch
JAX_VENV ?= .venv-jax
DOCS_VENV ?= .venv-docs
WHEEL_VENV ?= .venv-wheel
SITE ?= site
# Where `make paper-figures` writes.
FIGURES ?= build/paper-figures
# The newest versions that were tested. `make test-torch TORCH=torch==2.11.0 TRITON=triton==3.6.0` takes others, and
# TORCH=torch TRITON=triton what is on offer.
TORCH ?= $(shell sed -n 's/^\(torch==[^;]*\).*/\1/p' requirements/newest.txt)
TRITON ?= $(shell sed -n 's/^\(triton==[^;]*\).*/\1/p' requirements/newest.txt)
# The build for CPUs, a tenth in size of what the ordinary package index has; that is taken where TORCH_INDEX is out of
# reach.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# What `make study` runs, quickest first; STUDY_ARGS="--seconds 60" ends each after that time.
STUDIES ?= forward_errors residuals words schemes modes
# As many processes as the memory of the GPU and the cores carry, see tests/conftest.py.
GPU_PROCESSES ?= $(shell $(PYTHON) -c 'import xdist' 2>/dev/null && printf '%s' '-n auto --dist worksteal')
# Half of these tests, say, where a command may not take long: `make test-gpu PART=1/2` and `PART=2/2`.
PART ?= 1/1
# Architectures for which `make test-compiled` and `make test-compile` compile kernels.
ARCH ?= 80 86 89 90 100 120
PIP_FLAGS ?= --quiet --disable-pip-version-check
# Sources of the compiled core.
CORE := setup.py $(wildcard core/*.[ch] core/blas/*)
PYTEST := $(BIN)/python -m pytest
PYTEST_TORCH := $(TORCH_VENV)/bin/python -m pytest
# Other versions are installed anew.
TORCH_INSTALLED := $(TORCH_VENV)/.installed-$(subst =,,$(TORCH)-$(TRITON))

.DEFAULT_GOAL := help
.PHONY: help demo test test-torch test-compiled test-compile test-jax check format lint types measures corpus test-all docs check-docs test-gpu bench paper-figures study dist test-wheel paper-check venv clean distclean
.DELETE_ON_ERROR:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-study ## accuracy of each scheme and of the native product, as a table and a picture
	$(BIN)/hifigemm demo $(DEMO_ARGS)

test: $(VENV)/.installed-dev ## the quick tests without PyTorch, on the CPU (PYTEST_ARGS=... adds options)
	$(PYTEST) -m "not gpu and not multigpu and not slow and not torch" $(PYTEST_ARGS)

test-torch: $(TORCH_INSTALLED) ## the quick tests with PyTorch, on the CPU; Triton's interpreter runs the GPU kernels, and a sample is compiled
	$(PYTEST_TORCH) -m "torch and not gpu and not multigpu and not slow" $(PYTEST_ARGS)

test-compiled: $(TORCH_INSTALLED) ## what Triton makes of all kernels for each architecture, no GPU needed (hours; ARCH=90 for one; goes on where it ended)
	$(PYTEST_TORCH) tests/kernels -m compiled $(ARCH:%=--arch=%) $(PYTEST_ARGS)

test-compile: $(TORCH_INSTALLED) ## whether the kernels of all tests compile, at the shapes of the tests, no GPU needed (half an hour; ARCH=90 for one)
	for arch in $(ARCH); do \
	    $(PYTEST_TORCH) -p tests.kernels.compile_only --compile-for $$arch tests/kernels tests/engines/cuda \
	        -m "not slow and not compiled" $(PYTEST_ARGS) || exit; \
	done

test-jax: $(JAX_VENV)/.installed ## the tests with JAX, on the CPU
	$(JAX_VENV)/bin/python -m pytest -m "not torch" tests/test_jax.py tests/differentiable/test_jax_callbacks.py tests/differentiable/test_jax_primitive.py tests/libraries/test_jax_arrays.py tests/linalg/test_jax_bounds.py tests/linalg/test_jax_primitives.py tests/numerics/test_subnormals.py tests/examples/test_numpy_examples.py $(PYTEST_ARGS)

check: lint types measures corpus test-all docs ## format, lint, types, structure, bits, all CPU tests, docs: what a change must pass

format: $(VENV)/.installed-dev ## rewrite the sources in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev $(VENV)/.installed-types ## mypy on the sources, mypy and pyright on pages of user code
	$(BIN)/mypy
	$(PYTEST) tests/typing

corpus: $(VENV)/.installed-dev ## results whose bits are the same on every machine, against those of before
	OPENBLAS_NUM_THREADS=1 $(BIN)/python tools/corpus.py --check

measures: $(VENV)/.installed-dev ## counts of the code, and the rules of its imports and tests
	$(BIN)/python tools/measures.py

test-all: $(VENV)/.installed-dev $(TORCH_INSTALLED)
	$(PYTEST) -m "not gpu and not multigpu and not torch" --ignore=tests/typing $(PYTEST_ARGS)
	$(PYTEST_TORCH) -m "torch and not gpu and not multigpu" $(PYTEST_ARGS)

docs: check-docs $(DOCS_VENV)/.installed ## the pages of docs/ checked, and the site built in $(SITE)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet --site-dir $(SITE)
	$(DOCS_VENV)/bin/python tools/check_docs.py --site $(SITE)

check-docs: $(VENV)/.installed-dev
	$(BIN)/python tools/check_docs.py

test-gpu: ## the GPU tests, with PYTHON as it stands (pytest, hypothesis, torch; side by side with pytest-xdist); no venv
	PYTHONPATH=src$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m pytest -m gpu tests --part $(PART) $(GPU_PROCESSES) $(PYTEST_ARGS)

bench: $(VENV)/.installed-dev ## time of the correctly rounded product against the native one
	$(BIN)/python -m benchmarks.correct_rounding $(BENCH_ARGS)

paper-check: $(VENV)/.installed-dev ## the claims of paper/paper.md on this machine, beside what is stated there
	$(BIN)/python tools/paper_check.py

paper-figures: $(VENV)/.installed-study ## the main figure of each paper on the CPU, at small sizes: $(FIGURES)/*.png
	mkdir -p $(FIGURES)
	PYTHONPATH=. $(BIN)/python -m experiments.forward_errors --sizes 128 512 1024 --output $(FIGURES)/forward_errors.csv
	PYTHONPATH=. $(BIN)/python -m experiments.ozaki_modes --sizes 128 512 1024 --output $(FIGURES)/ozaki_modes.csv
	PYTHONPATH=. $(BIN)/python -m experiments.residuals --block 8 --output $(FIGURES)/residuals.csv
	PYTHONPATH=. $(BIN)/python -m experiments.moduli --output $(FIGURES)/moduli.csv
	PYTHONPATH=. $(BIN)/python -m plots.experiments $(foreach name,forward_errors ozaki_modes residuals moduli,$(FIGURES)/$(name).csv)

study: ## the figures of the papers on a GPU: results/NAME_DEVICE.csv, pictures; with PYTHON as it stands, no venv
	for name in $(STUDIES); do PYTHONPATH=src:. $(PYTHON) -m experiments.gpu.$$name $(STUDY_ARGS) || exit 1; done
	PYTHONPATH=src:. $(PYTHON) -m plots.experiments
	PYTHONPATH=src:. $(PYTHON) -m experiments.gpu.answers

dist: $(VENV)/.installed-dist ## the wheel and the sdist in dist/, checked, and the first snippet of the README run from the wheel
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/python tools/check_dist.py dist

test-wheel: dist | $(WHEEL_VENV)/bin/pip ## the tests of the compiled core, with the wheel of the stable ABI in place of the sources
	$(WHEEL_VENV)/bin/python -m pip install $(PIP_FLAGS) --force-reinstall dist/*-cp310-abi3-*.whl hypothesis pytest threadpoolctl
	$(WHEEL_VENV)/bin/python -c "import hifigemm._core"
	$(WHEEL_VENV)/bin/python -m pytest tests/engines/test_core.py tests/engines/test_threads.py $(PYTEST_ARGS)

venv: $(VENV)/.installed-dev ## only set up the development environment

# A stamp for each extra: a changed pyproject.toml installs again, and so do the sources of the compiled core, which
# is left out where there is no C compiler. Anything else does not.
$(VENV)/.installed-%: pyproject.toml $(CORE) | $(VENV)/bin/pip
	@echo "Installing hifigemm[$*] into $(VENV)"
	@$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[$*]'
	@touch $@

# PyTorch by itself first: only it is looked for in TORCH_INDEX, and pip does not wait long where that cannot be reached.
# Triton last and without a look at what PyTorch asks for: each version of PyTorch names one of Triton.
$(TORCH_INSTALLED): pyproject.toml $(CORE) | $(TORCH_VENV)/bin/pip
	@echo "Installing $(TORCH), $(TRITON) and hifigemm[dev,torch] into $(TORCH_VENV)"
	@$(TORCH_VENV)/bin/python -m pip install $(PIP_FLAGS) --no-compile --no-deps --retries 1 \
	    --extra-index-url $(TORCH_INDEX) '$(TORCH)'
	@$(TORCH_VENV)/bin/python -m pip install $(PIP_FLAGS) --no-compile --editable '.[dev,torch]'
	@$(TORCH_VENV)/bin/python -m pip install $(PIP_FLAGS) --no-compile --no-deps "$(TRITON); sys_platform == 'linux'"
	@rm -f $(TORCH_VENV)/.installed*
	@touch $@

$(JAX_VENV)/.installed: pyproject.toml $(CORE) | $(JAX_VENV)/bin/pip
	@echo "Installing hifigemm[jax] and its tests into $(JAX_VENV)"
	@$(JAX_VENV)/bin/python -m pip install $(PIP_FLAGS) --editable '.[jax]' hypothesis pytest
	@touch $@

# Where Playwright is installed here too (DOCS_VENV/bin/pip install playwright), and a browser, the pages are looked at.
$(DOCS_VENV)/.installed: pyproject.toml | $(DOCS_VENV)/bin/pip
	@echo "Installing what builds the site into $(DOCS_VENV)"
	@$(DOCS_VENV)/bin/python -m pip install $(PIP_FLAGS) '.[docs]'
	@touch $@

# Some distributions ship pip but not ensurepip; then PYTHON's own pip installs one into the environment.
$(VENV)/bin/pip $(TORCH_VENV)/bin/pip $(JAX_VENV)/bin/pip $(DOCS_VENV)/bin/pip $(WHEEL_VENV)/bin/pip: %/bin/pip:
	@command -v $(PYTHON) >/dev/null || \
	    { echo "error: $(PYTHON) not found; hifigemm needs Python 3.10 or newer (make PYTHON=/path/to/python3 ...)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "error: hifigemm needs Python 3.10 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>&1)" \
	           "(make PYTHON=/path/to/python3 ...)" >&2; exit 1; }
	@echo "Creating $* with $$($(PYTHON) --version)"
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
	    $(PYTHON) -m venv $*; \
	else \
	    $(PYTHON) -m venv --without-pip $* && \
	    PYTHONPATH="$$($(PYTHON) -c 'import os, pip; print(os.path.dirname(os.path.dirname(pip.__file__)))')" \
	        $*/bin/python -m pip install $(PIP_FLAGS) --ignore-installed pip; \
	fi
	@test -x $@ || { echo "error: no pip in $*; remove it and try again" >&2; exit 1; }

clean: ## remove build products and caches, keep the environments
	rm -rf build dist src/*.egg-info src/hifigemm/_core*.so $(SITE) .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.*' -prune -exec rm -rf {} +

distclean: clean ## as clean, and remove $(VENV) and the other environments too
	rm -rf $(VENV) $(TORCH_VENV) $(JAX_VENV) $(DOCS_VENV) $(WHEEL_VENV)
